//! Attention of prompts: causal, over keys and values expanded from the latents block by block.
//!
//! A layer of a chunk is [`expand_kv::weights_calls`] once and [`GpuPromptAttention::calls`] for every block of the context: its
//! expansion and the attention over it. Scratch memory ([`Scratch`]) depends on the chunk, not on the context.

use half::f16;

use super::{KvDims, coop, expand_kv, expand_kv_coop, prompt_attention_coop};
use crate::gpu::buffer::{Buffer, Range, Role};
use crate::gpu::call::{Blocks, Call, Extent, Flops, State, Word};
use crate::gpu::machine::Machine;
use crate::gpu::record::Recording;
use crate::gpu::{Coop, Gpu, GpuError, Most, Step, Target};

/// Threads of a workgroup of the form without matrices.
const WG: usize = 128;
/// Tokens of its tile.
const TOKENS: usize = 32;

/// Whether the kernels without matrices can work on blocks of these sizes; every device has those.
pub fn fits(dims: KvDims) -> bool {
    expand_kv::fits(dims)
        && dims.mla.nope.is_multiple_of(32)
        && dims.mla.rope.is_multiple_of(32)
        && dims.mla.kv_lora.is_multiple_of(4)
        && dims.v.is_multiple_of(64)
}

/// The kernel of the form without matrices, still without buffers, and the tokens of a workgroup.
pub(super) fn tiled(dims: KvDims) -> (Call, usize) {
    let kernel = Call::new("prompt_attention")
        .variant(dims.numbers_of_attention())
        .number("WG", WG as u32)
        .number("COLUMNS", (dims.v / 64) as u32)
        .number("QUERY_LOADS", (TOKENS * 8 / WG) as u32)
        .number("KEY_LOADS", (64 * 8 / WG) as u32);
    (kernel, TOKENS)
}

/// Which kernels expand and attend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `expand_kv.wgsl` and `prompt_attention.wgsl`, in f32, everywhere.
    Vector,
    /// `expand_kv_coop.wgsl` and `prompt_attention_coop.wgsl`, by cooperative matrices, with keys, values, queries
    /// and weights rounded to f16.
    Matrix(Coop),
}

impl Form {
    /// The form for a device: by matrices where it has them, the sizes suit, and a trial agrees with the other form and is not slower
    /// (wgpu calls them experimental; a device that fails is named in the log). None where the sizes suit neither.
    ///
    /// # Errors
    /// What the device reports in the trial.
    pub async fn of(gpu: &Gpu, dims: KvDims) -> Result<Option<Self>, GpuError> {
        if !fits(dims) {
            return Ok(None);
        }
        let Some(coop) = gpu.coop else {
            return Ok(Some(Self::Vector));
        };
        let memory = gpu.limits.max_compute_workgroup_storage_size as usize;
        let missing = match prompt_attention_coop::best(dims, coop) {
            Some(shape) if shape.bytes(dims) > memory => Some(format!(
                "it takes {} bytes of workgroup memory, the device has {memory}",
                shape.bytes(dims)
            )),
            Some(_) if expand_kv_coop::shape(dims, coop).is_some() => None,
            _ => Some(format!("there is no shape for {dims:?}")),
        };
        if let Some(missing) = missing {
            coop::left(gpu, "the attention of prompts", &missing);
            return Ok(Some(Self::Vector));
        }
        const WHAT: &str = "the attention of prompts";
        let good = coop::once(gpu, &format!("{WHAT}, {dims:?}"), async || {
            let error = trial(gpu, dims, coop).await;
            Ok(coop::agrees(gpu, WHAT, TRIAL_LIMIT, error)?
                && timed(gpu, dims, coop, TIMED, async |steps, state| {
                    coop::faster(gpu, WHAT, steps, state).await
                })
                .await?)
        })
        .await?;
        Ok(Some(match good {
            true => Self::Matrix(coop),
            false => Self::Vector,
        }))
    }

    /// The form for a device if its matrices are right and fast.
    pub fn untried(target: &Target, dims: KvDims) -> Option<Self> {
        let memory = target.machine.workgroup_memory as usize;
        let suits = |coop: &Coop| {
            let shape = prompt_attention_coop::best(dims, *coop);
            shape.is_some_and(|shape| shape.bytes(dims) <= memory)
                && expand_kv_coop::shape(dims, *coop).is_some()
        };
        fits(dims).then(|| target.coop.filter(suits).map_or(Self::Vector, Self::Matrix))
    }

