//! The beginnings of calls: up to the first key, where it becomes certain that a text is a call.

use serde_json::Value;

use super::Format;
use super::known::{Known, may_be_key};
use super::literal::{self, Literal, Reading};
use super::marks::{BEGINS, ENDS, KEY_BEGIN, KEY_END, SEPARATORS, TAG_BEGIN, VALUE_BEGIN};
use super::tags::{Next, Tag, next, settled};
use crate::tokenizer::exact;

/// The marks that fence JSON.
const TICKS: &str = "```";
/// The keys under which models write the name of a tool, and its arguments.
pub(super) const NAMES: [&str; 5] = ["name", "tool", "tool_name", "function_name", "function"];
pub(super) const ARGUMENTS: [&str; 6] = [
    "arguments",
    "parameters",
    "args",
    "input",
    "tool_input",
    "params",
];

/// The beginning of a text behind the mark of a call. `used` is the length of the text that belongs to it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Head {
    /// The head is not certain yet.
    More,
    /// The text is no call.
    Text,
    /// A call without arguments.
    Bare { tool: usize, used: usize },
    /// A call and the key of its first argument.
    Key {
        tool: usize,
        key: String,
        used: usize,
    },
    /// A call whose arguments are an object of JSON.
    Json { tool: usize, used: usize },
    /// Calls with all of their arguments.
    Calls {
        calls: Vec<(usize, String)>,
        used: usize,
        /// Whether nothing of the calls was cut.
        whole: bool,
    },
}

impl Head {
    /// This beginning where a text of some length stands before it.
    fn behind(mut self, length: usize) -> Self {
        match &mut self {
            Self::More | Self::Text => {}
            Self::Bare { used, .. }
            | Self::Key { used, .. }
            | Self::Json { used, .. }
            | Self::Calls { used, .. } => *used += length,
        }
        self
    }
}

/// The key of an argument.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Key {
    More,
    None,
    /// The key, and the place at which the text goes on.
    Found(String, usize),
}

/// Reads beginnings of calls.
pub(super) struct Heads<'a> {
    pub(super) format: Format,
    pub(super) known: &'a Known,
    /// Whether no text follows.
    pub(super) over: bool,
    /// Whether the model ended the answer itself.
    pub(super) whole: bool,
}

