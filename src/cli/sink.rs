//! The outputs of an answer and its thoughts.

use std::io::{self, IsTerminal};

use super::error::CliError;
use super::lines::Lines;
use super::output::{self, Thoughts};

/// Takes the text of an answer as it comes.
pub(super) enum Sink {
    /// The answer goes to standard output in these lines, thoughts to standard error unless notes are left out.
    Streamed(Thoughts, Lines),
    /// Both are kept for a report.
    Kept {
        /// The answer.
        text: String,
        /// The thoughts, where there are any.
        thoughts: Option<String>,
    },
}

impl Sink {
    /// A sink that keeps the answer for a report.
    pub(super) fn kept() -> Self {
        Self::Kept {
            text: String::new(),
            thoughts: None,
        }
    }

    /// A sink whose text is read as it comes. Lines are broken between words if they are `wrapped`.
    pub(super) fn streamed(wrapped: bool) -> Self {
        match wrapped {
            true => Self::Streamed(
                Thoughts::new(Lines::of(&io::stderr())),
                Lines::of(&io::stdout()),
            ),
            false => Self::Streamed(Thoughts::new(Lines::whole()), Lines::whole()),
        }
    }

    /// Takes a piece of thought.
    pub(super) fn thought(&mut self, piece: &str) {
        match self {
            Self::Streamed(..) if output::is_quiet() => {}
            Self::Streamed(thoughts, _) => {
                let piece = output::shown(piece, io::stderr().is_terminal());
                thoughts.print(&piece);
            }
            Self::Kept { thoughts, .. } => {
                thoughts.get_or_insert_default().push_str(piece);
            }
        }
    }

    /// Ends the thoughts.
    pub(super) fn end_thoughts(&mut self) {
        if let Self::Streamed(thoughts, _) = self {
            thoughts.end();
        }
    }

    /// Takes a piece of the answer.
    pub(super) fn answer(&mut self, piece: &str) -> Result<(), CliError> {
        match self {
            Self::Streamed(_, lines) => {
                let piece = output::shown(piece, io::stdout().is_terminal());
                output::print(&lines.broken(&piece))
            }
            Self::Kept { text, .. } => {
                text.push_str(piece);
                Ok(())
            }
        }
    }

    /// Ends an answer that is read as it comes, and its last line if that has not ended.
    pub(super) fn end(&mut self, ends_line: bool) -> Result<(), CliError> {
        match self {
            Self::Streamed(_, lines) => {
                let rest = lines.end();
                output::print(&if ends_line { rest } else { rest + "\n" })
            }
            Self::Kept { .. } => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_told_apart() {
        let mut sink = Sink::kept();
        sink.thought("Hm.");
        sink.end_thoughts();
        sink.answer("Yes").expect("it is kept");
        sink.answer(".").expect("it is kept");
        sink.end(false).expect("nothing is printed");
        let Sink::Kept { text, thoughts } = sink else {
            panic!("it was to be kept");
        };
        assert_eq!((text.as_str(), thoughts.as_deref()), ("Yes.", Some("Hm.")));
    }
}
