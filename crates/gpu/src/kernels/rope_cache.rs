//! Rotation of the queries and of the shared key, and the cache rows of new tokens: normed latent, then rotated key.

use half::f16;

use super::MlaDims;
use super::linear::rms_norm;
use super::sequences::Sequences;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent, Word};
use crate::gpu::machine::workgroups::ROPE_CACHE as WG;

/// Rotates interleaved pairs (2i, 2i+1) of `x` by the angles of one position; `table` (rope / 2) holds cosine and sine,
/// both already multiplied by YaRN's magnitude where the model has one (DeepSeek-V2's rope, ggml's "norm" type).
fn rotate(x: &mut [f32], table: &[[f32; 2]]) {
    for ([a, b], [cos, sin]) in x.as_chunks_mut().0.iter_mut().zip(table) {
        (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
    }
}

/// Writes the rotated queries and the cache rows of T tokens at positions `pos..pos + T`.
///
/// `q` is (T, heads, nope + rope), its rotated part goes to `q_pe` (T, heads, rope). `kv_a` is (T, kv_lora + rope): the
/// latent is RMS-normed with `kv_a_norm` and `eps`, the key rotated, and both become rows of `cache`, (n_ctx) rows of
/// [`MlaDims::cache_row`] words. `rope_table` is (n_ctx, rope / 2) of cosine and sine.
///
/// # Panics
/// If a size does not fit the others or the cache ends before `pos + T`.
#[expect(
    clippy::too_many_arguments,
    reason = "the bindings of the kernel, one for one"
)]
pub fn rope_cache(
    q: &[f32],
    kv_a: &[f32],
    kv_a_norm: &[f32],
    eps: f32,
    rope_table: &[[f32; 2]],
    pos: usize,
    dims: MlaDims,
    q_pe: &mut [f32],
    cache: &mut [f16],
) {
    let (width, row) = (dims.cache_values(), dims.cache_row());
    let n_tokens = kv_a.len() / width;
    let pairs = dims.rope / 2;
    assert_eq!(
        [q.len(), q_pe.len()],
        [dims.head(), dims.rope].map(|n| n_tokens * dims.heads * n),
        "queries of {n_tokens} tokens"
    );
    let rows = &mut cache[pos * row..(pos + n_tokens) * row];
    for (t, (kv_a, cache)) in kv_a
        .chunks_exact(width)
        .zip(rows.chunks_exact_mut(row))
        .enumerate()
    {
        let angles = &rope_table[(pos + t) * pairs..][..pairs];
        let heads = &q[t * dims.heads * dims.head()..][..dims.heads * dims.head()];
        let rotated = &mut q_pe[t * dims.heads * dims.rope..][..dims.heads * dims.rope];
        for (q, q_pe) in heads
            .chunks_exact(dims.head())
            .zip(rotated.chunks_exact_mut(dims.rope))
        {
            q_pe.copy_from_slice(&q[dims.nope..]);
            rotate(q_pe, angles);
        }
        let (latent, key) = kv_a.split_at(dims.kv_lora);
        let mut values = rms_norm(latent, kv_a_norm, eps);
        values.extend(key);
        rotate(&mut values[dims.kv_lora..], angles);
        dims.rows().write(&values, cache);
    }
}

/// The rotation at the end of a product on the device.
#[derive(Debug, Clone)]
pub struct Rotation {
    /// Cosine and sine, (n_ctx, rope / 2).
    pub table: Range,
    /// The first row that is rotated, even. All from there on are whole heads.
    pub first_row: u32,
    /// Rows of a head, even.
    pub rope: u32,
}

impl Rotation {
    /// Binds it as `rotated.wgsl` names it. Several tokens, their most, have a table of the places where they stand.
    pub(super) fn bind(&self, call: Call, several: Option<(u32, &Range)>) -> Call {
        let call = call
            .number("ROTATED", self.first_row)
            .number("ROPE", self.rope)
            .bind("angles", &self.table);
        match several {
            Some((most, table)) => call.number("STEP_TOKENS", most).bind("table", table),
            None => call.word("pos", Word::Pos),
        }
    }
}

/// The kernel's buffers and sizes; all f32 but the cache.
#[derive(Debug, Clone)]
pub struct GpuRopeCache {
    /// The queries, (max_tokens, heads, nope + rope), and room for the rotated ones, (max_tokens, heads, rope). There are none if the
    /// product that made the queries has rotated them.
    pub queries: Option<[Range; 2]>,
    /// The rows of the cache. `kv_a` is (max_tokens, kv_lora + rope); or (partial_sums, partial_tokens, kv_lora + rope) to be added up.
    pub row: CacheRow,
    /// Partial sums of a value of `kv_a`, usually 1.
    pub partial_sums: u32,
    /// Tokens from one partial sum to the next: those of a replay or more, where a product was recorded for more.
    pub partial_tokens: u32,
    /// Cosine and sine, (n_ctx, rope / 2).
    pub rope_table: Range,
    /// The sizes of the block.
    pub dims: MlaDims,
    /// The places of tokens that belong to several sequences.
    pub sequences: Option<Sequences>,
}

