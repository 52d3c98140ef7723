//! Protects the forward passes on the GPU: in every tier and mode they stay near the golden values of whole models, and near the CPU
//! reference.

mod cousins;
mod precomposed;
mod sessions;
mod tokens;

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::golden::{
    FIXTURES, Golden, all_logits, check_golden, check_small_files, check_synthetic, fixture,
    greedy, in_repository, load, random_tokens, requantised,
};
use crate::testing::{drawn, some};
use glimt::engine::PrecomposeChoice;
use glimt::engine::Products;
use glimt::engine::backend::{Answer, Backend, BackendError, OnPrompt, OnRow, OnToken};
use glimt::engine::cpu::CpuBackend;
use glimt::engine::gpu::{GpuBackend, GpuModel};
use glimt::engine::sampling::Sampling;
use glimt::engine::{Biases, Wait};
use glimt::gpu::{Gpu, GpuError, GpuOptions, Tier};
use glimt::models::{self, mla::Model};
use glimt::quant::GgmlType;
use glimt::quant::activation::Activation;

/// With f32 activations nearly all of the error is that of the f16 cache, as on the CPU.
const NMSE: f64 = 1e-7;

/// With f32 activations, relative to the spread of each position's log-probabilities.
const CONTRAST: f64 = 5e-5;

/// With prompts computed by cooperative matrices: activations and weights rounded to f16.
const NMSE_MATRICES: f64 = 1e-3;

/// The error that prompts may have against exact logits on a device, and relative to the spread of a position's log-probabilities.
pub fn limits(gpu: &Gpu) -> (f64, f64) {
    match gpu.coop {
        Some(_) => (NMSE_MATRICES, f64::INFINITY),
        None => (NMSE, CONTRAST),
    }
}

/// The error that prompts of few tokens may have against the CPU reference, relative to the spread. Where two experts are nearly as good,
/// rounding to f16 may choose the other one ("Agreement with the golden values on the H200" in benches/notes.md).
fn contrast_of_prompts(gpu: &Gpu) -> f64 {
    match gpu.coop {
        Some(_) => 1e-2,
        None => CONTRAST,
    }
}

/// With activations as halves, each rounded to 11 bits.
const NMSE_HALVES: f64 = 5e-7;

/// With activations as halves, relative to the spread of each position's log-probabilities: small synthetic models are nearly certain in
/// places.
const CONTRAST_HALVES: f64 = 2e-2;

/// With activations as halves that are multiplied in pairs, 4 products of codes without a sign to a sum of 11 bits: Q6_K strays most, by
/// 2e-6.
const NMSE_PACKED: f64 = 5e-6;

/// With halves multiplied in pairs, relative to the spread.
const CONTRAST_PACKED: f64 = 5e-2;

/// With activations as bytes; llama.cpp's own CPU path strays by 4e-4 to 1e-3.
const NMSE_INT8: f64 = 1e-3;

/// A backend whose tokens are all computed one by one, as in decoding.
pub struct OneByOne(pub GpuBackend);

impl Backend for OneByOne {
    fn n_ctx(&self) -> usize {
        self.0.n_ctx()
    }

    fn set_biases(&mut self, biases: Biases) {
        self.0.set_biases(biases);
    }

