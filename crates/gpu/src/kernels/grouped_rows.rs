//! Queries and cache rows of grouped-query attention: biases, norms and rotation of the heads that three products gave, and keys and values as
//! rows of the cache.

use half::f16;

use super::linear::rms_norm;
use super::sequences::Sequences;
use super::{GroupedDims, Pairing};
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent};
use crate::gpu::machine::workgroups::GROUPED_ROWS as WG;
use crate::gpu::tier::{PLAIN_BUFFERS, SUBGROUP_BUFFERS};
use crate::gpu::{Target, Tier};

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
/// (n_ctx, cache_row). `rope_table` is (n_ctx, rope / 2) of cosine and sine. A head is normed before it is
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
        dims.rows().write(&values, row);
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
    /// The layer's cache, (rows, cache_row) of words of 16 bits.
    pub cache: Range,
    /// The places of tokens that belong to several sequences.
    pub sequences: Option<Sequences>,
}

/// What a dispatch finishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Queries,
    Keys,
    Values,
}

/// The dispatches, which do not wait for each other; a replay must keep `pos + tokens` within the rows of the cache. There is one, except
/// where tier `plain` has too few buffers for all that a model has.
///
/// # Panics
/// If a width is odd, the rotated part is wider than a head, or no multiple of 4 where it is rotated in halves, or heads have no [whole
/// blocks](GroupedDims::has_whole_blocks).
pub fn calls(b: &GpuGroupedRows, target: &Target) -> Vec<Call> {
    use Part::{Keys, Queries, Values};
    let most = match target.tier {
        Tier::Plain => PLAIN_BUFFERS,
        Tier::Subgroup | Tier::Int8 => SUBGROUP_BUFFERS,
    };
    let divisions: [&[&[Part]]; 3] = [
        &[&[Queries, Keys, Values]],
        &[&[Queries], &[Keys, Values]],
        &[&[Queries], &[Keys], &[Values]],
    ];
    let calls = divisions.map(|parts| {
        let call = |parts: &&[Part]| b.call(parts);
        parts.iter().filter_map(call).collect::<Vec<_>>()
    });
    let fit = |calls: &Vec<Call>| {
        calls
            .iter()
            .all(|call| call.bindings.len() <= most as usize)
    };
    let fitting = calls.into_iter().find(fit);
    fitting.expect("a part alone has few bindings")
}

impl GpuGroupedRows {
    /// The dispatch for these parts; none if only queries are asked for, and there are none.
    fn call(&self, parts: &[Part]) -> Option<Call> {
        let dims = self.dims;
        let in_halves = dims.pairing == Pairing::Halves;
        assert!(
            [dims.key, dims.value].iter().all(|n| n.is_multiple_of(2))
                && (2..=dims.key).contains(&dims.rope)
                && dims.rope.is_multiple_of(if in_halves { 4 } else { 2 })
                && dims.has_whole_blocks(),
            "grouped_rows works on pairs: {dims:?}"
        );
        let (heads, kv_heads) = (dims.heads as u32, dims.kv_heads as u32);
        let [key, value] = [dims.key, dims.value].map(|n| n as u32);
        let mut call = Call::new("grouped_rows")
            .number("WG", WG)
            .number("LANES", 1)
            .number("KV_HEADS", kv_heads)
            .number("KEY", key)
            .number("VALUE", value)
            .number("ROPE", dims.rope as u32)
            .number("PAIRS", (key / 2).div_ceil(WG))
            .flag("ROTATES_HALVES", in_halves);
        call = Sequences::bind_pages(self.sequences.as_ref(), call);
        let vectors = &self.vectors;
        let (mut groups, mut normed) = (0, false);
        let queries = self
            .queries
            .as_ref()
            .filter(|_| parts.contains(&Part::Queries));
        if let Some([q, finished]) = queries {
            call = call.number("HEADS", heads).bind("finished", finished);
            call = self.bind_sums(call, ("q", q), 0, heads * key);
            call = bind_some(call, "q_bias", &vectors.q_bias);
            call = bind_some(call, "q_norm", &vectors.q_norm);
            normed |= vectors.q_norm.is_some();
            groups += heads;
        }
        if parts.contains(&Part::Keys) {
            call = self.bind_sums(call, ("k", &self.k), 1, kv_heads * key);
            call = bind_some(call, "k_bias", &vectors.k_bias);
            call = bind_some(call, "k_norm", &vectors.k_norm);
            normed |= vectors.k_norm.is_some();
            groups += kv_heads;
        }
        if groups > 0 {
            call = call.bind("angles", &self.rope_table);
        }
        if parts.contains(&Part::Values) {
            call = self.bind_sums(call, ("v", &self.v), 2, kv_heads * value);
            call = bind_some(call, "v_bias", &vectors.v_bias);
            groups += (kv_heads * value / 2).div_ceil(WG);
        }
        if parts != [Part::Queries] {
            call = dims.rows().read_by(call.bind("cache", &self.cache));
        }
        let call = call.word_some("eps", normed.then_some(self.eps));
        (groups > 0).then(|| call.grid([Extent::N(groups), Extent::Tokens, Extent::N(1)]))
    }

