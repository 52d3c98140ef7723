//! The GPU backend: recorded steps replayed with one or two tokens in flight.

mod ahead;
mod answered;
pub mod batch;
mod by_host;
mod drafted;
mod flight;
mod from_file;
mod load;
#[cfg(not(target_arch = "wasm32"))]
pub mod measure;
mod memory;
mod model;
mod pace;
#[cfg(not(target_arch = "wasm32"))]
mod pilot;
pub mod plan;
mod precompose;
mod precomposed;
mod predict;
mod predicted;
pub(super) mod prompt;
mod proof;
mod random;
mod results;
mod run;
mod share;
mod submissions;
mod table;
#[cfg(test)]
mod tests;
mod tier_trial;
mod trial;
#[cfg(not(target_arch = "wasm32"))]
mod tune;
mod warm;

pub use memory::MemoryPlan;
pub use model::{ExpertTraffic, GpuModel};
pub use precomposed::{PrecomposeChoice, Precomposed};
pub use tier_trial::TierTrial;

use super::backend::{
    Answer, Backend, BackendError, OnPrompt, OnRow, OnToken, Touch, check_context, check_rows,
    check_tokens,
};
use crate::engine::draft::{DraftMeans, Drafter};
use crate::gpu::call::State;
use crate::gpu::geometry::Site;
use crate::gpu::stamps::Stamps;
use crate::gpu::{Gpu, GpuError};
use crate::kernels::logit_bias::Biases;
use crate::kernels::sampling::Sampling;
use crate::recipes::{BatchSizes, Residence, few};
use batch::GpuBatch;
pub use flight::HostTime;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The only sequence of a batch: a model on a GPU with the cache of one context.
pub struct GpuBackend {
    batch: GpuBatch,
    /// Tokens of a prompt at once, as was asked for.
    asked: Option<u32>,
    /// The position that the logits predict, 0 before any.
    next: usize,
    /// Whether rows came from elsewhere, so that the device does not know their tokens.
    unknown_history: bool,
    /// The biases that are added to logits.
    biases: Biases,
    /// The steps and time of the host for encoding and submitting decoded tokens.
    host: HostTime,
    /// Timestamps of the steps of a decode, where they are wanted.
    stamps: Option<Stamps>,
}

impl GpuBackend {
    /// [`with_chunk`](Self::with_chunk) with the usual chunks.
    ///
    /// # Errors
    /// The errors of [`with_chunk`](Self::with_chunk).
    pub async fn new(model: Arc<GpuModel>, n_ctx: usize) -> Result<Self, GpuError> {
        Self::with_chunk(model, n_ctx, None).await
    }

    /// A backend with an empty cache of `n_ctx` rows; compiles the pipelines of a decoded token, in parallel. Prompts are computed up to
    /// `chunk` tokens at a time; `None` is 2048, on software 512, or what the bindings of the device have room for.
    ///
    /// # Errors
    /// [`GpuError`]: no memory, a cache larger than one binding, [`GpuError::BindingTooLarge`] for a chunk that has no room, or what the
    /// device reports.
    pub async fn with_chunk(
        model: Arc<GpuModel>,
        n_ctx: usize,
        chunk: Option<u32>,
    ) -> Result<Self, GpuError> {
        Self::with_drafts(model, n_ctx, chunk, 0).await
    }

    /// A backend like that of [`with_chunk`](Self::with_chunk), with room for up to `drafts` drafts in a step, or fewer where the device has no
    /// steps of so many tokens that leave for each what it has alone.
    ///
    /// # Errors
    /// The errors of [`with_chunk`](Self::with_chunk).
    pub async fn with_drafts(
        model: Arc<GpuModel>,
        n_ctx: usize,
        chunk: Option<u32>,
        drafts: u32,
    ) -> Result<Self, GpuError> {
        let gpu = Arc::clone(&model.gpu);
        let sessions = model.weights.tried(&gpu).await?;
        let asked = chunk;
        let chunk = prompt::chunk(&gpu, &sessions, n_ctx, asked)?;
        let drafts = drafts.min(few::most_drafts(&gpu, false));
        let sizes = BatchSizes::of_one(n_ctx, chunk).with_drafts(drafts);
        let mut backend = Self {
            batch: GpuBatch::of(model, &sessions, sizes).await?,
            asked,
            next: 0,
            unknown_history: false,
            biases: Biases::default(),
            host: HostTime::default(),
            stamps: None,
        };
        backend.prepare_predicted().await?;
        Ok(backend)
    }

