//! [`embed()`] of one token: the row as f32 and prepared for the first layer.

use super::embed::{self, embed};
use super::sequences::Sequences;
use super::token::{TokenOutput, kernel};
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent};
use crate::gpu::memory::{GpuWeight, Piece};
use crate::model::Weight;
use crate::quant::activation::{Activation, squares};

/// The row history\[pos\], or that of a token of one of several `sequences`, as f32 in `y` and as `activation` in `prepared`, which must have
/// a norm; one dispatch per piece.
///
/// # Panics
/// If `prepared` has no norm, or rows are no whole units.
pub fn calls(
    sequences: Option<&Sequences>,
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
    let call = |piece: &Piece| {
        let call = kernel("token_embed", activation).number("UNITS", units);
        embed::row(call, sequences, w, piece, history)
            .bind("g", norm)
            .bind("y", y)
            .bind("squares_out", squares)
            .bind("prepared", &prepared.values)
            .grid([units.div_ceil(64), 1, 1].map(Extent::N))
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
    use crate::gpu::Gpu;
    use crate::gpu::testing::{assert_refused, unmade_weight};
    use crate::gpu::testing::{
        download, gpu_weight, output, run, token_gpus, token_gpus_with_binding, upload,
    };
    use crate::kernels::sequences::tests::places;
    use crate::kernels::testing::{Rng, assert_close, drawn_pairs, random_weight};
    use crate::kernels::token::testing::{activation, assert_prepared, room};
    use crate::quant::GgmlType;

    /// Compares the kernel with its twin, for a token alone and in a batch; the pieces of the weight.
    fn check(gpu: &Gpu, rng: &mut Rng, ty: GgmlType, [rows, cols]: [usize; 2]) -> usize {
        let w = random_weight(rng, ty, 1, rows, cols);
        let norm = rng.normals(cols);
        let w_on_gpu = gpu_weight(gpu, &w);
        let pieces = &w_on_gpu.pieces;
        // The first row of a piece lies just behind the rows of the piece before.
        let first = pieces.last().map_or(0, |piece| piece.first_row);
        let id = if pieces.len() > 1 {
            first
        } else {
            rng.below(rows) as u32
        };
        let (places, _) = places(gpu, rng, 3);
        for place in places {
            let mut history: Vec<u32> = (0..200).map(|_| rng.below(rows) as u32).collect();
            history[place.state.first_id as usize + 3] = id;
            let (y, q) = (output(gpu, cols), room(gpu, cols, Some(&norm)));
            let calls = calls(
                place.sequences.as_ref(),
                &w_on_gpu,
                &Range::whole(&upload(gpu, &history)),
                &Range::whole(&y),
                &q,
                activation(gpu),
            );
            run(gpu, &calls, &place.state);
            let (x, ..) = token_embed(&w, id, &norm);
            let exact: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
            assert_close(&download(gpu, &y, cols), &exact, 1e-13, ty.name());
            assert_prepared(gpu, &q, Some(&norm), &x, ty.name());
        }
        pieces.len()
    }

    #[test]
    fn the_gpu_agrees_for_every_type() {
        let mut rng = Rng::fresh();
        for (gpu, &ty) in drawn_pairs(&token_gpus(), GgmlType::ALL) {
            // Workgroups have 64 threads. The units of a row fill one, or they do not.
            let cols = [768, 2048][rng.below(2)];
            check(gpu, &mut rng, ty, [37, cols]);
        }
    }

    #[test]
    fn a_row_of_any_piece_is_taken() {
        for gpu in token_gpus_with_binding(20_000) {
            let pieces = check(&gpu, &mut Rng::fresh(), GgmlType::Q4_0, [300, 256]);
            assert!(pieces > 1, "{pieces} pieces");
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
            calls(None, &weight, &history, &y, &output, Activation::Bytes)
        };
        let refused = |calls: Vec<Call>, binding| {
            assert_refused(&calls, 1, "token_embed", binding);
        };
        refused(call(Activation::Bytes, 12), "squares_out");
        refused(call(Activation::Floats, 16), "prepared");
    }
}
