//! The GPU backend: recorded steps replayed with one or two tokens in flight.

mod composed;
mod flight;
pub mod measure;
mod precompose;
mod random;
mod recipe;
mod recipe_token;
mod trial;
mod tune;
mod weights;

pub use precompose::Precomposed;
pub use trial::Trial;
pub use weights::GpuModel;

use super::backend::{
    Backend, BackendError, OnRow, OnToken, check_context, check_rows, check_tokens,
};
use super::sampling::Sampling;
use crate::gpu::geometry::Site;
use crate::gpu::record::{Op, Range, Recording, State};
use crate::gpu::stamps::Stamps;
use crate::gpu::{Gpu, GpuError};
use crate::kernels::attention::{self, Form};
use crate::kernels::{MlaDims, sample};
use crate::model::RopeTable;
use flight::RING;
use measure::HostTime;
use recipe::{Context, Recipe, Scratch};
use recipe_token::TokenRecipe;
use std::collections::HashSet;
use std::sync::Arc;
use wgpu::{Buffer, BufferUsages, Features};

/// Tokens of a prompt that one submission computes, unless asked otherwise. Scratch memory grows with it; the kernels
/// read each weight once per 8.
pub const CHUNK: u32 = 64;
/// Prompts of up to so many tokens run token by token where nothing longer came before: compiling the steps over chunks
/// takes longer than it saves (BENCHMARKS.md, cold start).
const SHORT_PROMPT: usize = 16;
/// Bytes of a result: id, step and padding.
const RESULT: u64 = 16;

/// A model on a GPU with the cache of one context.
pub struct GpuBackend {
    model: Arc<GpuModel>,
    n_ctx: usize,
    /// Tokens of a prompt that one submission computes.
    chunk: u32,
    context: Context,
    /// Logits of the last position, (vocab).
    logits: Range,
    ring: Vec<Buffer>,
    /// Copies of the ring for devices that cannot map storage buffers.
    staging: Option<Vec<Buffer>>,
    /// One token and the choice of the next.
    decode: Recording,
    /// One token alone.
    single: Recording,
    sample: Recording,
    /// The choice of a token, as dispatches.
    choose: Vec<Op>,
    /// What of a decoded token a geometry can be chosen for.
    sites: Vec<Site>,
    /// A chunk of a prompt, compiled when a prompt is first long enough to need it.
    chunks: Chunks,
    /// Logits of every position of a chunk, made when first asked for.
    all: Option<(Recording, Range)>,
    scratch: Scratch,
    /// The position that `logits` predict, 0 before any.
    next: usize,
    /// What encoding and submitting decoded tokens took.
    host: HostTime,
    /// Timestamps of the steps of a decode, where they are wanted.
    stamps: Option<Stamps>,
}

/// The steps over several tokens of a prompt.
enum Chunks {
    /// As dispatches: all buffers are there, but no pipeline is compiled.
    Planned { inner: Vec<Op>, last: Vec<Op> },
    /// Ready: one without the head for all but the last chunk, one with it.
    Ready { inner: Recording, last: Recording },
}

impl GpuBackend {
    /// A backend with an empty cache of `n_ctx` rows; compiles the pipelines of a decoded token, in parallel.
    ///
    /// # Errors
    /// [`GpuError`]: no memory, a cache larger than one binding, or what the device reports.
    pub fn new(model: Arc<GpuModel>, n_ctx: usize) -> Result<Self, GpuError> {
        Self::with_chunk(model, n_ctx, CHUNK)
    }

    /// As [`new`](Self::new), with prompts computed `chunk` tokens at a time.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_chunk(model: Arc<GpuModel>, n_ctx: usize, chunk: u32) -> Result<Self, GpuError> {
        let gpu = Arc::clone(&model.gpu);
        let config = &model.model.config;
        let context = context(&gpu, &model, n_ctx, chunk)?;
        let vocab = config.vocab_size as u32;
        let logits = Range::whole(&gpu.storage("logits", u64::from(vocab) * 4)?);
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

