//! Latent attention: all heads attend to the same cache rows, whose first part is both key and value (MQA form of MLA).

use half::f16;
use rayon::prelude::*;

use super::MlaDims;
use super::attention_coop::Shape;
use super::linear::dot;
use super::sequences::Sequences;
use crate::gpu::Target;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent, Flops, When, Word};
use crate::gpu::machine::attention::{
    FLOAT_LANES as LANES, FLOAT_ROWS as ROWS, FLOAT_THREADS as WG,
};

/// Causal attention of T tokens at positions `pos..pos + T` over the cache.
///
/// `q_lat` (T, heads, kv_lora) are the queries absorbed into the latent space, `q_pe` (T, heads, rope) their rotated part,
/// `cache` (n_ctx) rows as `dims` say. Token t sees rows `0..=pos + t`. The score is (q_lat . latent + q_pe . k_pe) * scale;
/// `out` (T, heads, kv_lora) is the softmax-weighted sum of the latents.
///
/// # Panics
/// If a size does not fit the others or the cache ends before `pos + T`.
#[expect(
    clippy::too_many_arguments,
    reason = "the bindings of the kernel, one for one"
)]
pub fn attention(
    q_lat: &[f32],
    q_pe: &[f32],
    cache: &[f16],
    pos: usize,
    n_tokens: usize,
    dims: MlaDims,
    scale: f32,
    out: &mut [f32],
) {
    let (heads, rope, kv_lora) = (dims.heads, dims.rope, dims.kv_lora);
    let row = dims.cache_values();
    assert_eq!(
        [q_lat.len(), q_pe.len(), out.len()],
        [kv_lora, rope, kv_lora].map(|n| n_tokens * heads * n),
        "queries and output of {n_tokens} tokens"
    );
    // Widened once for all heads and tokens; every head widening for itself would cost heads times as much.
    let rows = dims
        .rows()
        .read_all(&cache[..(pos + n_tokens) * dims.cache_row()]);

    out.par_chunks_exact_mut(kv_lora)
        .enumerate()
        .for_each(|(i, out)| {
            let (q_lat, q_pe) = (&q_lat[i * kv_lora..][..kv_lora], &q_pe[i * rope..][..rope]);
            let rows = &rows[..(pos + i / heads + 1) * row];
            let mut weights: Vec<f32> = rows
                .chunks_exact(row)
                .map(|row| (dot(q_lat, &row[..kv_lora]) + dot(q_pe, &row[kv_lora..])) * scale)
                .collect();
            let max = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            weights.iter_mut().for_each(|w| *w = (*w - max).exp());
            let norm = 1.0 / weights.iter().sum::<f32>();
            out.fill(0.0);
            for (row, weight) in rows.chunks_exact(row).zip(weights) {
                let weight = weight * norm;
                out.iter_mut()
                    .zip(&row[..kv_lora])
                    .for_each(|(out, v)| *out += weight * v);
            }
        });
}

pub(super) mod cut;
mod form;
mod quick;
pub(super) mod trial;
pub use crate::gpu::interface::MAX_SLICES;
pub use cut::{Cut, Cuts, OfOne, Seen, cut_context, cut_sequences};
pub use form::Form;
#[cfg(any(test, feature = "testing"))]
pub use form::untried_forms;
pub use quick::attend;

/// Rows of a tile: a slice is a multiple of it.
const TILE: usize = WG / LANES * ROWS;
/// Heads of a workgroup, of which the kernel holds scores in vectors.
const HEADS_PER_GROUP: usize = 4;
/// Bytes of the partial sums, and of their (max, sum) pairs, for steps of up to `max_tokens` tokens cut by [`cut_context`].
pub fn partial_bytes(dims: MlaDims, max_tokens: usize) -> [u64; 2] {
    let slices = (MAX_SLICES.max(max_tokens) * dims.heads) as u64;
    [slices * dims.kv_lora as u64 * 4, slices * 8]
}

/// Buffers for them.
pub fn partials(dims: MlaDims, max_tokens: usize) -> [Range; 2] {
    let [sums, stats] = partial_bytes(dims, max_tokens);
    [
        Range::floats("attention partials", sums / 4),
        Range::floats("attention maxima", stats / 4),
    ]
}

/// The kernel for blocks of these sizes, still without buffers.
fn kernel(dims: MlaDims) -> Call {
    dims.rows()
        .read_by(Call::new("attention"))
        .number("WG", WG as u32)
        .number("LANES", LANES as u32)
        .number("ROWS", ROWS as u32)
        .number("HEADS", dims.heads as u32)
        .number("ROPE", dims.rope as u32)
        .number("KV_LORA", dims.kv_lora as u32)
}

