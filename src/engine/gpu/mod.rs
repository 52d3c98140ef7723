//! The GPU backend: recorded steps replayed with one or two tokens in flight.

mod all_logits;
mod flight;
pub mod measure;
mod memory;
mod model;
mod pace;
pub mod plan;
mod precompose;
mod prompt;
mod proof;
mod random;
pub mod recipes;
mod submissions;
#[cfg(test)]
mod tests;
mod tune;
mod weights;

pub use memory::MemoryPlan;
pub use model::{GpuModel, TierTrial};
pub use precompose::{DEFAULT_PRECOMPOSE, PrecomposeChoice, Precomposed, Trial};
pub use recipes::MAX_CHUNK;
pub use weights::Weights;

use super::backend::{
    Backend, BackendError, OnPrompt, OnRow, OnToken, check_context, check_rows, check_tokens,
};
use crate::gpu::Step;
use crate::gpu::buffer::{Buffer, Range, Role};
use crate::gpu::call::{Call, State};
use crate::gpu::geometry::Site;
use crate::gpu::record::Recording;
use crate::gpu::stamps::Stamps;
use crate::gpu::{Gpu, GpuError};
use crate::kernels::attention::{self};
use crate::kernels::sampling::Sampling;
use crate::kernels::{MlaDims, attention_short, sample};
use flight::RING;
use measure::HostTime;
use pace::{Kind, Paces};
use prompt::{Prompt, capacity};
use proof::Proof;
use recipes::{Context, Expanded, Forms};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use submissions::{Submissions, Worth};
use wgpu::{BufferUsages, Features};

/// Bytes of a result: id, step, number of the submission and padding.
const RESULT: u64 = 16;

/// A model on a GPU with the cache of one context.
pub struct GpuBackend {
    model: Arc<GpuModel>,
    n_ctx: usize,
    context: Context,
    /// Logits of the last position, (vocab).
    logits: Range,
    ring: Vec<wgpu::Buffer>,
    /// Copies of the ring for devices that cannot map storage buffers.
    staging: Option<Vec<wgpu::Buffer>>,
    /// One token and the choice of the next.
    decode: Recording,
    /// One token alone.
    single: Recording,
    sample: Recording,
    /// The choice of a token, as dispatches.
    choose: Vec<Call>,
    /// What of a decoded token a geometry can be chosen for.
    sites: Vec<Site>,
    /// Several tokens of a prompt.
    prompt: Prompt,
    /// How much of a prompt a submission takes.
    paces: Paces,
    /// What shows that submissions of prompts ran.
    proof: Proof,
    /// The position that `logits` predict, 0 before any.
    next: usize,
    /// What encoding and submitting decoded tokens took.
    host: HostTime,
    /// Timestamps of the steps of a decode, where they are wanted.
    stamps: Option<Stamps>,
}

impl GpuBackend {
    /// A backend with an empty cache of `n_ctx` rows; compiles the pipelines of a decoded token, in parallel.
    ///
    /// # Errors
    /// [`GpuError`]: no memory, a cache larger than one binding, or what the device reports.
    pub fn new(model: Arc<GpuModel>, n_ctx: usize) -> Result<Self, GpuError> {
        Self::with_chunk(model, n_ctx, None)
    }

    /// As [`new`](Self::new), with prompts computed up to `chunk` tokens at a time; `None` is 2048, on software
    /// 512, or what the bindings of the device have room for.
    ///
    /// # Errors
    /// As [`new`](Self::new), and [`GpuError::BindingTooLarge`] for a chunk that has no room.
    pub fn with_chunk(
        model: Arc<GpuModel>,
        n_ctx: usize,
        chunk: Option<u32>,
    ) -> Result<Self, GpuError> {
        let gpu = Arc::clone(&model.gpu);
        let config = &model.model.config;
        let forms = Forms::tried(&gpu, config)?;
        let chunk = prompt::chunk(&gpu, config, forms, n_ctx, chunk)?;
        let context = Context::new(&gpu, config, forms, n_ctx, capacity(chunk))?;
        // The host writes to these before any step does.
        gpu.realise(&context.history.buffer)?;
        for cache in &context.cache {
            gpu.realise(&cache.buffer)?;
        }
        let vocab = config.vocab_size as u32;
        let logits = Range::whole(&Buffer::new("logits", u64::from(vocab) * 4, Role::Floats));
        let mappable = gpu.features.contains(Features::MAPPABLE_PRIMARY_BUFFERS);
        let usage = BufferUsages::STORAGE
            | if mappable {
                BufferUsages::MAP_READ
            } else {
                BufferUsages::COPY_SRC
            };
        let buffers = |usage| {
            (0..RING)
                .map(|_| gpu.buffer("ids", RESULT, usage))
                .collect::<Result<Vec<_>, _>>()
        };
        let ring = buffers(usage)?;
        let staging = if mappable {
            None
        } else {
            Some(buffers(BufferUsages::MAP_READ | BufferUsages::COPY_DST)?)
        };

        let results: Vec<_> = ring
            .iter()
            .map(|ids| Range::whole(&Buffer::from_made("ids", ids.clone(), Role::Words)))
            .collect();
        let choose = sample::calls(&logits, vocab, &context.history, &results);
        let single = recipes::token(model.given(&context), &logits)?;
        let sites = sites(&single.calls);
        let decode = single.then(&choose);
        let prompt = Prompt::new(&model, &context, chunk);
        prompt.reserve(&model, &context)?;
        Ok(Self {
            decode: Recording::new(&gpu, &decode)?,
            single: Recording::new(&gpu, &single)?,
            sample: Recording::new(&gpu, &Step::of(context.token(), choose.clone()))?,
            choose,
            sites,
            prompt,
            paces: Paces::new(&gpu),
            proof: Proof::new(&gpu)?,
            model,
            n_ctx,
            context,
            logits,
            ring,
            staging,
            next: 0,
            host: HostTime::default(),
            stamps: None,
        })
    }