    /// Whether by matrices, which take halves.
    pub fn is_matrix(self) -> bool {
        matches!(self, Self::Matrix(_))
    }

    /// What keys, values and their weights are.
    fn role(self) -> Role {
        match self {
            Self::Vector => Role::Floats,
            Self::Matrix(_) => Role::Halves,
        }
    }

    fn coop(self) -> Option<Coop> {
        match self {
            Self::Vector => None,
            Self::Matrix(coop) => Some(coop),
        }
    }

    /// How many flops by this form cost as much as one of the absorbed attention in f32. Reckoned, not yet measured.
    fn speed(self, machine: Machine) -> u64 {
        speed(machine, self.is_matrix())
    }

    /// Whether `tokens` tokens after `pos` rows are better left to the absorbed attention: [`State::few`].
    ///
    /// Expanding costs the same for any number of tokens, so few of them late in a context do not pay for it.
    pub fn few(self, machine: Machine, dims: KvDims, pos: usize, tokens: usize) -> bool {
        let Costs {
            expand,
            absorbed,
            expanded,
        } = Costs::of(dims);
        let (tokens, rows) = (tokens as u64, (pos + tokens) as u64);
        // A token sees half of its own chunk.
        let pairs = tokens * (rows - tokens / 2);
        tokens <= u64::from(machine.tuned.few_tokens)
            || (tokens * expand + pairs * absorbed) * self.speed(machine)
                < rows * expand + pairs * expanded
    }
}

fn speed(machine: Machine, matrices: bool) -> u64 {
    if matrices {
        u64::from(machine.tuned.matrix_speed)
    } else {
        1
    }
}

/// The most tokens that [are few](Form::few) anywhere, by matrices or not: what the buffers of the absorbed attention must
/// hold.
pub fn most_few(machine: Machine, dims: KvDims, matrices: bool) -> u32 {
    let Costs {
        expand,
        absorbed,
        expanded,
    } = Costs::of(dims);
    // In a long context only what grows with it counts.
    let gain = absorbed * speed(machine, matrices);
    let gain = gain.saturating_sub(expanded).max(1);
    machine.tuned.few_tokens.max(expand.div_ceil(gain) as u32)
}

/// Flops, halved: of expanding a row (or absorbing a token's queries and expanding its sums), of a token and row in each way.
struct Costs {
    expand: u64,
    absorbed: u64,
    expanded: u64,
}

impl Costs {
    fn of(dims: KvDims) -> Self {
        let mla = dims.mla;
        Self {
            expand: (mla.kv_lora * dims.width()) as u64,
            absorbed: (mla.heads * (mla.cache_row() + mla.kv_lora)) as u64,
            expanded: (mla.heads * (mla.head() + dims.v)) as u64,
        }
    }
}

/// What the attention of a chunk needs besides its input and output; all layers share it.
#[derive(Debug, Clone)]
pub struct Scratch {
    /// The weights of the expansion, (width, kv_lora), of f16 for matrices or f32.
    pub weights: Range,
    /// Blocks of expanded rows, (rows, width), of the same kind: two that take turns where by matrices a context has several, so that
    /// one is expanded while the other is attended to.
    pub kv: Vec<Range>,
    /// Maxima and sums of weights between blocks, (max_tokens, heads) of 2 f32.
    pub stats: Range,
    /// How the context is cut.
    pub blocks: Blocks,
}

impl Scratch {
    /// How contexts of up to `n_ctx` rows are cut for chunks of up to `max_tokens` tokens: by matrices in blocks of the most rows that are
    /// tuned for the device, else as long as the chunk between the fewest and the most; and never more than one binding holds.
    pub fn blocks(
        machine: Machine,
        dims: KvDims,
        matrices: bool,
        max_tokens: usize,
        n_ctx: usize,
        max_binding: u64,
    ) -> Blocks {
        let bound = (max_binding / dims.kv_bytes(1, matrices)) as usize / 64 * 64;
        let tuned = machine.tuned;
        let [least, most] = [tuned.block_rows, tuned.block_rows_most]
            .map(|rows| (rows as usize).next_multiple_of(64));
        let rows = max_tokens
            .next_multiple_of(64)
            .max(if matrices { most } else { least })
            .min(most)
            .min(n_ctx.next_multiple_of(64))
            .min(bound.max(64));
        Blocks::new(rows as u32, n_ctx as u32)
    }

