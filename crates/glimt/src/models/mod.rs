//! The families of models. Each has a folder with what only its models have; what all share is in [`model`](crate::model).
//!
//! The engine knows no family: it asks for what the traits of this module name. A further family is a folder that has them and a line in
//! `FAMILIES`.

pub mod mla;
mod places;

use std::fmt;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;

use half::f16;

use crate::gguf::Gguf;
use crate::gpu::buffer::Range;
use crate::gpu::call::State;
use crate::gpu::machine::Machine;
use crate::gpu::memory::{GpuWeight, Loader};
use crate::gpu::{Gpu, GpuError, Step, Target};
use crate::kernels::attention::{Cut, Seen};
use crate::kernels::sequences::{PAGE, Sequences};
use crate::model::pairs::{Factors, Pair};
use crate::model::{Config, ModelError};

/// Up to so many tokens of a prompt are few: a family may have a step of its own for them.
pub const FEW: u32 = 8;
/// The most tokens of a prompt at once: what a grid of workgroups has room for, with 8 experts each.
pub const MAX_CHUNK: u32 = 4096;

/// Every family that glimt runs.
const FAMILIES: [Family; 1] = [mla::FAMILY];

/// Models that are computed alike.
pub struct Family {
    /// Values of `general.architecture` that its files have.
    pub architectures: &'static [&'static str],
    /// The names of these models, for a message.
    pub models: &'static str,
    /// Reads the configuration and finds all weights.
    pub load: fn(Arc<Gguf>) -> Loaded,
}

/// The result of reading a model.
pub type Loaded = Result<Arc<dyn Model>, ModelError>;

/// Reads the configuration of a model of any family and finds all its weights.
///
/// # Errors
/// [`ModelError::Architecture`] where no family has the file's architecture, or what its family refuses.
pub fn load(gguf: Arc<Gguf>) -> Loaded {
    let architecture = gguf.require_str("general.architecture")?;
    let family = FAMILIES
        .iter()
        .find(|f| f.architectures.contains(&architecture));
    let Some(family) = family else {
        return Err(ModelError::Architecture {
            found: architecture.to_owned(),
            runs: all_that_run(),
        });
    };
    (family.load)(gguf)
}

/// Whether a family has this architecture.
pub fn runs(architecture: &str) -> bool {
    FAMILIES
        .iter()
        .any(|family| family.architectures.contains(&architecture))
}

/// The architectures of all families and their models, for a message.
pub fn all_that_run() -> String {
    let runs = FAMILIES.iter().map(|family| {
        let quoted: Vec<_> = family
            .architectures
            .iter()
            .map(|a| format!("{a:?}"))
            .collect();
        format!("{}: {}", quoted.join(", "), family.models)
    });
    runs.collect::<Vec<_>>().join("; ")
}

/// A model: its sizes, and weights that are views of its file.
pub trait Model: fmt::Debug + Send + Sync {
    /// The configuration that models of all families have.
    fn config(&self) -> &Config;

    /// The sizes that only its family has, by name; `None` of what the model does without.
    fn sizes(&self) -> Vec<(&'static str, Option<usize>)>;

    /// The sizes of its attention in words, as `inspect` has them.
    fn attention(&self) -> String;

    /// The file.
    fn gguf(&self) -> &Arc<Gguf>;

    /// Whether its weights have bytes; those of a model without a file do not ([`Gguf::planned`]).
    fn has_data(&self) -> bool;

    /// Bytes that a position takes in the cache, of all layers.
    fn cache_bytes_per_token(&self) -> u64;

    /// The weights of each block that `pair` multiplies; nothing where blocks have no such weights.
    fn factors(&self, pair: Pair) -> Vec<Factors<'_>>;

    /// The forward pass on the CPU, for a context of `n_ctx` tokens.
    ///
    /// # Errors
    /// [`OutOfMemory`] where the cache has no room.
    fn reference(self: Arc<Self>, n_ctx: usize) -> Result<Box<dyn Reference>, OutOfMemory>;

    /// Where its weights will lie on a device.
    ///
    /// # Errors
    /// [`GpuError::UnsupportedSize`], [`GpuError::BindingTooLarge`].
    fn place(&self, target: &Target) -> Result<Placed<'_>, GpuError>;
}

/// The host has no room for a cache of so many bytes.
#[derive(Debug)]
pub struct OutOfMemory {
    /// Bytes of the cache.
    pub bytes: usize,
}

/// Is told how many blocks of a forward pass are done.
pub type OnBlock<'a> = dyn FnMut(usize) -> ControlFlow<()> + 'a;

/// The forward pass on the CPU: the twins of the kernels, composed, with a cache.
pub trait Reference: Send + Sync {
    /// The hidden states (T, embedding_length) behind the last block for tokens at positions from `pos` on; fills their cache rows.
    /// Before each block but the first, `on_block` is told how many are done. A break there ends it with `None`, and the rows are then
    /// undefined.
    fn forward(
        &mut self,
        tokens: &[u32],
        pos: usize,
        on_block: &mut OnBlock<'_>,
    ) -> Option<Vec<f32>>;

