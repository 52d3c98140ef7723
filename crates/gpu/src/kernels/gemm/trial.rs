//! Whether a device's cooperative matrices multiply, and faster than floats: a small product by them and in f32, and a larger one timed.

use super::{Form, GpuGemm, Input};
use crate::gpu::Target;
use crate::gpu::buffer::{Buffer, Range, Role};
use crate::gpu::call::{Call, State};
use crate::gpu::memory::{GpuWeight, Piece};
use crate::kernels::coop::{Trial, made_up};
use crate::kernels::rows_f16::GpuRowsF16;
use crate::quant::GgmlType;

/// The NMSE that a device may show. Rounding both factors to f16 explains 1e-7.
pub(super) const LIMIT: f64 = 1e-6;
/// Tokens, rows and columns of the product that is compared: they do not fill their tiles.
pub(super) const COMPARED: [usize; 3] = [137, 139, 96];
/// Tokens, rows and columns of the product that is timed: 2 GFLOP, enough for the large tiles to fill a device.
pub(super) const TIMED: [usize; 3] = [512, 2048, 1024];

const NAME: &str = "trial of products";

/// The product of `tokens` tokens, `rows` rows and `cols` columns by `form` and in f32: of made-up inputs, which are rounded first, and
/// weights, or of zeros.
pub(super) fn product(
    target: &Target,
    form: Form,
    [tokens, rows, cols]: [usize; 3],
    is_made_up: bool,
) -> Trial<impl Fn(bool, &Range) -> Vec<Call>> {
    let mut values = made_up();
    let mut floats = |n: usize| match is_made_up {
        true => Range::whole(&Buffer::with(NAME, &values(n, 1.0))),
        false => Range::floats(NAME, n as u64),
    };
    let room = |bytes: usize, role| Range::whole(&Buffer::new(NAME, bytes as u64, role));
    let ty = GgmlType::F32;
    // The planes of f32 weights are the weights.
    let weight = GpuWeight {
        name: NAME.to_owned(),
        ty,
        groups: 1,
        rows: rows as u32,
        cols: cols as u32,
        pieces: vec![Piece {
            first_row: 0,
            rows: rows as u32,
            quants: floats(rows * cols).holding(Role::Codes(ty)),
            scales: room(16, Role::Scales(ty)),
            sub: 0,
        }],
    };
    let x = floats(tokens * cols);
    let halves = [
        room(tokens * cols * 2, Role::Halves),
        room(tokens * 4, Role::Floats),
    ];
    let max_tokens = tokens as u32;
    let calls = move |matrices: bool, y: &Range| {
        let (form, input) = match matrices {
            true => (form, Input::Halves(halves.clone())),
            false => (Form::float(target), Input::Floats(x.clone())),
        };
        let rounding = GpuRowsF16 {
            halves: Some(halves.clone()),
            ..GpuRowsF16::of(&x, weight.cols, max_tokens)
        };
        let product = GpuGemm::of(form, &weight, input, max_tokens, y);
        let rounding = is_made_up.then(|| rounding.call());
        rounding.into_iter().chain(product.calls(target)).collect()
    };
    Trial {
        state: State {
            tokens: max_tokens,
            ..State::default()
        },
        values: tokens * rows,
        calls,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::testing::{gpus, metal};
    use crate::gpu::wait::complete;
    use crate::kernels::testing::coop::{NVIDIA, emulated_call, emulates};

    #[test]
    fn a_device_with_matrices_passes_its_trial() {
        if metal::skips("a trial, which runs on the device") {
            return;
        }
        for gpu in gpus() {
            let best = Form::best(gpu);
            assert_eq!(
                complete(Form::for_prompts(gpu)).unwrap_or_else(|e| panic!("{e}")),
                best
            );
            if best != Form::float(gpu) {
                let trial = product(gpu, best, COMPARED, true);
                let error = complete(trial.nmse(gpu)).unwrap_or_else(|e| panic!("{e}"));
                assert!(error > 0.0 && error < LIMIT, "NMSE {error:e}");
            }
        }
    }

    #[test]
    fn what_is_timed_is_the_same_product_in_both_forms() {
        for gpu in gpus().iter().filter(|gpu| emulates(gpu)) {
            let form = Form::Matrix(NVIDIA);
            let trial = product(gpu, form, [16, 64, 64], false);
            let calls = |matrices: bool, y: &Range| {
                let calls = (trial.calls)(matrices, y).into_iter();
                let emulate = |call: Call| match matrices {
                    true => emulated_call(&call, NVIDIA, false),
                    false => call,
                };
                calls.map(emulate).collect()
            };
            let (state, values) = (trial.state, trial.values);
            let trial = Trial {
                state,
                values,
                calls,
            };
            let us = complete(trial.times(gpu)).unwrap_or_else(|e| panic!("{e}"));
            assert!(us.iter().all(|us| *us > 0.0), "{us:?}");
        }
    }
}
