//! Protects models in emulated subgroups: they give the same.

use crate::engine::ModelSource;
use crate::engine::Sampling;
use crate::engine::backend::Backend;
use crate::engine::gpu::{GpuBackend, GpuModel};
use crate::gpu::testing::waves;
use crate::gpu::wait::Wait;
use crate::gpu::{Gpu, GpuOptions, Tier};
use crate::kernels::testing::nmse;
use crate::models::mla::Model;
use crate::testing::some;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Logits of tokens one by one, then of a prompt, then what is drawn after it.
fn results(gpu: Gpu) -> (Vec<f32>, Vec<f32>, Vec<u32>) {
    let gguf = ModelSource::Embedded.open().expect("it is in the program");
    let model = Arc::new(Model::load(Arc::new(gguf)).expect("it is supported"));
    let model = GpuModel::load(Arc::new(gpu), model, &mut |_, _| {})
        .wait()
        .expect("it is small");
    let mut backend = GpuBackend::new(Arc::new(model), 96)
        .wait()
        .expect("a small cache");
    let tokens: Vec<u32> = (0..40).map(|i| 11 * i + 5).collect();
    let mut rows = vec![];
    for (pos, token) in tokens[..6].iter().enumerate() {
        let on_row = &mut |_, row: &[f32]| {
            rows.extend_from_slice(row);
            ControlFlow::Continue(())
        };
        backend
            .logits(&[*token], pos, on_row)
            .wait()
            .expect("it fits");
    }
    let mut prompt = vec![];
    let on_row = &mut |i, row: &[f32]| {
        if i == 39 {
            prompt.extend_from_slice(row);
        }
        ControlFlow::Continue(())
    };
    backend.logits(&tokens, 0, on_row).wait().expect("it fits");
    let mut drawn = vec![];
    let sampling = Sampling {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.02,
        repeat_penalty: 1.1,
        seed: 7,
        ..Sampling::GREEDY
    };
    let on_token = &mut |id| {
        drawn.push(id);
        ControlFlow::Continue(())
    };
    backend
        .decode(&tokens, &sampling, 6, on_token)
        .wait()
        .expect("it fits");
    (rows, prompt, drawn)
}

fn check(tier: Tier, sizes: &[u32], limit: f64) {
    let emulating = waves(tier, &some(sizes, 1));
    if emulating.is_empty() {
        return;
    }
    let options = GpuOptions {
        tier: Some(tier),
        no_matrices: true,
        ..GpuOptions::default()
    };
    let (rows, prompt, drawn) = results(Gpu::open(&options).wait().expect("it opened before"));
    for gpu in emulating {
        let size = gpu.waves.expect("it is emulated");
        assert_eq!(gpu.lanes(), gpu.info.subgroup_min_size);
        let found = results(gpu);
        for (what, found, expected) in
            [("tokens", &found.0, &rows), ("a prompt", &found.1, &prompt)]
        {
            let exact: Vec<_> = expected.iter().map(|x| f64::from(*x)).collect();
            let error = nmse(found, &exact);
            eprintln!(
                "{what} in subgroups of {size}, tier {}: NMSE {error:.1e}",
                tier.name()
            );
            assert!(error <= limit, "{what} in subgroups of {size}: {error:e}");
        }
        assert_eq!(found.2, drawn, "subgroups of {size}");
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_model_in_larger_waves_is_the_same() {
    check(Tier::Subgroup, &[16, 32, 64], 1e-6);
}

/// Sums in another order round a few activations to other bytes.
#[test]
#[ignore = "long: scripts/test --all"]
fn a_model_on_bytes_in_larger_waves_is_nearly_the_same() {
    check(Tier::Int8, &[32], 1e-3);
}