    /// Binds an input of `width` values a token, with its partial sums, if it has some.
    fn bind_sums(
        &self,
        call: Call,
        (name, range): (&'static str, &Range),
        nth: usize,
        width: u32,
    ) -> Call {
        let (sums, stride) = [
            ("q_partial_sums", "q_partial_stride"),
            ("k_partial_sums", "k_partial_stride"),
            ("v_partial_sums", "v_partial_stride"),
        ][nth];
        let count = Some(self.partial_sums[nth]).filter(|count| *count > 1);
        call.bind(name, range)
            .word_some(sums, count)
            .word_some(stride, count.map(|_| self.partial_tokens * width / 2))
    }
}

/// Binds `range` to `name`, where there is one.
fn bind_some(call: Call, name: &'static str, range: &Option<Range>) -> Call {
    match range {
        Some(range) => call.bind(name, range),
        None => call,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::buffer::{Buffer, Role};
    use crate::gpu::target::profiles;
    use crate::gpu::testing::gpus;
    use crate::gpu::{GpuError, Most, Step};
    use crate::kernels::CacheType;
    use crate::kernels::cases::grouped_rows::cases;
    use crate::kernels::testing::{Rng, agree, assert_close, assert_half_a_code};

    /// A buffer for four floats.
    fn short() -> Range {
        Range::floats("short", 4)
    }

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
        for (pairing, biases, norms, cache, [key, value]) in [
            (Pairing::Adjacent, false, false, CacheType::F16, [20, 12]),
            (Pairing::Halves, true, false, CacheType::F16, [20, 12]),
            (Pairing::Halves, false, true, CacheType::Q8_0, [64, 128]),
            (Pairing::Adjacent, true, true, CacheType::F16, [20, 12]),
        ] {
            let dims = GroupedDims {
                heads: 6,
                kv_heads: 2,
                key,
                value,
                rope: 16,
                pairing,
                cache,
            };
            let (pos, tokens) = (3, 2);
            let [query, keys, values] = [6 * key, 2 * key, 2 * value];
            let q = rng.normals(tokens * query);
            let (k, v) = (rng.normals(tokens * keys), rng.normals(tokens * values));
            let of = |has: bool, values: Vec<f32>| has.then_some(values);
            let q_bias = of(biases, rng.normals(query));
            let k_bias = of(biases, rng.normals(keys));
            let v_bias = of(biases, rng.normals(values));
            let q_norm = of(norms, rng.normals(key));
            let k_norm = of(norms, rng.normals(key));
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
                let own = &q[t * query..][..query];
                let expected = exact(own, vectors.q_bias, vectors.q_norm, angles, dims);
                let found = &made[t * query..][..query];
                assert_close(found, &expected, 1e-11, "queries");
                let own = &k[t * keys..][..keys];
                let mut expected = exact(own, vectors.k_bias, vectors.k_norm, angles, dims);
                let bias = |i: usize| v_bias.as_ref().map_or(0.0, |bias| f64::from(bias[i]));
                let values = v[t * values..][..values].iter().enumerate();
                expected.extend(values.map(|(i, v)| f64::from(*v) + bias(i)));
                let found = dims.rows().read_all(&cache[(pos + t) * row..][..row]);
                match dims.cache {
                    CacheType::F16 => assert_close(&found, &expected, 1e-6, "cache row"),
                    CacheType::Q8_0 => assert_half_a_code(&found, &expected),
                }
            }
            let others = cache[..pos * row]
                .iter()
                .chain(&cache[(pos + tokens) * row..]);
            assert!(others.into_iter().all(|value| value.is_nan()));
        }
    }

