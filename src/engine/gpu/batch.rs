//! Steps of several sequences: what the host writes before each, and what comes back of it.

use super::GpuModel;
use super::results::{RESULT, Results};
use super::warm;
use crate::engine::backend::Touch;
use crate::gpu::buffer::{Buffer, Range};
use crate::gpu::call::{Call, State};
use crate::gpu::record::Recording;
use crate::gpu::{Gpu, GpuError, Most, Step, Target};
use crate::kernels::attention::Seen;
use crate::kernels::batch_experts::TILE_WORDS;
use crate::kernels::logit_bias::Biases;
use crate::kernels::sample;
use crate::kernels::sequences::{CHOICE, PAGE, Record};
use crate::models::{BatchSizes, Batches, Sessions};
use std::collections::BTreeMap;
use std::sync::Arc;
use wgpu::SubmissionIndex;

/// Steps that may be in flight.
pub const BATCHES_IN_FLIGHT: usize = 2;
/// Buffers that ids come back through: one more, since a mapped buffer cannot be written.
const RING: usize = BATCHES_IN_FLIGHT + 1;

/// A token of a step: the id at this position of the sequence, which the host or an earlier step wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchToken {
    /// Its sequence, a number below [`BatchSizes::sequences`].
    pub sequence: u32,
    /// Its position, below [`BatchSizes::n_ctx`].
    pub position: u32,
}

/// What a step is to do.
#[derive(Debug, Clone, Copy)]
pub struct BatchStep<'a> {
    /// Its tokens. The first ones are those after which a token is chosen.
    pub tokens: &'a [BatchToken],
    /// How each of them is chosen: [`sample::words`] for the position behind it.
    pub choices: &'a [[u32; CHOICE]],
    /// What is added to the logits of each of them first. Those behind its end have no biases.
    pub biases: &'a [Biases],
    /// Of which of them the host wants the logits, with their biases.
    pub logits: &'a [usize],
}

/// A step on its way.
pub struct BatchFlight {
    slot: usize,
    number: u32,
    drawn: usize,
    rows: Option<FlyingRows>,
    submission: SubmissionIndex,
}

/// What a step came to.
#[derive(Debug, Default)]
pub struct BatchLanding {
    /// The chosen tokens, which the device has written to their sequences' ids.
    pub ids: Vec<u32>,
    /// Of which of them a logit was infinite or not a number. Then the id means nothing.
    pub broken: Vec<bool>,
    /// The logits that were asked for, (rows, vocab). Their memory can be [given back](GpuBatch::take_back).
    pub logits: Vec<f32>,
}

/// Tiles of experts that a step leaves. The first word of a tile is the expert, the third one the number of its slots.
struct Listed {
    tiles: Range,
    /// Words of a tile.
    words: u32,
}

/// A model on a GPU with the cache of several sequences.
pub struct GpuBatch {
    model: Arc<GpuModel>,
    recipes: Box<dyn Batches>,
    sizes: BatchSizes,
    /// (tokens after which one is chosen, vocab).
    logits: Range,
    /// (tokens after which one is chosen, 12) words.
    choices: Range,
    biases: BiasRows,
    results: Results,
    /// Rows that the next step begins with.
    copies: Copies,
    /// From ids to hidden states, by the most tokens.
    steps: BTreeMap<u32, Recording>,
    /// From hidden states to chosen tokens, by the step that left these, and by the most tokens.
    heads: BTreeMap<(After, u32), Recording>,
    /// The lists of experts that those leave, each once.
    lists: BTreeMap<u32, Vec<Listed>>,
    /// The buffers of the smallest step.
    needed: Vec<Buffer>,
    next_slot: usize,
    rows: Rows,
}

/// The most tokens of each of the steps that a batch of such sizes may compile.
pub(super) fn classes(sizes: BatchSizes) -> Vec<u32> {
    let powers = (0..32).map(|power| (1 << power).min(sizes.tokens));
    let mut classes: Vec<u32> = powers.collect();
    classes.dedup();
    classes
}

/// Which kind of step a head follows. All steps of one kind leave their hidden states in the same form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum After {
    One,
    Few,
    Many,
}

impl After {
    /// A step of up to `most` tokens.
    pub(super) fn of(target: &Target, most: u32) -> Self {
        match most {
            1 => Self::One,
            _ if most <= target.machine.tuned.few_of_batch => Self::Few,
            _ => Self::Many,
        }
    }
}

/// The most tokens of each of the heads that such a batch may compile.
pub(super) fn head_classes(sizes: BatchSizes) -> Vec<u32> {
    let mut classes = classes(sizes);
    classes.retain(|class| *class <= sizes.most_drawn());
    classes
}

