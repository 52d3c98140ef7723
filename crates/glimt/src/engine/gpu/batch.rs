//! The steps of one sequence or of several: what the host writes before each, and what comes back of it.

use super::GpuModel;
use super::pace::Paces;
use super::prompt::{self, Prompt};
use super::proof::Proof;
use super::results::Results;
use super::table::{Place, write_words};
use super::warm;
use crate::engine::backend::Touch;
pub use crate::engine::batch::{BatchLanding, BatchStep, BatchToken, Prediction};
use crate::gpu::buffer::{Buffer, Range};
use crate::gpu::call::{Call, Listed, State};
use crate::gpu::geometry::Site;
use crate::gpu::record::Recording;
use crate::gpu::{Gpu, GpuError, Most, Step, Target};
use crate::kernels::logit_bias::Biases;
use crate::kernels::sample;
use crate::kernels::sequences::{CHOICE, PAGE};
use crate::recipes::{BatchSizes, Sessions, Steps, few};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use wgpu::SubmissionIndex;

/// The most steps that may be in flight.
pub const BATCHES_IN_FLIGHT: usize = 2;
/// Buffers that ids come back through: one more, since a mapped buffer cannot be written.
const RING: usize = BATCHES_IN_FLIGHT + 1;

/// The fewest tokens of one sequence that a step computes as a part of its prompt. Such a step may expand the context.
pub const LEAST_RUN: usize = 129;

/// A step on its way.
#[derive(Clone)]
pub struct BatchFlight {
    slot: usize,
    number: u32,
    drawn: usize,
    rows: Option<FlyingRows>,
    /// The predictions whose drafts come back, in the order of their rows, with their places in the step.
    predictions: Vec<(usize, Prediction)>,
    /// The position of the first token that is chosen, where the device alone knew it when the step was encoded.
    position: Option<u32>,
    layer_rows: bool,
    submission: SubmissionIndex,
}

impl Token {
    async fn new(gpu: &Gpu, chosen: &Chosen<'_>, sizes: BatchSizes) -> Result<Self, GpuError> {
        let choose = chosen.calls(1, 1);
        let single = chosen.recipes.token(gpu, chosen.logits)?;
        let sites = sites(&single.calls);
        let decode = single.then(&choose);
        let sample = Step::of(Most::token(sizes.n_ctx as u32), choose);
        Ok(Self {
            decode: Recording::new(gpu, &decode).await?,
            single: Recording::new(gpu, &single).await?,
            sample: Recording::new(gpu, &sample).await?,
            needed: decode.buffers().into_iter().cloned().collect(),
            sites,
        })
    }
}

/// The sites of a step, each once.
pub(super) fn sites(calls: &[Call]) -> Vec<Site> {
    let mut seen = HashSet::new();
    let sites = calls.iter().filter_map(|call| call.site.clone());
    sites.filter(|site| seen.insert(site.key())).collect()
}

/// A model on a GPU with the cache of one sequence or of several.
pub struct GpuBatch {
    pub(super) model: Arc<GpuModel>,
    pub(super) recipes: Steps,
    sizes: BatchSizes,
    /// The logits, (tokens after which one is chosen, vocab). The first row is also that of a token which is alone in its step, or the last
    /// of a prompt.
    pub(super) logits: Range,
    /// The settings of choices, (tokens after which one is chosen, 12) words.
    choices: Range,
    biases: BiasRows,
    pub(super) results: Results,
    /// The drafts of the prediction layer, where there is one.
    drafting: Option<Drafting>,
    /// The buffers and recordings of steps that are encoded before the host knows where they begin, where there are such steps.
    unknown: Option<Unknown>,
    /// The step that was encoded before it is known.
    ahead: Option<Ahead>,
    /// The drafts that steps may have by now, and the work that compiles further ones.
    pub(super) ready: ReadyDrafts,
    compiling: Option<Compiling>,
    /// The rows from the first position on that the layer's cache has of the first sequence.
    pub(super) layer_rows: usize,
    /// Rows that the next step begins with.
    copies: Option<Copies>,
    pub(super) token: Token,
    /// The recordings from ids to hidden states, by the most tokens, of which there are several.
    steps: BTreeMap<u32, Recording>,
    /// The recordings of what steps leave for the prediction layer, by the most tokens, without rows of its cache and with them.
    of_layer: BTreeMap<u32, [Recording; 2]>,
    /// The recordings from hidden states to chosen tokens, by the step that left these, and by the most tokens.
    heads: BTreeMap<(After, u32), Recording>,
    /// The lists of experts that the steps leave, each once.
    lists: BTreeMap<u32, Vec<Listed>>,
    next_slot: usize,
    /// The steps on their way that were submitted by the [common interface](crate::engine::batch::Batch).
    flights: VecDeque<BatchFlight>,
    rows: Rows,
    /// The pages of each sequence, as the device knows them.
    pages: Vec<u32>,
    /// The steps for several tokens of the prompt of one sequence.
    pub(super) prompt: Prompt,
    /// The pace of prompts: how much of one a submission takes.
    pub(super) paces: Paces,
    /// The proof that submissions of prompts ran.
    pub(super) proof: Proof,
}