    /// Bytes of the buffers: weights, a block of keys and values, a second one (0 where there is none), maxima and sums.
    pub fn bytes(dims: KvDims, matrices: bool, max_tokens: usize, blocks: Blocks) -> [u64; 4] {
        let kv = dims.kv_bytes(blocks.rows as usize, matrices);
        [
            dims.weight_bytes(matrices),
            kv,
            if matrices && blocks.most > 1 { kv } else { 0 },
            (max_tokens * dims.mla.heads * 8) as u64,
        ]
    }

    /// The buffers for bindings of up to `max_binding` bytes.
    pub fn new(
        machine: Machine,
        max_binding: u64,
        dims: KvDims,
        form: Form,
        max_tokens: usize,
        n_ctx: usize,
    ) -> Self {
        let matrices = form.is_matrix();
        let blocks = Self::blocks(machine, dims, matrices, max_tokens, n_ctx, max_binding);
        let [weights, kv, second, stats] = Self::bytes(dims, matrices, max_tokens, blocks);
        let make = |name: &str, bytes| Range::whole(&Buffer::new(name, bytes, form.role()));
        let kv = [kv, second].into_iter().filter(|bytes| *bytes > 0);
        Self {
            weights: make("expansion weights", weights),
            kv: kv.map(|bytes| make("keys and values", bytes)).collect(),
            stats: Range::floats("attention sums", stats / 4),
            blocks,
        }
    }
}

/// The attention of a layer for a chunk of tokens; all buffers f32 but the cache.
pub struct GpuPromptAttention<'a> {
    /// The kernels.
    pub form: Form,
    /// (max_tokens, heads, nope + rope), not yet rotated.
    pub q: Range,
    /// Cosine and sine, (n_ctx, rope / 2).
    pub rope_table: Range,
    /// The layer's cache, (n_ctx, kv_lora + rope) of f16, the chunk's rows written.
    pub cache: Range,
    /// The sizes of the block.
    pub dims: KvDims,
    /// Factor of the scores.
    pub scale: f32,
    /// Most tokens of a replay.
    pub max_tokens: u32,
    /// The buffers that layers share.
    pub scratch: &'a Scratch,
    /// The output, (max_tokens, heads, v). Between blocks it holds sums.
    pub values: Range,
}

impl GpuPromptAttention<'_> {
    /// One run that the recording repeats for each block of the context: its expansion, by what
    /// [`expand_kv::weights_calls`] left in the scratch, and the attention over it, with two buffers beside the expansion of the next.
    /// They must follow each other.
    ///
    /// A replay needs `pos` and `tokens` of its [`State`], with `pos + tokens` within the rows of the cache.
    ///
    /// # Panics
    /// If the sizes do not suit the form.
    pub fn calls(&self, target: &Target) -> [Call; 2] {
        let tiled = match self.form.coop() {
            Some(coop) => {
                let shape = prompt_attention_coop::best(self.dims, coop);
                let shape = shape
                    .unwrap_or_else(|| panic!("prompt_attention: {coop:?} for {:?}", self.dims));
                shape.tiled(self.dims)
            }
            None => tiled(self.dims),
        };
        let workgroups = self.dims.mla.heads as u32 * self.max_tokens.div_ceil(tiled.1 as u32);
        let (expand, attention) = (self.expansion(), self.attention(tiled));
        match target.machine.leaves_gaps(workgroups) {
            true => self.in_turn(expand, attention),
            false => [expand, attention],
        }
    }

    /// The run of both, a block's expansion beside the attention over the block before where there are two buffers.
    fn in_turn(&self, expand: Call, attention: Call) -> [Call; 2] {
        let kv = &self.scratch.kv;
        if kv.len() == 1 {
            return [expand, attention];
        }
        let [expand, attention] =
            [expand, attention].map(|call| call.with_buffers_by_block("kv", kv.clone()));
        [expand.a_block_ahead(), attention]
    }

    /// The expansion alone.
    pub(super) fn expansion(&self) -> Call {
        let Scratch {
            weights,
            kv,
            blocks,
            ..
        } = self.scratch;
        let coop = self.form.coop();
        expand_kv::call(&self.cache, weights, self.dims, coop, *blocks, &kv[0])
    }

    /// The attention alone, by a kernel and the tokens of its workgroup.
    pub(super) fn attention(&self, (kernel, tokens): (Call, usize)) -> Call {
        let (dims, mla) = (self.dims, self.dims.mla);
        assert!(fits(dims), "prompt_attention: {dims:?}");
        kernel
            .bind("q", &self.q)
            .bind("angles", &self.rope_table)
            .bind("cache", &self.cache)
            .bind("kv", &self.scratch.kv[0])
            .bind("values", &self.values)
            .bind("stats", &self.scratch.stats)
            .word("pos", Word::Pos)
            .word("tokens", Word::Tokens)
            .word("begin", Word::BlockBegin)
            .word("rows", Word::BlockRows)
            .word("ends", Word::BlockEnds)
            .word("scale", self.scale)
            .grid([
                Extent::N(mla.heads as u32),
                Extent::TokensBy(tokens as u32),
                Extent::N(1),
            ])
            .per_block(self.scratch.blocks)
            .with_bytes_per_row(dims.kv_bytes(1, self.form.is_matrix()))
            .with_flops(Flops {
                per_pair: 2 * (mla.heads * (mla.head() + dims.v)) as u64,
                ..Flops::default()
            })
    }
}

