//! Protects the steps of models whose experts lie in host memory: they are those of a model on the device and what brings the experts.

use super::*;
use crate::gpu::record::works;
use crate::gpu::{GpuError, Tier};

/// The most storage buffers that a kernel of the tiers with subgroups may bind.
const MOST_BUFFERS: usize = 16;

/// Sizes of a batch, whose steps have one token to many.
const BATCH: BatchSizes = BatchSizes {
    n_ctx: 4000,
    pages: 500,
    sequences: 64,
    tokens: 512,
    chunk: 0,
};

/// All steps of a session and of a batch, and the plan of the session.
fn plan(target: &Target, model: &Model, residence: Residence) -> (Vec<Step>, Plan) {
    let session = Plan::of_one(target, model, residence, 4000, None).expect("it fits");
    let batch = Plan::new(target, model, residence, BATCH).expect("it fits");
    let steps = session.steps.iter().chain(&batch.steps);
    (steps.map(|(_, step)| step.clone()).collect(), session)
}

/// Whether a call is one of those that experts in host memory need.
fn brings(call: &Call) -> bool {
    [
        "expert_slots",
        "expert_places",
        "expert_sources",
        "expert_fill",
    ]
    .contains(&call.kernel)
}

#[test]
fn experts_in_host_memory_take_the_steps_of_a_model_on_the_device_and_what_brings_them() {
    let profiles = profiles();
    let targets: Vec<_> = profiles.iter().filter(|t| t.tier.has_subgroups()).collect();
    let models = [ModelName::Glm47Flash, ModelName::DeepseekV2Lite];
    for (&target, &name) in drawn_pairs(&targets, &models).into_iter().take(2) {
        let model = model(name, Recipe::Q4KM);
        let experts = model.config.experts.as_ref().expect("it has experts");
        let layers = model.layers.len() - model.config.leading_dense_block_count;
        let (whole_steps, whole) = plan(target, &model, Residence::Whole);
        assert_eq!(whole.host, 0);
        for slots in [0, experts.used, 20, experts.count] {
            let what = format!("{name} on {}, {slots} slots", target.name);
            let residence = Residence::Slots(slots as u32);
            let (steps, plan) = plan(target, &model, residence);
            for (step, whole) in steps.iter().zip(&whole_steps) {
                let calls = resolved(target, &what, step);
                assert!(calls.iter().all(|call| call.bindings.len() <= MOST_BUFFERS));
                let form = |call: &Call| (call.kernel, call.when, call.grid, call.site.clone());
                let others = step.calls.iter().filter(|call| !brings(call)).map(form);
                let others: Vec<_> = others.collect();
                let expected: Vec<_> = whole.calls.iter().map(form).collect();
                assert_eq!(others, expected, "{what}, up to {:?}", step.most);
            }
            for step in &steps {
                let calls = |kernel| step.calls.iter().filter(|c| c.kernel == kernel).count();
                let found = ["expert_places", "expert_sources"].map(calls);
                let tokens = step.most.tokens as usize;
                let chosen = (tokens * experts.used).min(experts.count);
                let of_few = tokens <= target.machine.tuned.few_of_batch as usize;
                let expected = match () {
                    () if tokens == 1 || calls("expert_fill") == 0 => [0, 0],
                    () if of_few && chosen <= slots => [layers, 0],
                    () => [0, layers],
                };
                assert_eq!(found, expected, "{what}, up to {tokens} tokens");
            }
            // A choice, and three copies that do not wait for each other.
            let [now, before] = [&steps[0], &whole_steps[0]].map(|token| {
                let works = works(token, &State::default()).expect("it is resolved");
                (works.len(), works.last().map_or(0, |work| work.level))
            });
            assert_eq!(now.0, before.0 + 4 * layers, "{what}");
            assert_eq!(now.1, before.1 + 2 * layers, "{what}");
            // The bytes of the weights are where they are said to be.
            let kept = plan.host * slots as u64 / experts.count as u64;
            let expected = whole.bytes[0] - plan.host + kept;
            let alignment = 64 << 10;
            assert!(plan.bytes[0].abs_diff(expected) < alignment, "{what}");
            let of_layer = plan.host / layers as u64;
            let more = plan.bytes[2] - whole.bytes[2];
            // Layers have weights of two types.
            assert!(
                (of_layer / 2..3 * of_layer).contains(&more),
                "{what}: {more}"
            );
        }
    }
}

#[test]
fn experts_that_cannot_lie_in_host_memory_are_refused_in_a_sentence() {
    let model = model(ModelName::Glm47Flash, Recipe::Q4_0);
    let refused = |change: &dyn Fn(&mut Target), expected: &[&str]| {
        let mut target = Target::h200();
        change(&mut target);
        let placed = model.place(&target, Residence::Slots(9));
        let error = placed.err().expect("it is refused").to_string();
        for part in expected {
            assert!(error.contains(part), "{error}");
        }
    };
    refused(
        &|target| target.tier = Tier::Plain,
        &["NVIDIA H200", "'subgroup' and 'int8'", "--device cpu"],
    );
    refused(
        &|target| target.reads_host = false,
        &["NVIDIA H200", "MAPPABLE_PRIMARY_BUFFERS", "--device cpu"],
    );
    refused(
        &|target| target.max_binding = 48 << 20,
        &["ffn_gate_exps", "host memory"],
    );
    let mut odd = self::model(ModelName::Glm47Flash, Recipe::Q4_0);
    for layer in &mut odd.weights.layers {
        if let crate::model::Ffn::Moe(moe) = &mut layer.ffn {
            moe.experts.gate = moe.experts.gate.part(0..100, "odd");
            moe.experts.up = moe.experts.up.part(0..100, "odd");
        }
    }
    match odd.place(&Target::h200(), Residence::Slots(9)) {
        Err(GpuError::UnsupportedSize { found: 100, .. }) => {}
        other => panic!("{:?}", other.err()),
    }
}
