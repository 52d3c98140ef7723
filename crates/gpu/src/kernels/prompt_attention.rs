//! Attention of prompts: causal, over keys and values expanded from the latents block by block.
//!
//! A layer of a chunk is [`expand_kv::weights_calls`] once and [`GpuPromptAttention::calls`] for every block of the context: its
//! expansion and the attention over it. Scratch memory ([`Scratch`]) depends on the chunk, not on the context.

use super::dims::PromptDims;
use super::linear::dot;
use super::rope_cache::rotate_rows;
use super::sequences::Sequences;
use super::{KvDims, coop, expand_kv, expand_kv_coop, prompt_attention_coop};
use crate::gpu::buffer::{Buffer, Range, Role};
use crate::gpu::call::{Blocks, Call, Extent, Flops, Word};
use crate::gpu::machine::Machine;
use crate::gpu::{Coop, Gpu, GpuError, Target};
use half::f16;
use rayon::prelude::*;

mod trial;

/// Threads of a workgroup of the form without matrices. Its text divides a tile among these.
const WG: usize = 128;
/// Tokens and context rows of its tile. Tiles of the other form have as many rows or a part of them.
const TOKENS: usize = 32;
pub(super) const ROWS: usize = 64;

/// Whether the kernels without matrices can work on blocks of these sizes; every device has those.
pub fn fits(dims: KvDims) -> bool {
    expand_kv::fits(dims) && dims.mla.rope.is_multiple_of(32) && dims.v.is_multiple_of(64)
}

/// The kernel of the form without matrices, still without buffers, and the tokens of a workgroup.
pub(super) fn tiled(dims: impl PromptDims) -> (Call, usize) {
    let columns = dims.widths().value.div_ceil(64);
    let kernel = Call::new("prompt_attention")
        .variant(dims.numbers_of_attention())
        .number("WG", WG as u32)
        .number("COLUMNS", columns as u32)
        .number("QUERY_LOADS", (TOKENS * 8 / WG) as u32)
        .number("KEY_LOADS", (ROWS * 8 / WG) as u32);
    (kernel, TOKENS)
}

/// The kernels that expand and attend.
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
    /// The error that the device reports in the trial.
    pub async fn of(gpu: &Gpu, dims: KvDims) -> Result<Option<Self>, GpuError> {
        if !fits(dims) {
            return Ok(None);
        }
        let Some(coop) = gpu.coop else {
            return Ok(Some(Self::Vector));
        };
        const WHAT: &str = "the attention of prompts";
        let memory = gpu.limits.max_compute_workgroup_storage_size as usize;
        if let Some(missing) = missing(dims, coop, memory) {
            coop::left(gpu, WHAT, &missing);
            return Ok(Some(Self::Vector));
        }
        let good = coop::once(gpu, &format!("{WHAT}, {dims:?}"), async {
            let error = trial::compared(gpu, dims, coop).nmse(gpu).await;
            let timed = trial::timed(gpu, dims, coop, trial::TIMED);
            Ok(coop::agrees(gpu, WHAT, trial::LIMIT, error)? && timed.is_faster(gpu, WHAT).await?)
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
        let suits = |coop: &Coop| missing(dims, *coop, memory).is_none();
        fits(dims).then(|| target.coop.filter(suits).map_or(Self::Vector, Self::Matrix))
    }

    /// Whether by matrices, which take halves.
    pub fn is_matrix(self) -> bool {
        matches!(self, Self::Matrix(_))
    }

    fn coop(self) -> Option<Coop> {
        match self {
            Self::Vector => None,
            Self::Matrix(coop) => Some(coop),
        }
    }

    /// Whether `tokens` tokens after `pos` rows are better left to the absorbed attention: [`State::few`](crate::gpu::call::State::few).
    ///
    /// Expanding costs the same for any number of tokens, so few of them late in a context do not pay for it.
    pub fn few(self, machine: Machine, dims: KvDims, pos: usize, tokens: usize) -> bool {
        let costs = Costs::of(dims);
        let (tokens, rows) = (tokens as u64, (pos + tokens) as u64);
        // A token sees half of its own chunk.
        let pairs = tokens * (rows - tokens / 2);
        let absorbed = tokens * costs.expand + pairs * costs.absorbed;
        let expanded = rows * costs.expand + pairs * costs.expanded;
        tokens <= u64::from(machine.tuned.few_tokens)
            || absorbed * speed(machine, self.is_matrix()) < expanded
    }
}

/// The reason why these matrices do not suit blocks of these sizes on a device with `memory` bytes of workgroup memory, if there is one.
fn missing(dims: KvDims, coop: Coop, memory: usize) -> Option<String> {
    match prompt_attention_coop::best(dims, coop) {
        Some(shape) if shape.bytes(dims) > memory => Some(format!(
            "it takes {} bytes of workgroup memory, the device has {memory}",
            shape.bytes(dims)
        )),
        Some(_) if expand_kv_coop::shape(dims, coop).is_some() => None,
        _ => Some(format!("there is no shape for {dims:?}")),
    }
}

/// The number of flops, by matrices or not, that cost as much as one of the absorbed attention in f32. Reckoned, not yet measured.
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
    let costs = Costs::of(dims);
    // In a long context only what grows with it counts.
    let gain = costs.absorbed * speed(machine, matrices);
    let gain = gain.saturating_sub(costs.expanded).max(1);
    let few = costs.expand.div_ceil(gain) as u32;
    few.max(machine.tuned.few_tokens)
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
            absorbed: (mla.heads * (mla.cache_values() + mla.kv_lora)) as u64,
            expanded: (mla.heads * (mla.head() + dims.v)) as u64,
        }
    }
}

