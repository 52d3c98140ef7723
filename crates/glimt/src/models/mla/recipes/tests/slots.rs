//! Protects the steps of models whose experts lie in host memory: they are those of a model on the device and what brings the experts.

use super::*;
use crate::gpu::buffer::Buffer;
use crate::gpu::call::Word;
use crate::gpu::interface::Resolved;
use crate::gpu::record::works;
use crate::gpu::shader::Access;
use crate::gpu::{GpuError, Tier};
use crate::kernels::testing::Rng;
use std::collections::{HashMap, HashSet};

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
        "expert_sources",
        "expert_fill",
        "expert_part",
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

/// The numbers in a call's words.
fn numbers<const N: usize>(call: &Call, names: [&str; N]) -> [u32; N] {
    names.map(
        |name| match call.words.iter().find(|(own, _)| *own == name) {
            Some((_, Word::U(n))) => *n,
            other => panic!("{name}: {other:?}"),
        },
    )
}

#[test]
fn a_long_chunk_brings_all_experts_beside_what_computes_before() {
    let profiles = profiles();
    let targets: Vec<_> = profiles.iter().filter(|t| t.tier.has_subgroups()).collect();
    let models = [ModelName::Glm47Flash, ModelName::DeepseekV2Lite];
    for (&target, &name) in drawn_pairs(&targets, &models).into_iter().take(2) {
        let model = model(name, Recipe::Q4KM);
        let experts = model.config.experts.as_ref().expect("it has experts");
        let slots = [0, experts.used, 20][Rng::fresh().below(3)] as u32;
        let what = format!("{name} on {}, {slots} slots", target.name);
        let plan = Plan::of_one(target, &model, Residence::Slots(slots), 4000, None);
        let plan = plan.expect("it fits");
        let (_, step) = plan
            .steps
            .iter()
            .find(|(name, _)| *name == "chunk")
            .expect("it has one");
        let state = |tokens| State {
            tokens,
            few: false,
            ..plan.state(target, 100)
        };
        let resolved = resolved(target, &what, step);
        let kernels = |tokens| -> Vec<_> {
            let works = works(step, &state(tokens)).expect("it is resolved");
            works
                .iter()
                .map(|work| step.calls[work.dispatch].kernel)
                .collect()
        };
        assert!(!kernels(9).contains(&"expert_part") && kernels(9).contains(&"expert_fill"));
        assert!(!kernels(2000).contains(&"expert_fill"), "{what}");
        // Which parts of each room were copied since its products read it.
        let mut copied: HashMap<&Buffer, u32> = HashMap::new();
        let (mut levels, mut taken, mut reads) = (HashSet::new(), HashSet::new(), 0);
        let works = works(step, &state(step.most.tokens)).expect("it is resolved");
        let writes = |call: &Resolved| -> Vec<Buffer> {
            let both = call.spec.access.iter().zip(&call.bindings);
            let written = both.filter(|(access, _)| **access == Access::Write);
            written.map(|(_, range)| range.buffer.clone()).collect()
        };
        for work in &works {
            let call = &step.calls[work.dispatch];
            if call.kernel != "expert_part" {
                let rooms = call
                    .bindings
                    .iter()
                    .filter(|(name, _)| ["w_q", "u_q"].contains(name));
                for (_, range) in rooms {
                    if let Some(end) = copied.remove(&range.buffer) {
                        assert_eq!(end, u32::MAX, "{what}: parts of {range:?} are missing");
                        reads += 1;
                    }
                }
                continue;
            }
            // It is repeated for each block of the context, a share of it each time.
            if !taken.insert(work.dispatch) {
                continue;
            }
            let [first, behind, parts, count] =
                numbers(call, ["first", "behind", "parts", "experts"]);
            let room = &call.bound("to_q").expect("it is bound").buffer;
            let end = copied.entry(room).or_default();
            assert_eq!(*end, first, "{what}: parts in order");
            *end = if behind == parts * count {
                u32::MAX
            } else {
                behind
            };
            levels.insert(work.level);
            // Nothing beside it binds what it writes.
            let written = writes(&resolved[work.dispatch]);
            let beside = works.iter().filter(|w| w.level == work.level);
            for other in beside.filter(|other| other.dispatch != work.dispatch) {
                let bound = step.calls[other.dispatch].ranges();
                assert!(
                    !bound
                        .map(|range| &range.buffer)
                        .any(|b| written.contains(b)),
                    "{what}"
                );
            }
        }
        assert!(copied.is_empty(), "{what}");
        let layers = model.layers.len() - model.config.leading_dense_block_count;
        assert_eq!(reads, 3 * layers, "{what}");
        // Something computes beside each part.
        for level in &levels {
            let beside = works.iter().filter(|work| work.level == *level);
            let mut others = beside.filter(|work| !brings(&step.calls[work.dispatch]));
            assert!(others.next().is_some(), "{what}");
        }
        assert!(levels.len() > 10 * layers, "{what}: {}", levels.len());
        // If all levels take the time of their operations, and their parts that of their bytes, bringing and computing take hardly longer than
        // the slower of both.
        let last = works.last().map_or(0, |work| work.level);
        let mut of_levels = vec![[0.0; 2]; last + 1];
        for work in &works {
            let [computing, bringing] = &mut of_levels[work.level];
            match brings(&step.calls[work.dispatch]) {
                true => *bringing += work.bytes as f64,
                false => *computing += work.flops as f64,
            }
        }
        let sum = |of: &dyn Fn(&[f64; 2]) -> f64| of_levels.iter().map(of).sum::<f64>();
        let [computing, bringing] = [0, 1].map(|i| sum(&|level| level[i]));
        for slower in [0.5, 1.0, 3.0] {
            let factor = slower * computing / bringing;
            let both = sum(&|level| level[0].max(factor * level[1]));
            let least = computing * f64::max(1.0, slower);
            println!("{what} {slower} {:.3}", both / least);
            assert!(both < 1.3 * least, "{what}, {slower}: {both} {least}");
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
