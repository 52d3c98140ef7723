//! Why a GGUF file is not a model that glimt runs.

use crate::gguf::GgufError;

/// Everything that reading a configuration or finding the weights can fail with.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The container is damaged, or a key is missing or of another type.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// `general.architecture` is another one.
    #[error("the file holds a model of the architecture {found:?}; glimt runs {runs}")]
    Architecture {
        /// The architecture found.
        found: String,
        /// The architectures of all families, and their models.
        runs: String,
    },
    /// A file of metadata only, such as a vocabulary.
    #[error("the file holds no tensors: it is a vocabulary or an incomplete export, not a model")]
    NoTensors,
    /// A valid setting that glimt has no code for.
    #[error("{key} is {found}, which glimt does not support; supported: {supported}")]
    Unsupported {
        /// The metadata key.
        key: String,
        /// Its value.
        found: String,
        /// What would be accepted.
        supported: String,
    },
    /// A setting that contradicts the others or is out of any range.
    #[error("{key} is {found}; {expected} was expected")]
    Invalid {
        /// The metadata key.
        key: String,
        /// Its value.
        found: String,
        /// What would be valid, and why.
        expected: String,
    },
    /// A tensor the configuration calls for is not in the file.
    #[error("tensor {tensor} {expected:?} is missing")]
    MissingTensor {
        /// The tensor's GGUF name.
        tensor: String,
        /// The dimensions it would have, row length first.
        expected: Vec<u64>,
    },
    /// A tensor has other dimensions than the configuration says.
    #[error("tensor {tensor} has the dimensions {found:?}; the configuration says {expected:?}")]
    WrongShape {
        /// The tensor's GGUF name.
        tensor: String,
        /// Its dimensions, row length first.
        found: Vec<u64>,
        /// The dimensions that follow from the metadata.
        expected: Vec<u64>,
    },
    /// A norm or bias vector is quantised.
    #[error("tensor {tensor} is of type {found}; {expected} was expected")]
    WrongType {
        /// The tensor's GGUF name.
        tensor: String,
        /// Its type.
        found: &'static str,
        /// The types accepted.
        expected: &'static str,
    },
    /// A matrix whose rows do not fill whole units of 32 weights.
    #[error("tensor {tensor} has rows of {cols} values; glimt needs a multiple of 32")]
    RowLength {
        /// The tensor's GGUF name.
        tensor: String,
        /// Its row length.
        cols: usize,
    },
}
