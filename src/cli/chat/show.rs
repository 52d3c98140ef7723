//! Showing an answer while it is generated.

use std::time::Instant;

use indicatif::ProgressBar;

use crate::chat::Piece;
use crate::cli::bars;
use crate::cli::error::CliError;
use crate::cli::output::{self, Thoughts, note};
use crate::plural::count;

/// Shows thoughts, dimmed or folded into one line, and the answer behind them.
pub(super) struct Show {
    thoughts: Thoughts,
    /// Where thoughts are folded: since when there are any, and the line that tells how many.
    folded: Option<(Instant, ProgressBar)>,
    thought_tokens: usize,
    /// Whether the answer has begun.
    begun: bool,
    ends_line: bool,
}

impl Show {
    pub(super) fn new(fold: bool) -> Self {
        Self {
            thoughts: Thoughts::new(),
            folded: fold.then(|| (Instant::now(), bars::bar(None, "{msg}"))),
            thought_tokens: 0,
            begun: false,
            ends_line: true,
        }
    }

    /// Shows what a token completed, which is `None` while a character is incomplete.
    pub(super) fn token(&mut self, piece: Option<Piece>, thinking: bool) -> Result<(), CliError> {
        self.thought_tokens += usize::from(thinking);
        match piece {
            Some(Piece::Thought(text)) => match &self.folded {
                Some((_, line)) => {
                    line.set_message(format!("thinking, {}", count(self.thought_tokens, "token")));
                    line.tick();
                }
                None => self.thoughts.print(&output::clean(&text)),
            },
            Some(Piece::Answer(text)) => {
                if !thinking {
                    self.end_thoughts();
                }
                self.answer(&text)?;
            }
            None if !thinking => self.end_thoughts(),
            None => {}
        }
        Ok(())
    }

    fn answer(&mut self, text: &str) -> Result<(), CliError> {
        // Line breaks between thoughts and answer are not shown.
        let text = match self.begun {
            true => text,
            false => text.trim_start_matches('\n'),
        };
        if text.is_empty() {
            return Ok(());
        }
        self.begun = true;
        self.ends_line = text.ends_with('\n');
        output::page(text)
    }

    fn end_thoughts(&mut self) {
        self.thoughts.end();
        if let Some((since, line)) = self.folded.take() {
            line.finish_and_clear();
            if self.thought_tokens > 0 {
                note(format_args!(
                    "thought for {:.1} s, {}; /thoughts shows it",
                    since.elapsed().as_secs_f64(),
                    count(self.thought_tokens, "token")
                ));
            }
        }
    }

    /// Ends what is shown with the end of a line.
    pub(super) fn end(&mut self) -> Result<(), CliError> {
        self.end_thoughts();
        match std::mem::replace(&mut self.ends_line, true) {
            true => Ok(()),
            false => output::print("\n"),
        }
    }
}