impl Heads<'_> {
    /// Reads the text behind the mark that begins a call.
    pub(super) fn read(&self, text: &str) -> Head {
        let head = match self.format {
            Format::Tagged | Format::Json | Format::GigaChat => self.tagged(text),
            Format::Xml => self.in_xml(text),
            Format::Llama => self.of_llama(text),
            Format::DeepSeek | Format::DeepSeekFenced | Format::Kimi => self.separated(text),
        };
        match head {
            Head::More if self.over => Head::Text,
            head => head,
        }
    }

    pub(super) fn named(&self, name: &str, found: impl FnOnce(usize) -> Head) -> Head {
        self.known.named(name).map_or(Head::Text, found)
    }

    /// A call that has nothing but a name when the answer ends.
    pub(super) fn at_end(&self, name: &str, used: usize) -> Head {
        self.named(name, |tool| {
            match self.whole && !self.known.needs_keys(tool) {
                true => Head::Bare { tool, used },
                false => Head::Text,
            }
        })
    }

    fn tagged(&self, text: &str) -> Head {
        let start = behind(text, 0, &[TAG_BEGIN]);
        let body = &text[start..];
        if body.starts_with(['{', '[']) || body.starts_with(TICKS) {
            return self.objects(text, start);
        }
        if !self.over && TICKS.starts_with(body) {
            return Head::More;
        }
        let found = next(text, start);
        let name = match found {
            Next::Open(text) | Next::Tag { text, .. } => text,
        };
        let brace = name.find('{');
        let name = unfenced(&name[..brace.unwrap_or(name.len())]);
        let Some(name) = name.filter(|name| self.known.may_be_name(name)) else {
            return Head::Text;
        };
        if let Some(at) = brace {
            return self.named(name, |tool| self.arguments(text, tool, start + at));
        }
        let Next::Tag { tag, at, end, .. } = found else {
            return match self.over {
                true => self.at_end(body, text.len()),
                false => Head::More,
            };
        };
        let first_key = |tool| match self.key(tool, text, end) {
            Key::More => Head::More,
            Key::None => Head::Text,
            Key::Found(key, used) => self.first_key(text, tool, key, used),
        };
        let is_json = text[end..].trim_start().starts_with('{');
        match tag {
            Tag::CallEnd => self.named(name, |tool| Head::Bare { tool, used: end }),
            Tag::Key | Tag::Value if is_json => {
                let at = text.len() - text[end..].trim_start().len();
                self.named(name, |tool| self.arguments(text, tool, at))
            }
            Tag::Key => self.named(name, first_key),
            Tag::KeyEnd | Tag::Value => {
                let glued = self.known.named_with_key(name);
                match (glued, self.known.named(name)) {
                    (_, Some(tool)) if tag == Tag::Value => match next(text, end) {
                        Next::Tag {
                            tag: Tag::KeyEnd, ..
                        } => first_key(tool),
                        Next::Open(text) if may_be_key(text) => Head::More,
                        _ => Head::Text,
                    },
                    (Some((tool, key)), None) => Head::Key {
                        tool,
                        key,
                        used: if tag == Tag::Value { at } else { end },
                    },
                    _ => Head::Text,
                }
            }
            Tag::Call => self.named(name, |tool| match self.key_behind_call(tool, text, end) {
                Key::More => Head::More,
                Key::None if self.known.needs_keys(tool) => match next(text, end) {
                    // The tag and the name are doubled.
                    Next::Tag { text: name, .. } if self.known.named(name) == Some(tool) => {
                        self.tagged(&text[end..]).behind(end)
                    }
                    _ => Head::Text,
                },
                Key::None => Head::Bare { tool, used: at },
                Key::Found(key, used) => Head::Key { tool, key, used },
            }),
            Tag::ValueEnd => Head::Text,
        }
    }

    /// The key behind a tag that begins a call where one that begins a key belongs; none if a call begins there.
    pub(super) fn key_behind_call(&self, tool: usize, text: &str, from: usize) -> Key {
        match next(text, from) {
            Next::Open(text) if !self.over && may_be_key(text) => Key::More,
            Next::Tag {
                text: key,
                tag: Tag::KeyEnd,
                ..
            } if !key.trim().is_empty() => {
                let is_call = self.known.named_with_key(key).is_some();
                match is_call && !self.known.has_key(tool, &self.known.key(tool, key)) {
                    true => Key::None,
                    false => self.key(tool, text, from),
                }
            }
            Next::Tag {
                text: key,
                tag: Tag::Value,
                ..
            } if self.known.is_likely_key(tool, key) => self.key(tool, text, from),
            _ => Key::None,
        }
    }

    /// A call whose first key is read. One that stands for all arguments is none of the tool's.
    fn first_key(&self, text: &str, tool: usize, key: String, used: usize) -> Head {
        let is_all = ["arguments", "parameters"].contains(&key.as_str());
        if is_all && !self.known.is_likely_key(tool, &key) {
            let rest = text[used..].trim_start();
            let value = rest.strip_prefix(VALUE_BEGIN).unwrap_or(rest).trim_start();
            if value.starts_with('{') {
                return self.arguments(text, tool, text.len() - value.len());
            }
            if !self.over && VALUE_BEGIN.starts_with(value) {
                return Head::More;
            }
        }
        Head::Key { tool, key, used }
    }

    /// The key behind the tag that begins one.
    pub(super) fn key(&self, tool: usize, text: &str, from: usize) -> Key {
        let is_known = |key: &str| self.known.has_key(tool, key);
        let more = match self.over {
            true => Key::None,
            false => Key::More,
        };
        let (mut key, mut from) = (String::new(), from);
        loop {
            // A key, and a value behind it without the tags between them.
            let glued = |piece: &str| match self.known.key_before(tool, piece) {
                Some((known, length)) if key.is_empty() => Key::Found(known, from + length),
                _ => Key::None,
            };
            let (piece, tag, at, end) = match next(text, from) {
                Next::Open(text) if may_be_key(text) => return more,
                Next::Open(text) => return glued(text),
                Next::Tag { text, tag, at, end } => (text, tag, at, end),
            };
            if !may_be_key(piece) {
                return glued(piece);
            }
            let glued = glued(piece);
            let piece = self.known.key(tool, piece);
            if key.is_empty() || !piece.is_empty() && (is_known(&piece) || !is_known(&key)) {
                key = piece;
            }
            let before_value = || match next(text, end) {
                Next::Open(text) if text.trim().is_empty() => Some(false),
                Next::Tag {
                    text,
                    tag: Tag::Value,
                    ..
                } if text.trim().is_empty() => Some(true),
                _ => None,
            };
            match tag {
                Tag::ValueEnd | Tag::CallEnd if !is_known(&key) && glued != Key::None => {
                    return glued;
                }
                // A stray tag, or one that is doubled.
                _ if key.is_empty() && tag != Tag::ValueEnd && tag != Tag::CallEnd => from = end,
                Tag::Key => from = end,
                // A key of the tool's own may come without a value.
                Tag::KeyEnd if !is_known(&key) => {
                    return match next(text, end) {
                        Next::Open(text) if text.trim().is_empty() && !self.over => more,
                        Next::Tag {
                            text,
                            tag: Tag::Key | Tag::CallEnd,
                            ..
                        } if text.trim().is_empty() => glued,
                        _ => Key::Found(key, end),
                    };
                }
                Tag::KeyEnd => return Key::Found(key, end),
                Tag::Value => {
                    let rest = text[end..].trim_start();
                    return match rest.strip_prefix(KEY_END) {
                        // The tag was a stray one.
                        Some(rest) => Key::Found(key, text.len() - rest.len()),
                        None if !self.over && KEY_END.starts_with(rest) => Key::More,
                        None => Key::Found(key, at),
                    };
                }
                // Another tag than the one that ends keys.
                Tag::ValueEnd if is_known(&key) => return Key::Found(key, end),
                Tag::Call | Tag::CallEnd if !key.is_empty() => {
                    return match before_value() {
                        Some(true) => Key::Found(key, end),
                        Some(false) => more,
                        None => Key::None,
                    };
                }
                _ => return Key::None,
            }
        }
    }

    /// Arguments that are an object, once its first key is read.
    pub(super) fn arguments(&self, text: &str, tool: usize, used: usize) -> Head {
        let mut literal = Literal::new();
        for c in text[used..].chars() {
            match literal.push(c) {
                Reading::Open if !literal.has_key() => {}
                Reading::Wrong => return Head::Text,
                _ => return Head::Json { tool, used },
            }
        }
        Head::More
    }

    /// Calls that are objects of JSON with a name and arguments.
    pub(super) fn objects(&self, text: &str, from: usize) -> Head {
        let Some(rest) = text[from..].trim_start_matches('`').strip_prefix("json") else {
            return match text[from..].trim_start_matches('`') {
                rest if "json".starts_with(rest.trim_end()) => Head::More,
                rest => self.object(text, text.len() - rest.trim_start().len()),
            };
        };
        self.object(text, text.len() - rest.trim_start().len())
    }

    fn object(&self, text: &str, at: usize) -> Head {
        match named_object(&text[at..]) {
            Some((name, begins)) => {
                return self.named(name, |tool| self.arguments(text, tool, at + begins));
            }
            None if text[at..].starts_with('{') => {
                if let Some(head) = self.named_alone(text, at) {
                    return head;
                }
            }
            None if text.len() == at => return Head::More,
            None if !text[at..].starts_with(['{', '[']) => return Head::Text,
            None => {}
        }
        let mut literal = Literal::new();
        let mut whole = false;
        let mut used = text.len();
        let certain = match self.over {
            true => text.len(),
            false => at + settled(&text[at..], self.format.ends()),
        };
        let is_end = |text: &str| self.format.ends().iter().any(|end| text.starts_with(end));
        for (place, c) in text[at..certain].char_indices() {
            let ends = !literal.in_text() && is_end(&text[at + place..]);
            whole = ends || literal.push(c) == Reading::Done;
            if whole {
                used = at + place + if ends { 0 } else { c.len_utf8() };
                break;
            }
            if literal.is_wrong() {
                return Head::Text;
            }
        }
        if !whole && !self.over {
            return Head::More;
        }
        literal.close();
        let value =
            serde_json::from_str(&exact::with_texts(&literal.take())).unwrap_or(Value::Null);
        let calls: Option<Vec<_>> = match &value {
            Value::Array(calls) => calls.iter().map(|call| self.call(call)).collect(),
            call => self.call(call).map(|call| vec![call]),
        };
        match calls.filter(|calls| !calls.is_empty()) {
            Some(calls) => Head::Calls { calls, used, whole },
            None => Head::Text,
        }
    }

    /// A call whose name stands in an object, and whose arguments in tags. An object that is not closed yet may become one.
    fn named_alone(&self, text: &str, at: usize) -> Option<Head> {
        let (name, end) = name_in_object(&text[at..])?;
        let rest = text[at + end..].trim_start().trim_start_matches([',', '}']);
        let rest = rest.trim_start();
        match rest.strip_prefix(KEY_BEGIN) {
            Some(behind) => Some(self.named(name, |tool| {
                match self.key(tool, text, text.len() - behind.len()) {
                    Key::More => Head::More,
                    Key::None => Head::Text,
                    Key::Found(key, used) => Head::Key { tool, key, used },
                }
            })),
            None if !self.over && KEY_BEGIN.starts_with(rest) => Some(Head::More),
            None => None,
        }
    }

    /// A call that an object describes.
    fn call(&self, value: &Value) -> Option<(usize, String)> {
        let call = value.get("function").filter(|inner| inner.is_object());
        let call = call.unwrap_or(value).as_object()?;
        let named = NAMES
            .iter()
            .find_map(|name| Some((*name, call.get(*name)?.as_str()?)));
        let Some((place, name)) = named else {
            // The name is the key of the arguments.
            let mut all = call.iter();
            let (name, arguments) = all.next().filter(|_| call.len() == 1)?;
            let tool = self.known.named(name)?;
            return arguments
                .is_object()
                .then(|| (tool, exact::json(arguments)));
        };
        let tool = self.known.named(name)?;
        let is_own = |name: &str| self.known.has_key(tool, name);
        let arguments = ARGUMENTS.iter().find_map(|name| {
            let found = call.get(*name)?;
            (found.is_object() || !is_own(name)).then_some(found)
        });
        let arguments = match arguments {
            // They stand beside the name.
            None => {
                let mut own = call.clone();
                own.retain(|name, _| name != place && is_own(name));
                exact::json(&Value::Object(own))
            }
            Some(Value::Null) => "{}".to_owned(),
            Some(Value::String(text)) if text.trim().is_empty() => "{}".to_owned(),
            Some(Value::String(text)) => literal::read(text, false)?,
            Some(other) => exact::json(other),
        };
        arguments.starts_with('{').then_some((tool, arguments))
    }

    /// A call whose name and JSON stand on both sides of a mark.
    fn separated(&self, text: &str) -> Head {
        let start = behind(text, 0, &BEGINS);
        let body = &text[start..];
        let marks = [&SEPARATORS[..], &ENDS, &BEGINS].concat();
        if body.starts_with(['{', '[']) {
            return self.object(text, start);
        }
        let found = first(body, &[&marks[..], &["{", "`"]].concat());
        let Some((at, mark)) = found else {
            let name = &body[..settled(body, &marks)];
            let is_kind = "function".starts_with(name.trim());
            return match self.over {
                true => self.at_end(body, text.len()),
                false if is_kind || self.known.may_be_name(name) => Head::More,
                false => Head::Text,
            };
        };
        let (name, at) = (&body[..at], start + at);
        if !SEPARATORS.contains(&mark) {
            return self.named(name, |tool| self.fenced(text, tool, at));
        }
        let at = at + mark.len();
        let rest = text[at..].trim_start();
        let is_kind = ["", "function"].contains(&name.trim());
        if is_kind && rest.starts_with('{') {
            return self.object(text, text.len() - rest.len());
        }
        if !is_kind || rest.starts_with(['{', '`']) {
            return self.named(name, |tool| self.fenced(text, tool, at));
        }
        // The older form names the kind of the call here, and the tool behind it.
        let at = text.len() - rest.len();
        let end = rest.find(['\n', '{', '`', '<']).unwrap_or(rest.len());
        match (end == rest.len(), self.known.may_be_name(&rest[..end])) {
            (true, _) if self.over => self.at_end(rest, text.len()),
            (true, true) => Head::More,
            _ => self.named(&rest[..end], |tool| self.fenced(text, tool, at + end)),
        }
    }

    /// Arguments that are an object within a text in quotes.
    fn quoted(&self, text: &str, tool: usize, at: usize) -> Head {
        let mut literal = Literal::new();
        let end = text[at..].char_indices().find_map(|(place, c)| {
            let reading = literal.push(c);
            (reading != Reading::Open).then_some((reading, at + place + c.len_utf8()))
        });
        let Some((Reading::Done, used)) = end else {
            return if end.is_none() {
                Head::More
            } else {
                Head::Text
            };
        };
        let inner = serde_json::from_str::<String>(&literal.take()).ok();
        let arguments = inner.and_then(|inner| literal::read(&inner, false));
        match arguments.filter(|json| json.starts_with('{')) {
            Some(json) => Head::Calls {
                calls: vec![(tool, json)],
                used,
                whole: true,
            },
            None => Head::Text,
        }
    }

    /// Arguments behind a mark, which may stand in a fenced block.
    fn fenced(&self, text: &str, tool: usize, from: usize) -> Head {
        let rest = text[from..].trim_start();
        let marks = [&ENDS[..], &BEGINS].concat();
        if rest.starts_with('"') {
            return self.quoted(text, tool, text.len() - rest.len());
        }
        let (rest, is_null) = match rest.strip_prefix("null") {
            Some(rest) => (rest.trim_start(), true),
            None => (rest, false),
        };
        let from = text.len() - rest.len();
        if marks.iter().any(|mark| rest.starts_with(mark)) || is_null && self.over {
            return Head::Bare { tool, used: from };
        }
        let rest = rest.trim_start_matches('`');
        let rest = rest.strip_prefix("json").unwrap_or(rest).trim_start();
        let begins = |word: &str| word.starts_with(rest);
        let may_go_on = begins("json") || begins("null") || settled(rest, &marks) == 0;
        match rest.starts_with('{') {
            true => self.arguments(text, tool, text.len() - rest.len()),
            false if !may_go_on => Head::Text,
            false if self.over && self.whole && !self.known.needs_keys(tool) => Head::Bare {
                tool,
                used: text.len(),
            },
            false => Head::More,
        }
    }
}

