//! A family's share of a step: its attention, from the normed residual stream to the values that `attn_output` reads.

use super::few::Few;
use super::prompt::{Prompt, Rows};
use super::{BatchSizes, ChunkSize, Context};
use crate::gpu::buffer::Range;
use crate::gpu::call::State;
use crate::gpu::machine::Machine;
use crate::gpu::memory::GpuWeight;
use crate::gpu::{Gpu, GpuError, Target};
use crate::kernels::attention::{Cut, Seen};
use crate::kernels::token::TokenInput;
use std::pin::Pin;
use std::sync::Arc;

/// The attention whose kernels trials on a device choose, as a future.
pub type Chosen<'a> =
    Pin<Box<dyn Future<Output = Result<Arc<dyn AttentionWeights>, GpuError>> + Send + 'a>>;

/// The weights of a model's attention on a device, and which of its kernels the device takes: at first those that run everywhere.
pub trait AttentionWeights: Send + Sync {
    /// Words of 16 bits in a row of the cache of a layer.
    fn cache_row(&self) -> usize;

    /// Values of all heads, which `attn_output` reads.
    fn values(&self) -> usize;

    /// The attention with the kernels that trials on the device choose.
    fn tried<'a>(&'a self, gpu: &'a Gpu) -> Chosen<'a>;

    /// The attention with the kernels that trials would choose if all that a device has were right and fast.
    fn untried(&self, target: &Target) -> Arc<dyn AttentionWeights>;

    /// Bytes of the largest binding that the attention needs for a step of this size, of `several` sequences or of one.
    fn widest(&self, size: ChunkSize, several: bool) -> u64;

    /// The most slices that one token cuts a context of up to `n_ctx` rows into.
    fn most_slices(&self, target: &Target, n_ctx: usize) -> u32;

    /// The attention with its buffers for these sizes. Steps of up to `chunk` tokens share those of prompts.
    fn sized(&self, target: &Target, chunk: ChunkSize, sizes: BatchSizes) -> Arc<dyn Attention>;
}

/// The attention of a model with its buffers: what makes its dispatches.
pub trait Attention: Send + Sync {
    /// Refuses sizes that steps of few tokens have no kernels for.
    ///
    /// # Errors
    /// [`GpuError::TierUnsupported`].
    fn check(&self, target: &Target) -> Result<(), GpuError>;

    /// Records the attention of few tokens in a layer, from the stream `x` before its norm on. The result is what the stream becomes once it is
    /// added: a weight, mostly `attn_output`, and its prepared input.
    ///
    /// # Errors
    /// [`GpuError::TierUnsupported`] where the tier has no kernel for a size.
    fn few<'a>(
        &self,
        step: &mut Few<'a>,
        layer: usize,
        x: &TokenInput,
    ) -> Result<(&'a GpuWeight, Range), GpuError>;

    /// Records the attention of a step of `least` tokens or more in a layer, from the normed rows `x` to the `values` of the chunk.
    fn many(&self, step: &mut Prompt<'_>, layer: usize, x: &Rows, least: u32);

    /// Records the rows of the cache of a layer for the normed rows `x` of a step of many tokens, and nothing else.
    fn rows(&self, step: &mut Prompt<'_>, layer: usize, x: &Rows);

    /// The words of a replay over `tokens` tokens of one sequence from `pos` on: its slices, and which dispatches it takes.
    fn state(&self, context: &Context, machine: Machine, pos: usize, tokens: usize) -> State;

    /// The slices that the contexts of tokens of several sequences are cut into: with `as_one` those that each token has alone.
    fn cut(&self, target: &Target, tokens: &[Seen], as_one: bool) -> Cut;
}
