use super::super::context;
use super::*;
use crate::bench::Source;
use crate::engine::ModelSource;
use crate::gpu::Most;
use crate::gpu::buffer::Buffer;
use crate::gpu::buffer::Role;
use crate::gpu::call::State;
use crate::gpu::interface::resolve;
use crate::gpu::pipeline::Access;
use crate::gpu::{GpuOptions, Tier};
use crate::kernels::gemm;
use crate::model::Model;
use crate::synth::{self, SynthOptions};
use std::sync::Arc;

/// How many dispatches each of `calls` waits for one after another, itself included: those that wrote what it binds.
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

#[test]
fn a_layer_with_experts_is_seven_dependent_dispatches_or_nine() {
    for tier in [Tier::Subgroup, Tier::Int8] {
        for repeats_work in [true, false] {
            let options = GpuOptions {
                tier: Some(tier),
                repeats_work: Some(repeats_work),
                ..Default::default()
            };
            if let Ok(gpu) = Gpu::open(&options) {
                check_layers(gpu, repeats_work);
            }
        }
    }
}

fn check_layers(gpu: Gpu, repeats_work: bool) {
    // In workgroups that repeat it, the query is absorbed in the same dispatch, and attn_output makes the experts' logits.
    let [saved, saved_dense] = if repeats_work { [2, 1] } else { [0, 0] };
    let activation = gpu.activation().expect("a tier with subgroups");
    let gguf = ModelSource::Embedded.open().expect("it is in the program");
    let model = Model::load(Arc::new(gguf)).expect("it is supported");
    let model = GpuModel::load(Arc::new(gpu), Arc::new(model), &mut |_, _| {});
    let model = model.expect("it is small");
    let context =
        context(&model.gpu, &model, 16, 1, gemm::Form::float(&model.gpu)).expect("a small cache");
    let vocab = model.model.config.vocab_size as u64;
    let logits = model
        .gpu
        .storage("logits", vocab * 4, Role::Floats)
        .expect("small");
    let calls = TokenRecipe::new(&model, &context, activation).step(&Range::whole(&logits));
    let calls = calls.expect("its shapes suit");
    // With few slices v_b joins them itself, with many a dispatch before it.
    for (splits, dispatches, dense, experts) in [
        (1, 11 - saved, 8 - saved_dense, 9 - saved),
        (200, 12 - saved, 9 - saved_dense, 10 - saved),
    ] {
        // Of a short context, which every form of the attention has a dispatch for.
        let state = State {
            pos: 9,
            tokens: 1,
            splits,
            ..State::default()
        };
        let calls: Vec<_> = calls
            .iter()
            .filter(|call| call.when.holds(&state))
            .collect();
        let levels = levels(&calls, context.token());
        let last = |layer: usize| {
            let of_layer =
                (calls.iter().zip(&levels)).filter(|(call, _)| call.part.layer() == Some(layer));
            of_layer
                .map(|(_, level)| *level)
                .max()
                .expect("it has some")
        };
        assert_eq!(last(0), 1 + dense, "after the embedding");
        for layer in 1..model.layers.len() {
            assert_eq!(last(layer) - last(layer - 1), experts, "layer {layer}");
            let count = calls.iter().filter(|call| call.part.layer() == Some(layer));
            // kv_a beside q_a, the cache's row beside the absorption.
            assert_eq!(count.count(), dispatches, "layer {layer}");
        }
    }
}

/// A model of these sizes with two layers, the first of them dense, on the first adapter.
fn load_shape(name: &str) -> Option<GpuModel> {
    let options = GpuOptions {
        tier: Some(Tier::Subgroup),
        ..Default::default()
    };
    let gpu = Gpu::open(&options).ok()?;
    let source: Source = format!("{name}:q4_0").parse().expect("a synthetic model");
    let Source::Synthetic(model, recipe) = source else {
        panic!("{name} is no synthetic model");
    };
    let options = SynthOptions {
        layers: Some(2),
        ..Default::default()
    };
    let gguf = synth::without_matrices(model, recipe, &options).expect("it is a model");
    let model = Model::load(Arc::new(gguf)).expect("it is supported");
    let model = GpuModel::load(Arc::new(gpu), Arc::new(model), &mut |_, _| {});
    Some(model.unwrap_or_else(|e| panic!("{name}: {e}")))
}

/// Dispatches of the last layer, in a short context and in one whose slices a dispatch of its own joins.
fn dispatches(model: &GpuModel, activation: Activation) -> [usize; 2] {
    let context = context(&model.gpu, model, 16, 1, gemm::Form::float(&model.gpu));
    let context = context.expect("a small cache");
    let vocab = model.model.config.vocab_size as u64;
    let logits = model
        .gpu
        .storage("logits", vocab * 4, Role::Floats)
        .expect("small");
    let calls = TokenRecipe::new(model, &context, activation).step(&Range::whole(&logits));
    let calls = calls.expect("its shapes suit");
    [(5, 1), (30_000, 200)].map(|(pos, splits)| {
        let state = State {
            pos,
            splits,
            tokens: 1,
            ..State::default()
        };
        let of_layer = |call: &&Call| call.part.layer() == Some(1) && call.when.holds(&state);
        calls.iter().filter(of_layer).count()
    })
}

#[test]
fn a_layer_of_each_model_takes_so_many_dispatches_in_each_mode() {
    // Of a short context by (serial, repeating): (false, false), (false, true), (true, false), (true, true).
    for (name, expected) in [
        ("glm-4.7-flash", [11, 9, 9, 7]),
        ("deepseek-v2-lite", [10, 9, 8, 7]),
        ("youtu-llm-2b", [10, 9, 8, 7]),
    ] {
        let Some(mut model) = load_shape(name) else {
            eprintln!("skipped: the adapter has no subgroups");
            return;
        };
        for tier in [Tier::Subgroup, Tier::Int8] {
            let modes = [(false, false), (false, true), (true, false), (true, true)];
            for ((serial, repeats), expected) in modes.into_iter().zip(expected) {
                let gpu = model.gpu.in_tier(tier).in_mode(serial, repeats);
                let activation = gpu.activation().expect("a tier with subgroups");
                model.gpu = Arc::new(gpu);
                assert_eq!(
                    dispatches(&model, activation),
                    [expected, expected + 1],
                    "{name} {} serial {serial} repeats {repeats}",
                    tier.name()
                );
            }
        }
    }
}