/// Tokens of a step of several sequences at most on a device: the usual number, or fewer where its bindings are small, but at least `least`.
pub(crate) fn step_tokens(target: &Target, sessions: &dyn Sessions, least: u32) -> u32 {
    let fits =
        |tokens: &u32| sessions.widest_of_batch(target.machine, *tokens) <= target.max_binding;
    let usual = target.machine.tuned.batch_tokens;
    let halves = std::iter::successors(Some(usual), |tokens| Some(tokens / 2));
    let mut sizes = halves.take_while(|tokens| *tokens > least);
    sizes.find(fits).unwrap_or(least)
}

impl GpuModel {
    /// Tokens of a step of up to `sequences` sequences at most.
    pub fn batch_tokens(&self, sequences: u32) -> u32 {
        let sessions = self.weights.untried(&self.gpu);
        step_tokens(&self.gpu, &*sessions, sequences)
    }
}

impl GpuBatch {
    /// Of these sizes, with an empty cache.
    ///
    /// # Errors
    /// [`GpuError::BindingTooLarge`], [`GpuError::OutOfMemory`] or what the device reports.
    pub async fn new_async(model: Arc<GpuModel>, sizes: BatchSizes) -> Result<Self, GpuError> {
        let gpu = Arc::clone(&model.gpu);
        let sessions = model.weights.tried(&gpu).await?;
        let recipes = sessions.batch(&gpu, sizes)?;
        let sequences = recipes.sequences().clone();
        // The host writes to these before any step does.
        let written = [&sequences.table, &sequences.pages, &sequences.work];
        for range in written
            .into_iter()
            .chain([recipes.history()])
            .chain(recipes.cache())
        {
            gpu.realise_async(&range.buffer).await?;
        }
        let vocab = model.model.config().vocab_size as u64;
        let drawn = u64::from(sizes.most_drawn());
        let choices = Range::words("choices", drawn * CHOICE as u64);
        gpu.realise_async(&choices.buffer).await?;
        Ok(Self {
            logits: Range::floats("logits of a batch", drawn * vocab),
            choices,
            biases: BiasRows::new_async(&gpu, sizes.most_drawn()).await?,
            results: Results::new_async(&gpu, RING, sizes.most_drawn()).await?,
            copies: Copies::new_async(&gpu, &*recipes, sizes).await?,
            steps: BTreeMap::new(),
            heads: BTreeMap::new(),
            lists: BTreeMap::new(),
            needed: vec![],
            next_slot: 0,
            rows: Rows::default(),
            model,
            recipes,
            sizes,
        })
    }

    /// What it was made for.
    pub fn sizes(&self) -> BatchSizes {
        self.sizes
    }

    /// Pages of a sequence of the longest context.
    pub fn pages_per_sequence(&self) -> usize {
        self.sizes.n_ctx.div_ceil(PAGE as usize)
    }

    fn gpu(&self) -> &Gpu {
        &self.model.gpu
    }

    /// Writes ids of a sequence, for steps that are submitted from now on.
    ///
    /// # Panics
    /// If the sequence or a position is none of the batch.
    pub fn write_ids(&self, sequence: u32, position: usize, ids: &[u32]) {
        assert!(
            sequence < self.sizes.sequences && position + ids.len() <= self.sizes.n_ctx,
            "ids of sequence {sequence} at {position}"
        );
        let at = self.first_id(sequence) as usize + position;
        self.write_words(self.recipes.history(), at, ids);
    }

    /// Tells which pages hold the rows of a sequence, from its page number `first` on, for steps that are submitted from now on.
    ///
    /// # Panics
    /// If the sequence or a page is none of the batch.
    pub fn write_pages(&self, sequence: u32, first: usize, pages: &[u32]) {
        let all = self.pages_per_sequence();
        let known = pages.iter().all(|page| *page < self.sizes.pages);
        assert!(
            sequence < self.sizes.sequences && first + pages.len() <= all && known,
            "pages {pages:?} of sequence {sequence} from {first}"
        );
        let at = sequence as usize * all + first;
        self.write_words(&self.recipes.sequences().pages, at, pages);
    }

    fn first_id(&self, sequence: u32) -> u32 {
        sequence * (self.sizes.n_ctx as u32 + 1)
    }

    fn write_words(&self, range: &Range, at: usize, words: &[u32]) {
        let bytes = bytemuck::cast_slice(words);
        let offset = range.offset + 4 * at as u64;
        self.gpu()
            .queue
            .write_buffer(range.buffer.made(), offset, bytes);
    }

    /// The most tokens of the step that suits `tokens`.
    fn class(&self, tokens: usize) -> u32 {
        self.sizes.class(tokens as u32)
    }

    /// The key of the head that follows a step of `tokens` tokens, after `drawn` of which a token is chosen. Only a step of one token has a
    /// head of one row.
    fn head_of(&self, tokens: usize, drawn: usize) -> (After, u32) {
        match tokens {
            1 => (After::One, 1),
            _ => (
                After::of(self.gpu(), self.class(tokens)),
                self.class(drawn.max(2)),
            ),
        }
    }

