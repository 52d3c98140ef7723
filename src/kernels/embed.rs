//! Token embedding: one dequantised row of `token_embd` per token.

use rayon::prelude::*;

use crate::model::Weight;
use crate::quant::dequantize_row;

/// `out` (T, d) = rows `tokens` of `token_embd` (vocab, d).
///
/// # Panics
/// If a token is not below the vocabulary size, or `out` is not T x d: the backends check both beforehand.
pub fn embed(token_embd: &Weight, tokens: &[u32], out: &mut [f32]) {
    assert_eq!(
        out.len(),
        tokens.len() * token_embd.cols,
        "embedding of {} tokens",
        tokens.len()
    );
    out.par_chunks_exact_mut(token_embd.cols)
        .zip(tokens)
        .for_each(|(out, &token)| {
            dequantize_row(token_embd.ty, token_embd.row(0, token as usize), out)
        });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{Rng, random_weight};
    use crate::quant::GgmlType;

    #[test]
    fn takes_the_row_of_each_token() {
        let mut rng = Rng::fresh();
        for ty in [GgmlType::F16, GgmlType::Q4_K, GgmlType::Q6_K] {
            let w = random_weight(&mut rng, ty, 1, 37, 256);
            let tokens: Vec<u32> = (0..9)
                .map(|_| rng.below(37) as u32)
                .chain([0, 36, 36])
                .collect();
            let mut out = vec![f32::NAN; tokens.len() * 256];
            embed(&w, &tokens, &mut out);
            for (row, &token) in out.chunks_exact(256).zip(&tokens) {
                let mut expected = vec![0.0; 256];
                dequantize_row(ty, w.row(0, token as usize), &mut expected);
                assert_eq!(row, expected, "token {token}");
            }
        }
    }
}
