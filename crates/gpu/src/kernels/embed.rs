//! Token embedding: one dequantised row of `token_embd` per token.

use super::sequences::Sequences;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent};
use crate::gpu::memory::{GpuWeight, Piece};
use crate::quant::repack::shader_module;
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

/// [`embed`] on the device, one dispatch per piece. `out` (max_tokens, d) gets the rows of `token_embd` with the ids history\[pos..\]. With
/// `sequences` these are the ids where the tokens of several sequences stand. Ids in `history` are below the vocabulary: the backend checks
/// those of prompts, and sampling chooses no others.
pub fn calls(
    sequences: Option<&Sequences>,
    w: &GpuWeight,
    history: &Range,
    out: &Range,
) -> Vec<Call> {
    let units = w.cols / 32;
    let call = |piece: &Piece| {
        row(Call::new("embed"), sequences, w, piece, history)
            .bind("y", out)
            .word("units", units)
            .grid([Extent::N(units.div_ceil(64)), Extent::Tokens, Extent::N(1)])
    };
    w.pieces.iter().map(call).collect()
}

/// `call` with the piece of `w` whose rows it looks up, and what tells it their numbers.
pub(super) fn row(
    call: Call,
    sequences: Option<&Sequences>,
    w: &GpuWeight,
    piece: &Piece,
    history: &Range,
) -> Call {
    Sequences::bind_history(sequences, call)
        .module("WEIGHT", shader_module(w.ty))
        .planes(["w_q", "w_s"], piece)
        .bind("history", history)
        .word("rows", piece.rows)
        .word("first_row", piece.first_row)
        .word("sub", piece.sub)
        .with_bytes(w.bytes_of_rows(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::testing::gpus;
    use crate::gpu::wait::Wait;
    use crate::gpu::{Gpu, GpuOptions, Tier};
    use crate::kernels::cases::embed as cases;
    use crate::kernels::testing::{Rng, agree_everywhere, lab, random_weight};
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

    #[test]
    fn the_gpu_agrees_with_its_twin() {
        agree_everywhere(gpus(), |_| cases::cases());
    }

    #[test]
    fn a_vocabulary_larger_than_a_binding_is_cut_into_rows() {
        for tier in Tier::ALL {
            let options = GpuOptions {
                tier: Some(tier),
                max_binding: Some(20_000),
                ..Default::default()
            };
            let Ok(gpu) = Gpu::open(&options).wait() else {
                continue;
            };
            let lab = lab(&gpu, tier.name());
            let w = lab.weight(GgmlType::Q4_0, [1, 1000, 256]);
            cases::compare(&lab, &w).unwrap_or_else(|e| panic!("{e}"));
        }
    }
}
