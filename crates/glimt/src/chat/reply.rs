//! Telling thoughts and answer apart while the model generates them.

use super::conversation::{Passage, Reply};
use crate::tokenizer::{StreamDecoder, Tokenizer, TokenizerError};

impl Passage {
    /// Ends the passage before the first of `stops` that is in it. Tokens that stand for text on both sides are replaced.
    ///
    /// # Errors
    /// The errors of the tokenizer.
    pub fn end_before(
        &mut self,
        stops: &[String],
        tokenizer: &Tokenizer,
    ) -> Result<(), TokenizerError> {
        let ends = stops.iter().filter_map(|stop| self.text.find(&**stop));
        let Some(end) = ends.min() else {
            return Ok(());
        };
        self.text.truncate(end);
        let mut kept = 0;
        let bytes = |id: &u32| tokenizer.token_bytes(*id).len();
        let whole = self.ids.iter().take_while(|id| {
            let fits = kept + bytes(id) <= end;
            kept += if fits { bytes(id) } else { 0 };
            fits
        });
        let whole = whole.count();
        let rest = self.text.get(kept..);
        self.ids.truncate(rest.map_or(0, |_| whole));
        let rest = rest.unwrap_or(&self.text);
        self.ids.extend(tokenizer.encode_inside(rest)?);
        Ok(())
    }
}

/// Text that a token completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A piece of the thoughts.
    Thought(String),
    /// A piece of the answer.
    Answer(String),
}

/// Reads the tokens of a reply as they come.
pub struct ReplyReader<'a> {
    tokenizer: &'a Tokenizer,
    decoder: StreamDecoder<'a>,
    /// The tokens that open and close thoughts, where the model has them.
    marks: Option<(u32, u32)>,
    thinking: bool,
    reply: Reply,
}

impl<'a> ReplyReader<'a> {
    /// A reader of what follows `prompt`, a rendered template. The template may have opened the thoughts.
    pub fn new(tokenizer: &'a Tokenizer, prompt: &str) -> Self {
        let mark = |text| match tokenizer.encode(text, false).ok()?.as_slice() {
            [token] => Some(*token),
            _ => None,
        };
        let marks = mark("<think>").zip(mark("</think>"));
        let mut reader = Self {
            marks,
            ..Self::plain(tokenizer)
        };
        if marks.is_some() && prompt.trim_end().ends_with("<think>") {
            reader.begin_thoughts();
        }
        reader
    }

    /// A reader that takes all text for the answer.
    pub fn plain(tokenizer: &'a Tokenizer) -> Self {
        Self {
            tokenizer,
            decoder: StreamDecoder::new(tokenizer),
            marks: None,
            thinking: false,
            reply: Reply::default(),
        }
    }

    /// Whether the last token belongs to thoughts.
    pub fn is_thinking(&self) -> bool {
        self.thinking
    }

    /// The token that closes thoughts, where the model has one.
    pub fn closing_mark(&self) -> Option<u32> {
        self.marks.map(|(_, close)| close)
    }

    /// The reply as far as it was read.
    pub fn reply(&self) -> &Reply {
        &self.reply
    }

    /// Takes the next token. Returned is the text that it completes, if any.
    pub fn push(&mut self, token: u32) -> Option<Piece> {
        match self.marks {
            Some((open, _)) if token == open && self.is_at_start() => {
                self.begin_thoughts();
                None
            }
            Some((_, close)) if token == close && self.thinking => {
                let rest = self.decoder.finish();
                self.thinking = false;
                (!rest.is_empty()).then_some(Piece::Thought(rest))
            }
            _ => {
                let text = self.decoder.push(token);
                let passage = match &mut self.reply.thoughts {
                    Some(thoughts) if self.thinking => thoughts,
                    _ => &mut self.reply.answer,
                };
                passage.ids.push(token);
                self.piece(text)
            }
        }
    }

    /// Ends the text. Returned is what is left of it, where it ends inside a character.
    pub fn end(&mut self) -> Option<Piece> {
        let rest = self.decoder.finish();
        let rest = self.piece(rest);
        self.thinking = false;
        rest
    }

    /// Ends the reply. Returned is also what is left of its text, as [`end`](Self::end) does.
    pub fn finish(mut self) -> (Reply, Option<Piece>) {
        self.take()
    }

    /// Finishes like [`finish`](Self::finish). Tokens that are read afterwards are a new reply.
    pub(super) fn take(&mut self) -> (Reply, Option<Piece>) {
        let rest = self.end();
        let mut reply = std::mem::take(&mut self.reply);
        for passage in reply.thoughts.iter_mut().chain([&mut reply.answer]) {
            passage.text = self.tokenizer.decode(&passage.ids);
        }
        (reply, rest)
    }

    fn is_at_start(&self) -> bool {
        self.reply.thoughts.is_none() && self.reply.answer.ids.is_empty()
    }

    fn begin_thoughts(&mut self) {
        self.thinking = true;
        self.reply.thoughts = Some(Passage::default());
    }

    fn piece(&self, text: String) -> Option<Piece> {
        match (text.is_empty(), self.thinking) {
            (true, _) => None,
            (false, true) => Some(Piece::Thought(text)),
            (false, false) => Some(Piece::Answer(text)),
        }
    }
}
