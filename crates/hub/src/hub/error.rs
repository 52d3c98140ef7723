//! Why a model was not found, fetched or removed.

use std::io;
use std::path::PathBuf;

use crate::gguf::GgufError;

/// Bytes with a binary unit, for sentences.
pub(super) fn size(bytes: &u64) -> String {
    match *bytes {
        0..1_048_576 => format!("{bytes} bytes"),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", *bytes as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", *bytes as f64 / 1_073_741_824.0),
    }
}

/// A request that came to nothing.
fn failed(problem: &str, url: &str) -> String {
    format!("asking the hub failed: {problem} ({url})")
}

/// An answer that carries nothing.
fn answered(status: u16, url: &str) -> String {
    format!("the hub answered with status {status} ({url})")
}

/// An error that ends the search, the fetching or the removal of a model. `Display` is one sentence that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// A text is no name of a model.
    #[error(
        "no model can have the name '{text}': {problem}; names are user/repo, user/repo:QUANTISATION, ollama:NAME:TAG, {aliases}"
    )]
    Name {
        /// The text that was given.
        text: String,
        /// The problem with the text.
        problem: &'static str,
        /// The short names.
        aliases: String,
    },
    /// A variable of the environment cannot be used.
    #[error("the variable {variable} cannot be used: found '{found}', expected {expected}")]
    Variable {
        /// The name of the variable.
        variable: &'static str,
        /// The value of the variable.
        found: String,
        /// The values that are accepted.
        expected: &'static str,
    },
    /// The access token in this variable or file has characters that no token has.
    #[error("the access token in {0} has characters that no token has; write it anew")]
    Token(String),
    /// The system tells no home folder.
    #[error("the system names no home folder; name the folder of models in HF_HOME")]
    NoHome,
    /// This model may not be fetched.
    #[error(
        "cannot fetch {0}: it is not on this machine, and HF_HUB_OFFLINE forbids to ask the hub; unset it to fetch the model"
    )]
    Offline(String),
    /// The hub does not answer, or not as it should.
    #[error("{}; {advice}", failed(problem, url))]
    Answer {
        /// The address that was asked.
        url: String,
        /// The problem with the answer, or what was found in it and what was expected.
        problem: String,
        /// The advice to the user.
        advice: &'static str,
    },
    /// The hub does not let strangers have this.
    #[error(
        "the hub lets only some have {repo}: it is private, gated, or not there at all; {advice}"
    )]
    Unauthorized {
        /// The repository.
        repo: String,
        /// The advice about the token.
        advice: &'static str,
    },
    /// The hub knows who asks, and refuses.
    #[error(
        "the hub refuses {repo} to this user; if it is gated, accept its conditions at {page} and set HF_TOKEN to a token of that account"
    )]
    Forbidden {
        /// The repository.
        repo: String,
        /// The page with its conditions.
        page: String,
    },
    /// There is no such repository or file.
    #[error("the hub has no {what}; look for its exact name at {endpoint}")]
    NotFound {
        /// The repository or file.
        what: String,
        /// The hub.
        endpoint: String,
    },
    /// The hub asks for patience, and may tell the seconds.
    #[error("the hub has had too many requests from this address (429){}; try again later, or set HF_TOKEN", .0.map_or(String::new(), |s| format!(" and asks to wait {s} s")))]
    Busy(Option<u64>),
    /// The hub answers in a way that means nothing here.
    #[error("{}; {advice}", answered(*status, url))]
    Status {
        /// The address that was asked.
        url: String,
        /// The status.
        status: u16,
        /// The advice to the user.
        advice: &'static str,
    },
    /// A file that is offered as a model is none.
    #[error("the hub offers no model: {0}; take another file or repository")]
    Head(#[from] GgufError),
    /// This repository has no model for this program.
    #[error("{0} has no GGUF file; look for a repository whose name ends in -GGUF")]
    NoGguf(String),
    /// No file has the quantisation asked for.
    #[error("{repo} has no {wanted}; it has {there}")]
    NoQuantisation {
        /// The repository.
        repo: String,
        /// The quantisation that was asked for.
        wanted: String,
        /// The quantisations that there are.
        there: String,
    },
    /// Several files fit.
    #[error("{repo} has several models{}; name one: {found}", wanted.as_ref().map_or(String::new(), |w| format!(" that fit {w}")))]
    Several {
        /// The repository.
        repo: String,
        /// The quantisation that was asked for.
        wanted: Option<String>,
        /// The models that fit.
        found: String,
    },
    /// A split model is not whole.
    #[error("{repo} lacks shards of {model}: {missing}; pull it again, or take another repository")]
    MissingShards {
        /// The repository.
        repo: String,
        /// The quantisation or the file.
        model: String,
        /// The names that are missing.
        missing: String,
    },
    /// A name that would leave the cache.
    #[error(
        "cannot fetch {repo}: it names a file '{file}', which would be written outside of the cache; do not use this repository"
    )]
    UnsafeName {
        /// The repository.
        repo: String,
        /// The name.
        file: String,
    },
    /// This file could not be checked.
    #[error("the hub tells no checksum of {0}; without one it is not fetched")]
    NoChecksum(String),
    /// The disk is too small.
    #[error("the disk is too small: {needed} are needed in {}, and {available} are free; make room, or name another folder in HF_HOME", path.display(), needed = size(needed), available = size(available))]
    NoSpace {
        /// Bytes still to be fetched.
        needed: u64,
        /// Bytes that are free.
        available: u64,
        /// The folder.
        path: PathBuf,
    },
    /// A file is not the one that the hub promised.
    #[error(
        "{file} is damaged: its checksum is {found}, expected {expected}; it was deleted, pull it again"
    )]
    Checksum {
        /// The file.
        file: String,
        /// The checksum that the hub tells.
        expected: String,
        /// The checksum of what came.
        found: String,
    },
    /// More came than the hub promised.
    #[error(
        "fetching {file} failed: the hub sends more than the {size} bytes that it told; pull it again, or take another hub"
    )]
    TooLong {
        /// The file.
        file: String,
        /// The file's length in bytes, as the hub tells it.
        size: u64,
    },
    /// The disk refuses.
    #[error("cannot write {}: {source}{}", path.display(), full(source))]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A store cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// No store has the model of this name.
    #[error("no store of this machine has {0}; glimt list shows what there is")]
    NotHere(String),
    /// A model of another program's store.
    #[error("{name} belongs to {store}; {advice}")]
    Foreign {
        /// The name.
        name: String,
        /// The program.
        store: &'static str,
        /// The advice to the user, with the command of that program.
        advice: String,
    },
    /// A model is to be removed while something is fetched from this repository.
    #[error(
        "another program fetches from {0} just now, so nothing is removed; end that first, or wait for it"
    )]
    BeingFetched(String),
    /// A file was removed before the others of its model were there.
    #[error("{file} of {repo} was removed while the rest of the model was fetched; fetch it again")]
    Vanished {
        /// The file.
        file: String,
        /// The repository.
        repo: String,
    },
}

/// The advice where the disk is full.
fn full(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            "; make room and run the command again: what is fetched is kept"
        }
        _ => "",
    }
}

impl HubError {
    /// The event alone, without the advice: for requests that are tried again by themselves.
    pub fn cause(&self) -> String {
        match self {
            Self::Answer { url, problem, .. } => failed(problem, url),
            Self::Status { url, status, .. } => answered(*status, url),
            Self::Busy(_) => "the hub has had too many requests from this address (429)".to_owned(),
            other => other.to_string(),
        }
    }

    /// Writing `path` failed.
    pub(super) fn write(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Write { path, source }
    }

    /// Reading `path` failed.
    pub(super) fn read(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Read { path, source }
    }
}
