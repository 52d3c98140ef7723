//! Cases of the queries and the cache's new rows of grouped-query attention.

use half::f16;

use super::Case;
use super::lab::{self, Compared, Lab, state};
use super::places::Pages;
use super::prepared::EPS;
use super::rope_cache::{compared, untouched};
use crate::gpu::GpuError;
use crate::gpu::buffer::Range;
use crate::kernels::grouped_rows::{
    GpuGroupedRows, GpuHeadVectors, HeadVectors, calls, grouped_rows,
};
use crate::kernels::sequences::Sequences;
use crate::kernels::{CacheType, GroupedDims, Pairing};

/// The vectors that a model has beside its weights.
#[derive(Clone, Copy)]
struct Has {
    biases: bool,
    norms: bool,
}

/// New rows of tokens: random queries, keys, values, vectors and angles.
struct NewRows {
    dims: GroupedDims,
    qkv: [Vec<f32>; 3],
    /// The biases of queries, keys and values, if there are any.
    biases: [Option<Vec<f32>>; 3],
    /// The norms of queries and keys, if there are any.
    norms: [Option<Vec<f32>>; 2],
    table: Vec<[f32; 2]>,
}

impl NewRows {
    fn new(lab: &Lab<'_>, dims: GroupedDims, has: Has, tokens: usize, n_ctx: usize) -> Self {
        let widths = widths(dims);
        let vector = |has: bool, n: usize| has.then(|| lab.normals(n));
        Self {
            dims,
            qkv: widths.map(|width| lab.normals(tokens * width)),
            biases: widths.map(|width| vector(has.biases, width)),
            norms: [dims.key; 2].map(|width| vector(has.norms, width)),
            table: lab.angles(n_ctx * dims.rope / 2),
        }
    }

    /// The call on the device, with the finished queries: inputs in partial sums of products for `tokens`, and a cache.
    fn call(
        &self,
        lab: &Lab<'_>,
        partial_sums: [usize; 3],
        tokens: usize,
        rows: usize,
        sequences: Option<Sequences>,
    ) -> (GpuGroupedRows, Range) {
        let widths = widths(self.dims);
        let inputs = [0, 1, 2].map(|i| {
            let (values, own) = (tokens * widths[i], &self.qkv[i]);
            // Behind the tokens' values the partial sums hold what must not be read.
            let mut sums = vec![f32::NAN; partial_sums[i] * values];
            let mut left = own.clone();
            for (nth, sum) in sums.chunks_mut(values).enumerate() {
                let part = match nth + 1 == partial_sums[i] {
                    true => left.clone(),
                    false => lab.normals(own.len()),
                };
                left.iter_mut().zip(&part).for_each(|(left, x)| *left -= x);
                sum[..own.len()].copy_from_slice(&part);
            }
            lab.given(&sums)
        });
        let [q, k, v] = inputs;
        let finished = lab.room(self.qkv[0].len());
        let given = |vector: &Option<Vec<f32>>| vector.as_ref().map(|vector| lab.given(vector));
        let [q_bias, k_bias, v_bias] = self.biases.each_ref().map(given);
        let [q_norm, k_norm] = self.norms.each_ref().map(given);
        let call = GpuGroupedRows {
            queries: Some([q, finished.clone()]),
            k,
            v,
            partial_sums: partial_sums.map(|n| n as u32),
            partial_tokens: tokens as u32,
            vectors: GpuHeadVectors {
                q_bias,
                k_bias,
                v_bias,
                q_norm,
                k_norm,
            },
            eps: EPS,
            rope_table: lab.given(self.table.as_flattened()),
            dims: self.dims,
            cache: lab.cache(&untouched(self.dims.cache_row(), rows)),
            sequences,
        };
        (call, finished)
    }

    /// The finished queries of tokens, and a cache with their rows: for each token its position and its row.
    fn twins(&self, places: &[(usize, usize)], rows: usize) -> (Vec<f32>, Vec<f16>) {
        let (dims, row) = (self.dims, self.dims.cache_row());
        let [q_bias, k_bias, v_bias] = self.biases.each_ref().map(Option::as_deref);
        let [q_norm, k_norm] = self.norms.each_ref().map(Option::as_deref);
        let vectors = HeadVectors {
            q_bias,
            k_bias,
            v_bias,
            q_norm,
            k_norm,
            eps: EPS,
        };
        let (mut finished, mut cache) = (vec![], untouched(row, rows));
        for (t, (position, to)) in places.iter().enumerate() {
            let [query, key, value] = widths(dims);
            let [q, k, v] = &self.qkv;
            let mut q = q[t * query..][..query].to_vec();
            let (k, v) = (&k[t * key..][..key], &v[t * value..][..value]);
            let angles = &self.table[position * dims.rope / 2..];
            let own = &mut cache[to * row..][..row];
            grouped_rows(&mut q, k, v, vectors, angles, 0, dims, own);
            finished.extend(q);
        }
        (finished, cache)
    }
}

/// Values of a token that the products of queries, keys and values leave.
fn widths(dims: GroupedDims) -> [usize; 3] {
    [
        dims.heads * dims.key,
        dims.kv_heads * dims.key,
        dims.kv_heads * dims.value,
    ]
}