    fn prefill_watched<'a>(
        &'a mut self,
        tokens: &'a [u32],
        pos: usize,
        _: &'a mut OnPrompt<'_>,
    ) -> Answer<'a, usize> {
        Box::pin(async move {
            for (i, token) in tokens.iter().enumerate() {
                let unwatched = &mut |_| ControlFlow::Continue(());
                (self.0.prefill_watched(&[*token], pos + i, unwatched)).await?;
            }
            Ok(tokens.len())
        })
    }

    fn logits_watched<'a>(
        &'a mut self,
        tokens: &'a [u32],
        pos: usize,
        _: &'a mut OnPrompt<'_>,
        on_row: &'a mut OnRow<'_>,
    ) -> Answer<'a, usize> {
        Box::pin(async move {
            for (i, token) in tokens.iter().enumerate() {
                let unwatched = &mut |_| ControlFlow::Continue(());
                let on_row = &mut |_: usize, row: &[f32]| on_row(i, row);
                (self.0.logits_watched(&[*token], pos + i, unwatched, on_row)).await?;
            }
            Ok(tokens.len())
        })
    }

    fn fill_cache(&mut self, rows: usize) -> Answer<'_, ()> {
        self.0.fill_cache(rows)
    }

    fn read_rows(&mut self, positions: std::ops::Range<usize>) -> Answer<'_, Vec<u8>> {
        self.0.read_rows(positions)
    }

    fn write_rows<'a>(&'a mut self, first: usize, rows: &'a [u8]) -> Answer<'a, ()> {
        self.0.write_rows(first, rows)
    }

    fn branch(&self, rows: usize) -> Answer<'_, Box<dyn Backend>> {
        self.0.branch(rows)
    }

    fn decode<'a>(
        &'a mut self,
        context: &'a [u32],
        sampling: &'a Sampling,
        limit: usize,
        on_token: &'a mut OnToken<'_>,
    ) -> Answer<'a, ()> {
        self.0.decode(context, sampling, limit, on_token)
    }
}

/// The logits of `tokens` from `pos` on.
fn all_logits_from(backend: &mut dyn Backend, tokens: &[u32], pos: usize) -> Vec<Vec<f32>> {
    let mut rows = vec![];
    let on_row = &mut |_, row: &[f32]| {
        rows.push(row.to_vec());
        ControlFlow::Continue(())
    };
    backend.logits(tokens, pos, on_row).wait().expect("it fits");
    rows
}

/// The first adapter in the `int8` tier, where it can run it.
fn int8() -> Option<Arc<Gpu>> {
    open_tier(Tier::Int8)
}

/// The first adapter in a tier, or nothing (said on stderr) where it cannot run it; no adapter fails the test.
fn open_tier(tier: Tier) -> Option<Arc<Gpu>> {
    open_with(GpuOptions {
        tier: Some(tier),
        ..Default::default()
    })
}

fn open_with(options: GpuOptions) -> Option<Arc<Gpu>> {
    let tier = options.tier.expect("a test names it");
    match Gpu::open(&options).wait() {
        Ok(gpu) => Some(Arc::new(gpu)),
        Err(GpuError::TierUnsupported { .. }) => {
            eprintln!("skipped: tier {} (this adapter cannot run it)", tier.name());
            None
        }
        Err(e) => panic!("these tests need a GPU adapter: {e}"),
    }
}

/// The first adapter in the tiers with f32 activations.
pub fn tiers() -> Vec<Arc<Gpu>> {
    let gpus: Vec<_> = [Tier::Plain, Tier::Subgroup]
        .into_iter()
        .filter_map(open_tier)
        .collect();
    assert!(!gpus.is_empty());
    gpus
}

fn backend(gpu: &Arc<Gpu>, model: &Arc<Model>, n_ctx: usize) -> GpuBackend {
    backend_of(gpu, model.clone(), n_ctx)
}

/// A backend of a model of any family.
pub fn backend_of(gpu: &Arc<Gpu>, model: Arc<dyn models::Model>, n_ctx: usize) -> GpuBackend {
    let model = GpuModel::load(Arc::clone(gpu), model, &mut |_, _| {})
        .wait()
        .expect("the model fits");
    GpuBackend::new(Arc::new(model), n_ctx)
        .wait()
        .expect("a small cache")
}

fn embedded() -> Arc<Model> {
    load(&in_repository("assets/tales-q4_k_m.gguf"))
}

