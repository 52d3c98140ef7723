//! Queries and cache rows of grouped-query attention: biases, norms and rotation of the heads that three products gave, and keys and values as
//! rows of the cache.

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::linear::rms_norm;
use super::sequences::Sequences;
use super::{GroupedDims, Pairing};
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent};
use crate::gpu::machine::workgroups::GROUPED_ROWS as WG;

/// The vectors that a model has beside the three weights, each if it has it.
#[derive(Debug, Clone, Copy, Default)]
pub struct HeadVectors<'a> {
    /// `attn_q.bias`, (heads * key).
    pub q_bias: Option<&'a [f32]>,
    /// `attn_k.bias`, (kv_heads * key).
    pub k_bias: Option<&'a [f32]>,
    /// `attn_v.bias`, (kv_heads * value).
    pub v_bias: Option<&'a [f32]>,
    /// `attn_q_norm`, (key), of each query head.
    pub q_norm: Option<&'a [f32]>,
    /// `attn_k_norm`, (key), of each key head.
    pub k_norm: Option<&'a [f32]>,
    /// The epsilon of the norms.
    pub eps: f32,
}

/// Rotates the pairs of a head's rotated part by the angles of one position (rope / 2): cosine and sine, times YaRN's magnitude.
fn rotate(head: &mut [f32], angles: &[[f32; 2]], pairing: Pairing) {
    let half = angles.len();
    for (i, [cos, sin]) in angles.iter().enumerate() {
        let [a, b] = match pairing {
            Pairing::Adjacent => [2 * i, 2 * i + 1],
            Pairing::Halves => [i, i + half],
        };
        let [x, y] = [head[a], head[b]];
        [head[a], head[b]] = [x * cos - y * sin, x * sin + y * cos];
    }
}

/// Heads of one token: with their bias, normed one by one, and rotated.
fn heads_of(
    x: &[f32],
    bias: Option<&[f32]>,
    (norm, eps): (Option<&[f32]>, f32),
    angles: &[[f32; 2]],
    dims: GroupedDims,
) -> Vec<f32> {
    let mut heads = biased(x, bias);
    for head in heads.chunks_exact_mut(dims.key) {
        if let Some(norm) = norm {
            head.copy_from_slice(&rms_norm(head, norm, eps));
        }
        rotate(head, angles, dims.pairing);
    }
    heads
}

/// `x` + `bias`.
fn biased(x: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
    match bias {
        Some(bias) => x.iter().zip(bias).map(|(x, b)| x + b).collect(),
        None => x.to_vec(),
    }
}

/// Makes the queries and the cache rows of T tokens at positions `pos..pos + T`.
///
/// `q` is (T, heads, key) and becomes the queries, in place. `k` (T, kv_heads, key) and `v` (T, kv_heads, value) become rows of `cache`
/// (n_ctx, kv_heads * key + kv_heads * value) in f16. `rope_table` is (n_ctx, rope / 2) of cosine and sine. A head is normed before it is
/// rotated, and has its bias before both (llama.cpp, src/models/qwen3.cpp and qwen2.cpp).
///
/// # Panics
/// If a size does not fit the others or the cache ends before `pos + T`.
#[expect(
    clippy::too_many_arguments,
    reason = "the bindings of the kernel, one for one"
)]
pub fn grouped_rows(
    q: &mut [f32],
    k: &[f32],
    v: &[f32],
    vectors: HeadVectors<'_>,
    rope_table: &[[f32; 2]],
    pos: usize,
    dims: GroupedDims,
    cache: &mut [f16],
) {
    let [query, key, value] = [
        dims.heads * dims.key,
        dims.kv_heads * dims.key,
        dims.kv_heads * dims.value,
    ];
    let n_tokens = k.len() / key;
    assert_eq!(
        [q.len(), k.len(), v.len()],
        [query, key, value].map(|width| n_tokens * width),
        "queries, keys and values of {n_tokens} tokens"
    );
    let (row, pairs) = (dims.cache_row(), dims.rope / 2);
    let rows = cache[pos * row..(pos + n_tokens) * row].chunks_exact_mut(row);
    let tokens = k.chunks_exact(key).zip(v.chunks_exact(value));
    for (t, ((k, v), row)) in tokens.zip(rows).enumerate() {
        let angles = &rope_table[(pos + t) * pairs..][..pairs];
        let eps = vectors.eps;
        let q = &mut q[t * query..][..query];
        let made = heads_of(q, vectors.q_bias, (vectors.q_norm, eps), angles, dims);
        q.copy_from_slice(&made);
        let mut values = heads_of(k, vectors.k_bias, (vectors.k_norm, eps), angles, dims);
        values.extend(biased(v, vectors.v_bias));
        row.convert_from_f32_slice(&values);
    }
}

