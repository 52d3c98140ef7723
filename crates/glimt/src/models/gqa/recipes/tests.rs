//! Protects the steps of models with grouped-query attention on every kind of device, recorded without one: calls go with what their
//! kernels declare, and neither dispatches nor memory change unnoticed.

use crate::engine::gpu::plan::Plan;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent, State, When};
use crate::gpu::interface::Resolved;
use crate::gpu::machine::{Machine, Profile};
use crate::gpu::record::works;
use crate::gpu::target::profiles;
use crate::gpu::{Step, Target, Tier};
use crate::kernels::CacheType;
use crate::model::{Convert, NextnSource, Weight};
use crate::models::Model as _;
use crate::models::gqa::{Layer, Model};
use crate::quant::GgmlType;
use crate::recipes::{BatchSizes, Residence, Steps};
use crate::synth::{ModelName, Recipe, SynthOptions, without_matrices};
use crate::testing::{drawn, drawn_pairs};
use std::convert::Infallible;
use std::fmt::Write;
use std::sync::Arc;

/// Rows of a context that is cut into many slices, and whose cache of a layer is one binding of a browser.
const N_CTX: usize = 32_000;

/// Sizes of a batch, whose steps have one token to many.
const BATCH: BatchSizes = BatchSizes {
    n_ctx: 4000,
    pages: 500,
    sequences: 64,
    tokens: 512,
    chunk: 512,
    drafts: 0,
};

/// The models of all architectures.
fn names() -> Vec<ModelName> {
    let all = crate::models::gqa::FAMILY.architectures.iter();
    all.flat_map(|name| ModelName::of(name)).collect()
}

/// A model of these sizes with three layers and matrices of `types` in turn, where rows allow it.
fn model(name: ModelName, types: &[GgmlType]) -> Model {
    let options = SynthOptions {
        layers: Some(3),
        ..SynthOptions::default()
    };
    let gguf = without_matrices(name, Recipe::Q4_0, &options).expect("a plan");
    let model = Model::with_nextn(Arc::new(gguf), &NextnSource::None);
    let mut model = model.expect("it is supported");
    let mut by = Retyped { types, next: 0 };
    let convert = |layer: &Layer| {
        let Ok(layer) = layer.convert(&mut by, |attention, by| attention.convert(by));
        layer
    };
    model.weights.layers = model.layers.iter().map(convert).collect();
    model
}

/// Makes every matrix whose rows allow it one of `types`, in turn; none where there are none.
struct Retyped<'t> {
    types: &'t [GgmlType],
    next: usize,
}

impl<'a> Convert<'a, Weight, Vec<f32>> for Retyped<'_> {
    type Weight = Weight;
    type Vector = Vec<f32>;
    type Error = Infallible;

    fn weight(&mut self, weight: &'a Weight) -> Result<Weight, Infallible> {
        let mut weight = weight.clone();
        if let Some(&ty) = self.types.iter().cycle().nth(self.next) {
            // The router keeps what it is.
            if weight.cols.is_multiple_of(ty.block_len()) && weight.ty != GgmlType::F32 {
                weight.ty = ty;
            }
        }
        self.next += 1;
        Ok(weight)
    }

    fn vector(&mut self, vector: &'a Vec<f32>) -> Result<Vec<f32>, Infallible> {
        Ok(vector.clone())
    }
}