/// The worst squared difference of a position's logits relative to their variance there.
pub fn contrast(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f64 {
    contrasts(found, expected).into_iter().fold(0.0, f64::max)
}

/// The squared difference of each position's logits relative to their variance there.
pub fn contrasts(found: &[Vec<f32>], expected: &[Vec<f32>]) -> Vec<f64> {
    assert_eq!(found.len(), expected.len());
    let position = |(a, b): (&Vec<f32>, &Vec<f32>)| {
        let mean = b.iter().map(|v| f64::from(*v)).sum::<f64>() / b.len() as f64;
        let error: f64 = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        let variance: f64 = b.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum();
        assert!(error.is_finite(), "a logit is not finite");
        error / variance
    };
    found.iter().zip(expected).map(position).collect()
}

#[test]
fn the_embedded_model_gives_the_golden_values() {
    let golden = Golden::read(&in_repository("tests/data/golden-tales-q4_k_m.json"));
    for gpu in tiers() {
        let (nmse, contrast) = limits(&gpu);
        check_golden(
            &mut backend(&gpu, &embedded(), 128),
            &golden,
            gpu.tier.name(),
            nmse,
            contrast,
        );
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn every_tales_fixture_gives_its_golden_values() {
    let gpus = tiers();
    for ty in some(&FIXTURES, 1) {
        let (Some(model), Some(golden)) = (
            fixture(&format!("tales/tales-{ty}.gguf")),
            fixture(&format!("tales/golden-{ty}.json")),
        ) else {
            return;
        };
        let golden = Golden::read(&golden);
        for gpu in drawn(&gpus, 1) {
            let name = format!("{ty} {}", gpu.tier.name());
            let (nmse, contrast) = limits(gpu);
            check_golden(
                &mut backend(gpu, &load(&model), 128),
                &golden.with_a_prompt(),
                &name,
                nmse,
                contrast,
            );
        }
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn synthetic_models_give_their_golden_values() {
    for gpu in drawn(&tiers(), 1) {
        let (nmse, contrast) = limits(gpu);
        check_synthetic(
            [1, 1],
            &mut |model, n_ctx| Box::new(backend(gpu, model, n_ctx)),
            nmse,
            contrast,
        );
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn models_of_types_below_4_bits_and_mxfp4_give_their_golden_values() {
    for gpu in drawn(&tiers(), 1) {
        let (nmse, contrast) = limits(gpu);
        check_small_files(
            2,
            &mut |model, n_ctx| Box::new(backend(gpu, model, n_ctx)),
            nmse,
            contrast,
        );
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn every_weight_type_gives_the_logits_of_the_cpu_reference() {
    let model = embedded();
    let tokens = random_tokens(5);
    let gpus = tiers();
    for ty in some(GgmlType::ALL, 6) {
        let model = Arc::new(requantised(&model, ty));
        let mut cpu = CpuBackend::new(model.clone(), Products::Exact, 16).expect("a small cache");
        let expected = all_logits(&mut cpu, &tokens, &[]);
        // The fastest tier: the kernels' own tests take every type through every tier.
        let gpu = gpus.last().expect("at least one tier");
        let found = all_logits(&mut backend(gpu, &model, 16), &tokens, &[]);
        let error = contrast(&found, &expected);
        eprintln!("{}: contrast {error:.2e}", ty.name());
        assert!(
            error < contrast_of_prompts(gpu),
            "{}: contrast error {error:.2e}",
            ty.name()
        );
    }
}

/// The tiers that decode by other kernels than they compute prompts, with the limits of each, by dispatches that do small work once;
/// and `repeating` with workgroups that repeat it. Halves are multiplied one by one, and in pairs.
pub fn tiers_of_tokens(repeating: Tier) -> Vec<(Arc<Gpu>, f64, f64)> {
    let open = |(tier, packed, repeats_work)| {
        let gpu = open_with(GpuOptions {
            tier: Some(tier),
            repeats_work: Some(repeats_work),
            packed_halves: Some(packed),
            ..Default::default()
        })?;
        let (nmse, contrast) = token_limits(&gpu);
        Some((gpu, nmse, contrast))
    };
    let all = [
        (Tier::Subgroup, false, false),
        (Tier::Subgroup, true, false),
        (Tier::Int8, false, false),
        (repeating, false, true),
    ];
    all.into_iter().filter_map(open).collect()
}

/// The error that decoded tokens may have against exact logits on a device, and relative to the spread of a position's log-probabilities.
fn token_limits(gpu: &Gpu) -> (f64, f64) {
    match gpu.activation() {
        Activation::Bytes => (NMSE_INT8, f64::INFINITY),
        Activation::Halves { packed: true } => (NMSE_PACKED, CONTRAST_PACKED),
        _ => (NMSE_HALVES, CONTRAST_HALVES),
    }
}

/// The form of the activations that a device of [`tiers_of_tokens`] multiplies.
pub fn form(gpu: &Gpu) -> &'static str {
    gpu.activation().name()
}
