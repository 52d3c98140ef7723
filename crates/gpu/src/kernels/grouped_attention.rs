//! Grouped-query attention: the query heads of a group attend to the same keys and values, which lie in the cache as they are.

use half::f16;
use rayon::prelude::*;

use super::GroupedDims;
use super::linear::dot;
use super::sequences::Sequences;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent, Flops, When, Word};
use crate::gpu::interface::MAX_SLICES;
use crate::quant::activation::Activation;

mod form;
mod quick;
pub(super) mod trial;
pub use form::{Form, Short};
pub use quick::attend;

/// Causal attention of T tokens at positions `pos..pos + T` over the cache.
///
/// `q` (T, heads, key) are the rotated queries, and `cache` (n_ctx, cache_row) holds the keys of a position, then its values, in
/// [`Rows`](super::Rows). Token t sees rows `0..=pos + t`, and query head h those of key head h * kv_heads / heads. The score is (q . key) * scale;
/// `out` (T, heads, value) is the softmax-weighted sum of the values.
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
    let row = dims.cache_values();
    check(q, out, n_tokens, dims);
    // Read once for all heads and tokens; every head reading for itself would cost heads times as much.
    let rows = dims
        .rows()
        .read_all(&cache[..(pos + n_tokens) * dims.cache_row()]);
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

/// The most values of a head: more would leave a thread without registers.
pub const WIDEST: usize = 256;

