//! The arguments of calls in tags, which are told one by one. Of GLM's tags some may be missing, doubled or others than they should be.

use std::mem::take;

use super::Format;
use super::heads::{Head, Key};
use super::literal::{self, write_escaped};
use super::marks::{TAG_END, VALUE_END};
use super::parser::{Parser, State};
use super::tags::{Next, Tag, next, without_begun};
use super::typed::{self, Kinds};

/// The meaning of the next tag in a value.
pub(super) enum Ending {
    /// The meaning is not certain yet.
    More,
    /// The tag belongs to the value, up to this place.
    Literal(usize),
    /// The tag is doubled or a stray one, and is left out.
    Stray { at: usize, end: usize },
    /// The value ends, and the text goes on from a place on.
    End { at: usize, next: usize },
    /// The answer ends in the value.
    Cut,
}

impl Parser {
    fn is_likely_key(&self, text: &str) -> bool {
        self.known.is_likely_key(self.tool, text)
    }

    /// Whether a call begins behind the mark that begins one; `None` if that is not certain yet.
    pub(super) fn begins_call(&self, from: usize) -> Option<bool> {
        match self.heads().read(&self.held[from..]) {
            Head::More => None,
            Head::Text => Some(false),
            _ => Some(true),
        }
    }

    /// Goes on with a key, or without the tag that should begin one and ends at `end`.
    fn go_on(&mut self, key: Key, end: usize) -> Option<()> {
        match key {
            Key::More => return None,
            Key::None => drop(self.held.drain(..end)),
            Key::Found(key, at) => {
                self.held.drain(..at);
                self.state = State::BeforeValue(key);
            }
        }
        Some(())
    }

    pub(super) fn between_arguments(&mut self) -> Option<()> {
        if self.format == Format::Xml {
            return self.between_in_xml();
        }
        let (text, tag, at, end) = match next(&self.held, 0) {
            Next::Tag { text, tag, at, end } => (text, tag, at, end),
            Next::Open(_) if !self.over => return None,
            Next::Open(_) => {
                // A call may end with the answer.
                self.end_arguments(self.whole);
                return Some(());
            }
        };
        let heads = self.heads();
        if !text.trim().is_empty() {
            return match tag {
                // The tag that begins a key is missing.
                Tag::KeyEnd => {
                    let key = heads.key(self.tool, &self.held, 0);
                    self.go_on(key, at)
                }
                Tag::Value if self.is_likely_key(text) => {
                    let key = heads.key(self.tool, &self.held, 0);
                    self.go_on(key, at)
                }
                Tag::Call => {
                    self.end_arguments(true);
                    Some(())
                }
                _ => {
                    let text: String = self.held.drain(..at).collect();
                    self.tell_object(&text);
                    Some(())
                }
            };
        }
        match tag {
            Tag::Key if self.over && matches!(next(&self.held, end), Next::Open(_)) => {
                // The answer ends in a key.
                self.held.clear();
                self.end_arguments(false);
                Some(())
            }
            Tag::Key => {
                let key = heads.key(self.tool, &self.held, end);
                self.go_on(key, end)
            }
            Tag::Value => {
                let key = match next(&self.held, end) {
                    Next::Open(_) if !self.over => return None,
                    Next::Tag {
                        text,
                        tag: Tag::KeyEnd,
                        ..
                    } if !text.trim().is_empty() => heads.key(self.tool, &self.held, end),
                    _ => Key::None,
                };
                self.go_on(key, end)
            }
            Tag::Call => match heads.key_behind_call(self.tool, &self.held, end) {
                Key::None => {
                    self.end_arguments(true);
                    Some(())
                }
                key => self.go_on(key, end),
            },
            Tag::CallEnd => {
                self.held.drain(..end);
                self.end_arguments(true);
                Some(())
            }
            Tag::KeyEnd | Tag::ValueEnd => {
                self.held.drain(..end);
                Some(())
            }
        }
    }

    pub(super) fn before_value(&mut self, key: &str) -> Option<()> {
        if self.format == Format::Xml {
            return self.before_value_in_xml(key);
        }
        let (text, tag, at, end) = match next(&self.held, 0) {
            Next::Tag { text, tag, at, end } => (text, tag, at, end),
            Next::Open(_) if !self.over => return None,
            Next::Open(text) if text.trim().is_empty() => {
                self.end_arguments(false);
                return Some(());
            }
            Next::Open(_) => {
                self.begin_value(key);
                return Some(());
            }
        };
        let behind = next(&self.held, end);
        let is_open = !self.over && matches!(behind, Next::Open(_));
        let (text_behind, tag_behind) = match behind {
            Next::Open(text) => (text, None),
            Next::Tag { text, tag, .. } => (text, Some(tag)),
        };
        let is_blank = text_behind.trim().is_empty();
        if !text.trim().is_empty() {
            match tag {
                Tag::Value => drop(self.held.drain(..at)),
                // The tag that begins the value is missing.
                _ => self.begin_value(key),
            }
            return Some(());
        }
        let begins_value = match tag {
            Tag::Value => true,
            Tag::KeyEnd => {
                self.held.drain(..end);
                return Some(());
            }
            Tag::Key | Tag::ValueEnd | Tag::Call if is_open => return None,
            // Another tag than the one that begins values.
            Tag::Key => tag_behind == Some(Tag::ValueEnd) && !is_blank,
            Tag::Call => {
                let is_value = tag_behind == Some(Tag::ValueEnd) && !is_blank;
                is_value && self.begins_call(end) == Some(false)
            }
            Tag::ValueEnd if tag_behind == Some(Tag::Value) && is_blank => {
                self.held.drain(..end);
                return Some(());
            }
            Tag::ValueEnd => {
                // The value is empty.
                self.begin_value(key);
                return Some(());
            }
            Tag::CallEnd => false,
        };
        match begins_value {
            true => {
                self.held.drain(..end);
                self.begin_value(key);
            }
            // The key has no value.
            false => self.state = State::Arguments,
        }
        Some(())
    }

