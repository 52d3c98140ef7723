//! Keeps what users and tools say text: marks of turns, calls and thoughts in it are no marks.
//!
//! Into every mark in their texts a character is put that nobody uses. The template neither finds such a mark nor changes it. In the
//! rendered text the character is taken out again, and its place is noted: there the tokenizer reads no mark. The text is still made into
//! tokens as a whole, so what stands around a mark is merged as it always was.

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
}

/// The character that hides marks in the texts of one conversation.
#[derive(Clone, Copy, Debug)]
pub struct Shield<'t> {
    marks: &'t Marks,
    /// `None` if no text has a mark.
    by: Option<char>,
}

impl<'t> Shield<'t> {
    /// That of a conversation.
    pub(super) fn new(marks: &'t Marks, messages: &[Message]) -> Self {
        let has_mark = |message: &&Message| {
            is_shielded(message) && marks.tokens.all_in(&message.content).next().is_some()
        };
        let uses = |c: char| {
            messages.iter().any(|message| {
                let thoughts = message.reasoning_content.iter();
                thoughts
                    .chain([&message.content])
                    .any(|text| text.contains(c))
            })
        };
        let unused = || {
            (0..100)
                .filter_map(|n| char::from_u32(LAST - n))
                .find(|&c| !uses(c))
        };
        let needed = messages.iter().find(has_mark).is_some();
        Self {
            marks,
            by: needed.then(unused).flatten(),
        }
    }

    /// Hides the marks in the texts of users and tools.
    pub fn hide(&self, messages: &mut [Message]) {
        let Some(by) = self.by else { return };
        for message in messages.iter_mut().filter(|message| is_shielded(message)) {
            message.content = self.marks.hidden(&message.content, by);
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