/// Whether the kernel can work on blocks of these sizes: whole groups, and heads of whole vectors of 8 values up to [`WIDEST`], which
/// have [whole blocks](GroupedDims::has_whole_blocks).
pub fn suits(dims: GroupedDims) -> bool {
    let fits = |width: usize| width.is_multiple_of(8) && (8..=WIDEST).contains(&width);
    let whole = dims.kv_heads > 0 && dims.heads > 0 && dims.heads.is_multiple_of(dims.kv_heads);
    whole && dims.has_whole_blocks() && fits(dims.key) && fits(dims.value)
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
    /// The layer's cache, (n_ctx, cache_row) of words of 16 bits.
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
    /// If the sizes do not [suit](suits).
    pub fn call(&self) -> Call {
        self.call_in(self.form)
    }

    /// The dispatches for one token. A replay takes one of them, and its slices from [`OfOne`](super::attention::OfOne). The one for short contexts
    /// leaves the finished `values`, (heads, value), in the format `output`. After the other, [`attention_merge`](super::attention_merge) must
    /// follow.
    ///
    /// # Panics
    /// If the sizes do not [suit](suits).
    pub fn calls_of_one(
        &self,
        short: Option<Short>,
        (values, output): (&Range, Activation),
    ) -> Vec<Call> {
        let Some(Short { runs, rows }) = short else {
            return vec![self.call()];
        };
        let values_in = if output.rounds() {
            "prepared"
        } else {
            "values"
        };
        let finished = self
            .attending(Form::Runs(runs))
            .flag("FINISHED", true)
            .flag("BYTES", output == Activation::Bytes)
            .flag("HALVES", output.is_halves())
            .bind(values_in, values);
        vec![
            finished.only(When::rows(0, rows)),
            self.call().only(When::rows(rows, u32::MAX)),
        ]
    }

    /// The dispatches for several tokens. Each token attends as it does alone, by [`calls_of_one`](Self::calls_of_one), but all of them leave slices.
    /// So [`attention_merge`](super::attention_merge) must follow. A replay takes the dispatches that some token needs, and its slices are cut by
    /// [`OfOne::cut`](super::attention::OfOne::cut).
    pub fn calls_of_each(&self, short: Option<Short>) -> Vec<Call> {
        let Some(Short { runs, .. }) = short else {
            return vec![self.call()];
        };
        let call = |(form, number): (Form, u32)| {
            let call = self.call_in(form);
            let [_, groups, along_tokens] = call.grid;
            call.grid([Extent::SlicesOf(number), groups, along_tokens])
                .word("first_work", Word::SlicesBefore(number))
                .only(When::Kernel(number))
        };
        [Form::Runs(runs), self.form]
            .into_iter()
            .zip(0..)
            .map(call)
            .collect()
    }

    /// The dispatch in a form that leaves slices.
    fn call_in(&self, form: Form) -> Call {
        self.attending(form)
            .bind("slice_sums", &self.partials[0])
            .bind("stats", &self.partials[1])
    }

    /// The dispatch in a form, still without what it leaves.
    fn attending(&self, form: Form) -> Call {
        let dims = self.dims;
        let sequences = self.sequences.as_ref();
        let listed = sequences.is_some_and(|s| !s.alone);
        let along_tokens = if listed { Extent::N(1) } else { Extent::Tokens };
        let (kernel, groups) = form.kernel(dims);
        let kernel = Sequences::bind_slices(sequences, kernel);
        dims.rows()
            .read_by(kernel)
            .grid([Extent::Slices, Extent::N(groups), along_tokens])
            .bind("q", &self.q)
            .bind("cache", &self.cache)
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
    use crate::gpu::buffer::{Buffer, Role};
    use crate::gpu::target::profiles;
    use crate::gpu::testing::{WAVE_SIZES, gpus, waves};
    use crate::gpu::{GpuError, Most, Step, Target, Tier};
    use crate::kernels::attention::Cuts;
    use crate::kernels::cases::grouped_attention::{context, dims, of_device};
    use crate::kernels::sequences::PAGE;
    use crate::kernels::testing::{Rng, agree, agrees_changed, assert_close};
    use crate::kernels::{CacheType, Pairing};

    /// Value `at` of a cache row, by the bytes of its layout.
    fn of_row(row: &[f16], at: usize, dims: GroupedDims) -> f64 {
        match dims.cache {
            CacheType::F16 => row[at].to_f64(),
            CacheType::Q8_0 => {
                let code = row[at / 2].to_le_bytes()[at % 2] as i8;
                f64::from(code) * row[dims.cache_values() / 2 + at / 32].to_f64()
            }
        }
    }

    #[test]
    fn heads_of_a_group_attend_to_its_keys_and_values() {
        let mut rng = Rng::fresh();
        for (group, cache, width, out_width) in [
            (1, CacheType::F16, 12, 20),
            (3, CacheType::F16, 12, 20),
            (7, CacheType::Q8_0, 64, 128),
        ] {
            let dims = GroupedDims {
                heads: 2 * group,
                kv_heads: 2,
                key: width,
                value: out_width,
                rope: 8,
                pairing: Pairing::Halves,
                cache,
            };
            let (pos, tokens, row) = (rng.below(30), 1 + rng.below(4), dims.cache_row());
            let q = rng.normals(tokens * dims.heads * width);
            let seen = rng.normals((pos + tokens) * dims.cache_values());
            let mut cache = dims.rows().write_all(&seen);
            cache.resize(cache.len() + 2 * row, f16::NAN);
            let mut out = vec![f32::NAN; tokens * dims.heads * out_width];
            grouped_attention(&q, &cache, pos, tokens, dims, 0.3, &mut out);
            for t in 0..tokens {
                for head in 0..dims.heads {
                    let of = head / group;
                    let q = &q[(t * dims.heads + head) * width..][..width];
                    let value = |i: usize, at: usize| of_row(&cache[i * row..], at, dims);
                    let score = |i: usize| -> f64 {
                        let terms = q.iter().enumerate();
                        let terms = terms.map(|(j, q)| f64::from(*q) * value(i, of * width + j));
                        (0.3 * terms.sum::<f64>()).exp()
                    };
                    let scores: Vec<f64> = (0..=pos + t).map(score).collect();
                    let sum: f64 = scores.iter().sum();
                    let expected = (0..out_width).map(|j| {
                        let at = 2 * width + of * out_width + j;
                        let rows = scores.iter().enumerate();
                        let terms = rows.map(|(i, s)| s * value(i, at));
                        terms.sum::<f64>() / sum
                    });
                    let expected: Vec<f64> = expected.collect();
                    let found = &out[(t * dims.heads + head) * out_width..][..out_width];
                    assert_close(found, &expected, 1e-11, "values");
                }
            }
        }
    }

    #[test]
    fn the_kernel_agrees_with_its_twin() {
        agree(gpus(), of_device);
    }

    #[test]
    #[ignore = "long: scripts/test --all"]
    fn the_kernel_agrees_in_larger_subgroups() {
        for gpu in waves(Tier::Subgroup, &WAVE_SIZES) {
            // A head or two of a thread, since the emulation of shuffles takes long to compile: runs of 16 lanes, of 32, and of 8.
            for (shape, cache, of) in [
                ([2, 2, 128, 128], CacheType::F16, [299, 1, 128]),
                ([2, 1, 256, 80], CacheType::F16, [70, 2, 40]),
                ([1, 1, 64, 64], CacheType::F16, [90, 1, 96]),
                ([2, 2, 128, 128], CacheType::Q8_0, [150, 1, 64]),
                ([2, 1, 256, 64], CacheType::Q8_0, [70, 2, 40]),
            ] {
                let dims = dims(shape).with_cache(cache);
                let case = context(Form::without_matrices(&gpu, dims), dims, of);
                agrees_changed(&gpu, &case, |call| call);
            }
        }
    }

    #[test]
    fn buffers_that_do_not_suffice_are_named_before_anything_runs() {
        check_buffers(dims([6, 2, 16, 24]), "grouped_attention");
        let dims = dims([6, 2, 64, 64]);
        check_buffers(dims, "grouped_attention_coop");
        check_buffers(dims.with_cache(CacheType::Q8_0), "grouped_attention_coop");
    }

    fn check_buffers(dims: GroupedDims, name: &str) {
        let [sums, stats] = partials(dims, 3);
        let attention = GpuGroupedAttention {
            form: Form::untried(&Target::h200(), dims),
            q: Range::floats("q", 3 * 6 * dims.key as u64),
            cache: Range::whole(&Buffer::new(
                "cache",
                20 * dims.cache_row() as u64 * 2,
                Role::Cache,
            )),
            dims,
            scale: 1.0,
            partials: [sums, stats],
            sequences: None,
        };
        let found = |attention: &GpuGroupedAttention, tokens, context| {
            let step = Step::of(Most { tokens, context }, [attention.call()]);
            match step.resolve() {
                Ok(_) => None,
                Err(GpuError::Interface { kernel, what }) => {
                    assert_eq!(kernel, name);
                    what.split(' ').nth(1).map(str::to_owned)
                }
                Err(e) => panic!("{e}"),
            }
        };
        assert_eq!(found(&attention, 3, 20), None);
        assert_eq!(found(&attention, 3, 21).as_deref(), Some("cache"));
        assert_eq!(found(&attention, 4, 20).as_deref(), Some("q"));
        let mut few = attention.clone();
        few.partials[0].size -= 4;
        assert_eq!(found(&few, 3, 20).as_deref(), Some("slice_sums"));
        let mut few = attention.clone();
        few.partials[1].size -= 4;
        assert_eq!(found(&few, 3, 20).as_deref(), Some("stats"));
        let mut halves = attention;
        halves.cache.role = Role::Halves;
        assert_eq!(found(&halves, 3, 20).as_deref(), Some("cache"));
    }

    #[test]
    fn every_device_has_a_form_for_sizes_that_suit() {
        let forms = profiles().into_iter().flat_map(|target| {
            let shapes = [8, 64, 80, 128, 256].into_iter().flat_map(|width| {
                [1, 2, 5, 7, 8, 9, 16, 64].map(|group| dims([2 * group, 2, width, 264 - width]))
            });
            let suitable = shapes.filter(|dims| suits(*dims));
            suitable
                .map(move |dims| (Form::without_matrices(&target, dims), dims))
                .collect::<Vec<_>>()
        });
        let mut count = 0;
        for (form, dims) in forms {
            let (rows, heads) = form.tile(4096);
            assert!(
                rows % 8 == 0 && (PAGE as usize).is_multiple_of(8),
                "slices begin where a page may"
            );
            assert!(rows > 0 && heads <= 8 && heads * dims.group().div_ceil(heads) >= dims.group());
            count += 1;
        }
        assert!(count > 300);
        for shape in [
            [6, 4, 64, 64],
            [4, 2, 64, 12],
            [4, 2, 264, 64],
            [4, 0, 64, 64],
        ] {
            assert!(!suits(dims(shape)), "{shape:?}");
        }
    }
}
