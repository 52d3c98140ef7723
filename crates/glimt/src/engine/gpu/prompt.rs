//! The steps over several tokens of a prompt: their buffers are there from the start, each is compiled when first needed.

use super::model::GpuModel;
use crate::gpu::buffer::{Buffer, Range, Role};
use crate::gpu::machine::tiles::{LOWEST, STEPS};
use crate::gpu::record::Recording;
use crate::gpu::{GpuError, Step, Target};
use crate::recipes::{BatchSizes, FEW, MAX_CHUNK, Sessions, Steps};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

/// A chunk is halved down to this, the tokens of the smallest step.
const LEAST_CHUNK: u32 = STEPS[0];
/// Positions whose logits are computed at once, where all are asked for. It bounds memory: a row takes 600 kB.
pub(super) const HEAD_TOKENS: u32 = 64;
/// Where that takes too long they are halved down to this.
pub(super) const LEAST_SLICE: u32 = LOWEST;

/// Tokens that the buffers of chunks of up to `chunk` have room for: whole slices of [`HEAD_TOKENS`].
pub(crate) fn capacity(chunk: u32) -> u32 {
    match chunk.max(FEW) {
        few @ ..=HEAD_TOKENS => few,
        many => many.next_multiple_of(HEAD_TOKENS),
    }
}

/// The sizes with room for whole slices of a chunk.
pub(super) fn with_room(sizes: BatchSizes) -> BatchSizes {
    let chunk = match sizes.chunk {
        0 => 0,
        chunk => capacity(chunk),
    };
    BatchSizes { chunk, ..sizes }
}