/// The NMSE that a device may show in the [`trial`]. Rounding to f16 explains 1e-6.
const TRIAL_LIMIT: f64 = 1e-5;

/// Its buffers.
const TRIAL: &str = "trial of attention";
/// Rows before its tokens, and these: two blocks, tiles not full.
const TRIAL_POS: usize = 90;
const TRIAL_TOKENS: usize = 70;

/// The NMSE of the form by matrices against the other one on the device, for made-up inputs.
async fn trial(gpu: &Gpu, dims: KvDims, coop: Coop) -> Result<f64, GpuError> {
    let inputs = TrialInputs::new(gpu, dims).await?;
    let floats = inputs.values(gpu, Form::Vector).await?;
    let matrices = inputs.values(gpu, Form::Matrix(coop)).await?;
    for range in [inputs.q, inputs.rope_table, inputs.cache] {
        gpu.release(&range.buffer);
    }
    let sum =
        |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>();
    let error = sum(&mut floats.iter().zip(&matrices).map(|(a, b)| a - b));
    Ok(error / sum(&mut floats.iter().copied()))
}

/// Made-up weights, queries and cache rows, whose scores rise so that sums must be scaled.
struct TrialInputs {
    dims: KvDims,
    scale: f32,
    q: Range,
    rope_table: Range,
    cache: Range,
    weights: Vec<f32>,
}

impl TrialInputs {
    async fn new(gpu: &Gpu, dims: KvDims) -> Result<Self, GpuError> {
        let (mla, rows) = (dims.mla, TRIAL_POS + TRIAL_TOKENS);
        let mut state = 1u32;
        // Uniform in -1..1 (the linear congruence of Numerical Recipes).
        let mut value = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let mut floats =
            |n: usize, scale: f32| -> Vec<f32> { (0..n).map(|_| value() * scale).collect() };
        let scale = 1.0 / (mla.head() as f32).sqrt();
        let mut q = floats(TRIAL_TOKENS * mla.heads * mla.head(), 4.0);
        let mut cache = floats(rows * mla.cache_row(), 1.0);
        let weights = floats(dims.width() * mla.kv_lora, 0.07);
        // One value of the key is 0, 1, 2.. for every 8 rows, and adds as much to the score: rotations here turn by nothing.
        let table = [1.0f32, 0.0].repeat(rows * mla.rope / 2);
        q.chunks_exact_mut(mla.head())
            .for_each(|q| q[mla.nope] = 1.0 / scale);
        for (i, row) in cache.chunks_exact_mut(mla.cache_row()).enumerate() {
            row[mla.kv_lora] = (i / 8) as f32;
        }
        let cache = gpu.storage_with_async(TRIAL, &narrow(&cache)).await?;
        Ok(Self {
            dims,
            scale,
            q: Range::whole(&gpu.storage_with_async(TRIAL, &q).await?),
            rope_table: Range::whole(&gpu.storage_with_async(TRIAL, &table).await?),
            cache: Range::whole(&cache).holding(Role::Cache),
            weights,
        })
    }

