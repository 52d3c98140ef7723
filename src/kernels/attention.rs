//! Latent attention: all heads attend to the same cache rows, whose first part is both key and value (MQA form of MLA).

use half::f16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;

use super::MlaDims;
use super::linear::dot;

/// Causal attention of T tokens at positions `pos..pos + T` over the cache.
///
/// `q_lat` (T, heads, kv_lora) are the queries absorbed into the latent space, `q_pe` (T, heads, rope) their rotated part,
/// `cache` (n_ctx, kv_lora + rope). Token t sees rows `0..=pos + t`. The score is (q_lat . latent + q_pe . k_pe) * scale;
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
    let MlaDims {
        heads,
        rope,
        kv_lora,
        ..
    } = dims;
    let row = dims.cache_row();
    assert_eq!(
        q_lat.len(),
        n_tokens * heads * kv_lora,
        "latent queries of {n_tokens} tokens"
    );
    assert_eq!(
        q_pe.len(),
        n_tokens * heads * rope,
        "rotated queries of {n_tokens} tokens"
    );
    assert_eq!(
        out.len(),
        q_lat.len(),
        "attention output of {n_tokens} tokens"
    );
    // Widened once for all heads and tokens; every head widening for itself would cost heads times as much.
    let seen = &cache[..(pos + n_tokens) * row];
    let mut rows = vec![0.0f32; seen.len()];
    rows.par_chunks_mut(64 * row)
        .zip(seen.par_chunks(64 * row))
        .for_each(|(wide, narrow)| narrow.convert_to_f32_slice(wide));

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{Rng, assert_close};

    #[test]
    fn softmax_weighted_sum_of_what_each_token_may_see() {
        let mut rng = Rng::fresh();
        for (dims, pos, n_tokens) in [
            (
                MlaDims {
                    heads: 3,
                    nope: 32,
                    rope: 16,
                    kv_lora: 40,
                },
                7,
                4,
            ),
            (
                MlaDims {
                    heads: 2,
                    nope: 128,
                    rope: 64,
                    kv_lora: 512,
                },
                0,
                1,
            ),
            (
                MlaDims {
                    heads: 2,
                    nope: 128,
                    rope: 64,
                    kv_lora: 512,
                },
                150,
                2,
            ),
        ] {
            let row = dims.cache_row();
            let n_ctx = pos + n_tokens + 3;
            // Rows behind the last token are NaN: reading one would show.
            let mut cache: Vec<f16> = rng
                .normals(n_ctx * row)
                .into_iter()
                .map(f16::from_f32)
                .collect();
            cache[(pos + n_tokens) * row..].fill(f16::NAN);
            let q_lat = rng.normals(n_tokens * dims.heads * dims.kv_lora);
            let q_pe = rng.normals(n_tokens * dims.heads * dims.rope);
            let scale = 1.0 / (row as f32).sqrt();
            let mut out = vec![f32::NAN; q_lat.len()];
            attention(&q_lat, &q_pe, &cache, pos, n_tokens, dims, scale, &mut out);

            for t in 0..n_tokens {
                for h in 0..dims.heads {
                    let i = t * dims.heads + h;
                    let q = q_lat[i * dims.kv_lora..][..dims.kv_lora]
                        .iter()
                        .chain(&q_pe[i * dims.rope..][..dims.rope]);
                    let q: Vec<f64> = q.map(|x| f64::from(*x)).collect();
                    let mut sum = 0.0;
                    let mut exact = vec![0.0; dims.kv_lora];
                    for k in cache.chunks_exact(row).take(pos + t + 1) {
                        let k: Vec<f64> = k.iter().map(|x| x.to_f64()).collect();
                        let score: f64 = q.iter().zip(&k).map(|(a, b)| a * b).sum();
                        let weight = (score * f64::from(scale)).exp();
                        sum += weight;
                        exact.iter_mut().zip(&k).for_each(|(e, k)| *e += weight * k);
                    }
                    exact.iter_mut().for_each(|e| *e /= sum);
                    assert_close(
                        &out[i * dims.kv_lora..][..dims.kv_lora],
                        &exact,
                        1e-11,
                        "head",
                    );
                }
            }
        }
    }

    #[test]
    fn scores_far_beyond_the_range_of_exp_stay_finite() {
        let dims = MlaDims {
            heads: 1,
            nope: 2,
            rope: 2,
            kv_lora: 4,
        };
        let cache: Vec<f16> = (0..3 * 6).map(|i| f16::from_f32(i as f32)).collect();
        let mut out = vec![f32::NAN; 4];
        attention(&[100.0; 4], &[100.0; 2], &cache, 2, 1, dims, 1.0, &mut out);
        assert_eq!(out, [12.0, 13.0, 14.0, 15.0], "all weight on the last row");
    }
}
