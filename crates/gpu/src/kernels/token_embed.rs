//! [`embed()`] of each token: its row as f32 and prepared for the first layer.

use super::embed::{self, embed};
use super::sequences::Sequences;
use super::token::{TokenOutput, kernel};
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent};
use crate::gpu::memory::{GpuWeight, Piece};
use crate::model::Weight;
use crate::quant::activation::{Activation, squares};

/// The row history\[pos\], or those of up to `tokens` tokens of several `sequences`, as f32 in `y` and as `activation` in `prepared`, which
/// must have a norm; one dispatch per piece.
///
/// # Panics
/// If `prepared` has no norm, or rows are no whole units.
pub fn calls(
    (sequences, tokens): (Option<&Sequences>, u32),
    token_embd: &GpuWeight,
    history: &Range,
    y: &Range,
    prepared: &TokenOutput,
    activation: Activation,
) -> Vec<Call> {
    let w = token_embd;
    assert!(w.cols.is_multiple_of(32), "rows of {}", w.name);
    let norm = prepared.norm.as_ref();
    let (norm, squares) = norm.expect("the first layer begins with a norm");
    let units = w.cols / 32;
    let along_tokens = match tokens {
        1 => Extent::N(1),
        _ => Extent::Tokens,
    };
    let call = |piece: &Piece| {
        let call = kernel("token_embed", activation).number("UNITS", units);
        embed::row(call, sequences, w, piece, history)
            .bind("g", norm)
            .bind("y", y)
            .bind("squares_out", squares)
            .bind("prepared", &prepared.values)
            .grid([Extent::N(units.div_ceil(64)), along_tokens, Extent::N(1)])
    };
    w.pieces.iter().map(call).collect()
}

/// The row of `token`, its sums of squares of 16 values, and the row times `norm`.
pub fn token_embed(
    token_embd: &Weight,
    token: u32,
    norm: &[f32],
) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let mut x = vec![0.0; token_embd.cols];
    embed(token_embd, &[token], &mut x);
    let weighted: Vec<f32> = x.iter().zip(norm).map(|(x, g)| x * g).collect();
    let squares = squares(&x);
    (x, squares, weighted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::testing::{assert_refused, token_gpus, token_gpus_with_binding, unmade_weight};
    use crate::kernels::cases::token_embed as cases;
    use crate::kernels::testing::{agree, assert_in_pieces, lab};
    use crate::quant::GgmlType;

    #[test]
    fn the_gpu_agrees_for_every_type() {
        agree(token_gpus(), |_| cases::cases());
    }

    #[test]
    fn a_row_of_any_piece_is_taken() {
        for gpu in &token_gpus_with_binding(20_000) {
            let lab = lab(gpu, "pieces");
            let w = lab.weight(GgmlType::Q4_0, [1, 300, 256]);
            assert_in_pieces(gpu, &w);
            cases::compare(&lab, &w).unwrap_or_else(|e| panic!("{e}"));
        }
    }

    #[test]
    fn buffers_that_do_not_fit_are_refused() {
        let weight = unmade_weight(GgmlType::Q4_0, 1, 37, 256);
        let call = |prepared, squares| {
            let output = TokenOutput {
                values: Range::prepared("prepared", prepared, 256),
                norm: Some((
                    Range::floats("norm", 256),
                    Range::floats("squares", squares),
                )),
            };
            let (history, y) = (Range::words("history", 8), Range::floats("y", 256));
            calls((None, 1), &weight, &history, &y, &output, Activation::Bytes)
        };
        let refused = |calls: Vec<Call>, binding| {
            assert_refused(&calls, 1, "token_embed", binding);
        };
        refused(call(Activation::Bytes, 12), "squares_out");
        refused(call(Activation::Floats, 16), "prepared");
    }
}
