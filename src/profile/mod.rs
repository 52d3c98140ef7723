//! Where the time of a decoded token goes: each dispatch of a real step timed on the GPU.
//!
//! Timestamps cost something and keep neighbours apart, so every profile tells what the same step takes without them.

mod report;
mod summary;
mod timeline;

pub use report::markdown;
pub use summary::{Kernel, LayerTime, Profile};
pub use timeline::svg;

use std::sync::Arc;

use crate::bench::{BenchError, Source, Test, build, measure, n_ctx, random_tokens};
use crate::bench::{backend_name, describe, driver};
use crate::engine::backend::Backend;
use crate::engine::bandwidth::read_bandwidth;
use crate::engine::gpu::measure::Separation;
use crate::engine::gpu::{GpuBackend, GpuModel};
use crate::engine::{DeviceChoice, PrecomposeChoice, Tier};
use crate::gpu::stamps::Stamps;
use crate::gpu::{Gpu, GpuOptions};
use crate::model::precompose::DEFAULT_PRECOMPOSE;
use crate::tokenizer::strftime_now;
use summary::{Head, median};

/// Repetitions of the decoding that tells the time of a token without timestamps.
const REPETITIONS: usize = 5;

/// What to profile.
#[derive(Debug, Clone)]
pub struct ProfileOptions {
    /// The model.
    pub source: Source,
    /// On which GPU.
    pub device: DeviceChoice,
    /// With which kernels; the best of the GPU where `None`.
    pub tier: Option<Tier>,
    /// Which weights decoding reads composed; the default where `None`.
    pub precompose: Option<PrecomposeChoice>,
    /// Tokens that are timed; medians are over them.
    pub tokens: usize,
    /// Cache rows before them.
    pub depth: usize,
    /// A pass per dispatch even where timestamps between dispatches are possible.
    pub passes: bool,
}

/// Times the dispatches of decoded tokens; `on_load` is told the bytes of weights done and in all.
///
/// # Errors
/// Any [`BenchError`], [`GpuError::NoTimestamps`](crate::gpu::GpuError::NoTimestamps) among them.
pub fn run(
    options: &ProfileOptions,
    on_load: &mut dyn FnMut(u64, u64),
) -> Result<Profile, BenchError> {
    if options.device == DeviceChoice::Cpu {
        return Err(BenchError::ProfileOnCpu);
    }
    let model = options.source.load()?;
    let test = Test {
        prompt: 0,
        generate: options.tokens,
        depth: options.depth,
    };
    let n_ctx = n_ctx(&[test], &model)?;
    let gpu = Arc::new(Gpu::open(&GpuOptions {
        device: options.device.clone(),
        tier: options.tier,
        tuned: true,
        ..GpuOptions::default()
    })?);
    // Refused before anything is loaded.
    let empty_pass = Stamps::empty_pass(&gpu)?;
    let peak = read_bandwidth(&gpu)?;
    let choice = options.precompose.unwrap_or(DEFAULT_PRECOMPOSE);
    let (weights, precomposed) =
        GpuModel::load_precomposed(Arc::clone(&gpu), Arc::clone(&model), choice, n_ctx, on_load)?;
    // No prompt is computed: the cache is filled.
    let mut backend = GpuBackend::with_chunk(Arc::new(weights), n_ctx, Some(1))?;
    backend.fill_cache(options.depth)?;

    let vocab = model.config.vocab_size;
    measure(&mut backend, &test, vocab)?;
    let mut token_us = Vec::with_capacity(REPETITIONS);
    for _ in 0..REPETITIONS {
        let time = measure(&mut backend, &test, vocab)?;
        token_us.push(time.as_secs_f64() * 1e6 / options.tokens as f64);
    }
    let first = options.depth.max(1);
    backend.prefill(&random_tokens(1, vocab), first - 1)?;
    let steps = backend.time_steps(&vec![0; first], options.tokens)?;
    let step_us = steps.iter().map(|[begin, end]| (end - begin) / 1e3);

    let separation = match Separation::best(&gpu) {
        _ if options.passes => Separation::Passes,
        best => best,
    };
    // The first round pays for whatever the driver does once.
    backend.time_dispatches(first, options.tokens.min(3), separation)?;
    let times = backend.time_dispatches(first, options.tokens, separation)?;
    let head = Head {
        build_commit: build::COMMIT,
        version: build::VERSION,
        gpu_info: gpu.info.name.clone(),
        driver: driver(&gpu),
        backends: backend_name(gpu.info.backend),
        tier: gpu.tier.name(),
        precompose: precomposed.map(|p| p.to_string()),
        model_filename: options.source.name(),
        model_type: describe(&model),
        n_depth: options.depth,
        tokens: options.tokens,
        test_time: strftime_now("%Y-%m-%dT%H:%M:%SZ").unwrap_or_default(),
        peak_gb_per_s: peak / 1e9,
        separation: match separation {
            Separation::Stamps => "timestamps between dispatches",
            Separation::Passes => "a pass per dispatch",
        },
        empty_pass_us: (separation == Separation::Passes).then_some(empty_pass / 1e3),
        token_us: median(token_us),
        step_us: median(step_us.collect()),
    };
    let dense = match &model.config.experts {
        Some(_) => model.config.leading_dense_block_count,
        None => model.config.block_count,
    };
    Ok(Profile::new(
        head,
        &backend.step(first),
        first,
        &times,
        dense,
    ))
}