/// The steps of a token that is alone.
pub(super) struct Token {
    /// The step from the id to the choice of the next token.
    pub decode: Recording,
    /// The step from the id to the logits.
    pub single: Recording,
    /// The step from the logits to the choice of the next token.
    pub sample: Recording,
    /// The buffers of `decode`.
    pub needed: Vec<Buffer>,
    /// The sites of `single`, for which a geometry can be chosen.
    pub sites: Vec<Site>,
}

/// The most tokens of each of the steps of several tokens that a batch of such sizes may compile.
pub(super) fn classes(sizes: BatchSizes, recipes: &Steps) -> Vec<u32> {
    let with_slots = recipes.most_with_slots().min(sizes.tokens);
    let mut classes = powers(sizes);
    classes.extend([with_slots].iter().filter(|most| **most > 1));
    classes.sort_unstable();
    classes.dedup();
    classes
}

/// The powers of 2 up to the tokens of a step, and these.
fn powers(sizes: BatchSizes) -> Vec<u32> {
    let powers = (1..32).map(|power| (1 << power).min(sizes.tokens));
    let mut powers: Vec<u32> = powers.collect();
    powers.dedup();
    powers.retain(|class| *class > 1);
    powers
}

/// The kind of step that a head follows. All steps of one kind leave their hidden states in the same form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum After {
    AsOne,
    Few,
    Many,
}

impl After {
    /// A step of up to `most` tokens of a batch of such sizes.
    pub(super) fn of(target: &Target, sizes: BatchSizes, most: u32) -> Self {
        match most {
            _ if most <= few::most_as_one(target, sizes.pages > 0) => Self::AsOne,
            _ if most <= target.machine.tuned.few_of_batch => Self::Few,
            _ => Self::Many,
        }
    }
}

/// The most tokens of each of the heads that such a batch may compile.
pub(super) fn head_classes(sizes: BatchSizes) -> Vec<u32> {
    let mut classes = powers(sizes);
    classes.retain(|class| *class <= sizes.most_drawn());
    classes
}

/// The most tokens of a step of several sequences on a device: the usual number, or fewer where its bindings are small, but at least `least`.
pub(crate) fn step_tokens(target: &Target, sessions: &Sessions, least: u32) -> u32 {
    let fits = |tokens: &u32| sessions.widest(target.machine, *tokens, true) <= target.max_binding;
    let usual = target.machine.tuned.batch_tokens;
    let halves = std::iter::successors(Some(usual), |tokens| Some(tokens / 2));
    let mut sizes = halves.take_while(|tokens| *tokens > least);
    sizes.find(fits).unwrap_or(least)
}

/// The recipes and buffers for the choice of tokens after a step.
pub(super) struct Chosen<'a> {
    pub recipes: &'a Steps,
    pub vocab: u32,
    pub logits: &'a Range,
    pub choices: &'a Range,
    pub biases: &'a Range,
    pub results: &'a [Range],
}

impl Chosen<'_> {
    /// The choice of a token after each of up to `most` tokens of a step of up to `of`.
    pub(super) fn calls(&self, of: u32, most: u32) -> Vec<Call> {
        let rows = sample::Rows {
            sequences: self.recipes.sequences_of(of),
            choices: self.choices,
            biases: self.biases,
            most,
        };
        let history = self.recipes.history();
        sample::calls(Some(&rows), self.logits, self.vocab, history, self.results)
    }
}

impl GpuModel {
    /// The most tokens of a step of up to `sequences` sequences.
    pub fn batch_tokens(&self, sequences: u32) -> u32 {
        let sessions = self.weights.untried(&self.gpu);
        step_tokens(&self.gpu, &sessions, sequences)
    }
}

impl GpuBatch {
    /// A batch of these sizes with an empty cache. The steps of a token are compiled in parallel.
    ///
    /// # Errors
    /// [`GpuError::BindingTooLarge`], [`GpuError::OutOfMemory`] or what the device reports.
    pub async fn new(model: Arc<GpuModel>, sizes: BatchSizes) -> Result<Self, GpuError> {
        let gpu = Arc::clone(&model.gpu);
        let sessions = model.weights.tried(&gpu).await?;
        Self::of(model, &sessions, sizes).await
    }

