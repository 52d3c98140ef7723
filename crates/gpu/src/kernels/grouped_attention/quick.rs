//! Grouped-query attention by the instructions that the processor has, beside the products that are quick.

use half::f16;

use super::{check, grouped_attention};
use crate::kernels::GroupedDims;
use crate::kernels::products::Products;
use crate::quant::GgmlType;
use crate::quant::dot::{Input, Instructions, Rows};
use crate::team::Team;

/// Rows of the cache whose keys are laid beside each other at once: those of 256 values fill 128 KiB.
const TILE: usize = 256;

/// [`grouped_attention`], as `products` says: exactly, or with sums in another order and with other threads. Heads that are no whole vectors of 32
/// values attend exactly in any case.
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
    let vectors = [dims.key, dims.value].iter().all(|n| n.is_multiple_of(32));
    if products == Products::Exact || !vectors || n_tokens == 0 {
        return grouped_attention(q, cache, pos, n_tokens, dims, scale, out);
    }
    check(q, out, n_tokens, dims);
    let (group, row) = (dims.group(), dims.cache_row());
    let parts = out.chunks_mut(group * dims.value).enumerate();
    let mut tasks: Vec<_> = parts.collect();
    // The longest first.
    tasks.reverse();
    Team::all().each(tasks, |(i, out)| {
        let (token, head) = (i / dims.kv_heads, i % dims.kv_heads);
        let queries = &q[i * group * dims.key..][..group * dims.key];
        let rows = &cache[..(pos + token + 1) * row];
        of_group(queries, rows, head, dims, scale, out);
    });
}

/// The sums of the values of a head in all `rows` for the queries of its group, (group, value).
fn of_group(
    queries: &[f32],
    rows: &[f16],
    head: usize,
    dims: GroupedDims,
    scale: f32,
    out: &mut [f32],
) {
    let instructions = Instructions::best();
    let (key, row) = (dims.key, dims.cache_row());
    let n = rows.len() / row;
    let inputs = queries.chunks_exact(key);
    let inputs: Vec<Input<'_>> = inputs.map(|floats| Input { floats, bytes: &[] }).collect();
    let mut weights = vec![0.0; inputs.len() * n];
    let mut keys = Vec::with_capacity(TILE.min(n) * key);
    for (tile, rows) in rows.chunks(TILE * row).enumerate() {
        keys.clear();
        for row in rows.chunks_exact(row) {
            keys.extend_from_slice(&row[head * key..][..key]);
        }
        let keys = Rows {
            ty: GgmlType::F16,
            cols: key,
            bytes: bytemuck::cast_slice(&keys),
        };
        let count = rows.len() / row;
        let scores = weights.chunks_exact_mut(n);
        let scores = scores.map(|scores| &mut scores[tile * TILE..][..count]);
        let mut scores: Vec<&mut [f32]> = scores.collect();
        instructions.multiply(keys, &inputs, &mut scores);
    }
    for scores in weights.chunks_exact_mut(n) {
        instructions.softmax(scores, scale);
    }
    let weights: Vec<&[f32]> = weights.chunks_exact(n).collect();
    let mut sums: Vec<&mut [f32]> = out.chunks_exact_mut(dims.value).collect();
    let first = dims.kv_heads * key + head * dims.value;
    instructions.add_rows(&rows[first..], row, &weights, &mut sums);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Pairing;
    use crate::kernels::testing::{Rng, nmse};
    use half::vec::HalfFloatVecExt;

    #[test]
    fn quick_attention_agrees_with_the_twin_in_any_split() {
        let mut rng = Rng::fresh();
        let dims = GroupedDims {
            heads: 9,
            kv_heads: 3,
            key: 64,
            value: 96,
            rope: 64,
            pairing: Pairing::Adjacent,
        };
        // More rows than a tile has, or fewer.
        let pos = [rng.below(40), TILE - 3, 2 * TILE + rng.below(40)][rng.below(3)];
        let n_tokens = 1 + rng.below(6);
        let cache = Vec::from_f32_slice(&rng.normals((pos + n_tokens) * dims.cache_row()));
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
        assert!(error < 1e-12, "{error}");
        let last = attended(Products::Quick, n_tokens - 1, 1);
        assert_eq!(last, quick[quick.len() - width..]);
    }
}
