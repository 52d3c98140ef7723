//! What running a model takes of a GPU's memory, told before anything is loaded: the buffers of the steps themselves.

use serde::Serialize;

use super::plan::{BatchPlan, SessionPlan};
use crate::gpu::{GpuError, Target};
use crate::kernels::sequences::PAGE;
use crate::models::{BatchSizes, Model};

/// Bytes that a model and one session take on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MemoryPlan {
    /// Context length in tokens.
    pub ctx: usize,
    /// The tensors that decoding reads, as they lie on the device.
    pub weights: u64,
    /// The latent cache of all layers.
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
        n_ctx: usize,
        chunk: Option<u32>,
    ) -> Result<Self, GpuError> {
        let plan = SessionPlan::new(target, model, n_ctx, chunk)?;
        let [weights, cache, scratch] = plan.bytes;
        Ok(Self {
            ctx: n_ctx,
            weights,
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
        sizes: BatchSizes,
    ) -> Result<Self, GpuError> {
        let [weights, cache, scratch] = BatchPlan::new(target, model, sizes)?.bytes;
        let rows = u64::from(sizes.pages) * u64::from(PAGE);
        let cache_per_token = cache / rows.max(1);
        Ok(Self {
            ctx: sizes.n_ctx,
            weights,
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
            weights: model.gguf().tensors().iter().map(|t| t.byte_len()).sum(),
            cache: cache_per_token * n_ctx as u64,
            cache_per_token,
            ubatch: 1,
            scratch: 0,
        }
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights + self.cache + self.scratch
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::batch::GpuBatch;
    use super::super::{GpuBackend, GpuModel};
    use super::*;
    use crate::engine::ModelSource;
    use crate::gpu::wait::complete;
    use crate::gpu::{Gpu, GpuError, GpuOptions};
    use crate::models;

    #[test]
    fn the_plan_is_what_a_gpu_allocates() {
        let gpu = match Gpu::open(&GpuOptions::default()) {
            Ok(gpu) => Arc::new(gpu),
            Err(GpuError::NoAdapter) => {
                eprintln!("skipped: no GPU adapter");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let gguf = Arc::new(
            ModelSource::Embedded
                .open()
                .expect("it is part of the program"),
        );
        let model = models::load(Arc::clone(&gguf)).expect("it is supported");
        let plan = MemoryPlan::new(&gpu, &*model, 1000, Some(100)).expect("it fits");
        let near = |what: &str, found: u64, planned: u64| {
            let ratio = found as f64 / planned as f64;
            assert!(
                (0.98..1.02).contains(&ratio),
                "{what}: {found} bytes, planned {planned}"
            );
        };
        let weights = GpuModel::load(Arc::clone(&gpu), model, &mut |_, _| {}).expect("it fits");
        let before = gpu.allocated();
        near("weights", before, plan.weights);
        let weights = Arc::new(weights);
        let sizes = BatchSizes {
            n_ctx: 1000,
            pages: 40,
            sequences: 5,
            tokens: 128,
        };
        let of_batch = MemoryPlan::of_batch(&gpu, &*weights.model, sizes).expect("it fits");
        let mut batch = GpuBatch::new(Arc::clone(&weights), sizes).expect("it fits");
        complete(batch.prepare_all_async()).expect("it compiles");
        let of_all = gpu.allocated() - before - of_batch.cache;
        near("batch", of_all, of_batch.scratch);
        let before = gpu.allocated();
        let _session = GpuBackend::with_chunk(weights, 1000, Some(100)).expect("it fits");
        near(
            "session",
            gpu.allocated() - before - plan.cache,
            plan.scratch,
        );
    }
}