    /// A batch of these sizes with an empty cache, in the forms of `sessions`.
    pub(super) async fn of(
        model: Arc<GpuModel>,
        sessions: &Sessions,
        sizes: BatchSizes,
    ) -> Result<Self, GpuError> {
        let gpu = Arc::clone(&model.gpu);
        let recipes = sessions.steps(&gpu, prompt::with_room(sizes))?;
        // The host writes to these before any step does.
        let sequences = recipes.sequences();
        let told =
            sequences.map(|known| [Some(&known.table), known.pages.as_ref(), Some(&known.work)]);
        let told = told.into_iter().flatten().flatten();
        for range in told.chain([recipes.history()]).chain(recipes.cache()) {
            gpu.realise(&range.buffer).await?;
        }
        let vocab = model.model.config().vocab_size as u32;
        let drawn = sizes.most_drawn();
        let logits = Range::floats("logits", u64::from(drawn) * u64::from(vocab));
        let choices = Range::words("choices", u64::from(drawn) * CHOICE as u64);
        gpu.realise(&choices.buffer).await?;
        let biases = BiasRows::new(&gpu, drawn).await?;
        let results = Results::new(&gpu, RING, drawn, recipes.predicts()).await?;
        let drafting = Drafting::new(&gpu, &recipes, vocab, sizes).await?;
        let unknown = match sizes.pages {
            0 => Unknown::new(&gpu, &recipes, &results).await?,
            _ => None,
        };
        let chosen = Chosen {
            recipes: &recipes,
            vocab,
            logits: &logits,
            choices: &choices,
            biases: &biases.range,
            results: &results.ring,
        };
        let mut prompt = Prompt::new(&model, sizes.chunk, recipes.as_one());
        prompt.reserve(&model, &recipes, sizes.pages == 0).await?;
        Ok(Self {
            token: Token::new(&gpu, &chosen, sizes).await?,
            copies: match sizes.pages {
                0 => None,
                _ => Some(Copies::new(&gpu, &recipes, sizes).await?),
            },
            logits,
            choices,
            biases,
            results,
            drafting,
            unknown,
            ahead: None,
            ready: ReadyDrafts::all(sizes.drafts),
            compiling: None,
            layer_rows: 0,
            steps: BTreeMap::new(),
            of_layer: BTreeMap::new(),
            heads: BTreeMap::new(),
            lists: BTreeMap::new(),
            next_slot: 0,
            flights: VecDeque::new(),
            rows: Rows::default(),
            pages: vec![0; sizes.sequences as usize * sizes.n_ctx.div_ceil(PAGE as usize)],
            prompt,
            paces: Paces::new(&gpu),
            proof: Proof::new(&gpu).await?,
            model,
            recipes,
            sizes,
        })
    }

    /// The sizes that the batch was made for.
    pub fn sizes(&self) -> BatchSizes {
        self.sizes
    }

    /// Pages of a sequence of the longest context.
    pub fn pages_per_sequence(&self) -> usize {
        self.sizes.n_ctx.div_ceil(PAGE as usize)
    }

    pub(super) fn gpu(&self) -> &Gpu {
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
        let at = self.place(sequence).first_id as usize + position;
        write_words(self.gpu(), self.recipes.history(), at, ids);
    }

    /// Tells which pages hold the rows of a sequence, from its page number `first` on, for steps that are submitted from now on.
    ///
    /// # Panics
    /// If the sequence or a page is none of the batch.
    pub fn write_pages(&mut self, sequence: u32, first: usize, pages: &[u32]) {
        let all = self.pages_per_sequence();
        let known = pages.iter().all(|page| *page < self.sizes.pages);
        assert!(
            sequence < self.sizes.sequences && first + pages.len() <= all && known,
            "pages {pages:?} of sequence {sequence} from {first}"
        );
        let sequences = self.recipes.sequences();
        if let Some(all) = sequences.and_then(|sequences| sequences.pages.as_ref()) {
            let at = self.place(sequence).first_page as usize + first;
            self.pages[at..at + pages.len()].copy_from_slice(pages);
            write_words(&self.model.gpu, all, at, pages);
        }
    }

    /// The place at which what is known of a sequence begins.
    pub(super) fn place(&self, sequence: u32) -> Place {
        Place {
            first_page: sequence * self.pages_per_sequence() as u32,
            first_id: sequence * (self.sizes.n_ctx as u32 + 1),
        }
    }

    /// The words of a step over `tokens` tokens of a sequence from `pos` on.
    pub(super) fn state(&self, sequence: u32, pos: usize, tokens: usize) -> State {
        self.place(sequence)
            .state(&self.recipes, self.gpu(), pos, tokens)
    }