/// [`HeadVectors`] on the device, all f32.
#[derive(Debug, Clone, Default)]
pub struct GpuHeadVectors {
    /// `attn_q.bias`, (heads * key).
    pub q_bias: Option<Range>,
    /// `attn_k.bias`, (kv_heads * key).
    pub k_bias: Option<Range>,
    /// `attn_v.bias`, (kv_heads * value).
    pub v_bias: Option<Range>,
    /// `attn_q_norm`, (key), of each query head.
    pub q_norm: Option<Range>,
    /// `attn_k_norm`, (key), of each key head.
    pub k_norm: Option<Range>,
}

/// The kernel's buffers and sizes; all f32 but the cache.
#[derive(Debug, Clone)]
pub struct GpuGroupedRows {
    /// The queries as the product left them, (max_tokens, heads * key), and room for the finished ones, (max_tokens, heads, key). There are
    /// none if only rows of the cache are made.
    pub queries: Option<[Range; 2]>,
    /// The keys as the product left them, (max_tokens, kv_heads * key).
    pub k: Range,
    /// The values as the product left them, (max_tokens, kv_heads * value).
    pub v: Range,
    /// Partial sums of a value of queries, keys and values, usually 1. With more, a range is (partial sums, partial_tokens, width), to be
    /// added up.
    pub partial_sums: [u32; 3],
    /// Tokens from one partial sum to the next: those of a replay or more, where a product was recorded for more.
    pub partial_tokens: u32,
    /// The vectors that the model has beside the weights.
    pub vectors: GpuHeadVectors,
    /// The epsilon of the norms, `attention.layer_norm_rms_epsilon`.
    pub eps: f32,
    /// Cosine and sine, (n_ctx, rope / 2).
    pub rope_table: Range,
    /// The sizes of the block.
    pub dims: GroupedDims,
    /// The layer's cache, (rows, kv_heads * key + kv_heads * value) of f16.
    pub cache: Range,
    /// The places of tokens that belong to several sequences.
    pub sequences: Option<Sequences>,
}