/// The place behind white space and marks, from a place on.
pub(super) fn behind(text: &str, from: usize, marks: &[&str]) -> usize {
    let rest = text[from..].trim_start();
    let found = marks.iter().find_map(|mark| rest.strip_prefix(mark));
    match found {
        Some(rest) => behind(text, text.len() - rest.len(), marks),
        None => text.len() - rest.len(),
    }
}

/// The first of the marks in a text.
pub(super) fn first<'a>(text: &str, marks: &[&'a str]) -> Option<(usize, &'a str)> {
    let found = marks
        .iter()
        .filter_map(|mark| Some((text.find(mark)?, *mark)));
    found.min_by_key(|(at, _)| *at)
}

/// A name without the beginning of a fenced block behind it; `None` if something else stands there.
fn unfenced(text: &str) -> Option<&str> {
    let quote = text.len() - text.trim_start().trim_start_matches('`').len();
    let fence = text[quote..].find('`').map_or(text.len(), |at| quote + at);
    let (name, fence) = text.split_at(fence);
    let language = fence.trim_start_matches('`').trim();
    let ticks = fence.len() <= TICKS.len() + "json\n\n".len();
    ("json".starts_with(language) && ticks).then_some(name)
}

/// The text behind a sign, which white space may stand before.
pub(super) fn behind_sign(text: &str, c: char) -> Option<usize> {
    let rest = text.trim_start().strip_prefix(c)?;
    Some(text.len() - rest.len())
}

