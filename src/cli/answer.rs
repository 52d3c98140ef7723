//! An answer while it is generated: its tokens become text, which is sorted into thoughts and answer.

use std::time::Duration;

use super::error::CliError;
use super::sink::Sink;
use crate::chat::{Piece, ReplyReader, StopFilter};
use crate::engine::Engine;

/// Sorts the tokens of an answer into thoughts and answer.
pub(super) struct Answer<'a> {
    reader: ReplyReader<'a>,
    stop: StopFilter,
    sink: Sink,
    /// The most tokens of the thoughts.
    pub(super) think_limit: Option<usize>,
    /// Whether line breaks are still skipped because they stand between thoughts and answer.
    skip_line_breaks: bool,
    /// The answer so far.
    text: String,
    ends_line: bool,
}

impl<'a> Answer<'a> {
    /// `rendered` is the prompt in the chat template, `None` where all output is answer.
    pub(super) fn new(
        engine: &'a Engine,
        stops: &[String],
        rendered: Option<&str>,
        sink: Sink,
    ) -> Self {
        let tokenizer = engine.tokenizer();
        Self {
            reader: match rendered {
                Some(text) => ReplyReader::new(tokenizer, text),
                None => ReplyReader::plain(tokenizer),
            },
            stop: StopFilter::new(stops),
            sink,
            think_limit: None,
            skip_line_breaks: false,
            text: String::new(),
            ends_line: true,
        }
    }

    /// Whether the model thinks.
    pub(super) fn is_thinking(&self) -> bool {
        self.reader.is_thinking()
    }

    /// The token that ends thoughts, where the model has one.
    pub(super) fn closing_mark(&self) -> Option<u32> {
        self.reader.closing_mark()
    }

    /// Tokens of the thoughts so far.
    pub(super) fn thought_tokens(&self) -> usize {
        let thoughts = self.reader.reply().thoughts.as_ref();
        thoughts.map_or(0, |thoughts| thoughts.ids.len())
    }

    /// Takes the next token; returns whether a stop text ended the answer.
    pub(super) fn token(&mut self, token: u32) -> Result<bool, CliError> {
        let thought = self.is_thinking();
        let piece = self.reader.push(token);
        let stopped = self.piece(piece)?;
        if thought && !self.is_thinking() {
            self.sink.end_thoughts();
            self.skip_line_breaks = true;
        }
        Ok(stopped)
    }

    /// Takes the next piece of text; returns whether a stop text ended the answer.
    fn piece(&mut self, piece: Option<Piece>) -> Result<bool, CliError> {
        match piece {
            Some(Piece::Thought(text)) => {
                self.sink.thought(&text);
                Ok(false)
            }
            Some(Piece::Answer(text)) => {
                let (text, stopped) = self.stop.push(&text);
                self.print(&text)?;
                Ok(stopped)
            }
            None => Ok(false),
        }
    }

    /// Whether the model thinks and has had all tokens for it.
    pub(super) fn is_over_think_limit(&self) -> bool {
        let limit = self.think_limit.filter(|_| self.is_thinking());
        limit.is_some_and(|limit| self.thought_tokens() >= limit)
    }

    /// Prints what is still held back, unless a stop text ended the answer, and ends the last line. Returns where the answer went, and
    /// its text without the thoughts.
    pub(super) fn finish(mut self, at_stop_text: bool) -> Result<(Sink, String), CliError> {
        let thinking = self.is_thinking();
        let rest = self.reader.end();
        if thinking {
            self.piece(rest)?;
            self.sink.end_thoughts();
        } else if !at_stop_text && !self.piece(rest)? {
            // Nothing follows, so the held text is printed even if a stop text begins in it.
            let held = self.stop.finish();
            self.print(&held)?;
        }
        self.end_line()?;
        Ok((self.sink, self.text))
    }

    /// Ends the line of the answer, or that of the thoughts.
    pub(super) fn end_line(&mut self) -> Result<(), CliError> {
        if self.is_thinking() {
            self.sink.end_thoughts();
        }
        let ends_line = std::mem::replace(&mut self.ends_line, true);
        self.sink.end(ends_line)
    }

    fn print(&mut self, text: &str) -> Result<(), CliError> {
        let text = match self.skip_line_breaks {
            true => text.trim_start_matches('\n'),
            false => text,
        };
        if text.is_empty() {
            return Ok(());
        }
        self.skip_line_breaks = false;
        self.text.push_str(text);
        self.ends_line = text.ends_with('\n');
        self.sink.answer(text)
    }
}

/// The rate, such as `, 55.5 tokens/s`. It is empty if there were no tokens or no time was measured.
pub(super) fn rate(tokens: usize, time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if tokens > 0 && seconds > 0.0 => {
            format!(", {:.1} tokens/s", tokens as f64 / seconds)
        }
        _ => String::new(),
    }
}
