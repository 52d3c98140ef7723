//! Protects the end of a layer of a batch: sums, norm and preparation agree with the twin.

use super::*;
use crate::gpu::call::State;
use crate::gpu::testing::{all_gpus, download, output, run, upload};
use crate::kernels::testing::{Rng, assert_close};
use crate::kernels::token::TokenOutput;
use crate::kernels::token::testing::{activation, assert_prepared};

#[test]
fn the_gpu_agrees_with_its_twin() {
    let mut rng = Rng::fresh();
    for (used, rows, tokens) in [(4, 2048, 5), (6, 2048, 3), (0, 2048, 9), (2, 96, 17)] {
        let [slots, weights, residual, norm] =
            [tokens * used * rows, tokens * used, tokens * rows, rows].map(|n| rng.normals(n));
        let [sums, normed] = batch_combine(&slots, &weights, &residual, &norm, 1e-5);
        for gpu in all_gpus() {
            let range = |data: &[f32]| Range::whole(&upload(gpu, data));
            let x = output(gpu, sums.len());
            let words = activation(gpu).bytes((tokens * rows).div_ceil(32) as u64) as usize / 4;
            let values = Range::whole(&output(gpu, words))
                .holding(crate::gpu::buffer::Role::prepared(activation(gpu)));
            let call = GpuBatchCombine {
                slots: (used > 0).then(|| [range(&slots), range(&weights)]),
                used: used as u32,
                residual: range(&residual),
                x: Some(Range::whole(&x)),
                norm: (range(&norm), 1e-5),
                values: values.clone(),
                activation: activation(gpu),
                rows: rows as u32,
            }
            .call();
            let state = State {
                tokens: tokens as u32,
                ..State::default()
            };
            run(gpu, &[call], &state);
            let exact: Vec<f64> = sums.iter().map(|v| f64::from(*v)).collect();
            let what = format!("{used} of {rows}, {}", gpu.tier.name());
            assert_close(&download(gpu, &x, sums.len()), &exact, 1e-12, &what);
            let prepared = TokenOutput { values, norm: None };
            assert_prepared(gpu, &prepared, None, &normed, &what);
        }
    }
}
