//! The GPU backend: recorded steps replayed with one or two tokens in flight.

mod all_logits;
pub mod batch;
mod flight;
mod load;
pub mod measure;
mod memory;
mod model;
mod pace;
pub mod plan;
mod precompose;
mod prompt;
mod proof;
mod random;
mod results;
mod rows;
mod submissions;
#[cfg(test)]
mod tests;
mod tier_trial;
mod trial;
mod tune;
mod wait;
mod warm;

pub use memory::MemoryPlan;
pub use model::GpuModel;
pub use precompose::{DEFAULT_PRECOMPOSE, PrecomposeChoice, Precomposed, Trial};
pub use tier_trial::TierTrial;

use super::backend::{
    Answer, Backend, BackendError, OnPrompt, OnRow, OnToken, Touch, check_context, check_rows,
    check_tokens,
};
use crate::gpu::buffer::{Buffer, Range as Bound};
use crate::gpu::call::{Call, State};
use crate::gpu::geometry::Site;
use crate::gpu::record::Recording;
use crate::gpu::stamps::Stamps;
use crate::gpu::{Gpu, GpuError};
use crate::gpu::{Most, Step};
use crate::kernels::compose::Pair;
use crate::kernels::sample;
use crate::kernels::sampling::Sampling;
use crate::models::Recipes;
use flight::RING;
use measure::HostTime;
use pace::{Kind, Paces};
use prompt::{Prompt, capacity};
use proof::Proof;
use results::Results;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use submissions::{Submissions, Worth};

/// A model on a GPU with the cache of one context.
pub struct GpuBackend {
    model: Arc<GpuModel>,
    n_ctx: usize,
    /// Tokens of a prompt at once, as was asked for.
    asked: Option<u32>,
    recipes: Box<dyn Recipes>,
    /// Logits of the last position, (vocab).
    logits: Bound,
    results: Results,
    /// One token and the choice of the next.
    decode: Recording,
    /// One token alone.
    single: Recording,
    sample: Recording,
    /// What of a decoded token a geometry can be chosen for.
    sites: Vec<Site>,
    /// The buffers of a decoded token.
    needed: Vec<Buffer>,
    /// Several tokens of a prompt.
    prompt: Prompt,
    /// How much of a prompt a submission takes.
    paces: Paces,
    /// What shows that submissions of prompts ran.
    proof: Proof,
    /// The position that `logits` predict, 0 before any.
    next: usize,
    /// Whether rows came from elsewhere, so that the device does not know their tokens.
    unknown_history: bool,
    /// What encoding and submitting decoded tokens took.
    host: HostTime,
    /// Timestamps of the steps of a decode, where they are wanted.
    stamps: Option<Stamps>,
}

impl GpuBackend {
    /// A backend with an empty cache of `n_ctx` rows; compiles the pipelines of a decoded token, in parallel. Prompts are computed up to
    /// `chunk` tokens at a time; `None` is 2048, on software 512, or what the bindings of the device have room for.
    ///
    /// # Errors
    /// [`GpuError`]: no memory, a cache larger than one binding, [`GpuError::BindingTooLarge`] for a chunk that has no room, or what the
    /// device reports.
    pub async fn new_async(
        model: Arc<GpuModel>,
        n_ctx: usize,
        chunk: Option<u32>,
    ) -> Result<Self, GpuError> {
        let gpu = Arc::clone(&model.gpu);
        let sessions = model.weights.tried(&gpu).await?;
        let asked = chunk;
        let chunk = prompt::chunk(&gpu, &*sessions, n_ctx, asked)?;
        let recipes = sessions.begin(&gpu, n_ctx, capacity(chunk))?;
        // The host writes to these before any step does.
        gpu.realise_async(&recipes.history().buffer).await?;
        for cache in recipes.cache() {
            gpu.realise_async(&cache.buffer).await?;
        }
        let vocab = model.model.config().vocab_size as u32;
        let logits = Bound::floats("logits", u64::from(vocab));
        let results = Results::new_async(&gpu, RING, 1).await?;
        let choose = sample::calls(None, &logits, vocab, recipes.history(), &results.ring);
        let single = recipes.token(&gpu, &Pair::ALL, &logits)?;
        let sites = sites(&single.calls);
        let decode = single.then(&choose);
        let mut prompt = Prompt::new(&model, chunk);
        prompt.reserve(&model, &*recipes).await?;
        let sample = Step::of(Most::token(recipes.n_ctx()), choose);
        Ok(Self {
            decode: Recording::new_async(&gpu, &decode).await?,
            single: Recording::new_async(&gpu, &single).await?,
            sample: Recording::new_async(&gpu, &sample).await?,
            sites,
            needed: decode.buffers().into_iter().cloned().collect(),
            prompt,
            paces: Paces::new(&gpu),
            proof: Proof::new(&gpu).await?,
            model,
            n_ctx,
            asked,
            recipes,
            logits,
            results,
            next: 0,
            unknown_history: false,
            host: HostTime::default(),
            stamps: None,
        })
    }

