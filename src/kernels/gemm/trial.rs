//! Whether a device's cooperative matrices multiply, and faster than floats: a small product by them and in f32, and a larger one timed.

use super::{Form, GpuGemm, Input};
use crate::gpu::buffer::{Range, Role};
use crate::gpu::call::{Call, State};
use crate::gpu::memory::{GpuWeight, Piece};
use crate::gpu::record::Recording;
use crate::gpu::{Gpu, GpuError};
use crate::gpu::{Most, Step};
use crate::kernels::coop;
use crate::kernels::rows_f16::GpuRowsF16;
use crate::quant::GgmlType;

/// The NMSE that a device may show. Rounding both factors to f16 explains 1e-7.
pub(super) const LIMIT: f64 = 1e-6;

/// A product of made-up inputs and weights, or of zeros, in any form.
struct Problem {
    tokens: usize,
    rows: usize,
    cols: usize,
    weight: GpuWeight,
    x: Range,
    halves: [Range; 2],
}

const WHAT: &str = "trial of products";

impl Problem {
    /// With weights (rows, cols) and inputs (tokens, cols) from `values`, or zeros where there are none.
    async fn new(
        gpu: &Gpu,
        [tokens, rows, cols]: [usize; 3],
        mut values: Option<&mut dyn FnMut(usize) -> Vec<f32>>,
    ) -> Result<Self, GpuError> {
        let mut floats = async |n: usize| {
            let buffer = match &mut values {
                Some(values) => gpu.storage_with_async(WHAT, &values(n)).await?,
                None => {
                    let bytes = n as u64 * 4;
                    gpu.storage_async(WHAT, bytes, Role::Floats).await?
                }
            };
            Ok::<_, GpuError>(Range::whole(&buffer))
        };
        let room = async |bytes: usize, role| {
            let buffer = gpu.storage_async(WHAT, bytes as u64, role).await?;
            Ok::<_, GpuError>(Range::whole(&buffer))
        };
        // The planes of f32 weights are the weights.
        let weight = GpuWeight {
            name: WHAT.to_owned(),
            ty: GgmlType::F32,
            groups: 1,
            rows: rows as u32,
            cols: cols as u32,
            pieces: vec![Piece {
                first_row: 0,
                rows: rows as u32,
                quants: floats(rows * cols)
                    .await?
                    .holding(Role::Codes(GgmlType::F32)),
                scales: room(16, Role::Scales(GgmlType::F32)).await?,
                sub: 0,
            }],
        };
        Ok(Self {
            tokens,
            rows,
            cols,
            weight,
            x: floats(tokens * cols).await?,
            halves: [
                room(tokens * cols * 2, Role::Halves).await?,
                room(tokens * 4, Role::Floats).await?,
            ],
        })
    }

    fn state(&self) -> State {
        State {
            tokens: self.tokens as u32,
            ..State::default()
        }
    }

    /// Bytes of the output.
    fn bytes(&self) -> u64 {
        (self.tokens * self.rows * 4) as u64
    }

    /// Rounds the inputs for the forms by matrices.
    fn prepare(&self) -> Call {
        GpuRowsF16 {
            x: self.x.clone(),
            other: None,
            partial_sums: 1,
            cols: self.cols as u32,
            norm: None,
            halves: Some(self.halves.clone()),
            floats: None,
            max_tokens: self.tokens as u32,
            used: 1,
            sum: None,
            last: false,
        }
        .call()
    }

    /// The product in a form.
    fn calls(&self, gpu: &Gpu, form: Form, y: &Range) -> Vec<Call> {
        let product = GpuGemm {
            form,
            weight: &self.weight,
            up: None,
            max_tokens: self.tokens as u32,
            x: match form {
                Form::Float { .. } => Input::Floats(self.x.clone()),
                Form::Matrix(_) => Input::Halves(self.halves.clone()),
            },
            x_stride: self.cols as u32,
            x_group_stride: 0,
            experts: None,
            residual: None,
            split_k: 1,
            y: y.clone(),
            tile: None,
        };
        product.calls(gpu)
    }

    /// Frees all of it.
    fn release(self, gpu: &Gpu) {
        let planes = &self.weight.pieces[0];
        let [halves, scales] = &self.halves;
        for range in [&planes.quants, &planes.scales, &self.x, halves, scales] {
            gpu.release(&range.buffer);
        }
    }
}

