//! Qwen3-Coder's calls: names and keys stand in tags, `<function=NAME>` and `<parameter=KEY>`, and values between these.
//!
//! A line break begins a value and another one ends it. They belong to the tags.

use super::arguments::Ending;
use super::heads::{Head, Heads, behind};
use super::marks::{FUNCTION, FUNCTION_END, PARAMETER, PARAMETER_END, TAG_BEGIN, TAG_END};
use super::parser::{Parser, State};

/// The most bytes of a name in a tag.
const LONGEST_NAME: usize = 256;

/// A tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tag<'a> {
    Call,
    CallEnd,
    Function(&'a str),
    FunctionEnd,
    Parameter(&'a str),
    ParameterEnd,
}

const PLAIN: [(Tag<'_>, &str); 4] = [
    (Tag::Call, TAG_BEGIN),
    (Tag::CallEnd, TAG_END),
    (Tag::FunctionEnd, FUNCTION_END),
    (Tag::ParameterEnd, PARAMETER_END),
];

/// The next part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next<'a> {
    /// No tag yet. One may begin at this place.
    Open(usize),
    /// A tag, its beginning and its end.
    Tag(Tag<'a>, usize, usize),
}

/// The next part of `text` from `from` on.
fn next(text: &str, from: usize) -> Next<'_> {
    for (place, _) in text[from..].match_indices('<') {
        let at = from + place;
        match tag_at(&text[at..]) {
            Some(Some((tag, length))) => return Next::Tag(tag, at, at + length),
            Some(None) => return Next::Open(at),
            None => {}
        }
    }
    Next::Open(text.len())
}

/// The tag that a text begins with, and its length. It is `Some(None)` while it may become one.
fn tag_at(text: &str) -> Option<Option<(Tag<'_>, usize)>> {
    if let Some((tag, mark)) = PLAIN.iter().find(|(_, mark)| text.starts_with(mark)) {
        return Some(Some((*tag, mark.len())));
    }
    let named = |mark: &str| {
        let rest = text.strip_prefix(mark)?;
        let end = rest.find(['>', '\n', '<']).unwrap_or(rest.len());
        let name = rest[..end].trim();
        let length = mark.len() + end + 1;
        match rest[end..].chars().next() {
            _ if end > LONGEST_NAME => None,
            None => Some(None),
            Some('>') if !name.is_empty() => Some(Some((name, length))),
            _ => None,
        }
    };
    let function = || Some(named(FUNCTION)?.map(|(name, length)| (Tag::Function(name), length)));
    let parameter = || Some(named(PARAMETER)?.map(|(name, length)| (Tag::Parameter(name), length)));
    let begun = || {
        let mut marks = PLAIN.iter().map(|(_, mark)| *mark);
        marks.any(|mark| mark.starts_with(text)) || is_begun(text)
    };
    function()
        .or_else(parameter)
        .or_else(|| begun().then_some(None))
}

/// Whether a text is the beginning of a tag with a name.
fn is_begun(text: &str) -> bool {
    [FUNCTION, PARAMETER]
        .iter()
        .any(|mark| mark.starts_with(text))
}

/// A place without the line break before it.
fn without_break(text: &str, at: usize) -> usize {
    let before = &text[..at];
    let line = before.strip_suffix('\n').unwrap_or(before);
    line.strip_suffix('\r').unwrap_or(line).len()
}

impl Heads<'_> {
    /// A call behind `<tool_call>` or `<function=`.
    pub(super) fn in_xml(&self, text: &str) -> Head {
        let start = behind(text, 0, &[TAG_BEGIN, FUNCTION]);
        let body = &text[start..];
        if body.starts_with(['{', '[']) {
            return self.objects(text, start);
        }
        if TAG_BEGIN.starts_with(body) || FUNCTION.starts_with(body) {
            return Head::More;
        }
        let Some(at) = body.find(['>', '\n', '<', '{']) else {
            return match self.over {
                true => self.at_end(body, text.len()),
                false if self.known.may_be_name(body) => Head::More,
                false => Head::Text,
            };
        };
        let end = start + at + usize::from(body[at..].starts_with('>'));
        self.named(&body[..at], |tool| self.first_in_xml(tool, text, end))
    }

    /// A call whose name ends at a place: its first key follows, or its end.
    fn first_in_xml(&self, tool: usize, text: &str, from: usize) -> Head {
        let rest = text[from..].trim_start();
        if rest.starts_with('{') {
            return self.arguments(text, tool, text.len() - rest.len());
        }
        let (tag, at, end) = match next(text, from) {
            Next::Open(end) if !text[from..end].trim().is_empty() => return Head::Text,
            Next::Open(_) if !self.over => return Head::More,
            Next::Open(_) if self.whole && !self.known.needs_keys(tool) => {
                let used = text.len();
                return Head::Bare { tool, used };
            }
            Next::Open(_) => return Head::Text,
            Next::Tag(tag, at, end) => (tag, at, end),
        };
        match tag {
            _ if !text[from..at].trim().is_empty() => Head::Text,
            Tag::Parameter(key) => Head::Key {
                tool,
                key: self.known.key(tool, key),
                used: end,
            },
            Tag::FunctionEnd | Tag::CallEnd => Head::Bare { tool, used: end },
            // The name is doubled.
            Tag::Function(name) if self.known.named(name) == Some(tool) => {
                self.first_in_xml(tool, text, end)
            }
            Tag::Function(_) | Tag::Call if !self.known.needs_keys(tool) => {
                Head::Bare { tool, used: at }
            }
            Tag::Function(_) | Tag::Call | Tag::ParameterEnd => Head::Text,
        }
    }
}

