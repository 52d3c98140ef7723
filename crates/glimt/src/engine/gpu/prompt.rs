//! The steps over several tokens of a prompt: their buffers are there from the start, each is compiled when first needed.

use super::model::GpuModel;
use super::table::{Place, write_table};
use crate::engine::batch::BatchToken;
use crate::gpu::buffer::{Buffer, Range, Role};
use crate::gpu::call::State;
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

/// A piece of a prompt.
pub(super) struct Piece {
    /// The sequence, and its place in the buffers of a batch.
    pub sequence: u32,
    pub place: Place,
    /// The position of its first token.
    pub pos: usize,
    pub tokens: usize,
    /// Whether the prompt ends with it.
    pub ends: bool,
}

/// The steps of the prompt of one sequence.
pub(super) struct Prompt {
    /// Tokens that the buffers are made for; 0 where there are no such steps.
    chunk: u32,
    /// The most tokens of a step: fewer where a dispatch over a chunk took too long.
    at_most: u32,
    /// Tokens of a prompt up to which they are computed one by one, and in steps of few by the kernels of a decoded token
    /// ([`Tunables`](crate::gpu::machine::Tunables)).
    short: [usize; 2],
    /// Whether some prompt was computed token by token.
    was_short: bool,
    /// The most tokens of a step by the kernels of a decoded token; 0 where there are none of several.
    as_one: usize,
    /// The recordings of such steps, by the most tokens.
    few_as_one: BTreeMap<u32, Arc<Recording>>,
    /// The logits of the first token of such a step.
    head_as_one: Option<Arc<Recording>>,
    /// The head over all tokens of such a step, and the logits that it leaves.
    heads_as_one: Option<(Arc<Recording>, Range)>,
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
    /// The steps of chunks of up to `chunk` tokens, and of up to `as_one` by the kernels of a decoded token, not compiled yet.
    pub(super) fn new(model: &GpuModel, chunk: u32, as_one: u32) -> Self {
        let tuned = model.gpu.machine.tuned;
        Self {
            chunk,
            at_most: chunk,
            short: [tuned.short_prompt, tuned.prompt_as_one].map(|tokens| tokens as usize),
            was_short: false,
            as_one: as_one as usize,
            few_as_one: BTreeMap::new(),
            head_as_one: None,
            heads_as_one: None,
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
        let as_one = match few && self.as_one > 1 {
            true => Some(recipes.step(&model.gpu, recipes.as_one())?),
            false => None,
        };
        for step in self.few.iter().chain([&chunk]).chain(&as_one) {
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
        let [one_by_one, in_steps] = self.short;
        let is_first = self.steps.is_empty() && self.few_as_one.is_empty();
        if is_first && tokens <= one_by_one && (self.as_one < 2 || !self.was_short) {
            return 1;
        }
        let most = self.as_one.min(self.at_most as usize);
        if most > 1 && tokens <= in_steps.max(self.as_one) {
            return tokens.div_ceil(tokens.div_ceil(most).max(1)).max(1);
        }
        self.piece(tokens)
    }

    /// Has the next short prompt be computed in steps of several tokens, though these are still to be compiled.
    pub(super) fn was_short(&mut self) {
        self.was_short = true;
    }

    /// Whether a piece of several tokens takes the kernels of a decoded token.
    pub(super) fn is_as_one(&self, tokens: usize) -> bool {
        (2..=self.as_one).contains(&tokens)
    }

    /// Whether a piece of so many tokens also makes their rows of the prediction layer, where there is one.
    pub(super) fn makes_layer_rows(&self, tokens: usize) -> bool {
        tokens > FEW as usize && !self.is_as_one(tokens)
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

    /// The recordings of a piece of several tokens, the last of which leaves the `logits` of its last token if the prompt ends with it; and the
    /// words of each. What they read of the host is written.
    pub(super) async fn recordings(
        &mut self,
        model: &GpuModel,
        recipes: &Steps,
        piece: &Piece,
        logits: &Range,
    ) -> Result<Vec<(Arc<Recording>, State)>, GpuError> {
        let (gpu, tokens) = (&model.gpu, piece.tokens);
        if !self.is_as_one(tokens) {
            let state = piece.place.state(recipes, gpu, piece.pos, tokens);
            let mut all = vec![(self.step(model, recipes, tokens).await?, state)];
            if piece.ends {
                all.push((self.head(model, recipes, logits).await?, state));
            }
            return Ok(all);
        }
        // The head is that of the first ones.
        let last = piece.pos + tokens - 1;
        let order = [last].into_iter().chain(piece.pos..last);
        let (step, state) = self.step_as_one(model, recipes, piece, order).await?;
        let mut all = vec![(step, state)];
        if piece.ends {
            let head = match self.head_as_one.take() {
                Some(head) => head,
                None => {
                    let step = recipes.head(gpu, recipes.as_one(), 1, logits)?;
                    Arc::new(Recording::new(gpu, &step).await?)
                }
            };
            let of_last = State { tokens: 1, ..state };
            all.push((Arc::clone(self.head_as_one.insert(head)), of_last));
        }
        Ok(all)
    }

    /// The step of several tokens of a piece by the kernels of a decoded token, and its words, with the tokens at these positions. What it reads
    /// of the host is written.
    async fn step_as_one(
        &mut self,
        model: &GpuModel,
        recipes: &Steps,
        piece: &Piece,
        positions: impl Iterator<Item = usize>,
    ) -> Result<(Arc<Recording>, State), GpuError> {
        let gpu = &model.gpu;
        let most = (piece.tokens as u32)
            .next_power_of_two()
            .min(recipes.as_one());
        let token = |position: usize| {
            let token = BatchToken {
                sequence: piece.sequence,
                position: position as u32,
            };
            (token, piece.place)
        };
        let tokens: Vec<_> = positions.map(token).collect();
        if let Entry::Vacant(place) = self.few_as_one.entry(most) {
            let step = recipes.step(gpu, most)?;
            place.insert(Arc::new(Recording::new(gpu, &step).await?));
        }
        let state = write_table(gpu, recipes, most, &tokens);
        Ok((Arc::clone(&self.few_as_one[&most]), state))
    }

    /// The recordings from several tokens of a piece to the logits of each, by the kernels of a decoded token, with the words of each; and these
    /// logits. What they read of the host is written.
    pub(super) async fn logits_as_one(
        &mut self,
        model: &GpuModel,
        recipes: &Steps,
        piece: &Piece,
    ) -> Result<([(Arc<Recording>, State); 2], Range), GpuError> {
        let (head, logits) = match self.heads_as_one.take() {
            Some(made) => made,
            None => {
                let most = recipes.as_one();
                let vocab = model.model.config().vocab_size as u64;
                let logits = Range::floats("logits of few tokens", u64::from(most) * vocab);
                let step = recipes.head(&model.gpu, most, most, &logits)?;
                let head = Recording::new(&model.gpu, &step).await?;
                (Arc::new(head), logits)
            }
        };
        let (head, logits) = self.heads_as_one.insert((head, logits)).clone();
        let positions = piece.pos..piece.pos + piece.tokens;
        let step = self.step_as_one(model, recipes, piece, positions).await?;
        let state = step.1;
        Ok(([step, (head, state)], logits))
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
