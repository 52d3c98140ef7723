//! A text that an answer is expected to repeat, beside the prompt and the answer so far.

use std::ops::Range;

/// The last tokens of the prompt that stand before the expected text, so that its beginning follows them as the answer's does.
const LEAD: usize = 16;

/// The text in which matches are looked for: the prompt, what is expected, and the answer.
#[derive(Debug, Default)]
pub(super) struct Expected {
    /// All of it, as far as it is known.
    all: Vec<u32>,
    /// Tokens before the answer, and those of the prompt among them.
    before: usize,
    prompt: usize,
    /// The places of the expected text.
    places: Range<usize>,
}

impl Expected {
    /// The text that the answer to a prompt is expected to repeat.
    pub(super) fn new(prompt: &[u32], text: &[u32]) -> Self {
        let lead = &prompt[prompt.len().saturating_sub(LEAD)..];
        let all = [prompt, lead, text, lead].concat();
        let begin = prompt.len() + lead.len();
        Self {
            before: all.len(),
            prompt: prompt.len(),
            places: begin..begin + text.len(),
            all,
        }
    }

    /// Whether something is expected.
    pub(super) fn is_some(&self) -> bool {
        !self.places.is_empty()
    }

    /// Whether what stands at a place of the text is of the expected one.
    pub(super) fn has(&self, place: usize) -> bool {
        self.places.contains(&place)
    }

    /// The text, with the answer of `text` behind its prompt. An answer only grows.
    pub(super) fn with<'a>(&'a mut self, text: &'a [u32]) -> &'a [u32] {
        if !self.is_some() {
            return text;
        }
        let answer = text.get(self.prompt..).unwrap_or_default();
        self.all.truncate(self.before + answer.len());
        let known = self.all.len() - self.before;
        self.all.extend_from_slice(&answer[known..]);
        &self.all
    }
}
