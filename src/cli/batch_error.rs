//! The reasons why a batch is refused.

use std::fmt;
use std::io;

use crate::plural::count;

/// The most lines that are told of.
pub(super) const MOST_TOLD: usize = 10;

/// The problems in the lines of a batch.
#[derive(Debug, Default)]
pub(super) struct Problems {
    /// The first of them, with the numbers of their lines.
    pub(super) first: Vec<(u64, String)>,
    /// The number of problems.
    pub(super) all: usize,
}

impl Problems {
    /// Notes another.
    pub(super) fn add(&mut self, line: u64, problem: String) {
        if self.first.len() < MOST_TOLD {
            self.first.push((line, problem));
        }
        self.all += 1;
    }

    /// One problem alone.
    pub(super) fn one(line: u64, problem: String) -> Self {
        let mut problems = Self::default();
        problems.add(line, problem);
        problems
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} cannot be asked", count(self.all, "line"))?;
        for (line, problem) in &self.first {
            write!(out, "\n  line {line} {problem}")?;
        }
        match self.all - self.first.len() {
            0 => Ok(()),
            more => write!(out, "\n  and {more} more"),
        }
    }
}

/// An error of `batch`. Messages name what was found, what was expected and what to do.
#[derive(Debug, thiserror::Error)]
pub(super) enum BatchError {
    #[error("{path}: {problems}\ncorrect or remove what is wrong; all else can stay as it is")]
    Lines {
        /// The file, or `standard input`.
        path: String,
        problems: Problems,
    },
    #[error("{path} has no line, so nothing is asked; give each request a line of JSON")]
    Empty {
        /// The file, or `standard input`.
        path: String,
    },
    /// Requests name a model that does not answer them.
    #[error(
        "{path}, line {line}: the model '{name}' is asked for, and '{own}' would answer ({} ask for another one); --alias NAME is what requests call \
         the model, or leave \"model\" out",
        count(*lines, "line")
    )]
    OtherModel {
        path: String,
        /// The first line of this name.
        line: u64,
        name: String,
        /// Lines that name another model.
        lines: usize,
        own: String,
    },
    #[error(
        "{failed} of {} failed, and {path} has their errors; --allow-errors makes that a success",
        count(*all, "request")
    )]
    Failed {
        failed: usize,
        all: usize,
        /// The file with the errors.
        path: String,
    },
    /// The file is not what it was when it was checked.
    #[error(
        "{path} was changed while it was read (line {line}); leave it as it is until all is answered, and run the same command again"
    )]
    Changed { path: String, line: u64 },
    #[error("{path} is named twice; requests, answers and errors need a file each")]
    SameFile { path: String },
    #[error("{path} is being written by another process; wait for its end, or name another file")]
    InUse { path: String },
    #[error("{what} {path}: {source}")]
    File {
        /// The attempt that failed, such as `cannot open`.
        what: &'static str,
        path: String,
        source: io::Error,
    },
    #[error(
        "{path}, line {line}: {problem}; name another file for the answers to {input}, or remove what does not belong there"
    )]
    Other {
        path: String,
        line: u64,
        problem: String,
        input: String,
    },
    #[error(
        "the answers in {path} are not in the order of {input} (line {line}); go on without --ordered, or name another file"
    )]
    NotOrdered {
        path: String,
        line: u64,
        input: String,
    },
    /// Requests of standard input cannot be told from those that were answered.
    #[error(
        "{path} holds answers already, and requests from standard input cannot be compared with them; name another file"
    )]
    NotEmpty { path: String },
}