    /// What of a decoded token a geometry can be chosen for ([`Target::choices`](crate::gpu::Target::choices)), each once; nothing in the `plain` tier.
    pub fn sites(&self) -> &[Site] {
        &self.sites
    }

    /// Dispatches that decode the token at `pos`.
    pub fn dispatches_per_token(&self, pos: usize) -> usize {
        self.decode.step(&self.state(pos, 1)).len()
    }

    /// Dispatches of one decoded token at `pos` that wait for the one before: others run beside them.
    pub fn dependent_dispatches_per_token(&self, pos: usize) -> usize {
        self.decode.levels(&self.state(pos, 1))
    }

    /// Tokens of a prompt that are computed at once: fewer than asked for where a dispatch took too long.
    pub fn chunk(&self) -> u32 {
        self.prompt.at_most()
    }

    /// Tokens of each piece that a prompt of `tokens` is computed in; the last may have fewer.
    pub fn at_once(&self, tokens: usize) -> usize {
        self.prompt.at_once(tokens)
    }

    /// What the longest submission of a prompt took since the last call, as far as the host could see.
    pub fn take_longest_submission(&mut self) -> Option<Duration> {
        self.paces.take_longest()
    }

    fn gpu(&self) -> &Gpu {
        &self.model.gpu
    }

    /// The words of a step over `tokens` tokens from `pos` on.
    fn state(&self, pos: usize, tokens: usize) -> State {
        self.recipes.state(self.gpu().machine, pos, tokens)
    }

    fn check(&self, tokens: &[u32], pos: usize) -> Result<(), BackendError> {
        check_tokens(
            tokens,
            pos,
            self.n_ctx,
            self.model.model.config().vocab_size,
        )?;
        let bytes = bytemuck::cast_slice(tokens);
        self.gpu()
            .queue
            .write_buffer(self.recipes.history().buffer.made(), pos as u64 * 4, bytes);
        Ok(())
    }
}

impl GpuBackend {
    /// [`Backend::prefill_async`].
    async fn compute(
        &mut self,
        tokens: &[u32],
        pos: usize,
        on_prompt: &mut OnPrompt<'_>,
    ) -> Result<usize, BackendError> {
        self.check(tokens, pos)?;
        self.next = 0;
        let model = Arc::clone(&self.model);
        let gpu = &model.gpu;
        let Self {
            recipes,
            prompt,
            single,
            paces,
            proof,
            logits,
            ..
        } = self;
        let mut submissions = Submissions::begin(gpu, paces, proof, tokens.len());
        let mut at_once = prompt.at_once(tokens.len());
        let mut begin = 0;
        while begin < tokens.len() {
            let piece = at_once.min(tokens.len() - begin);
            let end = begin + piece;
            let state = recipes.state(gpu.machine, pos + begin, piece);
            let worth = Worth::piece(begin..end);
            let flow = if piece == 1 {
                let step = single.replay(gpu, &state);
                submissions
                    .run(Kind::Single, &[&step], worth, on_prompt)
                    .await?
            } else {
                let step = prompt.step(&model, &**recipes, piece).await?;
                let head = match end == tokens.len() {
                    true => Some(prompt.head(&model, &**recipes, logits).await?),
                    false => None,
                };
                let step = step.replay(gpu, &state);
                let head = head.as_ref().map(|head| head.replay(gpu, &state));
                let both: Vec<_> = std::iter::once(&step).chain(&head).collect();
                submissions
                    .run(Kind::Several, &both, worth, on_prompt)
                    .await?
            };
            if flow.is_break() {
                break;
            }
            begin = end;
            if submissions.take_halving() {
                prompt.halve(piece);
                at_once = prompt.piece(tokens.len() - begin);
            }
        }
        let done = submissions.land_all().await?;
        if done == tokens.len() {
            self.next = pos + done;
        }
        Ok(done)
    }

