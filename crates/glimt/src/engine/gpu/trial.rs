//! Steps of one token that are compared before a session begins, with a short context of random tokens.

use super::model::GpuModel;
use crate::engine::random::random_tokens;
use crate::gpu::buffer::Range;
use crate::gpu::record::Recording;
use crate::gpu::{Gpu, GpuError};
use crate::models::{BatchSizes, Steps};

/// The buffers that compared steps share.
pub(super) struct TokenTrial {
    pub recipes: Box<dyn Steps>,
    /// Positions of the context.
    pub n_ctx: usize,
    pub logits: Range,
}

impl TokenTrial {
    /// A trial with a context of `rows` positions, or fewer if the model or a binding of the device has less room.
    ///
    /// # Errors
    /// The error that memory is short, or the error that the device reports.
    pub async fn new(model: &GpuModel, gpu: &Gpu, rows: usize) -> Result<Self, GpuError> {
        let config = model.model.config();
        let sessions = model.weights.tried(gpu).await?;
        let bound = gpu.max_binding / sessions.cache_row_bytes();
        let rows = rows.min(config.context_length).min(bound as usize);
        let recipes = sessions.steps(gpu, BatchSizes::of_one(rows, 1))?;
        gpu.realise(&recipes.history().buffer).await?;
        for cache in recipes.cache() {
            gpu.realise(&cache.buffer).await?;
        }
        let ids = random_tokens(rows, config.vocab_size);
        let history = recipes.history().buffer.made();
        gpu.queue
            .write_buffer(history, 0, bytemuck::cast_slice(&ids));
        Ok(Self {
            recipes,
            n_ctx: rows,
            logits: Range::floats("logits", config.vocab_size as u64),
        })
    }

    /// The position in the middle of the context, which timed steps begin at.
    pub fn middle(&self) -> usize {
        self.n_ctx / 2
    }

    /// The step of one token as a device of this tier decodes it.
    ///
    /// # Errors
    /// [`GpuError::TierUnsupported`] where a kernel does not take the sizes; no memory, or what the device reports.
    pub async fn record(&self, gpu: &Gpu) -> Result<Recording, GpuError> {
        let step = self.recipes.token(gpu, &self.logits)?;
        Recording::new(gpu, &step).await
    }
}