/// The dispatch; a replay must keep `pos + tokens` within the rows of the cache.
///
/// # Panics
/// If a width is odd, the rotated part is wider than a head, or no multiple of 4 where it is rotated in halves.
pub fn call(b: &GpuGroupedRows) -> Call {
    let dims = b.dims;
    let halves = dims.pairing == Pairing::Halves;
    assert!(
        [dims.key, dims.value].iter().all(|n| n.is_multiple_of(2))
            && (2..=dims.key).contains(&dims.rope)
            && dims.rope.is_multiple_of(if halves { 4 } else { 2 }),
        "grouped_rows works on pairs: {dims:?}"
    );
    let (heads, kv_heads) = (dims.heads as u32, dims.kv_heads as u32);
    let [key, value] = [dims.key, dims.value].map(|n| n as u32);
    let call = Call::new("grouped_rows")
        .number("WG", WG)
        .number("LANES", 1)
        .number("KV_HEADS", kv_heads)
        .number("KEY", key)
        .number("VALUE", value)
        .number("ROPE", dims.rope as u32)
        .number("PAIRS", (key / 2).div_ceil(WG))
        .flag("ROTATES_HALVES", halves)
        .bind("angles", &b.rope_table)
        .bind("k", &b.k)
        .bind("v", &b.v)
        .bind("cache", &b.cache);
    let norms = [&b.vectors.q_norm, &b.vectors.k_norm];
    let call = match norms.iter().any(|norm| norm.is_some()) {
        true => call.word("eps", b.eps),
        false => call,
    };
    let vectors = [
        ("k_bias", &b.vectors.k_bias),
        ("v_bias", &b.vectors.v_bias),
        ("k_norm", &b.vectors.k_norm),
    ];
    let of_queries = [("q_bias", &b.vectors.q_bias), ("q_norm", &b.vectors.q_norm)];
    let of_queries = of_queries.into_iter().filter(|_| b.queries.is_some());
    let vectors = vectors.into_iter().chain(of_queries);
    let call = vectors.fold(call, |call, (name, range)| match range {
        Some(range) => call.bind(name, range),
        None => call,
    });
    let mut call = Sequences::bind_pages(b.sequences.as_ref(), call);
    let sums = [
        ("q_partial_sums", "q_partial_stride", heads * key),
        ("k_partial_sums", "k_partial_stride", kv_heads * key),
        ("v_partial_sums", "v_partial_stride", kv_heads * value),
    ];
    for ((sums, stride, width), count) in sums.into_iter().zip(b.partial_sums) {
        let (summed, here) = (count > 1, b.queries.is_some() || !sums.starts_with('q'));
        let pairs = b.partial_tokens * width / 2;
        call = call
            .word_some(sums, (summed && here).then_some(count))
            .word_some(stride, (summed && here).then_some(pairs));
    }
    let blocks = (kv_heads * value / 2).div_ceil(WG);
    let (call, query_heads) = match &b.queries {
        None => (call, 0),
        Some([q, finished]) => (
            call.number("HEADS", heads)
                .bind("q", q)
                .bind("finished", finished),
            heads,
        ),
    };
    let groups = query_heads + kv_heads + blocks;
    call.grid([Extent::N(groups), Extent::Tokens, Extent::N(1)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::Rng;

    /// The definition in f64: bias, norm, rotation of the rotated part.
    fn exact(
        x: &[f32],
        bias: Option<&[f32]>,
        norm: Option<&[f32]>,
        angles: &[[f32; 2]],
        dims: GroupedDims,
    ) -> Vec<f64> {
        let mut all: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        if let Some(bias) = bias {
            let pairs = all.iter_mut().zip(bias);
            pairs.for_each(|(x, b)| *x += f64::from(*b));
        }
        for head in all.chunks_exact_mut(dims.key) {
            if let Some(norm) = norm {
                let squares: f64 = head.iter().map(|x| x * x).sum();
                let size = (squares / dims.key as f64 + 1e-5).sqrt();
                let pairs = head.iter_mut().zip(norm);
                pairs.for_each(|(x, w)| *x *= f64::from(*w) / size);
            }
            let before = head.to_vec();
            for (i, angle) in angles.iter().enumerate() {
                let [cos, sin] = angle.map(f64::from);
                let [a, b] = match dims.pairing {
                    Pairing::Adjacent => [2 * i, 2 * i + 1],
                    Pairing::Halves => [i, i + dims.rope / 2],
                };
                head[a] = before[a] * cos - before[b] * sin;
                head[b] = before[a] * sin + before[b] * cos;
            }
        }
        all
    }

    #[test]
    fn heads_are_biased_normed_and_rotated_in_both_pairings() {
        let mut rng = Rng::fresh();
        for (pairing, biases, norms) in [
            (Pairing::Adjacent, false, false),
            (Pairing::Halves, true, false),
            (Pairing::Halves, false, true),
            (Pairing::Adjacent, true, true),
        ] {
            let dims = GroupedDims {
                heads: 6,
                kv_heads: 2,
                key: 20,
                value: 12,
                rope: 16,
                pairing,
            };
            let (pos, tokens) = (3, 2);
            let q = rng.normals(tokens * 6 * 20);
            let (k, v) = (rng.normals(tokens * 2 * 20), rng.normals(tokens * 2 * 12));
            let of = |has: bool, values: Vec<f32>| has.then_some(values);
            let q_bias = of(biases, rng.normals(6 * 20));
            let k_bias = of(biases, rng.normals(2 * 20));
            let v_bias = of(biases, rng.normals(2 * 12));
            let q_norm = of(norms, rng.normals(20));
            let k_norm = of(norms, rng.normals(20));
            let table: Vec<[f32; 2]> = (0..6 * 8)
                .map(|i| [(i as f32).cos(), (i as f32).sin()])
                .collect();
            let vectors = HeadVectors {
                q_bias: q_bias.as_deref(),
                k_bias: k_bias.as_deref(),
                v_bias: v_bias.as_deref(),
                q_norm: q_norm.as_deref(),
                k_norm: k_norm.as_deref(),
                eps: 1e-5,
            };
            let mut made = q.clone();
            let row = dims.cache_row();
            let mut cache = vec![f16::NAN; 6 * row];
            grouped_rows(&mut made, &k, &v, vectors, &table, pos, dims, &mut cache);
            for t in 0..tokens {
                let angles = &table[(pos + t) * 8..][..8];
                let own = &q[t * 120..][..120];
                let expected = exact(own, vectors.q_bias, vectors.q_norm, angles, dims);
                let found = &made[t * 120..][..120];
                crate::kernels::testing::assert_close(found, &expected, 1e-11, "queries");
                let own = &k[t * 40..][..40];
                let mut expected = exact(own, vectors.k_bias, vectors.k_norm, angles, dims);
                let bias = |i: usize| v_bias.as_ref().map_or(0.0, |bias| f64::from(bias[i]));
                let values = v[t * 24..][..24].iter().enumerate();
                expected.extend(values.map(|(i, v)| f64::from(*v) + bias(i)));
                let found = &cache[(pos + t) * row..][..row];
                let found: Vec<f32> = found.iter().map(|half| half.to_f32()).collect();
                crate::kernels::testing::assert_close(&found, &expected, 1e-6, "cache row");
            }
            let others = cache[..pos * row]
                .iter()
                .chain(&cache[(pos + tokens) * row..]);
            assert!(others.into_iter().all(|value| value.is_nan()));
        }
    }
}