/// Tokens at `pos`. The inputs come in partial sums of products that were recorded for more tokens, too.
fn alone(
    lab: &Lab<'_>,
    (dims, has): (GroupedDims, Has),
    pos: usize,
    tokens: usize,
) -> Result<Vec<Compared>, GpuError> {
    let n_ctx = 50;
    let new = NewRows::new(lab, dims, has, tokens, n_ctx);
    let places: Vec<_> = (pos..pos + tokens).map(|row| (row, row)).collect();
    let (twin, expected) = new.twins(&places, n_ctx);
    let mut all = vec![];
    for (with_queries, partial_sums, more) in [
        (true, [1, 1, 1], 0),
        (false, [1, 1, 1], 3),
        (false, [1, 3, 2], 0),
        (true, [2, 1, 3], 5),
    ] {
        let (mut rows, finished) = new.call(lab, partial_sums, tokens + more, n_ctx, None);
        if !with_queries {
            rows.queries = None;
        }
        lab.run(calls(&rows, lab.gpu), state(tokens, pos))?;
        if with_queries {
            // f32 rounding alone.
            all.push(lab.floats(&finished, &twin, 1e-12)?);
        }
        let written = |row| (pos..pos + tokens).contains(&row);
        all.extend(compared(lab, &rows.cache, &expected, dims.rows(), written)?);
    }
    Ok(all)
}

/// Tokens of several sequences, whose rows lie in pages, and one of them alone.
fn by_sequence(lab: &Lab<'_>, dims: GroupedDims, has: Has) -> Result<Vec<Compared>, GpuError> {
    let pages = Pages::new(lab, 32, &[40, 1, 33, 32]);
    let (tokens, layout) = (pages.tokens(), dims.rows());
    let new = NewRows::new(lab, dims, has, tokens, pages.n_ctx);
    let place = |(sequence, position): (&usize, &u32)| {
        let position = *position as usize;
        (position, pages.row(*sequence, position))
    };
    let places: Vec<_> = pages.of.iter().zip(&pages.positions).map(place).collect();
    let (twin, expected) = new.twins(&places, pages.rows);
    let sequences = Some(pages.without_slices(lab));
    let (rows, finished) = new.call(lab, [1; 3], tokens, pages.rows, sequences);
    let longest = pages.n_ctx - 2;
    lab.run(
        calls(&rows, lab.gpu),
        state(tokens, longest.max(tokens) - tokens),
    )?;
    let written = |row| places.iter().any(|(_, to)| *to == row);
    let mut all = compared(lab, &rows.cache, &expected, layout, written)?;
    all.push(lab.floats(&finished, &twin, 1e-12)?);

    // The first token: the others' inputs are there, and are not read.
    let (sequences, state) = pages.alone(lab, 0, 16);
    let (twin, expected) = new.twins(&places[..1], pages.rows);
    let (rows, finished) = new.call(lab, [1; 3], tokens, pages.rows, Some(sequences));
    lab.run(calls(&rows, lab.gpu), state)?;
    let written = |row| row == places[0].1;
    all.extend(compared(lab, &rows.cache, &expected, layout, written)?);
    all.push(lab.floats(&finished, &twin, 1e-12)?);
    Ok(all)
}

pub(crate) fn cases() -> Vec<Case> {
    let dims = |heads, kv_heads, key, value, rope, pairing| GroupedDims {
        heads,
        kv_heads,
        key,
        value,
        rope,
        pairing,
        cache: CacheType::F16,
    };
    let has = |biases, norms| Has { biases, norms };
    let (adjacent, halves) = (Pairing::Adjacent, Pairing::Halves);
    // Llama 3.2 3B, Qwen2.5 0.5B, Qwen3 4B and Phi-2.
    let llama = (dims(24, 8, 128, 128, 128, adjacent), has(false, false));
    let qwen2 = (dims(14, 2, 64, 64, 64, halves), has(true, false));
    let qwen3 = (dims(32, 8, 128, 128, 128, halves), has(false, true));
    let phi2 = (dims(32, 32, 80, 80, 32, halves), has(true, false));
    // More pairs than threads, rotated ones among the later; values of another width; all vectors.
    let wide = (dims(3, 1, 262, 34, 140, halves), has(true, true));
    let narrow = (dims(6, 2, 20, 12, 6, adjacent), has(true, true));
    // Qwen3 30B A3B, SmolLM2 135M, and more pairs than threads beside fewer values than a workgroup takes.
    let codes = |dims: GroupedDims| dims.with_cache(CacheType::Q8_0);
    let qwen3moe = codes(dims(32, 4, 128, 128, 128, halves));
    let smol = codes(dims(9, 3, 64, 64, 64, adjacent));
    let wide_codes = codes(dims(3, 1, 192, 64, 140, halves));
    let mut all = vec![];
    for (dims, has) in [
        llama,
        qwen2,
        qwen3,
        phi2,
        wide,
        narrow,
        (qwen3moe, has(false, true)),
        (smol, has(false, false)),
        (wide_codes, has(true, true)),
    ] {
        let GroupedDims {
            heads,
            kv_heads,
            key,
            cache,
            ..
        } = dims;
        let of_cache = lab::of_cache(cache);
        let shape = format!("{heads} and {kv_heads} heads of {key}{of_cache}");
        for (pos, tokens) in [(0, 1), (5, 3), (41, 8)] {
            let name = format!("{shape}, {tokens} tokens after {pos}");
            let case = Case::new(name, move |lab| alone(lab, (dims, has), pos, tokens));
            all.push(case.verified_if(tokens == 3 && key != 262));
        }
        let name = format!("{shape}, 4 sequences in pages");
        let case = Case::new(name, move |lab| by_sequence(lab, dims, has));
        all.push(case.verified_if(heads == 24));
    }
    all
}
