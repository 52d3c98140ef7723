//! All that a session will ask of a device, without one: its steps, and every buffer with its size.

#![expect(
    clippy::mutable_key_type,
    reason = "buffers are equal and hash by identity, whatever happens to them"
)]

use super::RESULT;
use super::prompt::{self, capacity};
use super::recipes::{self, Chunk, Context, FEW, Forms, Given};
use super::weights::{VECTORS, Weights};
use crate::gpu::buffer::{Buffer, Range, Role};
use crate::gpu::memory::GpuWeight;
use crate::gpu::{GpuError, Step, Target};
use crate::kernels::sample;
use crate::model::Model;
use std::collections::HashSet;

/// A session that was planned.
pub struct SessionPlan {
    /// Tokens of a chunk.
    pub chunk: u32,
    /// One token with the choice of the next, few tokens, a whole chunk, and its last logits.
    pub steps: Vec<(&'static str, Step)>,
    weights: Vec<GpuWeight>,
    context: Context,
}

impl SessionPlan {
    /// Of `model` on `target` with contexts of `n_ctx` tokens and chunks as asked for.
    ///
    /// # Errors
    /// What loading and recording refuse: [`GpuError::UnsupportedSize`], [`GpuError::BindingTooLarge`],
    /// [`GpuError::TierUnsupported`].
    pub fn new(
        target: &Target,
        model: &Model,
        forms: Forms,
        n_ctx: usize,
        chunk: Option<u32>,
    ) -> Result<Self, GpuError> {
        let config = &model.config;
        let (weights, _, matrices) = Weights::plan(target, model)?;
        let chunk = prompt::chunk(target, config, forms, n_ctx, chunk)?;
        let tokens = capacity(chunk);
        let context = Context::new(target, config, forms, n_ctx, tokens)?;
        let given = Given {
            target,
            config,
            weights: &weights,
            context: &context,
        };
        let vocab = config.vocab_size as u32;
        let logits = Range::floats("logits", u64::from(vocab));
        let result = Range::whole(&Buffer::new("ids", RESULT, Role::Words));
        let choose = sample::calls(&logits, vocab, &context.history, &[result]);
        let buffers = Chunk::new(target.machine, config, forms, tokens);
        let few = recipes::prompt(given, &buffers, 2, FEW)?;
        let mut steps = vec![
            ("token", recipes::token(given, &logits)?.then(&choose)),
            ("few tokens", few),
        ];
        if tokens > FEW {
            let chunk = recipes::prompt(given, &buffers, FEW + 1, tokens)?;
            steps.push(("chunk", chunk));
        }
        let last = recipes::last_logits(given, &buffers, tokens, &logits)?;
        steps.push(("last logits", last));
        Ok(Self {
            chunk,
            steps,
            weights: matrices,
            context,
        })
    }

    /// Bytes of weights, of the cache, and of everything else, each buffer counted once.
    pub fn bytes(&self) -> [u64; 3] {
        let of = |buffers: &HashSet<&Buffer>| buffers.iter().map(|buffer| buffer.size()).sum();
        let parts = self.weights.iter().flat_map(|weight| &weight.parts);
        let planes = parts.flat_map(|part| [&part.quants.buffer, &part.scales.buffer]);
        let mut weights: HashSet<_> = planes.collect();
        let cache: HashSet<_> = self
            .context
            .cache
            .iter()
            .map(|range| &range.buffer)
            .collect();
        let used = self.steps.iter().flat_map(|(_, step)| step.buffers());
        let (vectors, others): (HashSet<_>, HashSet<_>) = used
            .filter(|buffer| !weights.contains(buffer) && !cache.contains(buffer))
            .partition(|buffer| buffer.name() == VECTORS);
        weights.extend(vectors);
        [of(&weights), of(&cache), of(&others)]
    }
}
