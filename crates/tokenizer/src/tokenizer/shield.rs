//! Keeps what users and tools say text: marks of turns, calls and thoughts in it are no marks. So it is with the ids and names of calls, and
//! with what is told of tools.
//!
//! Into every mark in these texts a character is put that nobody uses. The template neither finds such a mark nor changes it. In the
//! rendered text the character is taken out again, and its place is noted: there the tokenizer reads no mark. The text is still made into
//! tokens as a whole, so what stands around a mark is merged as it always was.

use serde_json::Value;

use super::message::Message;
use super::special::SpecialTokens;

/// Marks that templates look for in texts, also where a vocabulary has no tokens for them.
pub(super) const KNOWN: [&str; 8] = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<arg_key>",
    "<arg_value>",
];

/// The last private-use character. One before it is taken where somebody uses it.
const LAST: u32 = 0x10_fffd;

/// The texts that are marks of a model.
#[derive(Debug, Default)]
pub(super) struct Marks {
    tokens: SpecialTokens,
}

impl Marks {
    /// The marks of a vocabulary, of which `control` are those that are never text, and `defined` those that are read in texts. Of the
    /// latter only what the template writes is a mark, and what has the form of one. Switches such as `/nothink` are none.
    pub(super) fn new(
        control: impl Iterator<Item = String>,
        defined: impl Iterator<Item = String>,
        source: &str,
    ) -> Self {
        let control = control.filter(|text| !text.starts_with('/') && !text.trim().is_empty());
        let defined = defined.filter(|text| {
            text.len() > 2
                && text.starts_with(['<', '['])
                && (text.contains(['|', '｜']) || source.contains(text.as_str()))
        });
        let known = KNOWN.into_iter().map(str::to_owned);
        let texts = control.chain(defined).chain(known);
        Self {
            tokens: SpecialTokens::new(texts.map(|text| (text, 0))),
        }
    }

    /// `text` with `by` in every mark, behind its first character, or before it where it is the only one.
    fn hidden(&self, text: &str, by: char) -> String {
        let mut out = String::with_capacity(text.len() + 16);
        let mut done = 0;
        for (start, len) in self.tokens.all_in(text) {
            let first = text[start..].chars().next().map_or(0, char::len_utf8);
            let at = if first < len { start + first } else { start };
            if at < done || (at == done && done > 0) {
                continue;
            }
            out += &text[done..at];
            out.push(by);
            done = at;
        }
        out + &text[done..]
    }

    /// `value` with `by` in every mark of its texts and names.
    fn hidden_in(&self, value: &Value, by: char) -> Value {
        match value {
            Value::String(text) => self.hidden(text, by).into(),
            Value::Array(items) => items.iter().map(|item| self.hidden_in(item, by)).collect(),
            Value::Object(map) => {
                let fields = map.iter();
                let hidden =
                    fields.map(|(name, value)| (self.hidden(name, by), self.hidden_in(value, by)));
                hidden.collect()
            }
            other => other.clone(),
        }
    }
}

/// The ids and names of calls.
fn names(message: &Message) -> impl Iterator<Item = &String> {
    let calls = message.tool_calls.iter();
    let calls = calls.flat_map(|call| [&call.id, &call.name]);
    message.tool_call_id.iter().chain(calls)
}

/// Whether a text or a name in a value is as asked.
fn any_text(value: &Value, is: &impl Fn(&str) -> bool) -> bool {
    match value {
        Value::String(text) => is(text),
        Value::Array(items) => items.iter().any(|item| any_text(item, is)),
        Value::Object(map) => map
            .iter()
            .any(|(name, value)| is(name) || any_text(value, is)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// The character that hides marks in the texts of one conversation.
#[derive(Clone, Copy, Debug)]
pub struct Shield<'t> {
    marks: &'t Marks,
    /// `None` if no text has a mark.
    by: Option<char>,
}

impl<'t> Shield<'t> {
    /// The shield of a conversation and of the descriptions of tools.
    pub(super) fn new(marks: &'t Marks, messages: &[Message], tools: &[Value]) -> Self {
        let has_mark = |text: &str| marks.tokens.all_in(text).next().is_some();
        let needed = messages.iter().any(|message| {
            let content = Some(&message.content).filter(|_| is_shielded(message));
            content
                .into_iter()
                .chain(names(message))
                .any(|text| has_mark(text))
        });
        let needed = needed || tools.iter().any(|tool| any_text(tool, &has_mark));
        let uses = |c: char| {
            let has = |text: &str| text.contains(c);
            let said = messages.iter().any(|message| {
                let texts = message.reasoning_content.iter().chain([&message.content]);
                let arguments = message.tool_calls.iter().flat_map(|call| &call.arguments);
                let mut arguments =
                    arguments.map(|(name, value)| has(name) || any_text(value, &has));
                texts.chain(names(message)).any(|text| has(text)) || arguments.any(|uses| uses)
            });
            said || tools.iter().any(|tool| any_text(tool, &has))
        };
        let unused = || {
            (0..100)
                .filter_map(|n| char::from_u32(LAST - n))
                .find(|&c| !uses(c))
        };
        Self {
            marks,
            by: needed.then(unused).flatten(),
        }
    }

    /// Hides the marks in the texts of users and tools, and in the ids and names of calls.
    pub fn hide(&self, messages: &mut [Message]) {
        let Some(by) = self.by else { return };
        let hide = |text: &mut String| *text = self.marks.hidden(text, by);
        for message in messages {
            if is_shielded(message) {
                hide(&mut message.content);
            }
            message.tool_call_id.iter_mut().for_each(hide);
            for call in &mut message.tool_calls {
                hide(&mut call.id);
                hide(&mut call.name);
            }
        }
    }

    /// Hides the marks in what is told of tools.
    pub fn hide_tools(&self, tools: &mut [Value]) {
        let Some(by) = self.by else { return };
        for tool in tools {
            *tool = self.marks.hidden_in(tool, by);
        }
    }

    /// A text that was rendered of hidden marks, with these as they were said.
    pub fn opened(&self, rendered: &str) -> ChatText {
        let Some(by) = self.by else {
            return rendered.to_owned().into();
        };
        // A template may write a text as JSON in ASCII.
        let units: Vec<String> = by
            .encode_utf16(&mut [0; 2])
            .iter()
            .map(|unit| format!("\\u{unit:04x}"))
            .collect();
        let escaped = units.concat();
        let mut text = ChatText::default();
        for line in rendered.split(by).flat_map(|part| part.split(&*escaped)) {
            text.breaks.push(text.text.len());
            text.text += line;
        }
        // The beginning is no break.
        text.breaks.remove(0);
        text
    }
}

/// Whether a message is of those whose texts have no marks. A system's are the developer's, and the assistant's are the model's.
fn is_shielded(message: &Message) -> bool {
    !["system", "developer", "assistant"].contains(&message.role.as_str())
}

/// A rendered conversation, and where marks in it are text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatText {
    text: String,
    /// Bytes that belong to no mark, ascending.
    breaks: Vec<usize>,
}

impl ChatText {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Appends text in which marks are read.
    pub fn push_str(&mut self, text: &str) {
        self.text += text;
    }

    /// The text alone.
    pub fn into_string(self) -> String {
        self.text
    }

    pub(super) fn breaks(&self) -> &[usize] {
        &self.breaks
    }
}

impl From<String> for ChatText {
    fn from(text: String) -> Self {
        Self {
            text,
            breaks: Vec::new(),
        }
    }
}
