//! All that a session will ask of a device, without one: its steps, and every buffer with its size.

#![expect(
    clippy::mutable_key_type,
    reason = "buffers are equal and hash by identity, whatever happens to them"
)]

use super::batch::{After, classes, copies, head_classes};
use super::prompt::{self, capacity};
use super::results::RESULT;
use crate::gpu::buffer::{Buffer, Range, Role};
use crate::gpu::call::State;
use crate::gpu::memory::GpuWeight;
use crate::gpu::{GpuError, Step, Target};
use crate::kernels::logit_bias;
use crate::kernels::sample::{self, Rows};
use crate::kernels::sequences::CHOICE;
use crate::models::{BatchSizes, FEW, Model, Placed, Recipes, Sessions};
use std::collections::HashSet;

/// A session that was planned.
pub struct SessionPlan {
    /// Tokens of a chunk.
    pub chunk: u32,
    /// One token with the choice of the next, few tokens, a whole chunk, and its last logits.
    pub steps: Vec<(&'static str, Step)>,
    /// Bytes of weights, of the cache, and of everything else, each buffer counted once.
    pub bytes: [u64; 3],
    recipes: Box<dyn Recipes>,
}

impl SessionPlan {
    /// Of `model` on `target` with contexts of `n_ctx` tokens and chunks as asked for.
    ///
    /// # Errors
    /// What loading and recording refuse: [`GpuError::UnsupportedSize`], [`GpuError::BindingTooLarge`],
    /// [`GpuError::TierUnsupported`].
    pub fn new(
        target: &Target,
        model: &dyn Model,
        n_ctx: usize,
        chunk: Option<u32>,
    ) -> Result<Self, GpuError> {
        let placed = model.place(target)?;
        let sessions = placed.weights.untried(target);
        Self::of(target, model, &placed, &*sessions, n_ctx, chunk)
    }

    /// The same of weights that have their places, in the forms of `sessions`.
    fn of(
        target: &Target,
        model: &dyn Model,
        Placed {
            weights, matrices, ..
        }: &Placed<'_>,
        sessions: &dyn Sessions,
        n_ctx: usize,
        chunk: Option<u32>,
    ) -> Result<Self, GpuError> {
        let chunk = prompt::chunk(target, sessions, n_ctx, chunk)?;
        let tokens = capacity(chunk);
        let recipes = sessions.begin(target, n_ctx, tokens)?;
        let vocab = model.config().vocab_size as u32;
        let logits = Range::floats("logits", u64::from(vocab));
        let result = Range::whole(&Buffer::new("ids", RESULT, Role::Words));
        let choose = sample::calls(None, &logits, vocab, recipes.history(), &[result]);
        let mut steps = vec![
            ("token", recipes.token(target, &[], &logits)?.then(&choose)),
            ("few tokens", recipes.prompt(target, 2, FEW)?),
        ];
        if tokens > FEW {
            steps.push(("chunk", recipes.prompt(target, FEW + 1, tokens)?));
        }
        steps.push(("last logits", recipes.last_logits(target, &logits)?));
        let used = steps.iter().map(|(_, step)| step);
        Ok(Self {
            chunk,
            bytes: bytes(matrices, weights.vectors(), recipes.cache(), used),
            steps,
            recipes,
        })
    }

    /// The words of a token at `pos`.
    pub(crate) fn state(&self, target: &Target, pos: usize) -> State {
        self.recipes.state(target.machine, pos, 1)
    }
}

/// The steps of several sequences that were planned.
pub struct BatchPlan {
    /// Copies of cache rows, tokens of every number that steps are made for, and the choices that follow them.
    pub steps: Vec<Step>,
    /// Bytes of weights, of the cache, and of everything else, each buffer counted once.
    pub bytes: [u64; 3],
}

impl BatchPlan {
    /// Of `model` on `target`.
    ///
    /// # Errors
    /// As for [`SessionPlan::new`].
    pub fn new(target: &Target, model: &dyn Model, sizes: BatchSizes) -> Result<Self, GpuError> {
        let placed = model.place(target)?;
        let sessions = placed.weights.untried(target);
        Self::of(target, model, &placed, &*sessions, sizes)
    }

    /// The same of weights that have their places, in the forms of `sessions`.
    fn of(
        target: &Target,
        model: &dyn Model,
        Placed {
            weights, matrices, ..
        }: &Placed<'_>,
        sessions: &dyn Sessions,
        sizes: BatchSizes,
    ) -> Result<Self, GpuError> {
        let recipes = sessions.batch(target, sizes)?;
        let vocab = model.config().vocab_size as u32;
        let drawn = u64::from(sizes.most_drawn());
        let logits = Range::floats("logits of a batch", drawn * u64::from(vocab));
        let choices = Range::words("choices", drawn * CHOICE as u64);
        let biases = Range::whole(&logit_bias::buffer(sizes.most_drawn()));
        let result = Range::whole(&Buffer::new("ids", RESULT * drawn, Role::Words));
        let mut steps = vec![copies::step(&*recipes, sizes).0];
        let mut kinds = HashSet::new();
        for class in classes(sizes) {
            steps.push(recipes.step(target, class)?);
            for most in head_classes(sizes) {
                let follows = most <= class && (most == 1) == (class == 1);
                if !follows || !kinds.insert((After::of(target, class), most)) {
                    continue;
                }
                let rows = Rows {
                    sequences: &recipes.sequences().of_steps(class),
                    choices: &choices,
                    biases: &biases,
                    most,
                };
                let results = [result.clone()];
                let history = recipes.history();
                let choose = sample::calls(Some(&rows), &logits, vocab, history, &results);
                let head = recipes.head(target, class, most, &logits)?;
                steps.push(head.then(&choose));
            }
        }
        let bytes = bytes(matrices, weights.vectors(), recipes.cache(), steps.iter());
        Ok(Self { steps, bytes })
    }
}

/// Bytes of weights, of the cache, and of everything else that steps need, each buffer counted once.
fn bytes<'a>(
    weights: &[GpuWeight],
    vectors: &Range,
    cache: &[Range],
    steps: impl Iterator<Item = &'a Step>,
) -> [u64; 3] {
    let of = |buffers: &HashSet<&Buffer>| buffers.iter().map(|buffer| buffer.size()).sum();
    let pieces = weights.iter().flat_map(|weight| &weight.pieces);
    let planes = pieces.flat_map(|piece| [&piece.quants.buffer, &piece.scales.buffer]);
    let mut weights: HashSet<_> = planes.collect();
    let cache: HashSet<_> = cache.iter().map(|range| &range.buffer).collect();
    let used = steps.flat_map(Step::buffers);
    let (vectors, others): (HashSet<_>, HashSet<_>) = used
        .filter(|buffer| !weights.contains(buffer) && !cache.contains(buffer))
        .partition(|buffer| **buffer == vectors.buffer);
    weights.extend(vectors);
    [of(&weights), of(&cache), of(&others)]
}

pub mod expected;
#[cfg(test)]
mod known;
#[cfg(test)]
mod mutants;
#[cfg(test)]
mod tests;