/// All steps of a session and of a batch, and the plan of the session.
fn plan(target: &Target, model: &Model, residence: Residence) -> (Vec<(&'static str, Step)>, Plan) {
    let what = format!("{} on {}", model.config.name, target.name);
    let session = Plan::of_one(target, model, residence, N_CTX, None);
    let mut session = session.unwrap_or_else(|e| panic!("{what}: {e}"));
    let batch = Plan::new(target, model, residence, BATCH);
    let batch = batch.unwrap_or_else(|e| panic!("{what}: {e}"));
    let steps = std::mem::take(&mut session.steps).into_iter();
    (steps.chain(batch.steps).collect(), session)
}

/// The steps of these sizes.
fn steps(target: &Target, model: &Model, sizes: BatchSizes) -> Steps {
    let placed = model.place(target, Residence::Whole).expect("it fits");
    let steps = placed.weights.untried(target).steps(target, sizes);
    steps.expect("a cache")
}

/// The calls of a step, held against what their kernels declare.
#[track_caller]
fn resolved(target: &Target, what: &str, step: &Step) -> Vec<Resolved> {
    let calls = step.resolve();
    let calls =
        calls.unwrap_or_else(|e| panic!("{what} on {}, {}: {e}", target.name, target.tier.name()));
    // Tier `plain` may bind no more storage buffers than every browser gives.
    let most = if target.tier.has_subgroups() { 16 } else { 8 };
    for call in &calls {
        let bound = call.bindings.len();
        assert!(bound <= most, "{what} on {}: {bound} bindings", target.name);
    }
    calls
}

/// Dispatches of a replay over as many tokens as the step is for, in a short context.
fn dispatches(step: &Step) -> usize {
    let state = State {
        pos: 9,
        tokens: step.most.tokens,
        slices: 1,
        kernels: 1,
        ..State::default()
    };
    let held = |call: &&Call| call.when.holds(&state);
    step.calls.iter().filter(held).count()
}

/// A line for each model and device: dispatches of each step, and MiB of weights, of the cache and of all else.
fn document() -> String {
    let mut text = String::new();
    for name in names() {
        let model = model(name, &[]);
        for target in profiles() {
            let (steps, session) = plan(&target, &model, Residence::Whole);
            let count = |(name, step): &(&str, Step)| {
                resolved(&target, name, step);
                format!("{name} of {} {}", step.most.tokens, dispatches(step))
            };
            let counts: Vec<_> = steps.iter().map(count).collect();
            let mib = session.bytes.map(|bytes| bytes >> 20);
            let (device, tier, counts) = (&target.name, target.tier.name(), counts.join(", "));
            writeln!(text, "{name}, {device}, {tier}: {counts}; {mib:?} MiB").expect("it grows");
        }
    }
    text
}

#[test]
fn every_model_is_recorded_for_every_device() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/data/steps-grouped.txt"
    );
    let now = document();
    if std::env::var_os("GLIMT_WRITE").is_some() {
        std::fs::write(path, &now).unwrap_or_else(|e| panic!("{path}: {e}"));
    }
    let recorded = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    for (now, recorded) in now.lines().zip(recorded.lines()) {
        assert_eq!(now, recorded, "GLIMT_WRITE=1 writes {path} anew");
    }
    assert_eq!(now.lines().count(), recorded.lines().count(), "{path}");
}

#[test]
fn a_cache_of_8_bits_has_the_dispatches_of_one_in_f16() {
    let mut coded = 0;
    for name in names() {
        let [f16, mut q8_0] = [(); 2].map(|()| model(name, &[]));
        if q8_0.set_cache_type(CacheType::Q8_0).is_err() {
            continue;
        }
        coded += 1;
        for target in profiles() {
            let (with_codes, session) = plan(&target, &q8_0, Residence::Whole);
            let (steps, of_f16) = plan(&target, &f16, Residence::Whole);
            for ((what, step), (_, other)) in with_codes.iter().zip(&steps) {
                resolved(&target, what, step);
                assert_eq!(
                    dispatches(step),
                    dispatches(other),
                    "{name} {what} on {}",
                    target.name
                );
            }
            assert_eq!(with_codes.len(), steps.len(), "{name} on {}", target.name);
            assert!(session.bytes[1] < of_f16.bytes[1] * 6 / 11, "{name}");
        }
    }
    assert!(coded > 1, "models with heads of whole blocks");
}