    /// The sites of a decoded token, each once; none in the `plain` tier. A geometry can be chosen for each
    /// ([`Target::choices`](crate::gpu::Target::choices)).
    pub fn sites(&self) -> &[Site] {
        &self.batch.token.sites
    }

    /// Dispatches that decode the token at `pos`.
    pub fn dispatches_per_token(&self, pos: usize) -> usize {
        self.batch.token.decode.step(&self.state(pos, 1)).len()
    }

    /// Dispatches of one decoded token at `pos` that wait for the one before: others run beside them.
    pub fn dependent_dispatches_per_token(&self, pos: usize) -> usize {
        self.batch.token.decode.levels(&self.state(pos, 1))
    }

    /// The model.
    pub fn model(&self) -> &GpuModel {
        &self.batch.model
    }

    /// Tokens of a prompt that are computed at once: fewer than asked for where a dispatch took too long.
    pub fn chunk(&self) -> u32 {
        self.batch.prompt.at_most()
    }

    /// Tokens of each piece that a prompt of `tokens` is computed in; the last may have fewer.
    pub fn at_once(&self, tokens: usize) -> usize {
        self.batch.prompt.at_once(tokens)
    }

    /// The time of the longest submission of a prompt since the last call, as far as the host could see.
    pub fn take_longest_submission(&mut self) -> Option<Duration> {
        self.batch.paces.take_longest()
    }

    fn gpu(&self) -> &Gpu {
        self.batch.gpu()
    }

    fn n_ctx(&self) -> usize {
        self.batch.sizes().n_ctx
    }

    /// The words of a step over `tokens` tokens from `pos` on.
    fn state(&self, pos: usize, tokens: usize) -> State {
        self.batch.state(0, pos, tokens)
    }

    /// Checks tokens, and tells the device of them. What was kept of earlier ones is no longer valid.
    fn take(&mut self, tokens: &[u32], pos: usize) -> Result<(), BackendError> {
        let vocab = self.batch.model.model.config().vocab_size;
        check_tokens(tokens, pos, self.n_ctx(), vocab)?;
        self.batch.write_ids(0, pos, tokens);
        self.next = 0;
        Ok(())
    }

    /// [`Backend::prefill_watched`].
    async fn compute(
        &mut self,
        tokens: &[u32],
        pos: usize,
        on_prompt: &mut OnPrompt<'_>,
    ) -> Result<usize, BackendError> {
        self.take(tokens, pos)?;
        let done = self.batch.compute(0, pos, tokens.len(), on_prompt).await?;
        if done == tokens.len() {
            self.next = pos + done;
        }
        Ok(done)
    }

    /// [`Backend::logits_watched`].
    async fn all_logits(
        &mut self,
        tokens: &[u32],
        pos: usize,
        on_prompt: &mut OnPrompt<'_>,
        on_row: &mut OnRow<'_>,
    ) -> Result<usize, BackendError> {
        self.take(tokens, pos)?;
        let (batch, count) = (&mut self.batch, tokens.len());
        let (done, kept) = batch.all_logits(0, pos, count, on_prompt, on_row).await?;
        if kept {
            self.next = pos + done;
        }
        Ok(done)
    }

    /// A backend that begins with copies of the first `rows` rows of this one.
    async fn branched(&self, rows: usize) -> Result<Self, BackendError> {
        check_rows(rows, self.n_ctx())?;
        let model = Arc::clone(&self.batch.model);
        let (n_ctx, drafts) = (self.n_ctx(), self.batch.sizes().drafts);
        let mut branch = Self::with_drafts(model, n_ctx, self.asked, drafts).await?;
        branch.unknown_history = true;
        if self.batch.compiles_beside() {
            branch.compile_drafts()?;
        }
        self.batch.copy_to(&mut branch.batch, rows).await?;
        Ok(branch)
    }