impl GpuRopeCache {
    /// The dispatch for rows of the cache alone: the queries are rotated elsewhere.
    pub fn of(row: CacheRow, rope_table: &Range, dims: MlaDims) -> Self {
        Self {
            queries: None,
            row,
            partial_sums: 1,
            partial_tokens: 1,
            rope_table: rope_table.clone(),
            dims,
            sequences: None,
        }
    }
}

/// The inputs of new rows of a cache, and where the rows go.
#[derive(Debug, Clone)]
pub struct CacheRow {
    /// The output of `kv_a`, (kv_lora + rope) f32.
    pub kv_a: Range,
    /// `attn_kv_a_norm`, (kv_lora) f32.
    pub kv_a_norm: Range,
    /// `attention.layer_norm_rms_epsilon`.
    pub eps: f32,
    /// The layer's cache, (n_ctx) rows as `dims` say. A replay's position must be among its rows.
    pub cache: Range,
}

impl CacheRow {
    /// `call` in workgroups of `threads` threads, with what `cache_row.wgsl` reads and writes, and the parameter `cache_eps`.
    pub(super) fn bind(&self, call: Call, dims: MlaDims, threads: u32) -> Call {
        dims.rows()
            .read_by(call)
            .number("LATENT_PAIRS", (dims.kv_lora as u32 / 2).div_ceil(threads))
            .number("ROPE", dims.rope as u32)
            .number("KV_LORA", dims.kv_lora as u32)
            .bind("kv_a", &self.kv_a)
            .bind("norm", &self.kv_a_norm)
            .bind("cache", &self.cache)
            .word("cache_eps", self.eps)
    }
}

/// The most subgroups of a workgroup that writes a cache row: sums over workgroups have room for so many.
pub(super) const ROW_SUBGROUPS: u32 = 64;

/// The dispatch; a replay must keep `pos + tokens` within the rows of the cache.
///
/// # Panics
/// If a size is odd.
pub fn call(b: &GpuRopeCache) -> Call {
    let dims = b.dims;
    assert!(
        [dims.nope, dims.rope, dims.kv_lora]
            .iter()
            .all(|n| n.is_multiple_of(2)),
        "rope_cache works on pairs: {dims:?}"
    );
    let summed = b.partial_sums > 1;
    let partial_stride = b.partial_tokens * dims.cache_values() as u32 / 2;
    let call = Call::new("rope_cache")
        .number("WG", WG)
        .number("LANES", 1)
        .word_some("partial_sums", summed.then_some(b.partial_sums))
        .word_some("partial_stride", summed.then_some(partial_stride))
        .bind("angles", &b.rope_table);
    let call = Sequences::bind_pages(b.sequences.as_ref(), call);
    let call = b.row.bind(call, dims, WG);
    let heads = dims.heads as u32;
    let (call, groups) = match &b.queries {
        None => (call, 1),
        Some([q, q_pe]) => {
            let call = call
                .number("HEADS", heads)
                .number("NOPE", dims.nope as u32)
                .bind("q", q)
                .bind("q_pe", q_pe);
            (call, heads + 1)
        }
    };
    call.grid([Extent::N(groups), Extent::Tokens, Extent::N(1)])
}