    /// What a form makes of them, (tokens, heads, v).
    async fn values(&self, gpu: &Gpu, form: Form) -> Result<Vec<f32>, GpuError> {
        let (dims, tokens) = (self.dims, TRIAL_TOKENS);
        let blocks = Blocks::new(128, (TRIAL_POS + tokens) as u32);
        let bytes = (tokens * dims.mla.heads * dims.v * 4) as u64;
        let room = async |bytes: u64, role| {
            let buffer = gpu.storage_async(TRIAL, bytes, role).await?;
            Ok::<_, GpuError>(Range::whole(&buffer))
        };
        let [_, kv, second, stats] = Scratch::bytes(dims, form.is_matrix(), tokens, blocks);
        let weights = match form {
            Form::Vector => gpu.storage_with_async(TRIAL, &self.weights).await?,
            Form::Matrix(_) => {
                let halves = narrow(&self.weights);
                gpu.storage_with_async(TRIAL, &halves).await?
            }
        };
        let mut kv_blocks = vec![];
        for bytes in [kv, second].into_iter().filter(|bytes| *bytes > 0) {
            kv_blocks.push(room(bytes, form.role()).await?);
        }
        let scratch = Scratch {
            weights: Range::whole(&weights),
            kv: kv_blocks,
            stats: room(stats, Role::Floats).await?,
            blocks,
        };
        let attention = GpuPromptAttention {
            form,
            q: self.q.clone(),
            rope_table: self.rope_table.clone(),
            cache: self.cache.clone(),
            dims,
            scale: self.scale,
            max_tokens: tokens as u32,
            scratch: &scratch,
            values: room(bytes, Role::Floats).await?,
        };
        let state = State {
            pos: TRIAL_POS as u32,
            tokens: tokens as u32,
            ..State::default()
        };
        let step = Step::of(Most::of(&state), attention.calls(gpu));
        let recording = Recording::new_async(gpu, &step).await?;
        recording.submit(gpu, &state);
        let values = &attention.values.buffer;
        let found = gpu.read_async::<f32>(values, 0, bytes).await?;
        let own = [&scratch.weights, &scratch.stats, &attention.values];
        for range in own.into_iter().chain(&scratch.kv) {
            gpu.release(&range.buffer);
        }
        Ok(found)
    }
}

/// Rounded to halves.
fn narrow(wide: &[f32]) -> Vec<f16> {
    wide.iter().map(|x| f16::from_f32(*x)).collect()
}

/// Tokens of the prompt whose attention is timed: with the expansion some 3 GFLOP at the sizes of GLM-4.7-Flash.
const TIMED: usize = 256;

/// What `by` makes of the attention of a prompt of `tokens` zeros by matrices and in floats.
///
/// # Errors
/// No memory, or those of `by`.
async fn timed<T>(
    gpu: &Gpu,
    dims: KvDims,
    coop: Coop,
    tokens: usize,
    by: impl AsyncFnOnce([&[Call]; 2], &State) -> Result<T, GpuError>,
) -> Result<T, GpuError> {
    let mla = dims.mla;
    let mut made = vec![];
    let mut room = async |bytes: usize, role| {
        let buffer = gpu.storage_async(TRIAL, bytes as u64, role);
        let range = Range::whole(&buffer.await?);
        made.push(range.clone());
        Ok::<_, GpuError>(range)
    };
    let q = room(tokens * mla.heads * mla.head() * 4, Role::Floats).await?;
    let rope_table = room(tokens * mla.rope * 4, Role::Floats).await?;
    let cache = room(tokens * mla.cache_row() * 2, Role::Cache).await?;
    let values = room(tokens * mla.heads * dims.v * 4, Role::Floats).await?;
    let mut calls = |form| {
        let scratch = Scratch::new(gpu.machine, gpu.max_binding, dims, form, tokens, tokens);
        made.extend([scratch.weights.clone(), scratch.stats.clone()]);
        made.extend(scratch.kv.iter().cloned());
        let attention = GpuPromptAttention {
            form,
            q: q.clone(),
            rope_table: rope_table.clone(),
            cache: cache.clone(),
            dims,
            scale: 1.0,
            max_tokens: tokens as u32,
            scratch: &scratch,
            values: values.clone(),
        };
        Ok::<_, GpuError>(attention.calls(gpu))
    };
    let state = State {
        tokens: tokens as u32,
        ..State::default()
    };
    let (matrices, floats) = (calls(Form::Matrix(coop))?, calls(Form::Vector)?);
    let found = by([&matrices, &floats], &state).await?;
    for range in made {
        gpu.release(&range.buffer);
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
