//! Whether a device's cooperative matrices multiply: a small product by them and in f32.

use super::{Form, GpuGemm, Input};
use crate::gpu::memory::{GpuWeight, Part};
use crate::gpu::record::{Range, Recording, State};
use crate::gpu::{Gpu, GpuError};
use crate::kernels::rows_f16::GpuRowsF16;
use crate::quant::GgmlType;

/// The NMSE that a device may show. Rounding both factors to f16 explains 1e-7.
pub(super) const LIMIT: f64 = 1e-6;

/// The NMSE of `form` against f32 for made-up inputs and weights, neither of which fill their tiles.
///
/// # Errors
/// What the device reports.
pub(super) fn trial(gpu: &Gpu, form: Form) -> Result<f64, GpuError> {
    const TOKENS: usize = 137;
    const ROWS: usize = 139;
    const COLS: usize = 96;
    let what = "trial of products";
    let mut state = 1u32;
    // Uniform in -1..1 (the linear congruence of Numerical Recipes).
    let mut floats = |n: usize| -> Vec<f32> {
        let mut value = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..n).map(|_| value()).collect()
    };
    // The planes of f32 weights are the weights.
    let weights = gpu.storage_with(what, &floats(ROWS * COLS))?;
    let weight = GpuWeight {
        name: what.to_owned(),
        ty: GgmlType::F32,
        groups: 1,
        rows: ROWS as u32,
        cols: COLS as u32,
        parts: vec![Part {
            first_row: 0,
            rows: ROWS as u32,
            quants: Range::whole(&weights),
            scales: Range::whole(&gpu.storage(what, 16)?),
            sub: 0,
        }],
    };
    let x = Range::whole(&gpu.storage_with(what, &floats(TOKENS * COLS))?);
    let halves = [
        Range::whole(&gpu.storage(what, (TOKENS * COLS * 2) as u64)?),
        Range::whole(&gpu.storage(what, (TOKENS * 4) as u64)?),
    ];
    let prepare = GpuRowsF16 {
        x: x.clone(),
        other: None,
        parts: 1,
        cols: COLS as u32,
        norm: None,
        halves: Some(halves.clone()),
        floats: None,
        max_tokens: TOKENS as u32,
        used: 1,
        sum: None,
        last: false,
    };
    let step = State {
        tokens: TOKENS as u32,
        ..State::default()
    };
    let bytes = (TOKENS * ROWS * 4) as u64;
    let mut results = vec![];
    for (form, x) in [
        (Form::float(gpu), Input::Floats(x.clone())),
        (form, Input::Halves(halves.clone())),
    ] {
        let y = gpu.storage(what, bytes)?;
        let product = GpuGemm {
            form,
            weight: &weight,
            up: None,
            max_tokens: TOKENS as u32,
            x,
            x_stride: COLS as u32,
            x_group_stride: 0,
            experts: None,
            residual: None,
            parts: 1,
            y: Range::whole(&y),
            tile: None,
        };
        let ops: Vec<_> = [prepare.op()].into_iter().chain(product.ops()).collect();
        Recording::new(gpu, &ops)?.submit(gpu, &step);
        results.push(gpu.read::<f32>(&y, 0, bytes)?);
        gpu.release(&y);
    }
    let scales = &weight.parts[0].scales;
    for range in [&x, scales, &halves[0], &halves[1]] {
        gpu.release(&range.buffer);
    }
    gpu.release(&weights);
    let sum =
        |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>();
    let error = sum(&mut results[0].iter().zip(&results[1]).map(|(a, b)| a - b));
    Ok(error / sum(&mut results[0].iter().copied()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::testing::gpus;

    #[test]
    fn a_device_with_matrices_passes_its_trial() {
        for gpu in gpus() {
            let best = Form::best(gpu);
            assert_eq!(
                Form::for_prompts(gpu).unwrap_or_else(|e| panic!("{e}")),
                best
            );
            if best != Form::float(gpu) {
                let error = trial(gpu, best).unwrap_or_else(|e| panic!("{e}"));
                assert!(error > 0.0 && error < LIMIT, "NMSE {error:e}");
            }
        }
    }
}
