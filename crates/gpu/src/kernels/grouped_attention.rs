//! Grouped-query attention: the query heads of a group attend to the same keys and values, which lie in the cache as they are.

use half::f16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;

use super::GroupedDims;
use super::linear::dot;
use super::sequences::Sequences;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent, Flops};
use crate::gpu::interface::MAX_SLICES;

mod form;
mod quick;
pub use form::Form;
pub use quick::attend;

/// Causal attention of T tokens at positions `pos..pos + T` over the cache.
///
/// `q` (T, heads, key) are the rotated queries, and `cache` (n_ctx, kv_heads * key + kv_heads * value) holds the keys of a position, then its
/// values. Token t sees rows `0..=pos + t`, and query head h those of key head h * kv_heads / heads. The score is (q . key) * scale; `out`
/// (T, heads, value) is the softmax-weighted sum of the values.
///
/// # Panics
/// If a size does not fit the others or the cache ends before `pos + T`.
pub fn grouped_attention(
    q: &[f32],
    cache: &[f16],
    pos: usize,
    n_tokens: usize,
    dims: GroupedDims,
    scale: f32,
    out: &mut [f32],
) {
    let GroupedDims {
        heads, key, value, ..
    } = dims;
    let row = dims.cache_row();
    check(q, out, n_tokens, dims);
    // Widened once for all heads and tokens; every head widening for itself would cost heads times as much.
    let seen = &cache[..(pos + n_tokens) * row];
    let mut rows = vec![0.0f32; seen.len()];
    let tiles = rows.par_chunks_mut(64 * row);
    tiles
        .zip(seen.par_chunks(64 * row))
        .for_each(|(wide, narrow)| narrow.convert_to_f32_slice(wide));
    let each = out.par_chunks_exact_mut(value).enumerate();
    each.for_each(|(i, out)| {
        let of_head = i % heads / dims.group();
        let q = &q[i * key..][..key];
        let rows = rows[..(pos + i / heads + 1) * row].chunks_exact(row);
        let keys = rows.clone().map(|row| &row[of_head * key..][..key]);
        let mut weights: Vec<f32> = keys.map(|key| dot(q, key) * scale).collect();
        let max = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        weights.iter_mut().for_each(|w| *w = (*w - max).exp());
        let norm = 1.0 / weights.iter().sum::<f32>();
        out.fill(0.0);
        let first = dims.kv_heads * key + of_head * value;
        for (row, weight) in rows.zip(weights) {
            let weight = weight * norm;
            let values = out.iter_mut().zip(&row[first..][..value]);
            values.for_each(|(out, v)| *out += weight * v);
        }
    });
}

/// Panics if the queries and the output are not those of so many tokens.
fn check(q: &[f32], out: &[f32], n_tokens: usize, dims: GroupedDims) {
    assert_eq!(
        [q.len(), out.len()],
        [dims.key, dims.value].map(|n| n_tokens * dims.heads * n),
        "queries and output of {n_tokens} tokens"
    );
}

/// Bytes of the partial sums, and of their (max, sum) pairs, for steps of up to `max_tokens` tokens cut by
/// [`cut_context`](super::attention::cut_context).
pub fn partial_bytes(dims: GroupedDims, max_tokens: usize) -> [u64; 2] {
    let slices = (MAX_SLICES.max(max_tokens) * dims.heads) as u64;
    [slices * dims.value as u64 * 4, slices * 8]
}

/// Buffers for them.
pub fn partials(dims: GroupedDims, max_tokens: usize) -> [Range; 2] {
    let [sums, stats] = partial_bytes(dims, max_tokens);
    [
        Range::floats("attention partials", sums / 4),
        Range::floats("attention maxima", stats / 4),
    ]
}