/// The buffers of a chunk's attention besides its input and output; all layers share them.
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

    /// The buffers for chunks of up to `max_tokens` tokens in contexts of up to `n_ctx` rows.
    pub fn new(target: &Target, dims: KvDims, form: Form, max_tokens: usize, n_ctx: usize) -> Self {
        let (machine, max_binding, matrices) =
            (target.machine, target.max_binding, form.is_matrix());
        let blocks = Self::blocks(machine, dims, matrices, max_tokens, n_ctx, max_binding);
        Self::cut(dims, form, max_tokens, blocks)
    }

    /// The buffers for contexts that are cut so.
    fn cut(dims: KvDims, form: Form, max_tokens: usize, blocks: Blocks) -> Self {
        let matrices = form.is_matrix();
        let [weights, kv, second, stats] = Self::bytes(dims, matrices, max_tokens, blocks);
        let role = if matrices { Role::Halves } else { Role::Floats };
        let make = |name: &str, bytes| Range::whole(&Buffer::new(name, bytes, role));
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
    /// The queries, (max_tokens, heads, nope + rope), not yet rotated.
    pub q: Range,
    /// Cosine and sine, (n_ctx, rope / 2).
    pub rope_table: Range,
    /// The layer's cache, (rows) as `dims` say, the chunk's rows written.
    pub cache: Range,
    /// The places of the context's rows, if the cache has pages. Then the chunk belongs to one sequence, which is
    /// [alone](Sequences::alone).
    pub sequences: Option<Sequences>,
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
    /// Both dispatches must follow each other.
    ///
    /// A replay needs `pos` and `tokens` of its [`State`](crate::gpu::call::State), with `pos + tokens` within the rows of the cache, and
    /// `first_page` if the cache has pages.
    ///
    /// # Panics
    /// If the sizes do not suit the form, or blocks and pages do not suit each other.
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
    pub(super) fn in_turn(&self, expand: Call, attention: Call) -> [Call; 2] {
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
        let (dims, scratch) = (self.dims, self.scratch);
        let (weights, kv) = (&scratch.weights, &scratch.kv[0]);
        let tiled = match self.form.coop() {
            Some(coop) => expand_kv_coop::tiled(dims, coop),
            None => expand_kv::tiled(dims),
        };
        let matrices = self.form.is_matrix();
        expand_kv::call(
            (self.sequences.as_ref(), &self.cache),
            weights,
            dims,
            matrices,
            tiled,
            scratch.blocks,
            kv,
        )
    }

    /// The attention alone, by a kernel and the tokens of its workgroup.
    pub(super) fn attention(&self, (kernel, tokens): (Call, usize)) -> Call {
        let (dims, mla) = (self.dims, self.dims.mla);
        assert!(fits(dims), "prompt_attention: {dims:?}");
        if let Some(Sequences { page, .. }) = &self.sequences {
            let blocks = self.scratch.blocks;
            assert!(
                page.is_multiple_of(ROWS as u32) && blocks.rows.is_multiple_of(*page),
                "prompt_attention: tiles of {ROWS} rows in pages of {page}, and these in {blocks:?}"
            );
        }
        let heads = Extent::N(mla.heads as u32);
        Sequences::bind_own_pages(self.sequences.as_ref(), kernel)
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
            .grid([heads, Extent::TokensBy(tokens as u32), Extent::N(1)])
            .per_block(self.scratch.blocks)
            .with_bytes_per_row(dims.kv_bytes(1, self.form.is_matrix()))
            .with_flops(Flops {
                per_pair: 2 * (mla.heads * (mla.head() + dims.v)) as u64,
                ..Flops::default()
            })
    }
}

