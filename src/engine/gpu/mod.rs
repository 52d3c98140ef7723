//! The GPU backend: recorded steps replayed with one or two tokens in flight.

mod recipe;
mod weights;

pub use weights::GpuModel;

use super::backend::{Backend, BackendError, OnRow, OnToken, check_tokens};
use super::sampling::Sampling;
use crate::gpu::record::{Range, Recording, State};
use crate::gpu::{Gpu, GpuError};
use crate::kernels::attention::{self, Form};
use crate::kernels::{MlaDims, sample};
use crate::model::RopeTable;
use recipe::{Context, Recipe, Scratch};
use std::collections::VecDeque;
use std::sync::Arc;
use wgpu::{Buffer, BufferUsages, Features, SubmissionIndex};

/// Tokens of a prompt that one submission computes. Scratch memory grows with it; the kernels read each weight once per 8.
pub(super) const CHUNK: u32 = 64;
/// Tokens computed ahead of the one whose id the host has seen: enough that the GPU never waits for the host.
const IN_FLIGHT: usize = 2;
/// Buffers that ids come back through: one more than in flight, since a mapped buffer cannot be written.
const RING: usize = IN_FLIGHT + 1;
/// Bytes of a result: id, step and padding.
const RESULT: u64 = 16;

/// A model on a GPU with the cache of one context.
pub struct GpuBackend {
    model: Arc<GpuModel>,
    n_ctx: usize,
    context: Context,
    /// Logits of the last position, (vocab).
    logits: Range,
    ring: Vec<Buffer>,
    /// Copies of the ring for devices that cannot map storage buffers.
    staging: Option<Vec<Buffer>>,
    decode: Recording,
    sample: Recording,
    prefill: Recording,
    prefill_last: Recording,
    /// Logits of every position of a chunk, made when first asked for.
    all: Option<(Recording, Range)>,
    scratch: Scratch,
    /// The position that `logits` predict, 0 before any.
    next: usize,
}

impl GpuBackend {
    /// A backend with an empty cache of `n_ctx` rows; compiles the pipelines of its steps, in parallel.
    ///
    /// # Errors
    /// [`GpuError`]: no memory, a cache larger than one binding, or what the device reports.
    pub fn new(model: Arc<GpuModel>, n_ctx: usize) -> Result<Self, GpuError> {
        let gpu = Arc::clone(&model.gpu);
        let config = &model.model.config;
        let context = context(&gpu, &model, n_ctx)?;
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
        let step = |scratch: &mut Scratch, tokens: u32, head: bool| {
            let mut recipe = Recipe::new(&model, &context, scratch, tokens);
            let x = recipe.hidden()?;
            if head {
                recipe.head(&x, &logits, false);
            }
            Ok::<_, GpuError>(recipe.ops)
        };
        let mut decode = step(&mut scratch, 1, true)?;
        decode.extend(choose.iter().cloned());
        let prefill_last = step(&mut scratch, CHUNK, true)?;
        let prefill = step(&mut scratch, CHUNK, false)?;
        // All pipelines at once, so that they compile in parallel.
        let specs: Vec<_> = decode
            .iter()
            .chain(&prefill_last)
            .map(|op| &op.spec)
            .collect();
        gpu.pipelines(&specs)?;
        Ok(Self {
            decode: Recording::new(&gpu, &decode)?,
            sample: Recording::new(&gpu, &choose)?,
            prefill: Recording::new(&gpu, &prefill)?,
            prefill_last: Recording::new(&gpu, &prefill_last)?,
            all: None,
            model,
            n_ctx,
            context,
            logits,
            ring,
            staging,
            scratch,
            next: 0,
        })
    }

    /// Dispatches of one decoded token.
    pub fn dispatches_per_token(&self) -> usize {
        self.decode.len()
    }

    fn gpu(&self) -> &Gpu {
        &self.model.gpu
    }

    /// The words of a step over `tokens` tokens from `pos` on.
    fn state(&self, pos: usize, tokens: usize) -> State {
        let (splits, split_rows) = attention::split(
            self.context.form(tokens),
            pos + tokens,
            tokens,
            MlaDims::of(&self.model.model.config).heads,
        );
        State {
            pos: pos as u32,
            tokens: tokens as u32,
            splits,
            split_rows,
            ..State::default()
        }
    }

    fn check(&self, tokens: &[u32], pos: usize) -> Result<(), BackendError> {
        check_tokens(tokens, pos, self.n_ctx, self.model.model.config.vocab_size)?;
        let bytes = bytemuck::cast_slice(tokens);
        self.gpu()
            .queue
            .write_buffer(&self.context.history.buffer, pos as u64 * 4, bytes);
        Ok(())
    }

