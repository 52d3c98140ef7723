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
    /// A type of the cache that the model cannot have.
    #[error("the model cannot have a cache of {cache}: {why}; use --cache-type f16")]
    CacheType {
        /// The type that is asked for.
        cache: &'static str,
        /// Why it cannot have it, as a clause.
        why: String,
    },
    /// A file of metadata only, such as a vocabulary.
    #[error("the file holds no tensors: it is a vocabulary or an incomplete export, not a model")]
    NoTensors,
    /// A valid setting that glimt has no code for.
    #[error("{key} is {found}, which glimt does not support; supported: {supported}")]
    Unsupported {
        /// The metadata key.
        key: String,
        /// The value found.
        found: String,
        /// The values that glimt supports.
        supported: String,
    },
    /// A setting that contradicts the others or is out of any range.
    #[error("{key} is {found}; {expected} was expected")]
    Invalid {
        /// The metadata key.
        key: String,
        /// The value found.
        found: String,
        /// The values that are valid, and why.
        expected: String,
    },
    /// A file of the blocks alone that predict further tokens.
    #[error(
        "the file holds only the layer for multi-token prediction (MTP), block {first} behind {blocks} that are not in it: it is a draft for \
         the model of the same name, and no model; use the model's own file, and give this one as --draft-model"
    )]
    PredictionAlone {
        /// The first block in the file.
        first: usize,
        /// Blocks of the model.
        blocks: usize,
    },
    /// A file without the prediction layer that is wanted.
    #[error(
        "the file has no layer for multi-token prediction (MTP), which would be blk.{number}.nextn.*; take a file that has one, give a file of the \
         layer alone as --draft-model, or do without such drafts"
    )]
    NoPrediction {
        /// The number that the layer would have.
        number: usize,
    },
    /// A prediction layer that is wanted for a model of a family that knows none.
    #[error(
        "models of architecture {architecture} have no layer for multi-token prediction (MTP); leave out --draft-model and --draft mtp, and use \
         --draft ngram for drafts"
    )]
    NeverPredicts {
        /// `general.architecture`.
        architecture: String,
    },
    /// A prediction layer of a model with other sizes.
    #[error(
        "the prediction layer is of another model: {key} is {found} in its file and {expected} in that of the model"
    )]
    OtherModel {
        /// The metadata key.
        key: String,
        /// The value in the file of the layer.
        found: String,
        /// The value in the file of the model.
        expected: String,
    },
    /// A tensor that glimt does not know, in a part of the model that it computes.
    #[error(
        "tensor {tensor} {dims:?} is not known to glimt; without it the model would compute something else, so the file is refused"
    )]
    UnknownTensor {
        /// The tensor's GGUF name.
        tensor: String,
        /// The tensor's dimensions, row length first.
        dims: Vec<u64>,
    },
    /// A tensor that the configuration calls for is not in the file, or of another shape or type.
    #[error("tensor {tensor} {problem}")]
    Tensor {
        /// The tensor's GGUF name.
        tensor: String,
        /// The property found, and the one expected.
        problem: String,
    },
}
