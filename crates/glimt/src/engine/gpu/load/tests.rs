//! Protects the choice between the tiers with subgroups: it is measured once, kept, told and used.

use super::*;
use crate::engine::ModelSource;
use crate::engine::backend::Backend;
use crate::engine::gpu::GpuBackend;
use crate::gguf::Gguf;
use crate::gpu::stamps::lies::{self, Lie};
use crate::gpu::wait::Wait;
use crate::gpu::wait::complete;
use crate::gpu::{Gpu, GpuOptions};
use crate::models;
use crate::synth::{self, ModelName, Recipe, SynthOptions};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

fn open(tier: Option<Tier>) -> Option<Arc<Gpu>> {
    let gpu = Gpu::open(&GpuOptions {
        tier,
        ..GpuOptions::default()
    })
    .wait();
    match gpu {
        Ok(gpu) if gpu.tier != Tier::Plain => Some(Arc::new(gpu)),
        Ok(_) | Err(GpuError::TierUnsupported { .. }) => {
            eprintln!("skipped: the adapter has no subgroups");
            None
        }
        Err(e) => panic!("these tests need a GPU adapter: {e}"),
    }
}

fn load(gpu: &Arc<Gpu>, gguf: Gguf) -> GpuModel {
    let model = models::load(Arc::new(gguf)).expect("it is supported");
    GpuModel::load(Arc::clone(gpu), model, &mut |_, _| {})
        .wait()
        .expect("it is small")
}

fn built_in() -> Gguf {
    ModelSource::Embedded.open().expect("it is in the program")
}

#[test]
fn bytes_must_be_a_hundredth_faster() {
    let tier = |us| TierTrial::of(1, us, Clock::Gpu).tier;
    assert_eq!(tier([101.1, 100.0]), Tier::Int8);
    assert_eq!(tier([100.9, 100.0]), Tier::Subgroup);
    assert_eq!(tier([100.0, 200.0]), Tier::Subgroup);
    assert_eq!(tier([300.0, 100.0]), Tier::Int8);
}

#[test]
fn the_line_tells_the_choice_and_why() {
    assert_eq!(
        TierTrial::of(1, [1500.0, 1000.0], Clock::Gpu).to_string(),
        "tier: int8, measured: a token takes 1.500 ms in subgroup, 1.000 ms in int8"
    );
    assert_eq!(
        TierTrial::of(8, [1000.0, 1000.0], Clock::Host).to_string(),
        "tier: subgroup, measured by the host's clock: a step of 8 tokens takes 1.000 ms in subgroup, 1.000 ms in int8"
    );
}

#[test]
fn both_tiers_are_timed_for_one_sequence_and_for_several() {
    let Some(gpu) = open(Some(Tier::Subgroup)) else {
        return;
    };
    let options = SynthOptions::default();
    let plan = synth::without_matrices(ModelName::Tiny, Recipe::Q4KM, &options);
    let model = load(&gpu, plan.expect("a plan"));
    let before = gpu.allocated();
    for sequences in [1, 3] {
        let try_tiers = || complete(model.try_tiers(sequences)).expect("its shapes suit");
        let trial = try_tiers();
        eprintln!("{trial}");
        assert_eq!(trial.sequences, sequences);
        assert!(trial.us.iter().all(|us| *us > 0.0), "{trial}");
        assert_eq!(gpu.allocated(), before, "nothing of it stays");
    }
    // By the host's clock, where the GPU's lies.
    let trial = lies::with(Lie::Zeros, || complete(model.try_tiers(2))).expect("its shapes suit");
    assert_eq!(trial.clock, Clock::Host);
    assert!(trial.us.iter().all(|us| *us > 0.0), "{trial}");
}

#[test]
fn a_choice_is_kept_for_a_number_of_sequences_and_a_kind_of_model() {
    let Some(gpu) = open(Some(Tier::Subgroup)) else {
        return;
    };
    let key = |layers, sequences| {
        let options = SynthOptions {
            layers: Some(layers),
            ..SynthOptions::default()
        };
        let plan = synth::without_matrices(ModelName::TinyGlm, Recipe::Q4_0, &options);
        let model = models::load(Arc::new(plan.expect("a plan"))).expect("it is supported");
        let model = GpuModel::load(Arc::clone(&gpu), model, &mut |_, _| {})
            .wait()
            .expect("it is small");
        model.tier_key(sequences)
    };
    let keys = [key(1, 1), key(2, 1), key(2, 8)];
    assert_eq!(keys[1], key(2, 1));
    assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), 3, "{keys:?}");
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_tier_is_measured_once_kept_and_used() {
    let Some(gpu) = open(None) else { return };
    let software = gpu.info.device_type == wgpu::DeviceType::Cpu;
    let metal = gpu.info.backend == wgpu::Backend::Metal;
    assert_eq!(gpu.tier_is_open, !software && !metal);
    let gpu = match open(Some(Tier::Subgroup)) {
        // Bytes run everywhere that halves do: the driver puts them together.
        Some(gpu) if !metal => gpu,
        _ => return,
    };
    assert!(!gpu.tier_is_open, "what was asked for is not measured");
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let mut model = load(&gpu, built_in());
    assert_eq!((model.gpu.tier, model.tier_trial), (Tier::Subgroup, None));
    complete(model.settle_tier(1, Some(folder))).expect("it is measured");
    let trial = model.tier_trial.expect("nothing was kept");
    assert_eq!(model.gpu.tier, trial.tier);
    let key = model.tier_key(1);
    let kept = tuning::tiers(folder, &gpu.info).expect("it was written");
    assert_eq!(kept[&key].int8, trial.tier == Tier::Int8);

    let tokens: Vec<u32> = (0..24).map(|i| 7 * i + 3).collect();
    let logits = |model: GpuModel| {
        let mut rows = vec![];
        let mut backend = GpuBackend::new(Arc::new(model), 64)
            .wait()
            .expect("a small cache");
        for (pos, token) in tokens.iter().enumerate() {
            let on_row = &mut |_, row: &[f32]| {
                rows.extend(row.iter().map(|x| x.to_bits()));
                ControlFlow::Continue(())
            };
            backend
                .logits(&[*token], pos, on_row)
                .wait()
                .expect("it fits");
        }
        rows
    };
    for tier in TIERS {
        let measured = MeasuredTier {
            int8: tier == Tier::Int8,
            subgroup_us: 1.0,
            int8_us: 1.0,
        };
        tuning::save_tier(folder, &gpu.info, &key, measured).expect("it can be written");
        let mut model = load(&gpu, built_in());
        complete(model.settle_tier(1, Some(folder))).expect("it is kept");
        assert_eq!((model.gpu.tier, model.tier_trial), (tier, None));
        // The model computes the same logits as on a device that was opened in that tier.
        let Some(asked) = open(Some(tier)) else {
            return;
        };
        let expected = logits(load(&asked, built_in()));
        assert!(logits(model) == expected, "tier {}", tier.name());
    }

    // A folder that cannot be written costs only the keeping.
    let file = folder.join("file");
    std::fs::write(&file, "").expect("it can be written");
    for nowhere in [Some(file.as_path()), None] {
        let mut model = load(&gpu, built_in());
        complete(model.settle_tier(1, nowhere)).expect("it is measured");
        assert!(model.tier_trial.is_some());
    }
}