    /// Submits a step and copies the chosen id out where it cannot be mapped in place.
    fn submit(&self, recording: &Recording, state: &State) -> SubmissionIndex {
        let gpu = self.gpu();
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        recording.encode(gpu, &mut encoder, state);
        if let Some(staging) = &self.staging {
            encoder.copy_buffer_to_buffer(
                &self.ring[state.slot],
                0,
                &staging[state.slot],
                0,
                RESULT,
            );
        }
        gpu.queue.submit([encoder.finish()])
    }

    /// The step that logits of all positions need, and its output (CHUNK, vocab).
    fn all_logits(&mut self) -> Result<(), GpuError> {
        if self.all.is_some() {
            return Ok(());
        }
        let model = Arc::clone(&self.model);
        let bytes = u64::from(CHUNK) * model.model.config.vocab_size as u64 * 4;
        let logits = Range::whole(&model.gpu.storage("logits of a chunk", bytes)?);
        let mut recipe = Recipe::new(&model, &self.context, &mut self.scratch, CHUNK);
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

    fn prefill(&mut self, tokens: &[u32], pos: usize) -> Result<(), BackendError> {
        self.check(tokens, pos)?;
        let mut at = pos;
        let mut chunks = tokens.chunks(CHUNK as usize).peekable();
        while let Some(chunk) = chunks.next() {
            let recording = if chunks.peek().is_some() {
                &self.prefill
            } else {
                &self.prefill_last
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
        self.all_logits()?;
        let vocab = self.model.model.config.vocab_size;
        let (recording, logits) = self.all.as_ref().expect("made by all_logits");
        for (i, chunk) in tokens.chunks(CHUNK as usize).enumerate() {
            let first = i * CHUNK as usize;
            recording.submit(self.gpu(), &self.state(pos + first, chunk.len()));
            let rows: Vec<f32> =
                self.gpu()
                    .read(&logits.buffer, 0, (chunk.len() * vocab * 4) as u64)?;
            for (t, row) in rows.chunks_exact(vocab).enumerate() {
                self.next = pos + first + t + 1;
                let stop = on_row(first + t, row).is_break();
                if stop || first + t + 1 == tokens.len() {
                    self.gpu().queue.write_buffer(
                        &self.logits.buffer,
                        0,
                        bytemuck::cast_slice(row),
                    );
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
        if context.is_empty() || context.len() != self.next {
            return Err(BackendError::NotPrefilled {
                position: context.len(),
            });
        }
        let needed = context.len().saturating_add(limit);
        if needed > self.n_ctx {
            return Err(BackendError::ContextOverflow {
                needed,
                n_ctx: self.n_ctx,
            });
        }
        let mut in_flight: VecDeque<(usize, SubmissionIndex)> = VecDeque::new();
        let mut issued = 0;
        let mut delivered = 0;
        while delivered < limit {
            while issued < limit && in_flight.len() < IN_FLIGHT {
                // The k-th token is chosen from the logits of position context + k - 1.
                let last = context.len() + issued - 1;
                let mut state = self.state(last, 1);
                state.slot = issued % RING;
                state.sampling = sample::words(sampling, (last + 1) as u64);
                let recording = if issued == 0 {
                    &self.sample
                } else {
                    &self.decode
                };
                in_flight.push_back((state.slot, self.submit(recording, &state)));
                issued += 1;
            }
            let Some((slot, submission)) = in_flight.pop_front() else {
                break;
            };
            let result = self.staging.as_ref().unwrap_or(&self.ring);
            let words: Vec<u32> = self
                .gpu()
                .map_read(&result[slot], RESULT, Some(submission))?;
            delivered += 1;
            if on_token(words[0]).is_break() {
                break;
            }
        }
        // What was computed past the end stays behind: later calls write those rows again.
        self.gpu().wait(None)?;
        self.next = context.len() + delivered - delivered.min(1);
        Ok(())
    }
}

fn context(gpu: &Gpu, model: &GpuModel, n_ctx: usize) -> Result<Context, GpuError> {
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
    let partials = attention::partial_bytes(dims, CHUNK as usize);
    Ok(Context {
        history: Range::whole(&gpu.storage("token history", (n_ctx as u64 + 1) * 4)?),
        cache,
        rope_table: Range::whole(&gpu.storage_with("rotation table", &table)?),
        partials: [
            Range::whole(&gpu.storage("attention partials", partials[0])?),
            Range::whole(&gpu.storage("attention maxima", partials[1])?),
        ],
        form: Form::for_decode(gpu, dims)?,
    })
}
