//! Protects what `bench` and `profile` ask of the GPU backend: the bytes they count, the caches they fill and the times they read.

use std::ops::ControlFlow;
use std::sync::Arc;

use glimt::engine::Sampling;
use glimt::engine::Wait;
use glimt::engine::backend::{Backend, BackendError};
use glimt::engine::gpu::measure::Separation;
use glimt::engine::gpu::{GpuBackend, GpuModel};
use glimt::gpu::{Gpu, GpuError, GpuOptions};
use glimt::models::mla::Model;
use glimt::synth::{self, ModelName, Recipe, SynthOptions};

/// A model whose weights are made on the first adapter.
fn backend(name: ModelName, n_ctx: usize, chunk: u32) -> (GpuBackend, Arc<Model>) {
    let gguf = synth::without_matrices(name, Recipe::Q4_0, &SynthOptions::default())
        .expect("the plan is right");
    let model = Arc::new(Model::load(Arc::new(gguf)).expect("it is supported"));
    let gpu = Gpu::open(&GpuOptions::default())
        .wait()
        .expect("these tests need a GPU adapter");
    let weights = GpuModel::load(Arc::new(gpu), model.clone(), &mut |_, _| {})
        .wait()
        .expect("the model is small");
    let backend = GpuBackend::with_chunk(Arc::new(weights), n_ctx, Some(chunk))
        .wait()
        .expect("a small cache");
    (backend, model)
}

fn last_logits(backend: &mut GpuBackend, tokens: &[u32], pos: usize) -> Vec<f32> {
    let mut last = vec![];
    let on_row = &mut |_, row: &[f32]| {
        last = row.to_vec();
        ControlFlow::Continue(())
    };
    backend.logits(tokens, pos, on_row).wait().expect("it fits");
    last
}

#[test]
fn a_step_reads_every_weight_of_a_dense_model_once_and_the_cache() {
    let (backend, model) = backend(ModelName::TinyYoutu, 100, 64);
    let matrices: u64 = model
        .gguf
        .tensors()
        .iter()
        .filter(|t| t.dims.len() > 1)
        .map(|t| t.byte_len())
        .sum();
    let row = (model.config.cache_values() * 2 * model.layers.len()) as u64;
    // The head is the embedding; one row of it is read twice. A choice reads the logits.
    let expected = matrices + 11 * row + model.config.vocab_size as u64 * 4;
    let found = backend.step_bytes(10);
    assert!(
        (0.99..1.02).contains(&(found as f64 / expected as f64)),
        "{found} bytes, not {expected}"
    );
    assert_eq!(backend.step_bytes(11) - found, row);
}

#[test]
fn random_rows_are_a_cache_like_any_other() {
    for chunk in [1, 7, 64] {
        let (mut backend, _) = backend(ModelName::TinyDs2, 300, chunk);
        let empty = last_logits(&mut backend, &[5, 6, 7], 200);
        backend.fill_cache(200).wait().expect("it fits");
        let filled = last_logits(&mut backend, &[5, 6, 7], 200);
        assert!(filled.iter().all(|l| l.is_finite()));
        assert_ne!(empty, filled);
        // Rows from 200 on are computed, the same again.
        assert_eq!(filled, last_logits(&mut backend, &[5, 6, 7], 200));
        let error = backend.fill_cache(301).wait();
        assert!(matches!(error, Err(BackendError::ContextOverflow { .. })));
    }
}

#[test]
fn timing_changes_no_token_and_tells_times_in_order() {
    let (mut backend, _) = backend(ModelName::Tiny, 64, 64);
    let decode = |backend: &mut GpuBackend| {
        backend.prefill(&[1, 2, 3], 0).wait().expect("it fits");
        let mut tokens = vec![];
        let on_token = &mut |token| {
            tokens.push(token);
            ControlFlow::Continue(())
        };
        let context = [1, 2, 3];
        backend
            .decode(&context, &Sampling::GREEDY, 6, on_token)
            .wait()
            .expect("it fits");
        tokens
    };
    let before = decode(&mut backend);
    assert_eq!(backend.take_host_time().steps, 5);
    backend.prefill(&[1, 2, 3], 0).wait().expect("it fits");
    let steps = match backend.time_steps(&[1, 2, 3], 5) {
        Err(BackendError::Gpu(error)) if matches!(*error, GpuError::NoTimestamps { .. }) => {
            eprintln!("skipped: this adapter has no timestamps");
            return;
        }
        other => other.expect("it fits"),
    };
    assert_eq!(steps.len(), 5);
    assert!(steps.iter().all(|[begin, end]| begin < end), "{steps:?}");
    assert!(steps.windows(2).all(|s| s[0][1] <= s[1][0]), "{steps:?}");
    for separation in [Separation::Stamps, Separation::Passes] {
        let runs = match backend.time_dispatches(3, 2, separation, &Sampling::GREEDY) {
            Ok(runs) => runs,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(runs.len(), 2);
        for run in runs {
            assert_eq!(run.len(), backend.step(4).len());
            assert!(run.iter().all(|[begin, end]| begin <= end), "{run:?}");
            assert!(run.windows(2).all(|d| d[0][1] <= d[1][0]), "{run:?}");
        }
        let error = backend.time_dispatches(60, 5, separation, &Sampling::GREEDY);
        assert!(matches!(error, Err(BackendError::ContextOverflow { .. })));
    }
    assert_eq!(decode(&mut backend), before);
}
