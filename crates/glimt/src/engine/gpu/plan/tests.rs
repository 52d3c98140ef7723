//! Protects the plan of memory: it is what a device allocates, and steps of several sequences need one pass.

use std::sync::Arc;

use super::super::batch::GpuBatch;
use super::super::{GpuBackend, GpuModel};
use super::*;
use crate::engine::ModelSource;
use crate::gpu::machine::Machine;
use crate::gpu::record::works;
use crate::gpu::wait::Wait;
use crate::gpu::wait::complete;
use crate::gpu::{Gpu, GpuError, GpuOptions, Tier};
use crate::models;
use crate::synth::{ModelName, Recipe, SynthOptions, without_matrices};
use crate::testing::some;

/// Layers that need passes of their own make a step slower ("A pass for each layer" in benches/notes.md).
#[test]
fn steps_of_several_sequences_are_one_pass() {
    for tier in Tier::ALL {
        let target = Target::new("NVIDIA H200", Machine::H200, tier);
        let few = target.machine.tuned.few_of_batch;
        let gguf = without_matrices(
            ModelName::Glm47Flash,
            Recipe::Q4_0,
            &SynthOptions::default(),
        );
        let model = models::load(Arc::new(gguf.expect("a plan"))).expect("it is supported");
        let sizes = BatchSizes {
            n_ctx: 1000,
            pages: 40 * few,
            sequences: few,
            tokens: few,
            chunk: 0,
            drafts: 0,
        };
        let plan = Plan::new(&target, &*model, Residence::Whole, sizes).expect("it is recorded");
        for (_, step) in &plan.steps {
            let state = State {
                tokens: step.most.tokens,
                ..State::default()
            };
            let works = works(step, &state).expect("it is resolved");
            let passes = works.last().map_or(0, |work| work.pass + 1);
            assert_eq!(passes, 1, "up to {} tokens", step.most.tokens);
        }
    }
}

fn near(what: &str, found: u64, planned: u64) {
    let ratio = found as f64 / planned as f64;
    assert!(
        (0.98..1.02).contains(&ratio),
        "{what}: {found} bytes, planned {planned}"
    );
}

/// Bytes of the rooms for experts that are no slots. They are made when a model is loaded, but every plan counts them as scratch.
fn made_early(weights: &Weights) -> u64 {
    let slots = weights.body.rooms.iter().flatten().flat_map(Rooms::slots);
    let slots: HashSet<_> = slots.flat_map(GpuWeight::buffers).collect();
    let all = weights.body.rooms.iter().flatten();
    let all: HashSet<_> = all.flat_map(Rooms::buffers).collect();
    all.difference(&slots).map(|buffer| buffer.size()).sum()
}

#[test]
fn the_plan_is_what_a_gpu_allocates() {
    for residence in some(
        &[Residence::Whole, Residence::Slots(0), Residence::Slots(3)],
        1,
    ) {
        check_allocated(residence);
    }
}

fn check_allocated(residence: Residence) {
    let gpu = match Gpu::open(&GpuOptions::default()).wait() {
        Ok(gpu) => Arc::new(gpu),
        Err(GpuError::NoAdapter) => {
            eprintln!("skipped: no GPU adapter");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let gguf = ModelSource::Embedded.open();
    let gguf = Arc::new(gguf.expect("it is part of the program"));
    let model = models::load(gguf).expect("it is supported");
    let loaded = GpuModel::load_for(Arc::clone(&gpu), model, residence, 1, &mut |_, _| {})
        .wait()
        .expect("it fits");
    // The tier of the model may have been measured while it was loaded.
    let gpu = Arc::clone(&loaded.gpu);
    let of_weights = gpu.allocated();
    let loaded = Arc::new(loaded);
    let model = &*loaded.model;
    // In a small model matrices may be slower. Then steps have other buffers than a plan that is made before the trials.
    let placed = model.place(&gpu, residence).expect("it fits");
    let early = made_early(&placed.weights);
    let sessions = complete(placed.weights.tried(&gpu)).expect("the trials run");
    let sizes = BatchSizes {
        n_ctx: 1000,
        pages: 40,
        sequences: 5,
        tokens: 128,
        chunk: 0,
        drafts: 0,
    };
    let of_batch = Plan::of(&gpu, model, &placed, &sessions, sizes);
    let [weights, cache, scratch] = of_batch.expect("it fits").bytes;
    near("weights", of_weights - early, weights);
    let mut batch = GpuBatch::new(Arc::clone(&loaded), sizes)
        .wait()
        .expect("it fits");
    complete(batch.prepare_all()).expect("it compiles");
    near(
        "batch",
        gpu.allocated() - of_weights - cache,
        scratch - early,
    );
    let before = gpu.allocated();
    let of_session = Plan::of(
        &gpu,
        model,
        &placed,
        &sessions,
        BatchSizes::of_one(1000, 100),
    );
    let [_, cache, scratch] = of_session.expect("it fits").bytes;
    let _session = GpuBackend::with_chunk(Arc::clone(&loaded), 1000, Some(100))
        .wait()
        .expect("it fits");
    near("session", gpu.allocated() - before - cache, scratch - early);
}