    /// Writes what is added to the logits of the first choices of steps that are submitted from now on. Whether there is something.
    pub(super) fn write_biases(&mut self, biases: &[Biases]) -> bool {
        self.biases.write(&self.model.gpu, biases.len(), biases)
    }

    /// The most tokens of the step of any sequences that suits `tokens`.
    fn class(&self, tokens: usize) -> u32 {
        let tokens = tokens as u32;
        let class = self.sizes.class(tokens);
        self.recipes.class_with_slots(tokens, class)
    }

    /// The key of the head that follows a step of `tokens` tokens, several, after `drawn` of which a token is chosen.
    fn head_of(&self, tokens: usize, drawn: usize) -> (After, u32) {
        let most = self.sizes.class(drawn.max(2) as u32);
        (After::of(self.gpu(), self.sizes, self.class(tokens)), most)
    }

    /// The buffers that the choice of tokens reads and writes.
    fn chosen(&self) -> Chosen<'_> {
        Chosen {
            recipes: &self.recipes,
            vocab: self.model.model.config().vocab_size as u32,
            logits: &self.logits,
            choices: &self.choices,
            biases: &self.biases.range,
            results: &self.results.ring,
        }
    }

    /// Compiles the steps for `tokens` tokens after `drawn` of which a token is chosen, unless that was done.
    ///
    /// # Errors
    /// [`GpuError::TierUnsupported`], [`GpuError::OutOfMemory`], or what the device reports.
    pub async fn prepare(&mut self, tokens: usize, drawn: usize) -> Result<(), GpuError> {
        if tokens == 1 {
            return Ok(());
        }
        let gpu = Arc::clone(&self.model.gpu);
        let most = self.class(tokens);
        if !self.steps.contains_key(&most) {
            let step = self.recipes.step(&gpu, most)?;
            let mut lists: Vec<Listed> = vec![];
            for listed in step.calls.iter().filter_map(|call| call.listed.as_ref()) {
                let tiles = &listed.tiles.buffer;
                if lists.iter().all(|known| known.tiles.buffer != *tiles) {
                    lists.push(listed.clone());
                }
            }
            self.lists.insert(most, lists);
            self.steps.insert(most, Recording::new(&gpu, &step).await?);
            let of_layer = |rows| self.recipes.of_layer(&gpu, most, rows);
            if let (Some(states), Some(rows)) = (of_layer(false), of_layer(true)) {
                let both = [
                    Recording::new(&gpu, &states).await?,
                    Recording::new(&gpu, &rows).await?,
                ];
                self.of_layer.insert(most, both);
            }
        }
        let key = self.head_of(tokens, drawn);
        if drawn > 0 && !self.heads.contains_key(&key) {
            let both = self.head_step(most, key.1)?;
            self.heads.insert(key, Recording::new(&gpu, &both).await?);
        }
        Ok(())
    }

    /// Compiles all steps that its sequences may need.
    ///
    /// # Errors
    /// The errors of [`prepare`](Self::prepare).
    pub async fn prepare_all(&mut self) -> Result<(), GpuError> {
        for class in classes(self.sizes, &self.recipes) {
            for drawn in head_classes(self.sizes) {
                let drawn = drawn.min(class);
                self.prepare(class as usize, drawn as usize).await?;
            }
        }
        for tokens in self.runs() {
            self.prepare_run(tokens).await?;
        }
        self.prepare_all_drafts().await
    }

    /// The most tokens of one prompt that a step takes, where there are such steps.
    pub fn longest_run(&self) -> Option<usize> {
        let most = self.prompt.at_most() as usize;
        (self.sizes.pages > 0 && most >= LEAST_RUN).then_some(most)
    }

    /// The fewest tokens of each step of a part of one prompt.
    fn runs(&self) -> Vec<usize> {
        let smallest = self.prompt.smallest();
        let smallest = smallest.filter(|tokens| *tokens >= LEAST_RUN);
        match self.sizes.pages {
            0 => vec![],
            _ => smallest.collect(),
        }
    }

    /// A function that touches all that the smallest step needs on the device, if a device that is not used forgets it.
    pub fn warm(&self) -> Option<Touch> {
        warm::touch(&self.model.gpu, &self.token.needed)
    }
}

mod ahead;
mod all_logits;
mod biases;
mod cache_rows;
pub(super) mod compiled;
mod compute;
pub(super) mod copies;
pub(super) mod drafting;
mod interface;
#[cfg(not(target_arch = "wasm32"))]
mod measure;
mod predict;
mod rows;
mod submit;
pub(super) mod unknown;
mod warm_up;

use ahead::Ahead;
use biases::BiasRows;
use compiled::{Compiling, ReadyDrafts};
use copies::Copies;
use drafting::Drafting;
use rows::{FlyingRows, Rows};
use unknown::Unknown;

#[cfg(test)]
mod tests;