    /// [`Backend::write_rows`].
    async fn put_rows(&mut self, first: usize, rows: &[u8]) -> Result<(), BackendError> {
        self.batch.check_put(first, rows)?;
        (self.next, self.unknown_history) = (0, true);
        Ok(self.batch.put_rows(0, first, rows).await?)
    }

    /// Begins to decode: the kept logits must be those of the end of `context`.
    fn begin_decode(&mut self, context: &[u32], limit: usize) -> Result<(), BackendError> {
        check_context(context, self.next, limit, self.n_ctx())?;
        if std::mem::take(&mut self.unknown_history) {
            self.batch.write_ids(0, 0, context);
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
        GpuBackend::n_ctx(self)
    }

    fn warm(&self) -> Option<Touch> {
        self.batch.warm()
    }

    fn compile_time(&self) -> Duration {
        self.gpu().compile_time()
    }

    fn fill_cache(&mut self, rows: usize) -> Answer<'_, ()> {
        Box::pin(async move {
            check_rows(rows, self.n_ctx())?;
            Ok(self.batch.fill_cache(rows).await?)
        })
    }

    fn read_rows(&mut self, positions: Range<usize>) -> Answer<'_, Vec<u8>> {
        Box::pin(async move {
            check_rows(positions.end, self.n_ctx())?;
            Ok(self.batch.rows(0, positions).await?)
        })
    }

    fn write_rows<'a>(&'a mut self, first: usize, rows: &'a [u8]) -> Answer<'a, ()> {
        Box::pin(self.put_rows(first, rows))
    }

    fn branch(&self, rows: usize) -> Answer<'_, Box<dyn Backend>> {
        Box::pin(async move { Ok(Box::new(self.branched(rows).await?) as Box<dyn Backend>) })
    }

    fn set_biases(&mut self, biases: Biases) {
        self.batch.write_biases(std::slice::from_ref(&biases));
        self.biases = biases;
    }

    fn prefill_watched<'a>(
        &'a mut self,
        tokens: &'a [u32],
        pos: usize,
        on_prompt: &'a mut OnPrompt<'_>,
    ) -> Answer<'a, usize> {
        Box::pin(self.compute(tokens, pos, on_prompt))
    }

    fn logits_watched<'a>(
        &'a mut self,
        tokens: &'a [u32],
        pos: usize,
        on_prompt: &'a mut OnPrompt<'_>,
        on_row: &'a mut OnRow<'_>,
    ) -> Answer<'a, usize> {
        Box::pin(self.all_logits(tokens, pos, on_prompt, on_row))
    }

    fn decode<'a>(
        &'a mut self,
        context: &'a [u32],
        sampling: &'a Sampling,
        limit: usize,
        on_token: &'a mut OnToken<'_>,
    ) -> Answer<'a, ()> {
        Box::pin(self.fly(context, sampling, limit, on_token))
    }

    fn draft_means(&self) -> DraftMeans {
        DraftMeans {
            most: match self.batch.recipes.several_equal_one(self.gpu()) {
                true => self.batch.sizes().drafts as usize,
                false => 0,
            },
            predicts: self.batch.recipes.predicts() > 0,
            one_by_one: self.model().residence.is_one_by_one(),
            brings_experts: self.model().residence != Residence::Whole,
        }
    }

    fn ready_drafts(&self) -> usize {
        self.batch.ready.most()
    }

    fn predict<'a>(&'a mut self, context: &'a [u32], number: usize) -> Answer<'a, Vec<u32>> {
        Box::pin(self.predict_behind(context, number))
    }

    fn decode_drafted<'a>(
        &'a mut self,
        context: &'a [u32],
        sampling: &'a Sampling,
        limit: usize,
        drafter: &'a mut dyn Drafter,
        on_token: &'a mut OnToken<'_>,
    ) -> Answer<'a, ()> {
        Box::pin(self.draft(context, sampling, limit, drafter, on_token))
    }
}