impl Parser {
    /// Goes on between the arguments of a call.
    pub(super) fn between_in_xml(&mut self) -> Option<()> {
        let (tag, end) = match next(&self.held, 0) {
            Next::Open(_) if !self.over => return None,
            Next::Open(_) => {
                // A call may end with the answer.
                self.end_arguments(self.whole);
                return Some(());
            }
            Next::Tag(tag, _, end) => (tag, end),
        };
        match tag {
            Tag::Call | Tag::Function(_) => self.end_arguments(true),
            Tag::FunctionEnd | Tag::CallEnd => {
                self.held.drain(..end);
                self.end_arguments(true);
            }
            Tag::ParameterEnd => drop(self.held.drain(..end)),
            Tag::Parameter(key) => {
                let key = self.known.key(self.tool, key);
                self.held.drain(..end);
                self.state = State::BeforeValue(key);
            }
        }
        Some(())
    }

    /// Begins a value behind the line break that belongs to the tag.
    pub(super) fn before_value_in_xml(&mut self, key: &str) -> Option<()> {
        let is_begun = !["", "\r"].contains(&self.held.as_str());
        if !is_begun && !self.over {
            return None;
        }
        if self.over && self.held.trim().is_empty() {
            self.end_arguments(false);
            return Some(());
        }
        let rest = self.held.strip_prefix('\r').unwrap_or(&self.held);
        if let Some(rest) = rest.strip_prefix('\n') {
            self.held.drain(..self.held.len() - rest.len());
        }
        self.begin_value(key);
        Some(())
    }

    /// The end of the text from a place on that belongs to a value, whatever follows.
    pub(super) fn certain_in_xml(&self, from: usize) -> usize {
        match next(&self.held, from) {
            Next::Open(end) | Next::Tag(_, end, _) => end,
        }
    }

    /// The end of the text that belongs to a value, whatever follows, without a line break that may belong to the tag behind it.
    pub(super) fn told_in_xml(&self) -> usize {
        without_break(&self.held, self.certain_in_xml(0))
    }

    /// The rest of a value in which the answer ends, without a tag that was begun.
    pub(super) fn cut_in_xml(&self, text: &str) -> usize {
        let end = match next(text, 0) {
            // One character of a tag may be text.
            Next::Open(end) if text.len() > end + 1 => end,
            _ => text.len(),
        };
        match self.whole {
            true => without_break(text, end),
            false => end,
        }
    }

    /// The meaning of the first tag from a place of the value on. A tag that the call does not need belongs to the value.
    pub(super) fn ending_in_xml(&self, from: usize) -> Ending {
        let (tag, at, end) = match next(&self.held, from) {
            Next::Tag(tag, at, end) => (tag, at, end),
            Next::Open(_) if self.over => return Ending::Cut,
            Next::Open(_) => return Ending::More,
        };
        let (tag_behind, at_behind) = match next(&self.held, end) {
            Next::Open(at) => (None, at),
            Next::Tag(tag, at, _) => (Some(tag), at),
        };
        let may_go_on = tag_behind.is_none() && !self.over;
        let is_blank = self.held[end..at_behind].trim().is_empty();
        let ends = |next| Ending::End {
            at: without_break(&self.held, at),
            next,
        };
        let or_literal = |ends_here: bool| match ends_here {
            true => ends(at),
            false => Ending::Literal(end),
        };
        match tag {
            Tag::Parameter(key) => {
                let is_begin = at == 0 && self.value == 0;
                let is_line = is_begin || self.held[..at].ends_with('\n');
                or_literal(is_line && self.known.is_likely_key(self.tool, key))
            }
            _ if may_go_on => Ending::More,
            Tag::ParameterEnd => match tag_behind {
                Some(Tag::ParameterEnd) if !is_blank => Ending::Literal(end),
                _ => ends(end),
            },
            Tag::FunctionEnd => or_literal(!matches!(
                tag_behind,
                Some(Tag::ParameterEnd | Tag::Parameter(_))
            )),
            Tag::CallEnd => or_literal(matches!(
                tag_behind,
                None | Some(Tag::Call | Tag::Function(_))
            )),
            Tag::Function(_) | Tag::Call => match self.quoted_in_xml(end) {
                None => Ending::More,
                Some(Some(end)) => Ending::Literal(end),
                Some(None) => match tag {
                    Tag::Function(name) => or_literal(self.known.named(name).is_some()),
                    _ => match self.begins_call(end) {
                        None => Ending::More,
                        Some(begins) => or_literal(begins),
                    },
                },
            },
        }
    }

    /// The end of a whole call in a value, if the value goes on behind it; `None` if that is not certain yet.
    fn quoted_in_xml(&self, from: usize) -> Option<Option<usize>> {
        let open = match self.over {
            true => Some(None),
            false => None,
        };
        let Some(at) = self.held[from..].find(FUNCTION_END) else {
            return open;
        };
        let mut end = from + at + FUNCTION_END.len();
        if let Next::Tag(Tag::CallEnd, at, behind) = next(&self.held, end)
            && self.held[end..at].trim().is_empty()
        {
            end = behind;
        }
        match next(&self.held, end) {
            Next::Open(_) => open,
            Next::Tag(tag, ..) => Some((tag == Tag::ParameterEnd).then_some(end)),
        }
    }
}