    /// What of a decoded token a geometry can be chosen for ([`Target::choices`](crate::gpu::Target::choices)), each once; nothing in the `plain` tier.
    pub fn sites(&self) -> &[Site] {
        &self.sites
    }

    /// Records the steps of one token again, for choices that changed since. The cache stays.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn record_again(&mut self) -> Result<(), GpuError> {
        if self.gpu().activation().is_none() {
            return Ok(());
        }
        let model = Arc::clone(&self.model);
        let single = self.token_step()?;
        let decode = single.then(&self.choose);
        self.decode = Recording::new(&model.gpu, &decode)?;
        self.single = Recording::new(&model.gpu, &single)?;
        Ok(())
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

    /// Lets a submission of a prompt take about `budget` instead of 100 ms, and forgets what was measured. Where a dispatch alone
    /// takes longer, chunks become shorter, on software, too.
    pub fn set_budget(&mut self, budget: Duration) {
        self.paces = Paces::with_budget(budget, true);
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
        state(&self.context, &self.model, pos, tokens)
    }

    fn check(&self, tokens: &[u32], pos: usize) -> Result<(), BackendError> {
        check_tokens(tokens, pos, self.n_ctx, self.model.model.config.vocab_size)?;
        let bytes = bytemuck::cast_slice(tokens);
        self.gpu()
            .queue
            .write_buffer(self.context.history.buffer.made(), pos as u64 * 4, bytes);
        Ok(())
    }
}

impl Backend for GpuBackend {
    fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    fn fill_cache(&mut self, rows: usize) -> Result<(), BackendError> {
        check_rows(rows, self.n_ctx)?;
        let row_bytes = MlaDims::of(&self.model.model.config).cache_row() as u64 * 2;
        let (gpu, cache) = (self.gpu(), &self.context.cache);
        Ok(random::fill_cache(gpu, cache, rows as u64, row_bytes)?)
    }

    fn prefill_watched(
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
            context,
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
            let state = state(context, &model, pos + begin, piece);
            let worth = Worth::piece(begin..end);
            let flow = if piece == 1 {
                let step = single.replay(gpu, &state);
                submissions.run(Kind::Single, &[&step], worth, on_prompt)?
            } else {
                let step = prompt.step(&model, context, piece)?;
                let head = match end == tokens.len() {
                    true => Some(prompt.head(&model, context, logits)?),
                    false => None,
                };
                let step = step.replay(gpu, &state);
                let head = head.as_ref().map(|head| head.replay(gpu, &state));
                let both: Vec<_> = std::iter::once(&step).chain(&head).collect();
                submissions.run(Kind::Several, &both, worth, on_prompt)?
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
        let done = submissions.land_all()?;
        if done == tokens.len() {
            self.next = pos + done;
        }
        Ok(done)
    }

    fn logits_watched(
        &mut self,
        tokens: &[u32],
        pos: usize,
        on_prompt: &mut OnPrompt<'_>,
        on_row: &mut OnRow<'_>,
    ) -> Result<usize, BackendError> {
        self.all_logits(tokens, pos, on_prompt, on_row)
    }

    fn decode(
        &mut self,
        context: &[u32],
        sampling: &Sampling,
        limit: usize,
        on_token: &mut OnToken<'_>,
    ) -> Result<(), BackendError> {
        check_context(context, self.next, limit, self.n_ctx)?;
        if limit > 0 {
            // The steps in flight replace the logits, also those beyond the last token delivered.
            self.next = 0;
        }
        self.fly(context.len(), sampling, limit, on_token)?;
        // What was computed past the end stays behind: later calls write those rows again.
        Ok(self.gpu().wait(None)?)
    }
}

/// The sites of a step, each once.
fn sites(calls: &[Call]) -> Vec<Site> {
    let mut seen = HashSet::new();
    let sites = calls.iter().filter_map(|call| call.site.clone());
    sites.filter(|site| seen.insert(site.key())).collect()
}

/// The words of a step over `tokens` tokens from `pos` on.
fn state(context: &Context, model: &GpuModel, pos: usize, tokens: usize) -> State {
    let rows = pos + tokens;
    let (splits, split_rows) = if tokens == 1 && rows <= context.short as usize {
        let slice = attention_short::ROWS;
        ((rows as u32).div_ceil(slice), slice)
    } else {
        let heads = MlaDims::of(&model.model.config).heads;
        attention::split(context.form(tokens), model.gpu.machine, rows, tokens, heads)
    };
    let few = |e: &Expanded| e.few(pos, tokens);
    State {
        pos: pos as u32,
        tokens: tokens as u32,
        splits,
        split_rows,
        few: context.expanded.as_ref().is_none_or(few),
        ..State::default()
    }
}