/// The kernel's buffers and sizes; all f32 but the cache.
#[derive(Debug, Clone)]
pub struct GpuGroupedAttention {
    /// The division among threads.
    pub form: Form,
    /// The rotated queries, (max_tokens, heads, key).
    pub q: Range,
    /// The layer's cache, (n_ctx, kv_heads * key + kv_heads * value) of f16.
    pub cache: Range,
    /// The sizes of the block.
    pub dims: GroupedDims,
    /// The factor of scores.
    pub scale: f32,
    /// Sums of each slice, not normalised, (tokens, heads, slices, value) in the step's sizes, and the greatest score and sum of weights
    /// of each, (tokens, heads, slices); [`partial_bytes`] long.
    pub partials: [Range; 2],
    /// The places of tokens that belong to several sequences. Then each replay takes its slices from
    /// [`cut_sequences`](super::attention::cut_sequences) or [`OfOne::cut`](super::attention::OfOne::cut), unless a token is
    /// [alone](Sequences::alone).
    pub sequences: Option<Sequences>,
}

impl GpuGroupedAttention {
    /// The dispatch; [`attention_merge`](super::attention_merge) must follow in the same step.
    ///
    /// A replay must keep `pos + tokens` within the rows of the cache and take `slices` and `slice_rows` from
    /// [`cut_context`](super::attention::cut_context).
    ///
    /// # Panics
    /// If the heads of a token are no whole groups or a width is no multiple of 8.
    pub fn call(&self) -> Call {
        let dims = self.dims;
        let sequences = self.sequences.as_ref();
        let listed = sequences.is_some_and(|s| !s.alone);
        let along_tokens = if listed { Extent::N(1) } else { Extent::Tokens };
        let (kernel, groups) = self.form.kernel(dims);
        Sequences::bind_slices(sequences, kernel)
            .grid([Extent::Slices, Extent::N(groups), along_tokens])
            .bind("q", &self.q)
            .bind("cache", &self.cache)
            .bind("slice_sums", &self.partials[0])
            .bind("stats", &self.partials[1])
            .word("scale", self.scale)
            .with_bytes_per_row(dims.cache_row() as u64 * 2)
            .with_flops(Flops {
                per_pair: 2 * (dims.heads * (dims.key + dims.value)) as u64,
                ..Flops::default()
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Pairing;
    use crate::kernels::testing::{Rng, assert_close};
    use half::vec::HalfFloatVecExt;

    #[test]
    fn heads_of_a_group_attend_to_its_keys_and_values() {
        let mut rng = Rng::fresh();
        for group in [1, 3, 7] {
            let dims = GroupedDims {
                heads: 2 * group,
                kv_heads: 2,
                key: 12,
                value: 20,
                rope: 8,
                pairing: Pairing::Halves,
            };
            let (pos, tokens, row) = (rng.below(30), 1 + rng.below(4), dims.cache_row());
            let q = rng.normals(tokens * dims.heads * 12);
            let seen = rng.normals((pos + tokens) * row);
            let mut cache = Vec::from_f32_slice(&seen);
            cache.resize(cache.len() + 2 * row, f16::NAN);
            let mut out = vec![f32::NAN; tokens * dims.heads * 20];
            grouped_attention(&q, &cache, pos, tokens, dims, 0.3, &mut out);
            for t in 0..tokens {
                for head in 0..dims.heads {
                    let of = head / group;
                    let q = &q[(t * dims.heads + head) * 12..][..12];
                    let value = |i: usize, at: usize| cache[i * row + at].to_f64();
                    let score = |i: usize| -> f64 {
                        let terms = q.iter().enumerate();
                        let terms = terms.map(|(j, q)| f64::from(*q) * value(i, of * 12 + j));
                        (0.3 * terms.sum::<f64>()).exp()
                    };
                    let scores: Vec<f64> = (0..=pos + t).map(score).collect();
                    let sum: f64 = scores.iter().sum();
                    let expected = (0..20).map(|j| {
                        let rows = scores.iter().enumerate();
                        let terms = rows.map(|(i, s)| s * value(i, 24 + of * 20 + j));
                        terms.sum::<f64>() / sum
                    });
                    let expected: Vec<f64> = expected.collect();
                    let found = &out[(t * dims.heads + head) * 20..][..20];
                    assert_close(found, &expected, 1e-11, "values");
                }
            }
        }
    }
}
