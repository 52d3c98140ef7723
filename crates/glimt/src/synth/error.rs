//! Errors of requests for a synthetic model.

use std::path::PathBuf;

use crate::gguf::GgufError;

/// Everything that planning or writing a synthetic model can fail with.
#[derive(Debug, thiserror::Error)]
pub enum SynthError {
    /// A name of a model or recipe that is not known.
    #[error("there is no {what} {found:?}; choose one of {known}")]
    Unknown {
        /// The kind of thing that the name is for.
        what: &'static str,
        /// The name given.
        found: String,
        /// The known names, separated by commas.
        known: String,
    },
    /// A number of layers that no model can have.
    #[error("--layers is {found}; 1 to {limit} are possible")]
    Layers {
        /// The number given.
        found: usize,
        /// The most layers accepted.
        limit: usize,
    },
    /// A part that no file of the model has.
    #[error("no file of {model} has {part}: leave it out, or take a model with latent attention")]
    NoPart {
        /// The model asked for.
        model: String,
        /// The part, with its flag.
        part: &'static str,
    },
    /// The tensor table of a model without a file is impossible.
    #[error(transparent)]
    Table(#[from] GgufError),
    /// The file cannot be created.
    #[error("cannot create {path}: {source}", path = .path.display())]
    Create {
        /// The file asked for.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The file cannot be written; what was written of a regular file has been removed.
    #[error("cannot write {path}: {source}", path = .path.display())]
    Write {
        /// The file asked for.
        path: PathBuf,
        /// The error of the writer.
        source: GgufError,
    },
}