/// Causal attention of T tokens at positions `pos..pos + T` over expanded keys and values.
///
/// `q` (T, heads, nope + rope) are the queries, whose last values are still to be rotated by `rope_table` (pos + T or more, rope
/// / 2), cosine and sine. `kv` (pos + T or more, heads * nope + heads * v) are the expanded rows of `cache`, (rows) as `dims` say,
/// which has the rotated part of the keys. Token t sees rows `0..=pos + t`; `out` (T, heads, v) is the softmax-weighted sum of their values.
///
/// # Panics
/// If a size does not fit the others.
#[expect(
    clippy::too_many_arguments,
    reason = "the bindings of the kernel, one for one"
)]
pub fn prompt_attention(
    q: &[f32],
    rope_table: &[[f32; 2]],
    cache: &[f16],
    kv: &[f32],
    pos: usize,
    n_tokens: usize,
    dims: KvDims,
    scale: f32,
    out: &mut [f32],
) {
    let (mla, v, width) = (dims.mla, dims.v, dims.width());
    let rows = pos + n_tokens;
    assert_eq!(q.len(), n_tokens * mla.heads * mla.head(), "queries");
    assert!(rope_table.len() >= rows * mla.rope / 2, "rotation table");
    assert_eq!(out.len(), n_tokens * mla.heads * v, "attention output");
    let cache = mla.rows().read_all(&cache[..rows * mla.cache_row()]);
    out.par_chunks_exact_mut(v)
        .enumerate()
        .for_each(|(i, out)| {
            let h = i % mla.heads;
            let position = pos + i / mla.heads;
            let angles = &rope_table[position * mla.rope / 2..][..mla.rope / 2];
            let mut query = q[i * mla.head()..][..mla.head()].to_vec();
            rotate_rows(&mut query, mla.nope, mla.rope, angles);
            let (q, q_pe) = query.split_at(mla.nope);
            let seen = position + 1;
            let rows = || kv.chunks_exact(width).take(seen);
            let mut weights: Vec<f32> = rows()
                .zip(cache.chunks_exact(mla.cache_values()))
                .map(|(kv, row)| {
                    (dot(q, &kv[h * mla.nope..][..mla.nope]) + dot(q_pe, &row[mla.kv_lora..]))
                        * scale
                })
                .collect();
            let max = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            weights.iter_mut().for_each(|w| *w = (*w - max).exp());
            let sum: f64 = weights.iter().map(|w| f64::from(*w)).sum();
            let mut values = vec![0.0f64; v];
            for (kv, weight) in rows().zip(weights) {
                let row = &kv[mla.heads * mla.nope + h * v..][..v];
                let sums = values.iter_mut().zip(row);
                sums.for_each(|(sum, x)| *sum += f64::from(weight) * f64::from(*x));
            }
            let ends = out.iter_mut().zip(values);
            ends.for_each(|(out, value)| *out = (value / sum) as f32);
        });
}

#[cfg(test)]
mod tests;