    /// Begins a value. A text is told as it comes, others when they are whole.
    pub(super) fn begin_value(&mut self, key: &str) {
        let kinds = typed::kinds(&self.known.tool(self.tool).parameters, key);
        self.value = 0;
        match kinds.is_text() {
            true => self.begin_text(key),
            false => self.state = State::InValue(key.to_owned(), kinds),
        }
    }

    fn begin_text(&mut self, key: &str) {
        self.tell_key(key);
        self.more("\"");
        self.value = 0;
        self.state = State::InText;
    }

    fn tell_key(&mut self, key: &str) {
        let before = if self.arguments == 0 { "{" } else { ", " };
        let key = serde_json::Value::from(key);
        self.more(format!("{before}{key}: "));
        self.arguments += 1;
    }

    /// Tells the arguments of an object that stands among those in tags, if a text is one.
    fn tell_object(&mut self, text: &str) {
        let read = literal::read(text, false);
        let inner = read.as_deref().and_then(|json| json.strip_prefix('{'));
        let inner = inner.and_then(|inner| inner.strip_suffix('}'));
        if let Some(inner) = inner.map(str::trim).filter(|inner| !inner.is_empty()) {
            let before = if self.arguments == 0 { "{" } else { ", " };
            self.more(format!("{before}{inner}"));
            self.arguments += 1;
        }
    }

    /// Tells more of a text.
    fn more_text(&mut self, text: &str) {
        let mut json = String::new();
        text.chars().for_each(|c| write_escaped(&mut json, c));
        self.value += text.len();
        self.more(json);
    }

    /// Tells a value that was written as text, and was cut if `cut` is true.
    fn more_json(&mut self, key: &str, text: &str, cut: bool) {
        let parameters = &self.known.tool(self.tool).parameters;
        self.more(typed::argument(parameters, key, text, cut));
    }

    /// The rest of a value in which the answer ends, without a tag that was begun.
    fn cut_value(&mut self) -> String {
        let mut text = take(&mut self.held);
        text.truncate(match self.format {
            Format::Xml => self.cut_in_xml(&text),
            _ => without_begun(&text, &[VALUE_END, TAG_END]),
        });
        text
    }

    /// The end of the text from a place on that has no tag.
    fn certain(&self, from: usize) -> usize {
        match self.format {
            Format::Xml => self.certain_in_xml(from),
            _ => match next(&self.held, from) {
                Next::Open(text) => from + text.len(),
                Next::Tag { at, .. } => at,
            },
        }
    }

    pub(super) fn in_text(&mut self) -> Option<()> {
        match self.ending(0) {
            Ending::More => {
                let end = match self.format {
                    Format::Xml => self.told_in_xml(),
                    // A key that a value follows without the tags between them.
                    _ => {
                        let certain = &self.held[..self.certain(0)];
                        self.known.key_at_end(self.tool, certain, false)
                    }
                };
                let text: String = self.held.drain(..end).collect();
                self.more_text(&text);
                return None;
            }
            Ending::Literal(end) => {
                let text: String = self.held.drain(..end).collect();
                self.more_text(&text);
            }
            Ending::Stray { end, .. } => drop(self.held.drain(..end)),
            Ending::End { at, next } => {
                let text: String = self.held.drain(..next).collect();
                self.more_text(&text[..at]);
                self.more("\"");
                self.state = State::Arguments;
            }
            Ending::Cut => {
                let text = self.cut_value();
                self.more_text(&text);
                self.more("\"");
                self.end_arguments(false);
            }
        }
        Some(())
    }

