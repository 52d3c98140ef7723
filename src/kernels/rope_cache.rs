//! Rotation of the queries and of the shared key, and the cache rows of new tokens: normed latent, then rotated key.

use half::f16;

use super::MlaDims;
use super::linear::rms_norm;

/// Rotates interleaved pairs (2i, 2i+1) of `x` by the angles of one position; `table` (rope / 2) holds cosine and sine,
/// both already multiplied by YaRN's magnitude where the model has one (DeepSeek-V2's rope, ggml's "norm" type).
fn rotate(x: &[f32], table: &[[f32; 2]], mut write: impl FnMut(usize, f32)) {
    for (i, ([a, b], [cos, sin])) in x.as_chunks().0.iter().zip(table).enumerate() {
        write(2 * i, a * cos - b * sin);
        write(2 * i + 1, a * sin + b * cos);
    }
}

/// Writes the rotated queries and the cache rows of T tokens at positions `pos..pos + T`.
///
/// `q` is (T, heads, nope + rope), its rotated part goes to `q_pe` (T, heads, rope). `kv_a` is (T, kv_lora + rope): the
/// latent is RMS-normed with `kv_a_norm` and `eps`, the key rotated, and both become rows of `cache` (n_ctx, kv_lora +
/// rope) in f16. `rope_table` is (n_ctx, rope / 2) of cosine and sine.
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
    let row = dims.cache_row();
    let n_tokens = kv_a.len() / row;
    let pairs = dims.rope / 2;
    assert_eq!(
        q.len(),
        n_tokens * dims.heads * dims.head(),
        "queries of {n_tokens} tokens"
    );
    assert_eq!(
        q_pe.len(),
        n_tokens * dims.heads * dims.rope,
        "rotated queries of {n_tokens} tokens"
    );
    let rows = &mut cache[pos * row..(pos + n_tokens) * row];
    for (t, (kv_a, cache)) in kv_a
        .chunks_exact(row)
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
            rotate(&q[dims.nope..], angles, |i, value| q_pe[i] = value);
        }
        let (latent, k_pe) = cache.split_at_mut(dims.kv_lora);
        let normed = rms_norm(&kv_a[..dims.kv_lora], kv_a_norm, eps);
        latent
            .iter_mut()
            .zip(normed)
            .for_each(|(c, x)| *c = f16::from_f32(x));
        rotate(&kv_a[dims.kv_lora..], angles, |i, value| {
            k_pe[i] = f16::from_f32(value)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{Rng, assert_close};

    #[test]
    fn rotates_pairs_norms_the_latent_and_writes_only_its_rows() {
        let mut rng = Rng::fresh();
        let dims = MlaDims {
            heads: 3,
            nope: 20,
            rope: 8,
            kv_lora: 48,
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
}