    /// Compiles the steps for `tokens` tokens after `drawn` of which a token is chosen, unless that was done.
    ///
    /// # Errors
    /// [`GpuError::TierUnsupported`], [`GpuError::OutOfMemory`], or what the device reports.
    pub async fn prepare_async(&mut self, tokens: usize, drawn: usize) -> Result<(), GpuError> {
        let gpu = Arc::clone(&self.model.gpu);
        let most = self.class(tokens);
        if !self.steps.contains_key(&most) {
            let step = self.recipes.step(&gpu, most)?;
            let mut lists: Vec<Listed> = vec![];
            let listed = |call: &Call| match call.kernel {
                "expert_rows" => Some(("tiles0", 4)),
                "batch_experts" => Some(("tiles", TILE_WORDS)),
                _ => None,
            };
            for call in &step.calls {
                let Some((tiles, words)) = listed(call) else {
                    continue;
                };
                let Some(tiles) = call.bound(tiles).cloned() else {
                    continue;
                };
                if lists.iter().all(|known| known.tiles.buffer != tiles.buffer) {
                    lists.push(Listed { tiles, words });
                }
            }
            self.lists.insert(most, lists);
            if most == self.class(1) {
                self.needed.extend(step.buffers().into_iter().cloned());
            }
            self.steps
                .insert(most, Recording::new_async(&gpu, &step).await?);
        }
        let (of, key) = (most, self.head_of(tokens, drawn));
        let most = key.1;
        if drawn > 0 && !self.heads.contains_key(&key) {
            let head = self.recipes.head(&gpu, of, most, &self.logits)?;
            let rows = sample::Rows {
                sequences: &self.recipes.sequences().of_steps(of),
                choices: &self.choices,
                biases: &self.biases.range,
                most,
            };
            let vocab = self.model.model.config().vocab_size as u32;
            let history = self.recipes.history();
            let results = &self.results.ring;
            let choose = sample::calls(Some(&rows), &self.logits, vocab, history, results);
            let most_tokens = Most {
                tokens: most,
                context: self.sizes.n_ctx as u32,
            };
            let both = Step::of(most_tokens, head.calls.into_iter().chain(choose));
            if most == self.class(1) {
                self.needed.extend(both.buffers().into_iter().cloned());
            }
            self.heads
                .insert(key, Recording::new_async(&gpu, &both).await?);
        }
        Ok(())
    }

    /// Compiles all steps that its sequences may need.
    ///
    /// # Errors
    /// As [`prepare_async`](Self::prepare_async).
    pub async fn prepare_all_async(&mut self) -> Result<(), GpuError> {
        for class in classes(self.sizes) {
            for drawn in head_classes(self.sizes) {
                let drawn = drawn.min(class);
                self.prepare_async(class as usize, drawn as usize).await?;
            }
        }
        Ok(())
    }

    /// What touches all that the smallest step needs on the device, if a device that is not used forgets it.
    pub fn warm(&self) -> Option<Touch> {
        warm::touch(&self.model.gpu, &self.needed)
    }

    /// Submits a step. At most [`BATCHES_IN_FLIGHT`] may be on their way.
    ///
    /// # Errors
    /// Those of [`prepare_async`](Self::prepare_async).
    ///
    /// # Panics
    /// If there are no tokens or more than the batch is made for, or if they do not go with the choices.
    pub async fn submit_async(&mut self, step: BatchStep<'_>) -> Result<BatchFlight, GpuError> {
        let BatchStep {
            tokens,
            choices,
            biases,
            logits,
        } = step;
        let drawn = choices.len();
        assert!(
            (1..=self.sizes.tokens as usize).contains(&tokens.len())
                && drawn <= tokens.len().min(self.sizes.most_drawn() as usize)
                && biases.len() <= drawn,
            "{drawn} of {} tokens",
            tokens.len()
        );
        self.prepare_async(tokens.len(), drawn).await?;
        self.copies.submit(&self.model.gpu);
        let number = self.gpu().reserve_numbers(1).number(0);
        let mut words = choices.to_vec();
        for words in &mut words {
            words[sample::NUMBER] = number;
        }
        let mut state = self.write(tokens, &words);
        let slot = self.next_slot;
        self.next_slot = (slot + 1) % RING;
        state.slot = slot;
        state.biased = self.biases.write(&self.model.gpu, drawn, biases);
        let bytes = self.row_bytes() * logits.len() as u64;
        let rows = self.rows.staged_async(&self.model.gpu, bytes).await?;

        let device = &self.gpu().device;
        let mut encoder = device.create_command_encoder(&Default::default());
        let gpu = self.gpu();
        self.steps[&self.class(tokens.len())].encode(gpu, &mut encoder, &state);
        if drawn > 0 {
            let state = State {
                tokens: drawn as u32,
                ..state
            };
            self.heads[&self.head_of(tokens.len(), drawn)].encode(gpu, &mut encoder, &state);
            self.results.copy(&mut encoder, slot, drawn);
        }
        if let Some(FlyingRows { staging, .. }) = &rows {
            let bytes = self.row_bytes();
            for (to, row) in logits.iter().enumerate() {
                let from = self.logits.offset + bytes * *row as u64;
                let source = self.logits.buffer.made();
                encoder.copy_buffer_to_buffer(source, from, staging, bytes * to as u64, bytes);
            }
        }
        let submission = gpu.submit_numbered(encoder.finish(), number);
        Ok(BatchFlight {
            slot,
            number,
            drawn,
            rows,
            submission,
        })
    }