    /// The logits (T, vocab_size) of hidden states (T, embedding_length).
    fn head(&self, x: &[f32]) -> Vec<f32>;

    /// The cache of each layer, the same number of values for each position.
    fn cache(&mut self) -> &mut [Vec<f16>];

    /// The cache of each layer, to be read alone.
    fn cached(&self) -> &[Vec<f16>];
}

/// The places of a model's weights on a device, and what fills them.
pub struct Placed<'a> {
    /// The weights as steps bind them.
    pub weights: Box<dyn Weights>,
    /// The loader that fills the matrices.
    pub loader: Loader<'a>,
    /// The matrices, in the loader's order.
    pub matrices: Vec<GpuWeight>,
}

/// The weights of a model as steps bind them: their places, before a device has made them and after.
pub trait Weights: Send + Sync {
    /// All norms and biases.
    fn vectors(&self) -> &Range;

    /// The products of each [`Pair`], of each block or of none. Steps of one token read those that are there instead of their factors.
    fn products(&mut self) -> &mut [Vec<GpuWeight>; 2];

    /// Sessions whose kernels trials on the device choose.
    fn tried<'a>(&'a self, gpu: &'a Gpu) -> Trials<'a>;

    /// Sessions as they are if all that a device has is right and fast.
    fn untried(&self, target: &Target) -> Box<dyn Sessions>;
}

/// The result of trials on a device, as a future.
pub type Trials<'a> =
    Pin<Box<dyn Future<Output = Result<Box<dyn Sessions>, GpuError>> + Send + 'a>>;

/// A model on a device whose kernels are chosen: what makes sessions.
pub trait Sessions: Send + Sync {
    /// Bytes of a position in the cache of a layer.
    fn cache_row_bytes(&self) -> u64;

    /// Bytes of the largest binding of a chunk of so many tokens.
    fn widest(&self, machine: Machine, tokens: u32) -> u64;

    /// Bytes of the largest binding of a step of so many tokens of several sequences.
    fn widest_of_batch(&self, machine: Machine, tokens: u32) -> u64;

    /// The steps of one sequence, or of several.
    ///
    /// # Errors
    /// [`GpuError::BindingTooLarge`] for a cache that no binding has room for.
    fn steps(&self, target: &Target, sizes: BatchSizes) -> Result<Box<dyn Steps>, GpuError>;
}

/// The sequences, the cache and the steps of a model on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchSizes {
    /// Positions of a sequence at most.
    pub n_ctx: usize,
    /// Pages of the cache, of [`PAGE`] rows each; 0 where the rows of the only sequence follow each other.
    pub pages: u32,
    /// Sequences at once.
    pub sequences: u32,
    /// Tokens of a step at most, of any sequences.
    pub tokens: u32,
    /// Tokens of a step of a prompt at most, all of one sequence.
    pub chunk: u32,
}

impl BatchSizes {
    /// One sequence, whose tokens are decoded one by one and whose prompts are computed in steps of up to `chunk` tokens.
    pub fn of_one(n_ctx: usize, chunk: u32) -> Self {
        Self {
            n_ctx,
            pages: 0,
            sequences: 1,
            tokens: 1,
            chunk,
        }
    }

    /// Rows of the cache.
    pub fn rows(self) -> usize {
        match self.pages {
            0 => self.n_ctx,
            pages => (pages * PAGE) as usize,
        }
    }

    /// The most tokens of any step after which a token is chosen: one of each sequence, rounded up to the steps that are compiled.
    pub fn most_drawn(self) -> u32 {
        self.class(self.sequences.max(2))
    }

    /// The most tokens of the step that suits `tokens`.
    pub fn class(self, tokens: u32) -> u32 {
        tokens.next_power_of_two().min(self.tokens)
    }
}

