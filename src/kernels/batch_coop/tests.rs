//! Protects the products of a batch by matrices: they agree with those in floats, on the device's matrices and on emulated ones.

use super::*;
use crate::gpu::Gpu;
use crate::gpu::buffer::{Range, Role};
use crate::gpu::call::State;
use crate::gpu::testing::{download, gpu_weights, output, run, token_gpus, upload};
use crate::kernels::testing::coop::{emulated_call, emulates};
use crate::kernels::testing::{Rng, assert_close, random_weight};
use crate::kernels::token::testing::{activation, upload_values};
use crate::kernels::token::{Divided, TokenInput, TokenOutput};
use crate::model::Weight;
use crate::quant::GgmlType;
use crate::quant::activation::squares;

struct Case {
    ty: GgmlType,
    groups: usize,
    rows: usize,
    cols: usize,
    pair: bool,
    tokens: usize,
}

fn check(gpu: &Gpu, rng: &mut Rng, case: &Case, coop: Coop, emulate: bool) {
    let &Case {
        ty,
        groups,
        rows,
        cols,
        pair,
        tokens,
    } = case;
    let weights: Vec<Weight> = (0..1 + usize::from(pair))
        .map(|_| random_weight(rng, ty, groups, rows, cols))
        .collect();
    let refs: Vec<&Weight> = weights.iter().collect();
    let on_gpu = gpu_weights(gpu, &refs);
    let width = groups * cols;
    // Rows of very different sizes, some of them beyond f16.
    let size = |i: usize| [1.0, 1e-3, 3e5][i / width % 3];
    let x: Vec<f32> = rng.normals(tokens * width);
    let x: Vec<f32> = x.iter().enumerate().map(|(i, x)| x * size(i)).collect();
    let n = groups * rows;
    let range = |data: &[f32]| Range::whole(&upload(gpu, data));
    let residual = (!pair).then(|| range(&rng.normals(tokens * n)));
    let normed = groups == 1;
    let input = TokenInput {
        values: upload_values(gpu, &x),
        rms: normed.then(|| (range(&squares(&x)), 1e-5)),
    };
    let g = rng.normals(n);
    let words = activation(gpu).bytes((tokens * n).div_ceil(32) as u64) as usize / 4;
    let product = || GpuBatchMatvec {
        up: on_gpu.get(1),
        x_stride: (width / 32) as u32,
        x_group: if groups > 1 { (cols / 32) as u32 } else { 0 },
        residual: residual.clone(),
        y: Some(Range::whole(&output(gpu, tokens * n))),
        prepared: Some(TokenOutput {
            values: Range::whole(&output(gpu, words)).holding(Role::prepared(activation(gpu))),
            norm: Some((range(&g), Range::whole(&output(gpu, tokens * n / 16)))),
        }),
        ..GpuBatchMatvec::new(
            gpu.machine,
            &on_gpu[0],
            activation(gpu),
            tokens as u32,
            Input::Prepared(input.clone()),
        )
    };
    let state = State {
        tokens: tokens as u32,
        ..State::default()
    };
    let left = |product: &GpuBatchMatvec<'_>, calls: &[Call]| {
        run(gpu, calls, &state);
        let y = product.y.as_ref().expect("it is there");
        let prepared = product.prepared.as_ref().expect("it is there");
        let (_, sums) = prepared.norm.as_ref().expect("a norm");
        let y: Vec<f32> = download(gpu, &y.buffer, tokens * n);
        let sums: Vec<f32> = download(gpu, &sums.buffer, tokens * n / 16);
        (y, sums)
    };
    let floats = product();
    let (exact, _) = left(&floats, &floats.calls(gpu).expect("it is allowed"));
    let matrices = product();
    let calls = matrices.calls_by_matrices(gpu, coop, tokens as u32);
    let mut calls = calls.expect("the sizes suit");
    if emulate {
        calls = calls
            .iter()
            .map(|call| emulated_call(call, coop, false))
            .collect();
    }
    let (found, sums) = left(&matrices, &calls);
    let what = format!(
        "{} {groups} x {rows} x {cols}, {tokens} tokens, {coop:?}",
        ty.name()
    );
    // Row by row, since rows are of different sizes: inputs and weights are rounded to f16.
    for (found, exact) in found.chunks_exact(n).zip(exact.chunks_exact(n)) {
        let exact: Vec<f64> = exact.iter().map(|v| f64::from(*v)).collect();
        assert_close(found, &exact, 2e-6, &what);
    }
    for (found, exact) in sums.iter().zip(squares(&found)) {
        assert!((found - exact).abs() <= 1e-4 * exact, "{what}: squares");
    }
}

fn cases() -> [Case; 6] {
    let case = |ty, groups, rows, cols, pair, tokens| Case {
        ty,
        groups,
        rows,
        cols,
        pair,
        tokens,
    };
    [
        case(GgmlType::Q4_0, 1, 768, 2048, false, 32),
        case(GgmlType::Q4_K, 1, 576, 2048, false, 17),
        case(GgmlType::Q5_0, 5, 64, 192, false, 40),
        case(GgmlType::Q8_0, 4, 128, 512, false, 16),
        case(GgmlType::Q6_K, 1, 96, 768, true, 33),
        case(GgmlType::F16, 1, 64, 96, false, 20),
    ]
}

#[test]
fn matrices_agree_with_floats() {
    for gpu in token_gpus() {
        let mut rng = Rng::fresh();
        let Some(coop) = gpu.coop else {
            eprintln!("skipped: {} has no matrices", gpu.info.name);
            continue;
        };
        for case in cases() {
            check(gpu, &mut rng, &case, coop, false);
        }
    }
}

#[test]
fn emulated_matrices_of_other_makers_agree_with_floats() {
    for gpu in token_gpus().into_iter().filter(|gpu| emulates(gpu)) {
        let mut rng = Rng::fresh();
        for coop in [Coop::NVIDIA, Coop::APPLE] {
            for case in cases().iter().take(4) {
                let small = Case {
                    rows: case.rows.min(64),
                    cols: case.cols.min(512),
                    ..*case
                };
                check(gpu, &mut rng, &small, coop, true);
            }
        }
    }
}