        let results: Vec<_> = ring.iter().map(Range::whole).collect();
        let choose = sample::ops(&gpu, &logits, vocab, &context.history, &results)?;
        let mut scratch = Scratch::new();
        let step = |scratch: &mut Scratch, head: bool| {
            float_step(&model, &context, scratch, chunk, head.then_some(&logits))
        };
        let single = single_step(&model, &context, &logits)?;
        let sites = sites(&single);
        let decode: Vec<_> = single.iter().chain(&choose).cloned().collect();
        let chunks = Chunks::Planned {
            last: step(&mut scratch, true)?,
            inner: step(&mut scratch, false)?,
        };
        Ok(Self {
            decode: Recording::new(&gpu, &decode)?,
            single: Recording::new(&gpu, &single)?,
            sample: Recording::new(&gpu, &choose)?,
            chunks,
            choose,
            sites,
            all: None,
            model,
            n_ctx,
            chunk,
            context,
            logits,
            ring,
            staging,
            scratch,
            next: 0,
            host: HostTime::default(),
            stamps: None,
        })
    }

    /// What of a decoded token a geometry can be chosen for ([`Gpu::choices`]), each once; nothing in the `plain` tier.
    pub fn sites(&self) -> &[Site] {
        &self.sites
    }

    /// Records the steps of one token again, for choices that changed since. The cache stays.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn record_again(&mut self) -> Result<(), GpuError> {
        if self.gpu().tier.activation().is_none() {
            return Ok(());
        }
        let model = Arc::clone(&self.model);
        let single = self.step_ops()?;
        let decode: Vec<_> = single.iter().chain(&self.choose).cloned().collect();
        self.decode = Recording::new(&model.gpu, &decode)?;
        self.single = Recording::new(&model.gpu, &single)?;
        Ok(())
    }

    /// Compiles the steps over chunks, in parallel.
    fn compile_chunks(&mut self) -> Result<(), GpuError> {
        if let Chunks::Planned { inner, last } = &self.chunks {
            let gpu = self.gpu();
            // The longer step first: it has every pipeline of the other.
            let last = Recording::new(gpu, last)?;
            let inner = Recording::new(gpu, inner)?;
            self.chunks = Chunks::Ready { inner, last };
        }
        Ok(())
    }

    /// Dispatches that decode the token at `pos`.
    pub fn dispatches_per_token(&self, pos: usize) -> usize {
        self.decode.step(&self.state(pos, 1)).count()
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
            .write_buffer(&self.context.history.buffer, pos as u64 * 4, bytes);
        Ok(())
    }

    /// The step that logits of all positions need, and its output (chunk, vocab).
    fn all_logits(&mut self) -> Result<(), GpuError> {
        if self.all.is_some() {
            return Ok(());
        }
        let model = Arc::clone(&self.model);
        let bytes = u64::from(self.chunk) * model.model.config.vocab_size as u64 * 4;
        let logits = Range::whole(&model.gpu.storage("logits of a chunk", bytes)?);
        let mut recipe = Recipe::new(&model, &self.context, &mut self.scratch, self.chunk);
        let x = recipe.hidden()?;
        recipe.head(&x, &logits, true);
        let recording = Recording::new(&model.gpu, &recipe.ops)?;
        self.all = Some((recording, logits));
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

    fn prefill(&mut self, tokens: &[u32], pos: usize) -> Result<(), BackendError> {
        self.check(tokens, pos)?;
        self.next = 0;
        let planned = matches!(self.chunks, Chunks::Planned { .. });
        let at_once = if planned && tokens.len() <= SHORT_PROMPT {
            1
        } else {
            self.chunk as usize
        };
        if planned && at_once > 1 {
            self.compile_chunks()?;
        }
        let mut at = pos;
        let mut chunks = tokens.chunks(at_once).peekable();
        while let Some(chunk) = chunks.next() {
            let recording = match (&self.chunks, chunk.len()) {
                (_, 1) | (Chunks::Planned { .. }, _) => &self.single,
                (Chunks::Ready { inner, .. }, _) if chunks.peek().is_some() => inner,
                (Chunks::Ready { last, .. }, _) => last,
            };
            recording.submit(self.gpu(), &self.state(at, chunk.len()));
            at += chunk.len();
        }
        self.gpu().wait(None)?;
        self.next = at;
        Ok(())
    }

    fn logits(
        &mut self,
        tokens: &[u32],
        pos: usize,
        on_row: &mut OnRow<'_>,
    ) -> Result<(), BackendError> {
        self.check(tokens, pos)?;
        self.next = 0;
        let vocab = self.model.model.config.vocab_size;
        // A single token takes the step that decoding takes, so that its logits are those that decoding sees.
        if tokens.len() > 1 {
            self.all_logits()?;
        }
        let (recording, logits) = match &self.all {
            Some((recording, logits)) if tokens.len() > 1 => (recording, logits),
            _ => (&self.single, &self.logits),
        };
        for (i, chunk) in tokens.chunks(self.chunk as usize).enumerate() {
            let first = i * self.chunk as usize;
            recording.submit(self.gpu(), &self.state(pos + first, chunk.len()));
            let rows: Vec<f32> =
                self.gpu()
                    .read(&logits.buffer, 0, (chunk.len() * vocab * 4) as u64)?;
            for (t, row) in rows.chunks_exact(vocab).enumerate() {
                let stop = on_row(first + t, row).is_break();
                if stop || first + t + 1 == tokens.len() {
                    let bytes = bytemuck::cast_slice(row);
                    let queue = &self.model.gpu.queue;
                    queue.write_buffer(&self.logits.buffer, 0, bytes);
                    self.next = pos + first + t + 1;
                }
                if stop {
                    return Ok(());
                }
            }
        }
        Ok(())
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
fn sites(ops: &[Op]) -> Vec<Site> {
    let mut seen = HashSet::new();
    let sites = ops.iter().filter_map(|op| op.site.clone());
    sites.filter(|site| seen.insert(site.key())).collect()
}

/// A step over up to `tokens` tokens whose kernels make their own norms; with the logits of the last where these are given.
fn float_step(
    model: &GpuModel,
    context: &Context,
    scratch: &mut Scratch,
    tokens: u32,
    logits: Option<&Range>,
) -> Result<Vec<Op>, GpuError> {
    let mut recipe = Recipe::new(model, context, scratch, tokens);
    let x = recipe.hidden()?;
    if let Some(logits) = logits {
        recipe.head(&x, logits, false);
    }
    Ok(recipe.ops)
}

/// The step over one token, with its logits, in the device's tier.
fn single_step(model: &GpuModel, context: &Context, logits: &Range) -> Result<Vec<Op>, GpuError> {
    match model.gpu.tier.activation() {
        Some(activation) => TokenRecipe::new(model, context, activation).step(logits),
        None => float_step(model, context, &mut Scratch::new(), 1, Some(logits)),
    }
}

/// The words of a step over `tokens` tokens from `pos` on.
fn state(context: &Context, model: &GpuModel, pos: usize, tokens: usize) -> State {
    let (splits, split_rows) = attention::split(
        context.form(tokens),
        pos + tokens,
        tokens,
        MlaDims::of(&model.model.config).heads,
    );
    State {
        pos: pos as u32,
        tokens: tokens as u32,
        splits,
        split_rows,
        ..State::default()
    }
}

fn context(gpu: &Gpu, model: &GpuModel, n_ctx: usize, chunk: u32) -> Result<Context, GpuError> {
    let config = &model.model.config;
    let dims = MlaDims::of(config);
    let cache_bytes = (n_ctx * dims.cache_row() * 2) as u64;
    if cache_bytes > gpu.max_binding {
        return Err(GpuError::BindingTooLarge {
            what: format!("the cache of a layer for {n_ctx} positions"),
            bytes: cache_bytes,
            adapter: gpu.info.name.clone(),
            limit: gpu.max_binding,
            remedy: "use a smaller context (-c)",
        });
    }
    let cache = model
        .layers
        .iter()
        .map(|_| Ok(Range::whole(&gpu.storage("latent cache", cache_bytes)?)))
        .collect::<Result<_, GpuError>>()?;
    let table = RopeTable::build(config, n_ctx);
    let partials = attention::partial_bytes(dims, chunk as usize);
    Ok(Context {
        history: Range::whole(&gpu.storage("token history", (n_ctx as u64 + 1) * 4)?),
        cache,
        rope_table: Range::whole(&gpu.storage_with("rotation table", &table)?),
        partials: [
            Range::whole(&gpu.storage("attention partials", partials[0])?),
            Range::whole(&gpu.storage("attention maxima", partials[1])?),
        ],
        form: Form::for_decode(gpu, dims)?,
        pairs: model.pairs,
    })
}