/// The most tokens whose activations have room in the bindings of a device.
pub(crate) fn room(target: &Target, sessions: &Sessions) -> u32 {
    // By bisection: buffers grow with the tokens.
    let (mut low, mut high) = (1, MAX_CHUNK);
    while low < high {
        let middle = (low + high).div_ceil(2);
        if sessions.widest(target.machine, middle, false) <= target.max_binding {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    // Whole slices, as `capacity` rounds up.
    match low {
        few @ ..HEAD_TOKENS => few,
        many => many / HEAD_TOKENS * HEAD_TOKENS,
    }
}

/// The chunk for what was asked, on a device, for a context of `n_ctx` tokens: without a number the usual one, or as many
/// tokens as one binding has room for.
///
/// # Errors
/// [`GpuError::BindingTooLarge`] where as many as asked for have no room.
pub(crate) fn chunk(
    target: &Target,
    sessions: &Sessions,
    n_ctx: usize,
    asked: Option<u32>,
) -> Result<u32, GpuError> {
    let room = room(target, sessions);
    let n_ctx = u32::try_from(n_ctx).unwrap_or(u32::MAX).max(1);
    let Some(asked) = asked else {
        return Ok(target.machine.tuned.chunk.clamp(1, room).min(n_ctx));
    };
    let chunk = asked.clamp(1, MAX_CHUNK).min(n_ctx);
    if chunk > room.max(FEW) {
        return Err(GpuError::BindingTooLarge {
            what: format!("an activation of {chunk} tokens"),
            bytes: sessions.widest(target.machine, capacity(chunk), false),
            adapter: target.name.clone(),
            limit: target.max_binding,
            remedy: "compute fewer tokens at once (--ubatch)",
        });
    }
    Ok(chunk)
}

/// The head over all tokens of a slice.
#[derive(Clone)]
pub(super) struct Slices {
    /// The recording from hidden states to logits; the state's slot names the slice.
    pub head: Arc<Recording>,
    /// The logits, (HEAD_TOKENS, vocab), the same for slices of any length.
    pub logits: Range,
    /// Tokens of a slice.
    pub tokens: usize,
}

/// The steps of the prompt of one sequence.
pub(super) struct Prompt {
    /// Tokens that the buffers are made for; 0 where there are no such steps.
    chunk: u32,
    /// The most tokens of a step: fewer where a dispatch over a chunk took too long.
    at_most: u32,
    /// Tokens of a prompt up to which they are computed one by one ([`Tunables::short_prompt`](crate::gpu::machine::Tunables)).
    short_prompt: usize,
    /// The recordings from token ids to hidden states, by the most tokens.
    steps: BTreeMap<u32, Arc<Recording>>,
    /// The step over a few tokens, whose buffers are there already, until it is compiled.
    few: Option<Step>,
    /// The logits of the last token.
    head: Option<Arc<Recording>>,
    /// The heads over all tokens, by the most tokens of a slice.
    slices: BTreeMap<u32, Slices>,
}

impl Prompt {
    /// The steps of chunks of up to `chunk` tokens, not compiled yet.
    pub(super) fn new(model: &GpuModel, chunk: u32) -> Self {
        Self {
            chunk,
            at_most: chunk,
            short_prompt: model.gpu.machine.tuned.short_prompt as usize,
            steps: BTreeMap::new(),
            few: None,
            head: None,
            slices: BTreeMap::new(),
        }
    }

    /// Makes what chunks need, so that a device without room for it says so before a prompt is begun; with `few` also what few tokens need.
    pub(super) async fn reserve(
        &mut self,
        model: &GpuModel,
        recipes: &Steps,
        few: bool,
    ) -> Result<(), GpuError> {
        if self.chunk == 0 {
            return Ok(());
        }
        self.few = match few {
            true => Some(recipes.prompt(&model.gpu, 2, FEW)?),
            false => None,
        };
        let chunk = recipes.prompt(&model.gpu, 1, capacity(self.chunk))?;
        for step in self.few.iter().chain([&chunk]) {
            for buffer in step.buffers().into_iter().filter(|b| !b.is_counts()) {
                model.gpu.realise(buffer).await?;
            }
        }
        Ok(())
    }

    /// The most tokens of a step.
    pub(super) fn at_most(&self) -> u32 {
        self.at_most
    }

    /// Has chunks be half as long as `tokens` at most, down to [`LEAST_CHUNK`].
    pub(super) fn halve(&mut self, tokens: usize) {
        let half = (tokens as u32 / 2).next_multiple_of(LEAST_CHUNK);
        if half < self.at_most {
            self.at_most = half;
            log::info!(
                "a dispatch over {tokens} tokens of a prompt takes too long on this device: {half} tokens at once from now on"
            );
        }
    }

    /// Tokens of each piece of a prompt of `tokens`, the first ones of which may be computed one by one.
    pub(super) fn at_once(&self, tokens: usize) -> usize {
        if self.steps.is_empty() && tokens <= self.short_prompt {
            1
        } else {
            self.piece(tokens)
        }
    }

    /// Tokens of each piece of a prompt of `tokens`: as even as they can be, since a short rest takes nearly as long as a
    /// whole chunk.
    pub(super) fn piece(&self, tokens: usize) -> usize {
        let chunk = self.at_most as usize;
        let pieces = tokens.div_ceil(chunk);
        if pieces <= 1 {
            return chunk;
        }
        tokens
            .div_ceil(pieces)
            .next_multiple_of(LEAST_CHUNK as usize)
            .min(chunk)
    }

    /// The step over `tokens` tokens, which leaves hidden states for [`head`](Self::head) or [`slices`](Self::slices).
    pub(super) async fn step(
        &mut self,
        model: &GpuModel,
        recipes: &Steps,
        tokens: usize,
    ) -> Result<Arc<Recording>, GpuError> {
        let most = self.class(tokens as u32);
        if let Entry::Vacant(place) = self.steps.entry(most) {
            let smaller = STEPS.into_iter().rev().find(|class| *class < most);
            let least = smaller.unwrap_or(FEW) + 1;
            let step = match self.few.take_if(|_| most == FEW) {
                Some(few) => few,
                None => recipes.prompt(&model.gpu, least, most)?,
            };
            let recording = Recording::new(&model.gpu, &step).await?;
            place.insert(Arc::new(recording));
        }
        Ok(Arc::clone(&self.steps[&most]))
    }

    /// The step over `tokens` tokens and the head of the last, where both are compiled.
    pub(super) fn made(&self, tokens: usize) -> Option<[&Recording; 2]> {
        let step = self.steps.get(&self.class(tokens as u32))?;
        Some([step, self.head.as_ref()?])
    }

    /// The fewest tokens of each step.
    pub(super) fn smallest(&self) -> impl Iterator<Item = usize> {
        let chunk = self.chunk;
        let classes = [FEW].into_iter().chain(STEPS);
        classes
            .map(|class| class as usize + 1)
            .filter(move |least| *least <= chunk as usize)
    }

    /// The most tokens of the step that suits `tokens`.
    fn class(&self, tokens: u32) -> u32 {
        let most = capacity(self.chunk);
        if tokens <= FEW {
            return FEW;
        }
        let class = STEPS.into_iter().find(|class| *class >= tokens);
        class.unwrap_or(most).min(most)
    }

    /// The recording from hidden states to the logits (vocab) of the last token.
    pub(super) async fn head(
        &mut self,
        model: &GpuModel,
        recipes: &Steps,
        logits: &Range,
    ) -> Result<Arc<Recording>, GpuError> {
        let head = match self.head.take() {
            Some(head) => head,
            None => {
                let step = recipes.last_logits(&model.gpu, logits)?;
                Arc::new(Recording::new(&model.gpu, &step).await?)
            }
        };
        Ok(Arc::clone(self.head.insert(head)))
    }

    /// The head from hidden states to the logits of all tokens of a slice of up to `most`.
    pub(super) async fn slices(
        &mut self,
        model: &GpuModel,
        recipes: &Steps,
        most: u32,
    ) -> Result<Slices, GpuError> {
        let capacity = capacity(self.chunk);
        let tokens = most.min(capacity);
        if let Some(slices) = self.slices.get(&tokens) {
            return Ok(slices.clone());
        }
        let config = model.model.config();
        let logits = match self.slices.values().next() {
            Some(other) => other.logits.clone(),
            None => {
                let longest = u64::from(HEAD_TOKENS.min(capacity));
                let bytes = longest * config.vocab_size as u64 * 4;
                Range::whole(&Buffer::new("logits of a slice", bytes, Role::Floats))
            }
        };
        let rows = |tokens: u32| u64::from(tokens) * config.embedding_length as u64 * 4;
        let inputs: Vec<_> = (0..capacity)
            .step_by(tokens as usize)
            .map(|first| Range {
                buffer: recipes.hidden().buffer.clone(),
                offset: rows(first),
                size: rows(tokens.min(capacity - first)),
                role: Role::Floats,
            })
            .collect();
        let step = recipes.logits_of_slices(&model.gpu, tokens, &inputs, &logits);
        let slices = Slices {
            head: Arc::new(Recording::new(&model.gpu, &step).await?),
            logits,
            tokens: tokens as usize,
        };
        self.slices.insert(tokens, slices.clone());
        Ok(slices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_hold_whole_slices() {
        assert_eq!(
            [1, 8, 9, 64, 65, 512].map(capacity),
            [8, 8, 9, 64, 128, 512]
        );
    }
}