/// The beginning and the end of a text in quotes.
pub(super) fn in_quotes(text: &str) -> Option<(usize, usize)> {
    let begin = behind_sign(text, '"').or_else(|| behind_sign(text, '\''))?;
    let quote = text[..begin].chars().last()?;
    Some((begin, begin + text[begin..].find(quote)?))
}

/// The name in an object that begins with one, and the place behind it.
fn name_in_object(text: &str) -> Option<(&str, usize)> {
    let mut at = behind_sign(text, '{')?;
    let (begin, end) = in_quotes(&text[at..])?;
    if !NAMES.contains(&&text[at + begin..at + end]) {
        return None;
    }
    at += end + 1;
    at += behind_sign(&text[at..], ':')?;
    let (begin, end) = in_quotes(&text[at..])?;
    Some((&text[at + begin..at + end], at + end + 1))
}

/// The name in an object that begins with a name and arguments, and the place where those begin.
fn named_object(text: &str) -> Option<(&str, usize)> {
    let (name, mut at) = name_in_object(text)?;
    at += behind_sign(&text[at..], ',')?;
    let (begin, end) = in_quotes(&text[at..])?;
    if !ARGUMENTS.contains(&&text[at + begin..at + end]) {
        return None;
    }
    at += end + 1;
    at += behind_sign(&text[at..], ':')?;
    let rest = text[at..].trim_start();
    rest.starts_with('{')
        .then_some((name, text.len() - rest.len()))
}