/// The kernel, the condition and the grid of each call. Where few buffers can be bound, the rows of the cache take several dispatches, and
/// they count as one here.
fn forms(target: &Target, step: &Step) -> Vec<(&'static str, When, Option<[Extent; 3]>)> {
    let calls = step.calls.iter().map(|call| {
        let divided = call.kernel == "grouped_rows" && !target.tier.has_subgroups();
        (call.kernel, call.when, (!divided).then_some(call.grid))
    });
    let mut calls: Vec<_> = calls.collect();
    calls.dedup_by(|a, b| a.2.is_none() && b.2.is_none());
    calls
}

#[test]
fn a_sequence_alone_and_prompts_in_pages_take_the_dispatches_of_a_session() {
    for (target, name) in drawn_pairs(&profiles(), &names()) {
        let model = model(*name, &[]);
        let session = steps(target, &model, BatchSizes::of_one(4000, 512));
        let batch = steps(target, &model, BATCH);
        let [in_session, in_pages] = [&session, &batch].map(|steps| {
            let step = steps.prompt(target, 9, 512);
            step.expect("its shapes suit")
        });
        assert_eq!(
            forms(target, &in_pages),
            forms(target, &in_session),
            "{name}, {}",
            target.name
        );
        for call in &in_pages.calls {
            // Whatever reads or writes the cache finds its rows by the pages, and no kernel reads the table.
            let bound = |name: &str| call.bound(name).is_some();
            let cached = in_pages_of(&batch, call);
            assert!(!cached || bound("pages"), "{}", call.kernel);
            assert!(!bound("table"), "{}", call.kernel);
        }
        if target.tier.has_subgroups() {
            let logits = Range::floats("logits", model.config.vocab_size as u64);
            let token = session.token(target, &logits).expect("its shapes suit");
            let alone = batch.step(target, 1).expect("its shapes suit");
            // The head is a step of its own in a batch.
            let (token, alone) = (forms(target, &token), forms(target, &alone));
            assert_eq!(alone, token[..alone.len()], "{name}, {}", target.name);
        }
    }
}

/// Whether a call binds the cache of a layer.
fn in_pages_of(steps: &Steps, call: &Call) -> bool {
    let mut bound = call.ranges();
    bound.any(|range| steps.cache().iter().any(|c| c.buffer == range.buffer))
}

#[test]
fn several_tokens_take_the_dispatches_of_one() {
    for (target, name) in drawn_pairs(&profiles(), &names()) {
        let mut target = target.clone();
        target.machine.serial_passes = false;
        if !target.tier.has_subgroups() {
            continue;
        }
        let model = model(*name, &[]);
        let batch = steps(&target, &model, BATCH);
        let of = |tokens: u32| {
            let step = batch.step(&target, tokens).expect("its shapes suit");
            let of_attention = [
                "token_matvec",
                "grouped_rows",
                "grouped_attention",
                "attention_merge",
            ];
            let calls = step.calls.iter();
            let kernels = calls.map(|call| call.kernel);
            kernels
                .filter(|kernel| of_attention.contains(kernel))
                .count()
        };
        let most = crate::recipes::few::most_as_one(&target, true);
        if most >= 2 {
            assert_eq!(of(2), of(1), "{name}, {}", target.name);
        }
    }
}

#[test]
fn calls_go_with_their_kernels_for_weights_of_every_type_and_in_pieces() {
    let profiles = profiles();
    let others = GgmlType::ALL.iter().cycle().skip(1);
    let types: Vec<_> = GgmlType::ALL.iter().zip(others).collect();
    let types: Vec<_> = drawn(&types, 8).into_iter().copied().collect();
    for (&(&ty, &other), &name) in drawn_pairs(&types, &names()) {
        let model = model(name, &[ty, other]);
        for target in drawn(&profiles, profiles.len() / 4) {
            let small = Target {
                max_binding: 64 << 20,
                ..target.clone()
            };
            for target in [target, &small] {
                let session = Plan::of_one(target, &model, Residence::Whole, 4096, Some(512));
                let session = session.unwrap_or_else(|e| panic!("{name}, {}: {e}", target.name));
                for (step, calls) in &session.steps {
                    resolved(target, step, calls);
                }
            }
        }
    }
}

