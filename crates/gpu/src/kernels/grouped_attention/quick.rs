//! Grouped-query attention by the instructions that the processor has, beside the products that are quick.

use half::f16;

use super::{check, grouped_attention};
use crate::kernels::GroupedDims;
use crate::kernels::products::Products;
use crate::kernels::quick_attention::{self, Heads};

/// [`grouped_attention`], as `products` says: exactly, or with sums in another order and with other threads. Values in Q8_0
/// are rounded to f16 before they are multiplied quickly.
///
/// # Panics
/// If a size does not fit the others or the cache ends before `pos + T`.
#[expect(
    clippy::too_many_arguments,
    reason = "those of the twin, and the products"
)]
pub fn attend(
    products: Products,
    q: &[f32],
    cache: &[f16],
    pos: usize,
    n_tokens: usize,
    dims: GroupedDims,
    scale: f32,
    out: &mut [f32],
) {
    if products == Products::Exact {
        return grouped_attention(q, cache, pos, n_tokens, dims, scale, out);
    }
    check(q, out, n_tokens, dims);
    let heads = Heads {
        heads: dims.heads,
        kv_heads: dims.kv_heads,
        key: dims.key,
        value: dims.value,
        row: dims.cache_values(),
        first_value: dims.kv_heads * dims.key,
    };
    let seen = &cache[..(pos + n_tokens) * dims.cache_row()];
    quick_attention::attend(q, &dims.rows().in_f16(seen), pos, heads, scale, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{Rng, nmse};
    use crate::kernels::{CacheType, Pairing};

    #[test]
    fn quick_attention_agrees_with_the_twin_in_any_split() {
        agree(CacheType::F16, 1e-12);
        // Values of codes are rounded to f16, by 2^-12 on average.
        agree(CacheType::Q8_0, 1e-6);
    }

    fn agree(cache: CacheType, limit: f64) {
        let mut rng = Rng::fresh();
        let dims = GroupedDims {
            heads: 9,
            kv_heads: 3,
            key: 64,
            value: 96,
            rope: 64,
            pairing: Pairing::Adjacent,
            cache,
        };
        let pos = rng.below(600);
        let n_tokens = 1 + rng.below(6);
        let cache = dims
            .rows()
            .write_all(&rng.normals((pos + n_tokens) * dims.cache_values()));
        let q = rng.normals(n_tokens * dims.heads * dims.key);
        let width = dims.heads * dims.value;
        let attended = |products, first: usize, tokens: usize| {
            let q = &q[first * dims.heads * dims.key..][..tokens * dims.heads * dims.key];
            let mut out = vec![f32::NAN; tokens * width];
            attend(
                products,
                q,
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
        assert_eq!(last, quick[quick.len() - width..]);
    }
}
