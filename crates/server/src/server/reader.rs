//! The way from the tokens of an answer to what its user reads: thoughts, text and calls of tools.

use super::tools::{Delta, Format, MARKS, Offered, Parser, Tools};
use crate::chat::{Piece, ReplyReader, StopFilter};
use crate::tokenizer::Tokenizer;

/// Reads the tokens of one answer.
pub(super) struct Reader<'a> {
    tokenizer: &'a Tokenizer,
    reply: ReplyReader<'a>,
    stop: StopFilter,
    parser: Option<Parser>,
    /// Whether line breaks are still left out because they stand between thoughts and answer.
    skip_line_breaks: bool,
    /// The deltas of a call that was begun for the model.
    begun: Vec<Delta>,
    /// Tokens of the thoughts so far.
    pub(super) thought_tokens: usize,
}

impl<'a> Reader<'a> {
    /// A reader of an answer to a rendered template, or of all text as it is.
    pub(super) fn new(
        tokenizer: &'a Tokenizer,
        rendered: Option<&str>,
        stops: &[String],
        tools: Option<(&Tools, &Offered, Format)>,
    ) -> Self {
        let mut reader = Self {
            tokenizer,
            reply: match rendered {
                Some(text) => ReplyReader::new(tokenizer, text),
                None => ReplyReader::plain(tokenizer),
            },
            stop: StopFilter::new(stops),
            parser: None,
            skip_line_breaks: false,
            begun: vec![],
            thought_tokens: 0,
        };
        if let Some((tools, offered, format)) = tools {
            let one_call = !tools.parallel;
            let mut parser = Parser::of(offered.clone(), one_call);
            if tools.forced {
                reader.begun = parser.push(&format.opening());
            }
            reader.parser = Some(parser);
        }
        reader
    }

    /// The token that ends the thoughts, if the output begins with thoughts.
    pub(super) fn begins_after(&self) -> Option<u32> {
        let reply = &self.reply;
        reply.closing_mark().filter(|_| reply.is_thinking())
    }

    /// Whether the answer has a call that is whole.
    pub(super) fn has_calls(&self) -> bool {
        self.parser.as_ref().is_some_and(|p| p.ended > 0)
    }

    /// The stop text that has ended the answer.
    pub(super) fn stopped_by(&self) -> Option<&str> {
        self.stop.found()
    }

    /// Takes the next token; returns whether the answer is over with it.
    pub(super) fn push(&mut self, token: u32, deltas: &mut Vec<Delta>) -> bool {
        deltas.append(&mut self.begun);
        let thinking = self.reply.is_thinking();
        let piece = match self.mark(token) {
            Some(mark) if thinking => Some(Piece::Thought(mark)),
            Some(mark) => Some(Piece::Answer(mark)),
            None => self.reply.push(token),
        };
        self.thought_tokens += usize::from(thinking);
        let over = self.piece(piece, deltas);
        if thinking && !self.reply.is_thinking() {
            self.skip_line_breaks = true;
        }
        over || self.parser.as_ref().is_some_and(Parser::is_over)
    }

    /// The text of a special token that is a mark of calls: others have none.
    fn mark(&self, token: u32) -> Option<String> {
        if self.parser.is_none() || !self.tokenizer.is_special(token) {
            return None;
        }
        let text = self.tokenizer.piece(token);
        MARKS.contains(&text.as_str()).then_some(text)
    }

    fn piece(&mut self, piece: Option<Piece>, deltas: &mut Vec<Delta>) -> bool {
        match piece {
            Some(Piece::Thought(text)) => {
                match &mut self.parser {
                    Some(parser) => deltas.extend(parser.think(&text)),
                    None => deltas.push(Delta::Thought(text)),
                }
                false
            }
            Some(Piece::Answer(text)) => {
                let (text, stopped) = self.stop.push(&text);
                self.text(&text, deltas);
                stopped
            }
            None => false,
        }
    }

    fn text(&mut self, text: &str, deltas: &mut Vec<Delta>) {
        let text = match self.skip_line_breaks {
            true => text.trim_start_matches('\n'),
            false => text,
        };
        if text.is_empty() {
            return;
        }
        self.skip_line_breaks = false;
        match &mut self.parser {
            Some(parser) => deltas.extend(parser.push(text)),
            None => deltas.push(Delta::Text(text.to_owned())),
        }
    }

    /// Ends the answer. It is `whole` if the model ended it itself; what a stop text has cut is not looked at any more.
    pub(super) fn finish(&mut self, whole: bool, at_stop_text: bool, deltas: &mut Vec<Delta>) {
        deltas.append(&mut self.begun);
        let rest = self.reply.end();
        if !at_stop_text && !self.piece(rest, deltas) {
            let held = self.stop.finish();
            self.text(&held, deltas);
        }
        if let Some(parser) = &mut self.parser {
            deltas.extend(parser.finish(whole));
        }
    }
}