    /// Begins to decode: the kept logits must be those of the end of `context`.
    fn begin_decode(&mut self, context: &[u32], limit: usize) -> Result<(), BackendError> {
        check_context(context, self.next, limit, self.n_ctx)?;
        if std::mem::take(&mut self.unknown_history) {
            let history = self.recipes.history().buffer.made();
            let bytes = bytemuck::cast_slice(context);
            self.gpu().queue.write_buffer(history, 0, bytes);
        }
        if limit > 0 {
            // The steps in flight replace the logits, also those beyond the last token delivered.
            self.next = 0;
        }
        Ok(())
    }
}

impl Backend for GpuBackend {
    fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    fn warm(&self) -> Option<Touch> {
        warm::touch(&self.model.gpu, &self.needed)
    }

    fn compile_time(&self) -> Duration {
        self.gpu().compile_time()
    }

    fn fill_cache(&mut self, rows: usize) -> Result<(), BackendError> {
        check_rows(rows, self.n_ctx)?;
        Ok(self.fill_cache_waiting(rows)?)
    }

    fn read_rows_async(&mut self, positions: Range<usize>) -> Answer<'_, Vec<u8>> {
        Box::pin(self.rows(positions))
    }

    fn write_rows_async<'a>(&'a mut self, first: usize, rows: &'a [u8]) -> Answer<'a, ()> {
        Box::pin(self.put_rows(first, rows))
    }

    fn branch_async(&self, rows: usize) -> Answer<'_, Box<dyn Backend>> {
        Box::pin(async move { Ok(Box::new(self.branch(rows).await?) as Box<dyn Backend>) })
    }

    fn decode(
        &mut self,
        context: &[u32],
        sampling: &Sampling,
        limit: usize,
        on_token: &mut OnToken<'_>,
    ) -> Result<(), BackendError> {
        self.decode_waiting(context, sampling, limit, on_token)
    }

    fn prefill_async<'a>(
        &'a mut self,
        tokens: &'a [u32],
        pos: usize,
        on_prompt: &'a mut OnPrompt<'_>,
    ) -> Answer<'a, usize> {
        Box::pin(self.compute(tokens, pos, on_prompt))
    }

    fn logits_async<'a>(
        &'a mut self,
        tokens: &'a [u32],
        pos: usize,
        on_prompt: &'a mut OnPrompt<'_>,
        on_row: &'a mut OnRow<'_>,
    ) -> Answer<'a, usize> {
        Box::pin(self.all_logits(tokens, pos, on_prompt, on_row))
    }

    fn decode_async<'a>(
        &'a mut self,
        context: &'a [u32],
        sampling: &'a Sampling,
        limit: usize,
        on_token: &'a mut OnToken<'_>,
    ) -> Answer<'a, ()> {
        Box::pin(self.fly(context, sampling, limit, on_token))
    }
}

/// The sites of a step, each once.
fn sites(calls: &[Call]) -> Vec<Site> {
    let mut seen = HashSet::new();
    let sites = calls.iter().filter_map(|call| call.site.clone());
    sites.filter(|site| seen.insert(site.key())).collect()
}