    /// Bytes of a row of logits.
    fn row_bytes(&self) -> u64 {
        self.model.model.config().vocab_size as u64 * 4
    }

    /// Says where the tokens of a step stand and how those after them are chosen: in the words of its replay if a token is alone, else in
    /// buffers.
    fn write(&self, tokens: &[BatchToken], choices: &[[u32; CHOICE]]) -> State {
        if let [token] = tokens {
            return State {
                sampling: choices.first().copied().unwrap_or_default(),
                ..self.alone(*token)
            };
        }
        self.write_words(&self.choices, 0, choices.as_flattened());
        self.write_table(tokens)
    }

    /// Where a token stands that is alone in its step.
    fn alone(&self, token: BatchToken) -> State {
        let machine = self.gpu().machine;
        let (slices, slice_rows) = self.recipes.cut_alone(machine, token.position);
        let place = self.place(token);
        State {
            pos: token.position,
            tokens: 1,
            slices,
            slice_rows,
            first_page: place.first_page,
            first_id: place.first_id,
            ..State::default()
        }
    }

    /// Where a token stands, without its slices.
    ///
    /// # Panics
    /// If the batch has no such sequence or position.
    fn place(&self, token: BatchToken) -> Record {
        let BatchToken { sequence, position } = token;
        assert!(
            sequence < self.sizes.sequences && (position as usize) < self.sizes.n_ctx,
            "{token:?}"
        );
        Record {
            position,
            first_page: sequence * self.pages_per_sequence() as u32,
            first_id: self.first_id(sequence),
            ..Record::default()
        }
    }

    fn write_table(&self, tokens: &[BatchToken]) -> State {
        let seen = |token: &BatchToken| Seen {
            sequence: token.sequence,
            position: token.position,
        };
        let seen: Vec<Seen> = tokens.iter().map(seen).collect();
        let cut = self.recipes.cut(self.gpu().machine, &seen);
        let records = tokens.iter().zip(&cut.slices);
        let records = records.flat_map(|(token, [first_slice, slices])| {
            let record = Record {
                first_slice: *first_slice,
                slices: *slices,
                ..self.place(*token)
            };
            record.words()
        });
        let records: Vec<u32> = records.collect();
        let sequences = self.recipes.sequences();
        self.write_words(&sequences.table, 0, &records);
        self.write_words(&sequences.work, 0, cut.work.as_flattened());
        let count = tokens.len() as u32;
        State {
            // Its rows choose among kernels. Positions are in the table.
            pos: cut.rows.max(count) - count,
            tokens: count,
            slices: cut.work.len() as u32,
            ..State::default()
        }
    }

    /// Goes on once a step is done.
    ///
    /// # Errors
    /// [`GpuError::WorkLost`], or what the device reports.
    pub async fn land_async(&mut self, flight: BatchFlight) -> Result<BatchLanding, GpuError> {
        let gpu = &self.model.gpu;
        let mut landing = BatchLanding::default();
        let submission = Some(flight.submission.clone());
        if flight.drawn > 0 {
            let result = self.results.mapped(flight.slot);
            let bytes = RESULT * flight.drawn as u64;
            let words: Vec<u32> = gpu
                .map_read_async(result, bytes, submission.clone())
                .await?;
            for result in words.as_chunks::<4>().0 {
                let [id, _, number, broken] = *result;
                if number != flight.number {
                    let what = "the number of a batch's step".to_owned();
                    return Err(gpu.work_lost(what, flight.number, number));
                }
                landing.ids.push(id);
                landing.broken.push(broken != 0);
            }
        } else {
            gpu.done_async().await?;
        }
        if let Some(rows) = &flight.rows {
            landing.logits = self.rows.land_async(gpu, rows, flight.submission).await?;
        }
        Ok(landing)
    }
}

mod biases;
pub(super) mod copies;
mod measure;
mod rows;
mod wait;
mod warm_up;

use biases::BiasRows;
use copies::Copies;
use rows::{FlyingRows, Rows};

#[cfg(test)]
mod tests;
