//! The errors of session files.

use std::io;
use std::path::{Path, PathBuf};

use crate::engine::EngineError;
use crate::plural::count;

/// Why a session file is not used. Nothing of such a file is used, and nothing in it was changed.
#[derive(Debug, thiserror::Error)]
pub enum SessionFileError {
    /// The system refused.
    #[error("{doing} the session file {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The action that failed, such as `cannot open`.
        doing: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// Another process has the file open.
    #[error("the session file {} is in use by another process; end that one, or name another file", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file is no session file.
    #[error("{} is no session file: {found}, expected a file that begins with {expected:?}; name another file, or a new one", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// A description of the file, such as its first bytes.
        found: String,
        /// How session files begin.
        expected: &'static str,
    },
    /// A later glimt wrote it.
    #[error(
        "the session file {} has version {found}, but this glimt reads version {expected}; use a newer glimt, or name another file",
        path.display()
    )]
    NewerVersion {
        /// The file.
        path: PathBuf,
        /// The version of the file.
        found: u32,
        /// The version that is written here.
        expected: u32,
    },
    /// The file belongs to another model, or to other cache rows.
    #[error(
        "the session file {} belongs to another model: its {what} is {found}, but {expected} here; load that model, or name another file",
        path.display()
    )]
    OtherModel {
        /// The file.
        path: PathBuf,
        /// The name of the property that differs.
        what: &'static str,
        /// The value in the file.
        found: String,
        /// The value of the loaded model.
        expected: String,
    },
    /// The file was written by this model with a cache of another type.
    #[error(
        "the session file {} has a cache in {found}, but the cache is in {expected} here; give --cache-type {found}, or name another file",
        path.display()
    )]
    OtherCache {
        /// The file.
        path: PathBuf,
        /// The type of the file's rows.
        found: String,
        /// The type of the loaded model's cache.
        expected: String,
    },
    /// Bytes that nobody wrote so.
    #[error(
        "the session file {} is damaged at byte {position}: found {found}, expected {expected}; nothing of it was used. What was saved before \
         ends at byte {keep}: to go on from there, copy the file and cut the copy to that length",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The position at which the damage begins.
        position: u64,
        /// A description of the bytes there.
        found: &'static str,
        /// A description of the bytes that should be there.
        expected: &'static str,
        /// The length of what was saved before the damage.
        keep: u64,
    },
    /// The context has no room for its tokens.
    #[error(
        "the session file {} has {}, but the context holds {n_ctx}; ask for more context with -c",
        path.display(), count(*tokens, "token")
    )]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Tokens of the session.
        tokens: usize,
        /// Tokens that the context holds.
        n_ctx: usize,
    },
    /// The data of an application are longer than a session file keeps.
    #[error("the session file {} cannot keep {} of the application: at most {most} fit", path.display(), count(*bytes, "byte"))]
    DataTooLong {
        /// The file.
        path: PathBuf,
        /// Bytes given.
        bytes: usize,
        /// Bytes that fit.
        most: usize,
    },
    /// The session is one of another model.
    #[error("the session file {} was opened for another model than that of the session; open it for the session's engine", path.display())]
    OtherEngine {
        /// The file.
        path: PathBuf,
    },
    /// The model or the device failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl SessionFileError {
    /// The file at `path` is damaged at `position`, where one thing was found and another is expected.
    pub(super) fn damaged(
        path: &Path,
        position: u64,
        (found, expected): (&'static str, &'static str),
        keep: u64,
    ) -> Self {
        Self::Damaged {
            path: path.to_owned(),
            position,
            found,
            expected,
            keep,
        }
    }
}