#[test]
fn experts_in_host_memory_or_in_the_file_have_steps() {
    let profiles = profiles();
    let targets: Vec<_> = profiles.iter().filter(|t| t.tier.has_subgroups()).collect();
    let model = model(ModelName::Qwen3_30bA3b, &[]);
    for target in drawn(&targets, 2) {
        for slots in [0, 8, 20, 128] {
            for residence in [Residence::Slots(slots), Residence::File(slots)] {
                let (steps, planned) = plan(target, &model, residence);
                for (what, step) in &steps {
                    resolved(target, what, step);
                }
                assert!(planned.host + planned.file > 0, "{}", target.name);
            }
        }
    }
}

/// A large GPU in this tier, in one mode.
fn target(tier: Tier, serial_passes: bool, repeats_work: bool) -> Target {
    let mut target = Target::h200();
    target.tier = tier;
    target.machine.serial_passes = serial_passes;
    target.asked_to_repeat = Some(repeats_work);
    target
}

#[test]
fn a_layer_of_each_model_takes_so_many_dispatches_that_wait() {
    // The dispatches of the last layer, and how many of these wait for results of each other, by (serial, repeating): (false, false), (false,
    // true), (true, false), (true, true). With serial passes keys and values share a grid. In a short context no slices are joined.
    for (name, pos, expected) in [
        (
            ModelName::Qwen3_30bA3b,
            3000,
            [(10, 8), (9, 7), (9, 8), (8, 7)],
        ),
        (ModelName::Qwen3_30bA3b, 0, [(9, 7), (8, 6), (8, 7), (7, 6)]),
        (
            ModelName::Smollm2_135m,
            3000,
            [(9, 7), (9, 7), (8, 7), (8, 7)],
        ),
        (ModelName::Smollm2_135m, 0, [(8, 6), (8, 6), (7, 6), (7, 6)]),
    ] {
        let model = model(name, &[]);
        for tier in [Tier::Subgroup, Tier::Int8] {
            let modes = [(false, false), (false, true), (true, false), (true, true)];
            let found = modes.map(|(serial, repeats)| {
                let target = target(tier, serial, repeats);
                let logits = Range::floats("logits", model.config.vocab_size as u64);
                let session = steps(&target, &model, BatchSizes::of_one(4000, 1));
                let step = session.token(&target, &logits).expect("its shapes suit");
                let state = State {
                    pos,
                    tokens: 1,
                    slices: 1,
                    ..State::default()
                };
                let works = works(&step, &state).expect("it is resolved");
                let of = |layer: usize| {
                    let calls = step.calls.iter().filter(|call| call.when.holds(&state));
                    let all = calls.zip(&works);
                    let of_layer = all.filter(|(call, _)| call.sublayer.layer() == Some(layer));
                    of_layer.map(|(_, work)| work.level).collect::<Vec<_>>()
                };
                let (before, mut levels) = (of(1), of(2));
                let count = levels.len();
                levels.dedup();
                levels.retain(|level| !before.contains(level));
                (count, levels.len())
            });
            assert_eq!(found, expected, "{name} at {pos}, {}", tier.name());
        }
    }
}

#[test]
fn few_tokens_attend_to_slices_where_workgroups_of_prompts_would_leave_a_device_idle() {
    let model = model(ModelName::Qwen3_30bA3b, &[]);
    let target = Target::h200();
    let session = steps(&target, &model, BatchSizes::of_one(N_CTX, 512));
    let state = |tokens| session.state(target.machine, 30_000, tokens);
    assert!(
        state(2).few && state(16).few,
        "32 heads leave 100 of 132 cores idle"
    );
    assert!(!state(256).few && !state(512).few);
    assert!(state(16).slices > 1, "{}", state(16).slices);
    // A head and a tile of tokens for each of 8 cores is enough.
    let software = Machine::with_cores(Profile::Software, 8);
    assert!(!session.state(software, 30_000, 32).few);
}
