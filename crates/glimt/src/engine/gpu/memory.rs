//! The memory of a GPU that running a model takes, told before anything is loaded: the buffers of the steps themselves.

use serde::Serialize;

use super::plan::Plan;
use crate::gpu::{GpuError, Target};
use crate::kernels::sequences::PAGE;
use crate::model::tensors::block_of;
use crate::models::Model;
use crate::recipes::{BatchSizes, Residence};

/// Bytes that a model and one session take on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MemoryPlan {
    /// Context length in tokens.
    pub ctx: usize,
    /// The tensors that decoding reads, as they lie on the device: where experts lie elsewhere, their slots.
    pub weights: u64,
    /// Experts in the memory of the host.
    pub host: u64,
    /// Experts that stay in the file.
    pub file: u64,
    /// Slots of each layer for experts; `None` where all of them lie on the device.
    pub slots: Option<u32>,
    /// The cache of all layers.
    pub cache: u64,
    /// The part of `cache` that one token takes.
    pub cache_per_token: u64,
    /// Tokens of a prompt that are computed at once.
    pub ubatch: u32,
    /// Activations of a token and of a chunk of the prompt, the rotation table, logits and
    /// what choosing a token takes.
    pub scratch: u64,
}

impl MemoryPlan {
    /// The plan for a session of `n_ctx` tokens on `target`, whose matrices are taken to be right and fast, with chunks of `chunk` tokens
    /// or the usual number.
    pub fn new(
        target: &Target,
        model: &dyn Model,
        residence: Residence,
        n_ctx: usize,
        chunk: Option<u32>,
    ) -> Result<Self, GpuError> {
        let plan = Plan::of_one(target, model, residence, n_ctx, chunk)?;
        let [weights, cache, scratch] = plan.bytes;
        Ok(Self {
            ctx: n_ctx,
            weights,
            host: plan.host,
            file: plan.file,
            slots: residence.slots(),
            cache,
            cache_per_token: cache / n_ctx.max(1) as u64,
            ubatch: plan.chunk,
            scratch,
        })
    }

    /// The plan for steps of several sequences on `target`.
    pub fn of_batch(
        target: &Target,
        model: &dyn Model,
        residence: Residence,
        sizes: BatchSizes,
    ) -> Result<Self, GpuError> {
        let plan = Plan::new(target, model, residence, sizes)?;
        let [weights, cache, scratch] = plan.bytes;
        let rows = u64::from(sizes.pages) * u64::from(PAGE);
        let cache_per_token = cache / rows.max(1);
        Ok(Self {
            ctx: sizes.n_ctx,
            weights,
            host: plan.host,
            file: plan.file,
            slots: residence.slots(),
            cache,
            cache_per_token,
            ubatch: sizes.tokens,
            scratch,
        })
    }

    /// The plan for a session of `n_ctx` tokens on the CPU reference, which reads the weights in place and computes a token at a time.
    pub fn on_cpu(model: &dyn Model, n_ctx: usize) -> Self {
        let cache_per_token = model.cache_bytes_per_token();
        Self {
            ctx: n_ctx,
            weights: read_on_cpu(model),
            host: 0,
            file: 0,
            slots: None,
            cache: cache_per_token * n_ctx as u64,
            cache_per_token,
            ubatch: 1,
            scratch: 0,
        }
    }

    /// The sum of all bytes of the plan that the device has.
    pub fn total(&self) -> u64 {
        self.weights + self.cache + self.scratch
    }
}

/// Bytes of the weights that the CPU reads: all of the file, but those of a prediction layer only if it is loaded.
fn read_on_cpu(model: &dyn Model) -> u64 {
    let blocks = model.config().block_count;
    let tensors = model.gguf().tensors().iter();
    let of_trunk = tensors.filter(|tensor| block_of(&tensor.name).is_none_or(|n| n < blocks));
    of_trunk.map(|tensor| tensor.byte_len()).sum::<u64>() + model.nextn_bytes()
}
