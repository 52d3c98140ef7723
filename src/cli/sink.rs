//! Where an answer and its thoughts go.

use super::error::CliError;
use super::output::{self, Thoughts};

/// Takes the text of an answer as it comes.
pub(super) enum Sink {
    /// The answer goes to standard output, thoughts to standard error unless notes are left out.
    Streamed(Thoughts),
    /// Both are kept for a report.
    Kept {
        /// The answer.
        text: String,
        /// The thoughts, where there are any.
        thoughts: Option<String>,
    },
}

impl Sink {
    /// For a report, or to be read as it comes.
    pub(super) fn new(kept: bool) -> Self {
        match kept {
            true => Self::Kept {
                text: String::new(),
                thoughts: None,
            },
            false => Self::Streamed(Thoughts::new()),
        }
    }

    /// Takes a piece of thought.
    pub(super) fn thought(&mut self, piece: &str) {
        match self {
            Self::Streamed(_) if output::is_quiet() => {}
            Self::Streamed(thoughts) => thoughts.print(piece),
            Self::Kept { thoughts, .. } => {
                thoughts.get_or_insert_default().push_str(piece);
            }
        }
    }

    /// Ends the thoughts.
    pub(super) fn end_thoughts(&mut self) {
        if let Self::Streamed(thoughts) = self {
            thoughts.end();
        }
    }

    /// Takes a piece of the answer.
    pub(super) fn answer(&mut self, piece: &str) -> Result<(), CliError> {
        match self {
            Self::Streamed(_) => output::print(piece),
            Self::Kept { text, .. } => {
                text.push_str(piece);
                Ok(())
            }
        }
    }

    /// Ends the last line of an answer that is read as it comes.
    pub(super) fn end_line(&mut self) -> Result<(), CliError> {
        match self {
            Self::Streamed(_) => output::print("\n"),
            Self::Kept { .. } => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_told_apart() {
        let mut sink = Sink::new(true);
        sink.thought("Hm.");
        sink.end_thoughts();
        sink.answer("Yes").expect("it is kept");
        sink.answer(".").expect("it is kept");
        sink.end_line().expect("nothing is printed");
        let Sink::Kept { text, thoughts } = sink else {
            panic!("it was to be kept");
        };
        assert_eq!((text.as_str(), thoughts.as_deref()), ("Yes.", Some("Hm.")));
    }
}