/// The steps of one sequence or of several, for any device that takes their kernels, and the buffers that they share.
pub trait Steps: Send + Sync {
    /// The tables that tell where tokens stand, which the host writes before a step. `None` for a single sequence without pages.
    fn sequences(&self) -> Option<&Sequences>;

    /// Token ids, (sequences, n_ctx + 1) u32, which the host writes before a step reads them.
    fn history(&self) -> &Range;

    /// The cache of each layer, the same number of bytes for each row.
    fn cache(&self) -> &[Range];

    /// The step from up to `most` tokens of any sequences to their hidden states. A step of one token reads where it stands from the words of
    /// its replay ([`State`]), all others from the table.
    ///
    /// # Errors
    /// [`GpuError::TierUnsupported`] where a kernel does not take the shapes.
    fn step(&self, target: &Target, most: u32) -> Result<Step, GpuError>;

    /// The step from the hidden states of another step's first tokens to their logits, (tokens, vocab). The other step has up to `of`
    /// tokens, and up to `most` of them get logits. If `of` is 1, `most` must be 1. Else `most` must be greater.
    ///
    /// # Errors
    /// The errors of [`step`](Self::step).
    fn head(&self, target: &Target, of: u32, most: u32, logits: &Range) -> Result<Step, GpuError>;

    /// The step from one token to its logits (vocab).
    ///
    /// # Errors
    /// The errors of [`step`](Self::step).
    fn token(&self, target: &Target, logits: &Range) -> Result<Step, GpuError> {
        let step = self.step(target, 1)?;
        Ok(step.then(&self.head(target, 1, 1, logits)?.calls))
    }

    /// The step from `least` to `most` tokens of one sequence, which follow each other, to their [hidden states](Self::hidden).
    ///
    /// # Errors
    /// The errors of [`step`](Self::step).
    fn prompt(&self, target: &Target, least: u32, most: u32) -> Result<Step, GpuError>;

    /// The hidden states that [`prompt`](Self::prompt) leaves, (chunk, embedding_length).
    fn hidden(&self) -> &Range;

    /// The step from hidden states to the logits (vocab) of the last token.
    ///
    /// # Errors
    /// The errors of [`step`](Self::step).
    fn last_logits(&self, target: &Target, logits: &Range) -> Result<Step, GpuError>;

    /// The step from one of several slices of the hidden states, of up to `tokens` tokens, to the logits (tokens, vocab); the state's slot
    /// names the slice.
    fn logits_of_slices(
        &self,
        target: &Target,
        tokens: u32,
        slices: &[Range],
        logits: &Range,
    ) -> Step;

    /// The slices that the attention of tokens of several sequences is cut into.
    fn cut(&self, machine: Machine, tokens: &[Seen]) -> Cut;

    /// The words of a replay over `tokens` tokens of the first sequence from `pos` on.
    fn state(&self, machine: Machine, pos: usize, tokens: usize) -> State;
}

#[cfg(test)]
mod tests {
    use super::mla::testing::Draft;

    #[test]
    fn files_of_ollamas_converter_are_read() {
        let mut draft = Draft::glm(2);
        for (key, _) in &mut draft.metadata {
            if let Some(name) = key.strip_prefix("deepseek2.") {
                *key = format!("glm4moelite.{name}");
            }
        }
        draft.set_raw("general.architecture", "glm4moelite");
        let model = super::load(draft.open()).expect("it is a GLM");
        assert_eq!(model.config().block_count, 2);
        assert_eq!(model.config().architecture, "glm4moelite");
    }

    #[test]
    fn fewer_blocks_than_the_file_has_are_refused() {
        let mut draft = Draft::glm(3);
        draft.set("block_count", 2u32);
        let error = super::load(draft.open()).expect_err("a block is left out");
        let message = error.to_string();
        for expected in ["deepseek2.block_count is 2", "blk.2."] {
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn other_architectures_are_named_beside_those_that_run() {
        let mut draft = Draft::glm(1);
        draft.set_raw("general.architecture", "llama");
        let error = super::load(draft.open()).expect_err("no family has it");
        assert_eq!(
            error.to_string(),
            "the file holds a model of the architecture \"llama\"; glimt runs \"deepseek2\", \"glm4moelite\": GLM-4.7-Flash, DeepSeek-V2-Lite, \
             Youtu-LLM-2B and models of their shape"
        );
    }
}
