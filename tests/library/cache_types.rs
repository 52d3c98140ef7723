//! Protects caches of 8 bits on a GPU: a trained model computes with one what it computes with such a cache on the CPU.

use std::sync::Arc;

use glimt::engine::cpu::CpuBackend;
use glimt::engine::gpu::{GpuBackend, GpuModel};
use glimt::engine::{CacheType, DeviceChoice, Products, Tier, Wait};
use glimt::gguf::Gguf;
use glimt::gpu::{Gpu, GpuOptions};
use glimt::model::NextnSource;
use glimt::models;

use crate::golden::{all_logits, in_repository};

/// The errors of logits of each position, relative to their squares, from the smallest on.
fn nmse(expected: &[Vec<f32>], found: &[Vec<f32>]) -> Vec<f64> {
    let error = |(a, b): (&Vec<f32>, &Vec<f32>)| {
        let pairs = a.iter().zip(b);
        let error: f64 = pairs.map(|(a, b)| f64::from(a - b).powi(2)).sum();
        error / a.iter().map(|a| f64::from(*a).powi(2)).sum::<f64>()
    };
    let mut errors: Vec<_> = expected.iter().zip(found).map(error).collect();
    errors.sort_by(f64::total_cmp);
    errors
}

#[test]
fn a_gpu_computes_with_it_what_the_cpu_does() {
    let gguf = Gguf::open(&in_repository("assets/tales-q4_k_m.gguf")).expect("it is there");
    let model = models::load_with_cache(Arc::new(gguf), &NextnSource::None, CacheType::Q8_0);
    let model = model.expect("it is supported");
    let tokens: Vec<u32> = (0..90).map(|i| 300 + i * 37 % 3000).collect();
    let cpu = CpuBackend::new(Arc::clone(&model), Products::Exact, tokens.len());
    let mut cpu = cpu.expect("a small cache");
    // A prompt by the kernels of many tokens, one by those of few, and tokens one by one.
    let lengths = [70, 9, 1, 1, 9];
    let expected = all_logits(&mut cpu, &tokens, &lengths);
    for tier in Tier::ALL {
        let options = GpuOptions {
            device: DeviceChoice::Index(0),
            tier: Some(tier),
            ..GpuOptions::default()
        };
        let Ok(gpu) = Gpu::open(&options).wait() else {
            eprintln!("skipped: tier {}", tier.name());
            continue;
        };
        let loaded = GpuModel::load(Arc::new(gpu), Arc::clone(&model), &mut |_, _| {}).wait();
        let loaded = Arc::new(loaded.expect("it loads"));
        let mut backend = GpuBackend::new(loaded, tokens.len())
            .wait()
            .expect("it has room");
        let found = all_logits(&mut backend, &tokens, &lengths);
        let error = nmse(&expected, &found);
        let median = error[error.len() / 2];
        eprintln!("{}: NMSE {median:.1e}", tier.name());
        // Activations are rounded in all tiers but `plain`, and codes fall to other sides.
        assert!(median <= 1e-4, "{}: {median:e}", tier.name());
    }
}