    /// Buffers that suffice for three tokens over 20 rows.
    fn enough() -> GpuGroupedRows {
        let dims = GroupedDims {
            heads: 6,
            kv_heads: 2,
            key: 8,
            value: 12,
            rope: 4,
            pairing: Pairing::Halves,
            cache: CacheType::F16,
        };
        // Products that were recorded for five tokens, those of the keys in two partial sums, those of the values in three.
        GpuGroupedRows {
            queries: Some([
                Range::floats("q", 3 * 48),
                Range::floats("finished", 3 * 48),
            ]),
            k: Range::floats("k", (5 + 3) * 16),
            v: Range::floats("v", (2 * 5 + 3) * 24),
            partial_sums: [1, 2, 3],
            partial_tokens: 5,
            vectors: GpuHeadVectors {
                q_bias: Some(Range::floats("q_bias", 48)),
                k_norm: Some(Range::floats("k_norm", 8)),
                ..GpuHeadVectors::default()
            },
            eps: 1e-5,
            rope_table: Range::floats("table", 20 * 4),
            dims,
            cache: Range::whole(&Buffer::new("cache", 20 * 40 * 2, Role::Cache)),
            sequences: None,
        }
    }

    #[test]
    fn buffers_that_do_not_suffice_are_named_before_anything_runs() {
        let enough = enough();
        let target = &Target::h200();
        let found = |b: &GpuGroupedRows, tokens, context| match Step::of(
            Most { tokens, context },
            calls(b, target),
        )
        .resolve()
        {
            Ok(_) => None,
            Err(GpuError::Interface { kernel, what }) => {
                assert_eq!(kernel, "grouped_rows");
                what.split(' ').nth(1).map(str::to_owned)
            }
            Err(e) => panic!("{e}"),
        };
        assert_eq!(found(&enough, 3, 20), None);
        assert_eq!(found(&enough, 4, 20).as_deref(), Some("q"));
        assert_eq!(found(&enough, 3, 21).as_deref(), Some("angles"));
        let wrong = |change: fn(&mut GpuGroupedRows)| {
            let mut b = enough.clone();
            change(&mut b);
            found(&b, 3, 20)
        };
        for (name, change) in [
            (
                "finished",
                (|b| b.queries = b.queries.take().map(|[q, _]| [q, short()]))
                    as fn(&mut GpuGroupedRows),
            ),
            ("k", |b| b.k = short()),
            ("v", |b| b.v = short()),
            ("q_bias", |b| b.vectors.q_bias = Some(short())),
            ("k_norm", |b| b.vectors.k_norm = Some(short())),
            ("v_bias", |b| b.vectors.v_bias = Some(short())),
            ("cache", |b| b.cache.role = Role::Halves),
        ] {
            assert_eq!(wrong(change).as_deref(), Some(name));
        }
    }

    #[test]
    fn tier_plain_divides_what_has_too_many_buffers() {
        let mut rows = enough();
        let browser = profiles().pop().expect("a browser");
        assert_eq!(browser.tier, Tier::Plain);
        let divided = |rows: &GpuGroupedRows, target: &Target| {
            let calls = calls(rows, target).into_iter();
            calls.map(|call| call.bindings.len()).collect::<Vec<_>>()
        };
        assert_eq!(divided(&rows, &browser), [8]);
        rows.vectors.v_bias = Some(short());
        assert_eq!(divided(&rows, &browser), [4, 6]);
        assert_eq!(divided(&rows, &Target::h200()), [9]);
        rows.queries = None;
        assert_eq!(divided(&rows, &browser), [6]);
    }

    #[test]
    fn the_kernel_agrees_with_its_twin() {
        agree(gpus(), |_| cases());
    }
}