/// Rotates the rows of `y` from `first_row` on, heads of `rope` values, by the angles of one position: what a product does
/// with its output where it makes queries that need nothing else ([`Rotation`]).
///
/// # Panics
/// If the rows are not whole heads, or `angles` not (rope / 2).
pub fn rotate_rows(y: &mut [f32], first_row: usize, rope: usize, angles: &[[f32; 2]]) {
    assert_eq!(angles.len(), rope / 2, "angles of {rope} values");
    let rotated = &mut y[first_row..];
    assert!(rotated.len().is_multiple_of(rope), "whole heads of {rope}");
    for head in rotated.chunks_exact_mut(rope) {
        rotate(head, angles);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::buffer::{Buffer, Role};
    use crate::gpu::testing::gpus;
    use crate::gpu::{GpuError, Most, Step};
    use crate::kernels::CacheType;
    use crate::kernels::cases::rope_cache::cases;
    use crate::kernels::testing::{Rng, agree_everywhere, assert_close};

    #[test]
    fn rotates_pairs_norms_the_latent_and_writes_only_its_rows() {
        let mut rng = Rng::fresh();
        let dims = MlaDims {
            heads: 3,
            nope: 20,
            rope: 8,
            kv_lora: 48,
            cache: CacheType::F16,
        };
        let (n_tokens, pos, n_ctx, row) = (2, 5, 9, 56);
        let q = rng.normals(n_tokens * 3 * 28);
        let (kv_a, norm) = (rng.normals(n_tokens * row), rng.normals(48));
        let angles: Vec<f64> = (0..n_ctx * 4)
            .map(|_| f64::from(rng.uniform()) * 6.3)
            .collect();
        let table: Vec<[f32; 2]> = angles
            .iter()
            .map(|a| [a.cos() as f32, a.sin() as f32])
            .collect();
        let mut q_pe = vec![f32::NAN; n_tokens * 3 * 8];
        let untouched = f16::from_f32(7.0);
        let mut cache = vec![untouched; n_ctx * row];
        rope_cache(
            &q, &kv_a, &norm, 1e-6, &table, pos, dims, &mut q_pe, &mut cache,
        );

        // A rotation is the product of complex numbers.
        let rotated = |x: &[f32], t: usize| -> Vec<f64> {
            (0..8)
                .map(|i| {
                    let (re, im) = (f64::from(x[i / 2 * 2]), f64::from(x[i / 2 * 2 + 1]));
                    let (size, angle) =
                        (re.hypot(im), im.atan2(re) + angles[(pos + t) * 4 + i / 2]);
                    if i % 2 == 0 {
                        size * angle.cos()
                    } else {
                        size * angle.sin()
                    }
                })
                .collect()
        };
        for t in 0..n_tokens {
            for h in 0..3 {
                let exact = rotated(&q[(t * 3 + h) * 28 + 20..][..8], t);
                assert_close(&q_pe[(t * 3 + h) * 8..][..8], &exact, 1e-12, "query");
            }
            let kv = &kv_a[t * row..][..row];
            let mean = kv[..48].iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / 48.0;
            let latent = kv[..48]
                .iter()
                .zip(&norm)
                .map(|(x, w)| f64::from(*x) * f64::from(*w) / (mean + 1e-6).sqrt());
            let exact: Vec<f64> = latent.chain(rotated(&kv[48..], t)).collect();
            let found: Vec<f32> = cache[(pos + t) * row..][..row]
                .iter()
                .map(|x| x.to_f32())
                .collect();
            // f16 rounds to 11 bits: each relative error is at most 2^-11, its square 2.4e-7.
            assert_close(&found, &exact, 2.4e-7, "cache row");
        }
        assert!(
            cache[..pos * row].iter().all(|x| *x == untouched),
            "rows before"
        );
        assert!(
            cache[(pos + n_tokens) * row..]
                .iter()
                .all(|x| *x == untouched),
            "rows after"
        );
    }

    #[test]
    fn buffers_that_do_not_suffice_are_named_before_anything_runs() {
        let dims = MlaDims {
            heads: 2,
            nope: 6,
            rope: 4,
            kv_lora: 12,
            cache: CacheType::F16,
        };
        // Two partial sums of a product that was recorded for five tokens.
        let enough = GpuRopeCache {
            queries: None,
            row: CacheRow {
                kv_a: Range::floats("kv_a", (5 + 3) * 16),
                kv_a_norm: Range::floats("norm", 12),
                eps: 1e-5,
                cache: Range::whole(&Buffer::new("cache", 20 * 16 * 2, Role::Cache)),
            },
            partial_sums: 2,
            partial_tokens: 5,
            rope_table: Range::floats("table", 20 * 4),
            dims,
            sequences: None,
        };
        let found =
            |b: &GpuRopeCache, tokens, context| match Step::of(Most { tokens, context }, [call(b)])
                .resolve()
            {
                Ok(_) => None,
                Err(GpuError::Interface { kernel, what }) => {
                    assert_eq!(kernel, "rope_cache");
                    what.split(' ').nth(1).map(str::to_owned)
                }
                Err(e) => panic!("{e}"),
            };
        assert_eq!(found(&enough, 3, 20), None);
        assert_eq!(found(&enough, 4, 20).as_deref(), Some("kv_a"));
        assert_eq!(found(&enough, 3, 21).as_deref(), Some("cache"));
        let mut halves = enough;
        halves.row.cache.role = Role::Halves;
        assert_eq!(found(&halves, 3, 20).as_deref(), Some("cache"));
    }

    #[test]
    fn the_kernel_agrees_with_its_twin() {
        agree_everywhere(gpus(), |_| cases());
    }
}
