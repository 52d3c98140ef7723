//! Synthetic models: the exact shapes and type mixes of real ones, with random weights.
//!
//! Their text is noise, but their work is real: speed, memory and the agreement of two implementations can be
//! measured without a download. The plan (names, types, dimensions) is apart from the bytes, and both from the file,
//! so that weights can also be made where no file is wanted.

mod bytes;
mod error;
mod file;
mod names;
mod plan;
mod planned;
mod retyped;
mod shape;

pub use crate::random::Random;
pub use bytes::{CHUNK_WEIGHTS, chunk_bytes, fill};
pub use error::SynthError;
pub use file::{in_memory, write};
pub use names::{ModelName, Recipe};
pub use plan::{Plan, PlannedTensor};
pub use planned::without_matrices;
pub use retyped::Retyped;

/// The differences from the plain model that can be chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SynthOptions {
    /// Number of layers; `None` for as many as the model has.
    pub layers: Option<usize>,
    /// Equal seeds give equal weights, on any machine and with any number of threads.
    pub seed: u64,
    /// One `attn_kv_b` tensor per layer, as files from before 2025 have, instead of `attn_k_b` and `attn_v_b`.
    pub fused_kv_b: bool,
    /// A prediction layer behind the others (multi-token prediction, `blk.N.nextn.*`), as files of GLM-4.7-Flash have since the summer of 2026.
    pub nextn: bool,
}

impl Default for SynthOptions {
    /// All layers, seed 1, the tensors of today, no prediction layer.
    fn default() -> Self {
        SynthOptions {
            layers: None,
            seed: 1,
            fused_kv_b: false,
            nextn: false,
        }
    }
}