/// The kernel's buffers and sizes; all f32 but the cache.
#[derive(Debug, Clone)]
pub struct GpuAttention {
    /// The kernel that attends.
    pub form: Form,
    /// The absorbed queries, (max_tokens, heads, kv_lora).
    pub q_lat: Range,
    /// The rotated queries, (max_tokens, heads, rope).
    pub q_pe: Range,
    /// The layer's cache, (n_ctx) rows as `dims` say.
    pub cache: Range,
    /// The sizes of the block.
    pub dims: MlaDims,
    /// The factor of scores, `softmax_scale` of its `Config`.
    pub scale: f32,
    /// Sums of each slice, not normalised, (tokens, heads, slices, kv_lora) in the step's sizes, and the greatest score
    /// and sum of weights of each, (tokens, heads, slices); [`partial_bytes`] long.
    pub partials: [Range; 2],
    /// The places of tokens that belong to several sequences. Then each replay takes its slices from [`cut_sequences`], unless a token
    /// is [alone](Sequences::alone).
    pub sequences: Option<Sequences>,
}

impl GpuAttention {
    /// The dispatches, of which each replay takes one; [`attention_merge`](super::attention_merge) must follow in the same step.
    ///
    /// A replay must keep `pos + tokens` within the rows of the cache and take `slices` and `slice_rows` from [`cut_context`].
    ///
    /// # Panics
    /// If `kv_lora` and `rope` are not multiples of 8 with `kv_lora` at most 2048, or if the sizes do not suit the form.
    pub fn calls(&self) -> Vec<Call> {
        self.calls_above(0)
    }

    /// The dispatches for one token, of which a replay takes one: [`attention_short`](super::attention_short) up to `short` rows, then those of
    /// the form.
    pub fn calls_of_one(&self, target: &Target, short: u32) -> Vec<Call> {
        let few = (short > 0).then(|| self.short_call(target).only(When::Rows(0, short)));
        few.into_iter().chain(self.calls_above(short)).collect()
    }

    /// The dispatches for tokens of which each attends as [`calls_of_one`](Self::calls_of_one) does for one. A replay takes those that some
    /// token needs, and its slices are cut by [`OfOne::cut`].
    pub fn calls_of_each(&self, target: &Target, short: u32) -> Vec<Call> {
        let calls = self.calls_of_one(target, short);
        if calls.len() == 1 {
            return calls;
        }
        let call = |(call, number): (Call, u32)| {
            let [_, groups, along_tokens] = call.grid;
            call.grid([Extent::SlicesOf(number), groups, along_tokens])
                .word("first_work", Word::SlicesBefore(number))
                .only(When::Kernel(number))
        };
        calls.into_iter().zip(0..).map(call).collect()
    }

    /// The dispatches of [`calls`](Self::calls) for replays over more rows than `above`.
    pub fn calls_above(&self, above: u32) -> Vec<Call> {
        let all = When::rows(above, u32::MAX);
        let (kernel, group) = match self.form {
            Form::Vector => (kernel(self.dims), HEADS_PER_GROUP),
            Form::Heads(shape) => (shape.kernel(self.dims), shape.tile().1),
            Form::Matrix(shapes) => {
                let shapes = shapes.each_above(above).into_iter();
                let call = |shape: Shape| self.call(shape.kernel(self.dims), shape.tile().1);
                return shapes.map(|(s, when)| call(s).only(when)).collect();
            }
        };
        vec![self.call(kernel, group).only(all)]
    }

    /// The dispatch of a kernel whose workgroups take `group` heads of a slice.
    pub(super) fn call(&self, kernel: Call, group: usize) -> Call {
        let dims = self.dims;
        assert!(
            dims.kv_lora.is_multiple_of(8) && dims.rope.is_multiple_of(8) && dims.kv_lora <= 8 * WG,
            "attention reads 8 values at a time: {dims:?}"
        );
        let groups = dims.heads.div_ceil(group) as u32;
        let sequences = self.sequences.as_ref();
        let listed = sequences.is_some_and(|s| !s.alone);
        let along_tokens = if listed { Extent::N(1) } else { Extent::Tokens };
        Sequences::bind_slices(sequences, kernel)
            .grid([Extent::Slices, Extent::N(groups), along_tokens])
            .bind("q_lat", &self.q_lat)
            .bind("q_pe", &self.q_pe)
            .bind("cache", &self.cache)
            .bind("slice_sums", &self.partials[0])
            .bind("stats", &self.partials[1])
            .word("scale", self.scale)
            .with_bytes_per_row(dims.cache_row() as u64 * 2)
            .with_flops(Flops {
                per_pair: 2 * (dims.heads * (dims.cache_values() + dims.kv_lora)) as u64,
                ..Flops::default()
            })
    }
}

#[cfg(test)]
mod tests;
