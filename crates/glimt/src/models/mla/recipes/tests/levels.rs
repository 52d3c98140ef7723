//! Protects the speed of a token on any device: how many dispatches a layer has, and how many of them wait for each other.

use crate::engine::ModelSource;
use crate::gpu::buffer::{Buffer, Range};
use crate::gpu::call::{Call, State};
use crate::gpu::interface::resolve;
use crate::gpu::shader::Access;
use crate::gpu::{Most, Step, Target, Tier};
use crate::models::Model as _;
use crate::models::mla::Model;
use crate::recipes::{BatchSizes, Residence, Steps};
use crate::synth::{self, Recipe, SynthOptions};
use std::sync::Arc;

/// The number of dispatches in the longest chain that each of `calls` ends: each wrote what the next one binds.
fn levels(calls: &[&Call], most: Most) -> Vec<usize> {
    let mut written: Vec<(Buffer, usize)> = vec![];
    let level = |call: &&Call| {
        let call = resolve(call, most).unwrap_or_else(|e| panic!("{e}"));
        let bound = |buffer: &Buffer| call.bindings.iter().any(|b| b.buffer == *buffer);
        let before = written.iter().filter(|(buffer, _)| bound(buffer));
        let level = 1 + before.map(|(_, level)| *level).max().unwrap_or(0);
        for (binding, access) in call.bindings.iter().zip(&call.spec.access) {
            if *access == Access::Write {
                written.push((binding.buffer.clone(), level));
            }
        }
        level
    };
    calls.iter().map(level).collect()
}

/// The step of one token of `model` on `target`.
fn record(target: &Target, model: &Model) -> Step {
    let logits = Range::floats("logits", model.config.vocab_size as u64);
    let token = steps(target, model).token(target, &logits);
    token.expect("its shapes suit")
}

/// The steps of a session with a short context.
fn steps(target: &Target, model: &Model) -> Steps {
    let placed = model.place(target, Residence::Whole).expect("it fits");
    let sessions = placed.weights.untried(target);
    let steps = sessions.steps(target, BatchSizes::of_one(16, 1));
    steps.expect("a small cache")
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
fn a_layer_with_experts_is_seven_dependent_dispatches_or_nine() {
    let gguf = ModelSource::Embedded.open().expect("it is in the program");
    let model = Model::load(Arc::new(gguf)).expect("it is supported");
    for tier in [Tier::Subgroup, Tier::Int8] {
        for repeats_work in [true, false] {
            let step = record(&target(tier, false, repeats_work), &model);
            check_layers(&step, model.layers.len(), repeats_work);
        }
    }
}

#[test]
fn several_tokens_take_the_dispatches_of_one_and_many_of_them_choose_apart() {
    let gguf = ModelSource::Embedded.open().expect("it is in the program");
    let model = Model::load(Arc::new(gguf)).expect("it is supported");
    for tier in [Tier::Subgroup, Tier::Int8] {
        for repeats_work in [true, false] {
            let target = target(tier, false, repeats_work);
            for tokens in [2, 8] {
                let step = steps(&target, &model).step(&target, tokens);
                let step = step.expect("its shapes suit");
                check_layers(&step, model.layers.len(), repeats_work);
            }
        }
    }
}

fn check_layers(step: &Step, layers: usize, repeats_work: bool) {
    // In workgroups that repeat it, the query is absorbed in the same dispatch, and attn_output makes the experts' logits.
    let [saved, saved_dense] = if repeats_work { [2, 1] } else { [0, 0] };
    // With few slices v_b joins them itself, with many a dispatch before it. The context is too short for many slices of several tokens.
    let contexts = [
        (1, 11 - saved, 8 - saved_dense, 9 - saved),
        (200, 12 - saved, 9 - saved_dense, 10 - saved),
    ];
    let tokens = step.most.tokens;
    // From 5 tokens on the choice of experts is a dispatch, and the shared expert has one beside it.
    let [apart, choice] = if tokens > 4 { [2, 1] } else { [0, 0] };
    let contexts = contexts.into_iter().take(if tokens > 1 { 1 } else { 2 });
    for (slices, dispatches, dense, experts) in contexts {
        // Every form of the attention has a dispatch for such a short context.
        let state = State {
            pos: 10 - tokens,
            tokens,
            slices,
            kernels: 1,
            ..State::default()
        };
        let held = step.calls.iter().filter(|call| call.when.holds(&state));
        let calls: Vec<_> = held.collect();
        let levels = levels(&calls, step.most);
        let last = |layer: usize| {
            let of_layer = calls.iter().zip(&levels);
            let of_layer = of_layer.filter(|(call, _)| call.sublayer.layer() == Some(layer));
            let levels = of_layer.map(|(_, level)| *level);
            levels.max().expect("it has some")
        };
        assert_eq!(last(0), 1 + dense, "after the embedding");
        for layer in 1..layers {
            let waits = last(layer) - last(layer - 1);
            assert_eq!(waits, experts + choice, "layer {layer}");
            let count = calls
                .iter()
                .filter(|call| call.sublayer.layer() == Some(layer));
            // kv_a beside q_a, the cache's row beside the absorption.
            assert_eq!(count.count(), dispatches + apart, "layer {layer}");
        }
    }
}

/// A model of these sizes with two layers, the first of them dense.
fn load_shape(name: &str) -> Model {
    let model = name.parse().expect("a synthetic model");
    let options = SynthOptions {
        layers: Some(2),
        ..Default::default()
    };
    let gguf = synth::without_matrices(model, Recipe::Q4_0, &options).expect("it is a model");
    Model::load(Arc::new(gguf)).expect("it is supported")
}

/// Dispatches of the last layer, in a short context and in one whose slices a dispatch of its own joins.
fn dispatches(step: &Step) -> [usize; 2] {
    [(5, 1), (30_000, 200)].map(|(pos, slices)| {
        let state = State {
            pos,
            slices,
            tokens: 1,
            ..State::default()
        };
        let of_layer = |call: &&Call| call.sublayer.layer() == Some(1) && call.when.holds(&state);
        step.calls.iter().filter(of_layer).count()
    })
}

#[test]
fn a_layer_of_each_model_takes_so_many_dispatches_in_each_mode() {
    // The dispatches in a short context by (serial, repeating): (false, false), (false, true), (true, false), (true, true).
    for (name, expected) in [
        ("glm-4.7-flash", [11, 9, 9, 7]),
        ("deepseek-v2-lite", [10, 9, 8, 7]),
        ("youtu-llm-2b", [10, 9, 8, 7]),
        ("glm-4.7-flash-reap-23b", [11, 9, 9, 7]),
        ("moonlight-16b-a3b", [10, 9, 8, 7]),
        ("kanana-2-30b-a3b", [10, 9, 8, 7]),
        ("gigachat3-10b-a1.8b", [10, 9, 8, 7]),
    ] {
        let model = load_shape(name);
        for tier in [Tier::Subgroup, Tier::Int8] {
            let modes = [(false, false), (false, true), (true, false), (true, true)];
            for ((serial, repeats), expected) in modes.into_iter().zip(expected) {
                let step = record(&target(tier, serial, repeats), &model);
                assert_eq!(
                    dispatches(&step),
                    [expected, expected + 1],
                    "{name}, {}, serial {serial}, repeating {repeats}",
                    tier.name()
                );
            }
        }
    }
}
