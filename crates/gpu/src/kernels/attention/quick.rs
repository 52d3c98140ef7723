//! Latent attention by the instructions that the processor has, beside the products that are quick.

use half::f16;

use super::attention;
use crate::kernels::MlaDims;
use crate::kernels::products::Products;
use crate::kernels::quick_attention::{self, Heads};

/// [`attention`], as `products` says: exactly, or with sums in another order and with other threads. Values in Q8_0 are rounded to f16 before
/// they are multiplied quickly.
///
/// # Panics
/// If a size does not fit the others or the cache ends before `pos + T`.
#[expect(clippy::too_many_arguments, reason = "those of the twin")]
pub fn attend(
    products: Products,
    q_lat: &[f32],
    q_pe: &[f32],
    cache: &[f16],
    pos: usize,
    n_tokens: usize,
    dims: MlaDims,
    scale: f32,
    out: &mut [f32],
) {
    if products == Products::Exact {
        attention(q_lat, q_pe, cache, pos, n_tokens, dims, scale, out);
        return;
    }
    // A row is the key of all heads, and the latents at its beginning are their value.
    let row = dims.cache_values();
    let heads = Heads {
        heads: dims.heads,
        kv_heads: 1,
        key: row,
        value: dims.kv_lora,
        row,
        first_value: 0,
    };
    assert_eq!(
        [q_lat.len(), q_pe.len()],
        [dims.kv_lora, dims.rope].map(|n| n_tokens * dims.heads * n),
        "queries of {n_tokens} tokens"
    );
    let mut q = Vec::with_capacity(q_lat.len() + q_pe.len());
    let latents = q_lat.chunks_exact(dims.kv_lora);
    for (latent, rotated) in latents.zip(q_pe.chunks_exact(dims.rope)) {
        q.extend_from_slice(latent);
        q.extend_from_slice(rotated);
    }
    let seen = &cache[..(pos + n_tokens) * dims.cache_row()];
    quick_attention::attend(&q, &dims.rows().in_f16(seen), pos, heads, scale, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::CacheType;
    use crate::kernels::testing::{Rng, nmse};

    #[test]
    fn quick_attention_agrees_with_the_twin_in_any_split() {
        agree(CacheType::F16, 1e-12);
        // Values of codes are rounded to f16, by 2^-12 on average.
        agree(CacheType::Q8_0, 1e-6);
    }

    fn agree(cache: CacheType, limit: f64) {
        let mut rng = Rng::fresh();
        let dims = MlaDims {
            heads: 5,
            nope: 32,
            rope: 32,
            kv_lora: 96,
            cache,
        };
        let (pos, n_tokens) = (rng.below(40), 1 + rng.below(6));
        let cache = dims
            .rows()
            .write_all(&rng.normals(64 * dims.cache_values()));
        let q_lat = rng.normals(n_tokens * dims.heads * dims.kv_lora);
        let q_pe = rng.normals(n_tokens * dims.heads * dims.rope);
        let attended = |products, first: usize, tokens: usize| {
            let [lat, pe] = [(&q_lat, dims.kv_lora), (&q_pe, dims.rope)]
                .map(|(q, n)| &q[first * dims.heads * n..][..tokens * dims.heads * n]);
            let mut out = vec![f32::NAN; lat.len()];
            attend(
                products,
                lat,
                pe,
                &cache,
                pos + first,
                tokens,
                dims,
                0.1,
                &mut out,
            );
            out
        };
        let exact = attended(Products::Exact, 0, n_tokens);
        let quick = attended(Products::Quick, 0, n_tokens);
        let exact: Vec<f64> = exact.into_iter().map(f64::from).collect();
        let error = nmse(&quick, &exact);
        assert!(error < limit, "{error}");
        let last = attended(Products::Quick, n_tokens - 1, 1);
        assert_eq!(last, quick[quick.len() - last.len()..]);
    }
}