/// The NMSE of `form` against f32 for made-up inputs and weights, neither of which fill their tiles.
///
/// # Errors
/// What the device reports.
pub(super) async fn trial(gpu: &Gpu, form: Form) -> Result<f64, GpuError> {
    let mut state = 1u32;
    // Uniform in -1..1 (the linear congruence of Numerical Recipes).
    let mut floats = |n: usize| -> Vec<f32> {
        let mut value = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..n).map(|_| value()).collect()
    };
    let problem = Problem::new(gpu, [137, 139, 96], Some(&mut floats)).await?;
    let mut results = vec![];
    for form in [Form::float(gpu), form] {
        let bytes = problem.bytes();
        let y = gpu.storage_async(WHAT, bytes, Role::Floats).await?;
        let calls = [
            vec![problem.prepare()],
            problem.calls(gpu, form, &Range::whole(&y)),
        ]
        .concat();
        let step = Step::of(Most::of(&problem.state()), calls);
        let recording = Recording::new_async(gpu, &step).await?;
        recording.submit(gpu, &problem.state());
        results.push(gpu.read_async::<f32>(&y, 0, bytes).await?);
        gpu.release(&y);
    }
    problem.release(gpu);
    let sum =
        |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>();
    let error = sum(&mut results[0].iter().zip(&results[1]).map(|(a, b)| a - b));
    Ok(error / sum(&mut results[0].iter().copied()))
}

/// Tokens, rows and columns of the product that is timed: 2 GFLOP, enough for the large tiles to fill a device.
const TIMED: [usize; 3] = [512, 2048, 1024];

/// Whether `form` is not slower than f32 ([`coop::faster`]).
///
/// # Errors
/// What the device reports.
pub(super) async fn faster(gpu: &Gpu, form: Form, what: &str) -> Result<bool, GpuError> {
    timed(gpu, form, TIMED, async |steps, state| {
        coop::faster(gpu, what, steps, state).await
    })
    .await
}

/// What `by` makes of the product by `form` and in f32.
async fn timed<T>(
    gpu: &Gpu,
    form: Form,
    sizes: [usize; 3],
    by: impl AsyncFnOnce([&[Call]; 2], &State) -> Result<T, GpuError>,
) -> Result<T, GpuError> {
    let problem = Problem::new(gpu, sizes, None).await?;
    let y = gpu.storage_async(WHAT, problem.bytes(), Role::Floats);
    let y = Range::whole(&y.await?);
    let [matrices, floats] = [form, Form::float(gpu)].map(|form| problem.calls(gpu, form, &y));
    let found = by([&matrices, &floats], &problem.state()).await;
    gpu.release(&y.buffer);
    problem.release(gpu);
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::testing::gpus;
    use crate::gpu::wait::complete;
    use crate::kernels::testing::coop::{NVIDIA, emulated_call, emulates};

    #[test]
    fn a_device_with_matrices_passes_its_trial() {
        for gpu in gpus() {
            let best = Form::best(gpu);
            assert_eq!(
                complete(Form::for_prompts(gpu)).unwrap_or_else(|e| panic!("{e}")),
                best
            );
            if best != Form::float(gpu) {
                let error = complete(trial(gpu, best)).unwrap_or_else(|e| panic!("{e}"));
                assert!(error > 0.0 && error < LIMIT, "NMSE {error:e}");
            }
        }
    }

    #[test]
    fn what_is_timed_is_the_same_product_in_both_forms() {
        for gpu in gpus().iter().filter(|gpu| emulates(gpu)) {
            let form = Form::Matrix(NVIDIA);
            let us = timed(
                gpu,
                form,
                [16, 64, 64],
                async |[matrices, floats], state| {
                    let emulate = |call: &Call| emulated_call(call, NVIDIA, false);
                    let matrices: Vec<_> = matrices.iter().map(emulate).collect();
                    coop::times(gpu, [&matrices, floats], state).await
                },
            );
            let us = complete(us).unwrap_or_else(|e| panic!("{e}"));
            assert!(us.iter().all(|us| *us > 0.0), "{us:?}");
        }
    }
}
