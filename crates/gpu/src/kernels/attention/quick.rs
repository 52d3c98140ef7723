//! Latent attention by the instructions that the processor has, beside the products that are quick.

use half::f16;

use super::attention;
use crate::kernels::MlaDims;
use crate::kernels::products::Products;
use crate::quant::GgmlType;
use crate::quant::dot::{Input, Instructions, Rows};
use crate::team::Team;

/// Queries of a task at most: they share the rows that they attend to.
const QUERIES: usize = 8;

/// [`attention`], as `products` says: exactly, or with sums in another order and with other threads. Caches whose rows are no whole vectors
/// of 32 values are attended to exactly in any case. Values in Q8_0 are rounded to f16 before they are multiplied quickly.
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
    let vectors = [dims.kv_lora, dims.rope]
        .iter()
        .all(|n| n.is_multiple_of(32));
    if products == Products::Exact || !vectors || n_tokens == 0 {
        attention(q_lat, q_pe, cache, pos, n_tokens, dims, scale, out);
        return;
    }
    let (heads, latent) = (dims.heads, dims.kv_lora);
    let team = Team::all();
    let count = (n_tokens * heads / (2 * team.threads())).clamp(1, QUERIES.min(heads));
    let mut tasks = vec![];
    for (t, out) in out.chunks_exact_mut(heads * latent).enumerate() {
        let parts = out.chunks_mut(count * latent).enumerate();
        tasks.extend(parts.map(|(i, out)| (t, t * heads + i * count, out)));
    }
    // The longest first.
    tasks.reverse();
    let rows = dims.rows_in_f16(&cache[..(pos + n_tokens) * dims.cache_row()]);
    team.each(tasks, |(t, first, out)| {
        let queries = first..first + out.len() / latent;
        let rows = &rows[..(pos + t + 1) * dims.cache_values()];
        let whole: Vec<Vec<f32>> = queries
            .map(|i| {
                [
                    &q_lat[i * latent..][..latent],
                    &q_pe[i * dims.rope..][..dims.rope],
                ]
                .concat()
            })
            .collect();
        of_queries(&whole, rows, scale, out);
    });
}

/// The sums of the latents of all `rows` for some queries, (queries, kv_lora).
fn of_queries(queries: &[Vec<f32>], rows: &[f16], scale: f32, out: &mut [f32]) {
    let instructions = Instructions::best();
    let (row, n) = (queries[0].len(), rows.len() / queries[0].len());
    let inputs = queries.iter().map(|floats| Input { floats, bytes: &[] });
    let inputs: Vec<Input<'_>> = inputs.collect();
    let mut weights = vec![0.0; queries.len() * n];
    let mut scores: Vec<&mut [f32]> = weights.chunks_exact_mut(n).collect();
    let of_cache = Rows {
        ty: GgmlType::F16,
        cols: row,
        bytes: bytemuck::cast_slice(rows),
    };
    instructions.multiply(of_cache, &inputs, &mut scores);
    for scores in scores {
        instructions.softmax(scores, scale);
    }
    let weights: Vec<&[f32]> = weights.chunks_exact(n).collect();
    let mut sums: Vec<&mut [f32]> = out.chunks_exact_mut(out.len() / queries.len()).collect();
    instructions.add_rows(rows, row, &weights, &mut sums);
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
        let cache = dims.write_rows(&rng.normals(64 * dims.cache_values()));
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
