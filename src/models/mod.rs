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
use crate::kernels::compose::{Composition, Pair};
use crate::kernels::sequences::Sequences;
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
    /// Which models these are, for a message.
    pub models: &'static str,
    /// Reads the configuration and finds all weights.
    pub load: fn(Arc<Gguf>) -> Loaded,
}

/// What reading a model comes to.
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
    /// What models of all families have of a configuration.
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

    /// Bytes that the products of `pair` take on a device; 0 where its blocks have no such weights.
    fn composed_bytes(&self, pair: Pair) -> u64;

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
pub trait Reference: Send {
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

    /// The same, to be read alone.
    fn cached(&self) -> &[Vec<f16>];
}

/// The places of a model's weights on a device, and what fills them.
pub struct Placed<'a> {
    /// As steps bind them.
    pub weights: Box<dyn Weights>,
    /// What fills the matrices.
    pub loader: Loader<'a>,
    /// The matrices, in the loader's order.
    pub matrices: Vec<GpuWeight>,
}

/// The weights of a model as steps bind them: their places, before a device has made them and after.
pub trait Weights: Send + Sync {
    /// All norms and biases.
    fn vectors(&self) -> &Range;

    /// What `pair` multiplies in each block, and how; nothing where blocks have no such weights.
    fn factors(&self, pair: Pair) -> Vec<(Composition, [&GpuWeight; 2])>;

    /// The products of `pair`, of each block or of none.
    fn composed(&mut self, pair: Pair) -> &mut Vec<GpuWeight>;

    /// Sessions whose kernels trials on the device choose.
    fn tried<'a>(&'a self, gpu: &'a Gpu) -> Trials<'a>;

    /// Sessions as they are if all that a device has is right and fast.
    fn untried(&self, target: &Target) -> Box<dyn Sessions>;
}

/// What trials on a device will come to.
pub type Trials<'a> = Pin<Box<dyn Future<Output = Result<Box<dyn Sessions>, GpuError>> + 'a>>;

/// A model on a device whose kernels are chosen: what makes sessions.
pub trait Sessions: Send {
    /// Bytes of a position in the cache of a layer.
    fn cache_row_bytes(&self) -> u64;

    /// Bytes of the largest binding of a chunk of so many tokens.
    fn widest(&self, machine: Machine, tokens: u32) -> u64;

    /// The same of a step of so many tokens of several sequences.
    fn widest_of_batch(&self, machine: Machine, tokens: u32) -> u64;

    /// A session of up to `n_ctx` tokens, with prompts computed up to `chunk` tokens at a time.
    ///
    /// # Errors
    /// [`GpuError::BindingTooLarge`] for a cache that no binding has room for.
    fn begin(
        &self,
        target: &Target,
        n_ctx: usize,
        chunk: u32,
    ) -> Result<Box<dyn Recipes>, GpuError>;

    /// Steps of several sequences.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    fn batch(&self, target: &Target, sizes: BatchSizes) -> Result<Box<dyn Batches>, GpuError>;
}

/// What a batch is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchSizes {
    /// Positions of a sequence at most.
    pub n_ctx: usize,
    /// Pages of the cache, of [`PAGE`](crate::kernels::sequences::PAGE) rows each.
    pub pages: u32,
    /// Sequences at once.
    pub sequences: u32,
    /// Tokens of a step at most.
    pub tokens: u32,
}

impl BatchSizes {
    /// The most tokens of any step after which a token is chosen: one of each sequence, rounded up to the steps that are compiled.
    pub fn most_drawn(self) -> u32 {
        self.class(self.sequences.max(2))
    }

    /// The most tokens of the step that suits `tokens`.
    pub fn class(self, tokens: u32) -> u32 {
        tokens.next_power_of_two().min(self.tokens)
    }
}

/// Steps whose tokens belong to several sequences, and the buffers that they share.
pub trait Batches: Send + Sync {
    /// Where tokens stand: what the host writes before a step.
    fn sequences(&self) -> &Sequences;

    /// Token ids, (sequences, n_ctx + 1) u32.
    fn history(&self) -> &Range;

    /// The cache of each layer, (pages, rows of a page) rows.
    fn cache(&self) -> &[Range];

    /// From up to `most` tokens to their hidden states. A step of one token reads where it stands from the words of its replay
    /// ([`State`]), all others from the table.
    ///
    /// # Errors
    /// [`GpuError::TierUnsupported`] where a kernel does not take the shapes.
    fn step(&self, target: &Target, most: u32) -> Result<Step, GpuError>;

    /// From the hidden states of the first tokens of a step to their logits, (tokens, vocab). The step has up to `of` tokens, and up to `most`
    /// of them get logits. If `of` is 1, `most` must be 1. Else `most` must be greater.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    fn head(&self, target: &Target, of: u32, most: u32, logits: &Range) -> Result<Step, GpuError>;

    /// The slices that the attention of these tokens is cut into.
    fn cut(&self, machine: Machine, tokens: &[Seen]) -> Cut;

    /// The number of slices that the attention of a step of one token at this position is cut into, and the cache rows of each.
    fn cut_alone(&self, machine: Machine, position: u32) -> (u32, u32);
}

/// The steps of a session, for any device that takes its kernels, and the buffers that they share.
pub trait Recipes: Send + Sync {
    /// Positions of the context.
    fn n_ctx(&self) -> u32;

    /// Token ids by position, (n_ctx + 1) u32, which the host writes before a step reads them.
    fn history(&self) -> &Range;

    /// The cache of each layer, the same number of bytes for each position.
    fn cache(&self) -> &[Range];

    /// From one token to its logits (vocab), by the products of `composed` where there are some.
    ///
    /// # Errors
    /// [`GpuError::TierUnsupported`] where a kernel does not take the shapes.
    fn token(&self, target: &Target, composed: &[Pair], logits: &Range) -> Result<Step, GpuError>;

    /// From `least` to `most` tokens to their [hidden states](Self::hidden).
    ///
    /// # Errors
    /// As [`token`](Self::token).
    fn prompt(&self, target: &Target, least: u32, most: u32) -> Result<Step, GpuError>;

    /// What [`prompt`](Self::prompt) leaves, (chunk, embedding_length).
    fn hidden(&self) -> &Range;

    /// From hidden states to the logits (vocab) of the last token.
    ///
    /// # Errors
    /// As [`token`](Self::token).
    fn last_logits(&self, target: &Target, logits: &Range) -> Result<Step, GpuError>;

    /// From one of several slices of the hidden states, of up to `tokens` tokens, to the logits (tokens, vocab); the state's slot names
    /// the slice.
    fn logits_of_slices(
        &self,
        target: &Target,
        tokens: u32,
        slices: &[Range],
        logits: &Range,
    ) -> Step;

    /// The words of a replay over `tokens` tokens from `pos` on.
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
