//! An answer while it is generated: its tokens become text, which is sorted into thoughts and answer.

use super::error::CliError;
use super::sink::Sink;
use super::stop::StopFilter;
use crate::engine::Engine;
use crate::tokenizer::StreamDecoder;

/// Sorts the tokens of an answer into thoughts and answer.
pub(super) struct Answer<'a> {
    decoder: StreamDecoder<'a>,
    stop: StopFilter,
    sink: Sink,
    pub(super) thinking: bool,
    /// Tokens of the thoughts so far, and how many there may be.
    pub(super) thought_tokens: usize,
    pub(super) think_limit: Option<usize>,
    /// The tokens that open and close thoughts, where the model has them.
    pub(super) marks: Option<(u32, u32)>,
    /// Whether line breaks are still skipped because they stand between thoughts and answer.
    skip_line_breaks: bool,
    /// The answer so far.
    text: String,
    ends_line: bool,
}

/// What is left of an answer that has ended.
pub(super) struct Finished {
    /// Where it went.
    pub(super) sink: Sink,
    /// The answer without its thoughts.
    pub(super) text: String,
}

impl<'a> Answer<'a> {
    /// `rendered` is the prompt in the chat template, `None` where all output is answer.
    pub(super) fn new(
        engine: &'a Engine,
        stops: &[String],
        rendered: Option<&str>,
        sink: Sink,
    ) -> Self {
        let marks = rendered.and_then(|_| {
            Some((
                single_token(engine, "<think>")?,
                single_token(engine, "</think>")?,
            ))
        });
        // The template may have opened the thoughts already.
        let thinking =
            marks.is_some() && rendered.is_some_and(|text| text.trim_end().ends_with("<think>"));
        Self {
            decoder: StreamDecoder::new(engine.tokenizer()),
            stop: StopFilter::new(stops),
            sink,
            thinking,
            thought_tokens: 0,
            think_limit: None,
            marks,
            skip_line_breaks: false,
            text: String::new(),
            ends_line: true,
        }
    }

    /// Takes the next token; returns whether a stop text ended the answer.
    pub(super) fn token(&mut self, token: u32) -> Result<bool, CliError> {
        match self.marks {
            Some((open, _)) if token == open && self.text.is_empty() => {
                self.thinking = true;
                Ok(false)
            }
            Some((_, close)) if token == close && self.thinking => {
                self.end_thoughts();
                self.skip_line_breaks = true;
                Ok(false)
            }
            _ => {
                let piece = self.decoder.push(token);
                if self.thinking {
                    self.thought_tokens += 1;
                    self.sink.thought(&piece);
                    return Ok(false);
                }
                let (text, stopped) = self.stop.push(&piece);
                self.print(&text)?;
                Ok(stopped)
            }
        }
    }

    /// Whether the model thinks and has had all tokens for it.
    pub(super) fn is_over_think_limit(&self) -> bool {
        let limit = self.think_limit.filter(|_| self.thinking);
        limit.is_some_and(|limit| self.thought_tokens >= limit)
    }

    fn end_thoughts(&mut self) {
        let rest = self.decoder.finish();
        self.sink.thought(&rest);
        self.sink.end_thoughts();
        self.thinking = false;
    }

    /// Prints what is still held back, unless a stop text ended the answer, and ends the last line.
    pub(super) fn finish(mut self, at_stop_text: bool) -> Result<Finished, CliError> {
        if self.thinking {
            self.end_thoughts();
        } else if !at_stop_text {
            let rest = self.decoder.finish();
            // What follows the rest is nothing, so it is printed even if a stop text ends in it.
            let (text, stopped) = self.stop.push(&rest);
            self.print(&text)?;
            if !stopped {
                let held = self.stop.finish();
                self.print(&held)?;
            }
        }
        self.end_line()?;
        Ok(Finished {
            sink: self.sink,
            text: self.text,
        })
    }

    /// Ends the line of the answer, or that of the thoughts.
    pub(super) fn end_line(&mut self) -> Result<(), CliError> {
        if self.thinking {
            self.sink.end_thoughts();
        }
        if std::mem::replace(&mut self.ends_line, true) {
            return Ok(());
        }
        self.sink.end_line()
    }

    fn print(&mut self, text: &str) -> Result<(), CliError> {
        let text = if self.skip_line_breaks {
            text.trim_start_matches('\n')
        } else {
            text
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

/// The token that `text` is as a whole, if it is one.
fn single_token(engine: &Engine, text: &str) -> Option<u32> {
    match engine.tokenizer().encode(text, false).ok()?.as_slice() {
        [token] => Some(*token),
        _ => None,
    }
}