    pub(super) fn in_value(&mut self, key: &str, kinds: Kinds) -> Option<()> {
        let ending = self.ending(self.value);
        let known = match &ending {
            Ending::More => &self.held[..self.certain(self.value)],
            Ending::Literal(end) | Ending::End { at: end, .. } => &self.held[..*end],
            Ending::Stray { at, .. } => &self.held[..*at],
            Ending::Cut => &self.held[..],
        };
        let is_over = matches!(ending, Ending::End { .. } | Ending::Cut);
        if kinds.is_text_or_null() && !typed::may_be_null(known, !is_over) {
            self.begin_text(key);
            return Some(());
        }
        match ending {
            Ending::More => {
                self.value = self.certain(self.value);
                return None;
            }
            Ending::Literal(end) => self.value = end,
            Ending::Stray { at, end } => drop(self.held.drain(at..end)),
            Ending::End { at, next } => {
                let text: String = self.held.drain(..next).collect();
                // Nothing is no number, no list and no object.
                if kinds.has_text() || !text[..at].trim().is_empty() {
                    self.tell_key(key);
                    self.more_json(key, &text[..at], false);
                }
                self.state = State::Arguments;
            }
            Ending::Cut => {
                let text = self.cut_value();
                if !text.trim().is_empty() {
                    self.tell_key(key);
                    self.more_json(key, &text, true);
                }
                self.end_arguments(false);
            }
        }
        Some(())
    }

    /// The end of a whole call in a value, if the value goes on behind it; `None` if that is not certain yet.
    fn quoted_call(&self, from: usize) -> Option<Option<usize>> {
        let open = match self.over {
            true => Some(None),
            false => None,
        };
        let Some(at) = self.held[from..].find(TAG_END) else {
            return open;
        };
        let end = from + at + TAG_END.len();
        match next(&self.held, end) {
            Next::Open(_) => open,
            Next::Tag { tag, .. } => Some((tag == Tag::ValueEnd).then_some(end)),
        }
    }

    /// The meaning of the first tag from a place of the value on. A tag that the call does not need belongs to the value, such as in a
    /// text about tags.
    fn ending(&self, from: usize) -> Ending {
        if self.format == Format::Xml {
            return self.ending_in_xml(from);
        }
        let (text, tag, at, end) = match next(&self.held, from) {
            Next::Tag { text, tag, at, end } => (text, tag, at, end),
            Next::Open(_) if self.over => return Ending::Cut,
            Next::Open(_) => return Ending::More,
        };
        let is_empty = self.value == 0 && text.is_empty();
        let behind = next(&self.held, end);
        let (text_behind, tag_behind, end_behind) = match behind {
            Next::Open(text) => (text, None, self.held.len()),
            Next::Tag { text, tag, end, .. } => (text, Some(tag), end),
        };
        let is_blank = text_behind.trim().is_empty();
        let may_go_on = tag_behind.is_none() && !self.over;
        // Where a tag stands that goes on with the call.
        let goes_on = matches!(tag_behind, Some(Tag::Key | Tag::CallEnd | Tag::Call));
        let key_begins = self.known.key_at_end(self.tool, &self.held[..at], true);
        let ends = |next| Ending::End {
            at: at.min(next),
            next,
        };
        match tag {
            Tag::Value | Tag::KeyEnd if is_empty => Ending::Stray { at, end },
            Tag::ValueEnd => match tag_behind {
                None if may_go_on => Ending::More,
                Some(Tag::ValueEnd) if !is_blank => Ending::Literal(end),
                _ => ends(end),
            },
            Tag::KeyEnd if is_blank && may_go_on && key_begins < at => Ending::More,
            Tag::KeyEnd if is_blank && tag_behind == Some(Tag::Value) && key_begins < at => {
                ends(key_begins)
            }
            // Another tag than the one that ends values.
            Tag::Value | Tag::KeyEnd => match is_blank {
                true if may_go_on => Ending::More,
                true if goes_on || tag_behind.is_none() => ends(end),
                _ => Ending::Literal(end),
            },
            Tag::Key => match tag_behind {
                None if may_go_on && super::known::may_be_key(text_behind) => Ending::More,
                Some(Tag::KeyEnd | Tag::Value) if self.is_likely_key(text_behind) => ends(at),
                _ => Ending::Literal(end),
            },
            Tag::CallEnd => match tag_behind {
                None if may_go_on => Ending::More,
                None => ends(at),
                Some(Tag::Key) if is_blank => ends(end),
                Some(Tag::CallEnd) if is_blank => ends(at),
                Some(Tag::Call) => match self.begins_call(end_behind) {
                    None => Ending::More,
                    Some(true) => ends(at),
                    Some(false) => Ending::Literal(end),
                },
                _ => Ending::Literal(end),
            },
            Tag::Call => match (self.begins_call(end), tag_behind) {
                (None, _) => Ending::More,
                (Some(true), _) => match self.quoted_call(end) {
                    None => Ending::More,
                    Some(Some(end)) => Ending::Literal(end),
                    Some(None) => ends(at),
                },
                (_, Some(Tag::KeyEnd)) if self.is_likely_key(text_behind) => ends(at),
                (_, None) if may_go_on && self.known.may_be_likely_key(self.tool, text_behind) => {
                    Ending::More
                }
                _ => Ending::Literal(end),
            },
        }
    }
}
