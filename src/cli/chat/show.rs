//! Showing an answer while it is generated.

use std::io::{self, IsTerminal};
use std::time::Instant;

use indicatif::ProgressBar;

use crate::chat::{Piece, StopFilter};
use crate::cli::bars;
use crate::cli::error::CliError;
use crate::cli::lines::Lines;
use crate::cli::output::{self, Thoughts, note};
use crate::plural::count;

/// Shows thoughts, dimmed or folded into one line, and the answer behind them.
pub(super) struct Show {
    thoughts: Thoughts,
    /// If thoughts are folded, the time of the first, and the line that tells how many there are.
    folded: Option<(Instant, ProgressBar)>,
    thought_tokens: usize,
    /// Ends the answer.
    stop: StopFilter,
    stopped: bool,
    lines: Lines,
    /// Whether the answer has begun.
    begun: bool,
    ends_line: bool,
}

impl Show {
    /// Shows an answer that ends before `stops`. Thoughts are folded if they are to be, and lines broken between words if they are `wrapped`.
    pub(super) fn new(fold: bool, wrapped: bool, stops: &[String]) -> Self {
        let lines = |terminal: Lines| if wrapped { terminal } else { Lines::whole() };
        Self {
            thoughts: Thoughts::new(lines(Lines::of(&io::stderr()))),
            lines: lines(Lines::of(&io::stdout())),
            stop: StopFilter::new(stops),
            stopped: false,
            folded: fold.then(|| (Instant::now(), bars::bar(None, "{msg}"))),
            thought_tokens: 0,
            begun: false,
            ends_line: true,
        }
    }

    /// Shows what a token completed, which is `None` while a character is incomplete. Returned is whether a stop text has ended the answer.
    pub(super) fn token(&mut self, piece: Option<Piece>, thinking: bool) -> Result<bool, CliError> {
        self.thought_tokens += usize::from(thinking);
        match piece {
            Some(Piece::Thought(text)) => match &self.folded {
                Some((_, line)) => {
                    line.set_message(format!("thinking, {}", count(self.thought_tokens, "token")));
                    line.tick();
                }
                None if output::is_quiet() => {}
                None => {
                    let text = output::shown(&text, io::stderr().is_terminal());
                    self.thoughts.print(&text);
                }
            },
            Some(Piece::Answer(text)) if !self.stopped => {
                if !thinking {
                    self.end_thoughts();
                }
                let (text, stopped) = self.stop.push(&text);
                self.stopped = stopped;
                self.answer(&text)?;
            }
            Some(Piece::Answer(_)) => {}
            None if !thinking => self.end_thoughts(),
            None => {}
        }
        Ok(self.stopped)
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
        let text = self.lines.broken(text);
        output::answer(&text)
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
        // Nothing follows, so the rest is shown even if a stop text begins in it.
        let held = self.stop.finish();
        self.answer(&held)?;
        let rest = self.lines.end();
        output::answer(&rest)?;
        match std::mem::replace(&mut self.ends_line, true) {
            true => Ok(()),
            false => output::print("\n"),
        }
    }
}
