//! Protects the steps of models whose experts lie in host memory: they are those of a model on the device and what brings the experts.

use super::*;
use crate::gpu::buffer::Buffer;
use crate::gpu::call::Word;
use crate::gpu::interface::Resolved;
use crate::gpu::record::{Work, works};
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
    drafts: 0,
};

/// All steps of a session and of a batch, and the plan of the session.
fn plan(target: &Target, model: &Model, residence: Residence) -> (Vec<Step>, Plan) {
    let session = Plan::of_one(target, model, residence, 4000, None).expect("it fits");
    let batch = Plan::new(target, model, residence, BATCH).expect("it fits");
    let steps = session.steps.iter().chain(&batch.steps);
    let usual = |(name, step): &&(&str, Step)| *name != "step" || is_usual(step);
    let mut steps: Vec<_> = steps.filter(usual).collect();
    // With slots a head may be made for another step than without. The token stays the first.
    steps.sort_by_key(|(name, step)| (*name != "token", *name, step.most.tokens));
    let steps = steps.into_iter().map(|(_, step)| step.clone());
    (steps.collect(), session)
}

/// Whether a step is also made for a model without slots.
fn is_usual(step: &Step) -> bool {
    step.most.tokens.is_power_of_two()
}

#[test]
fn as_many_tokens_as_have_slots_for_all_their_experts_have_a_step() {
    let model = model(ModelName::Glm47Flash, Recipe::Q4KM);
    let target = Target::h200();
    let layers = model.layers.len() - model.config.leading_dense_block_count;
    // With 4 experts a token. Steps of 4 and 8 tokens are made in any case.
    for (slots, expected) in [
        (7, None),
        (15, Some(3)),
        (19, None),
        (23, Some(5)),
        (32, None),
        (52, Some(13)),
    ] {
        for residence in [Residence::Slots(slots), Residence::File(slots)] {
            let batch = Plan::new(&target, &model, residence, BATCH).expect("it fits");
            let steps = batch.steps.iter().filter(|(name, _)| *name == "step");
            let others: Vec<_> = steps
                .map(|(_, step)| step)
                .filter(|step| !is_usual(step))
                .collect();
            let found = others.first().map(|step| step.most.tokens);
            assert_eq!(
                (found, others.len()),
                (expected, usize::from(expected.is_some()))
            );
            for step in others {
                let places = step
                    .calls
                    .iter()
                    .filter(|call| call.kernel == "expert_places");
                assert_eq!(places.count(), layers, "{slots} slots");
            }
        }
    }
}

/// Whether a call is one of those that experts in host memory need.
fn brings(call: &Call) -> bool {
    [
        "expert_slots",
        "expert_places",
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
                // On the device many tokens choose apart, too.
                let expected = whole.calls.iter().filter(|call| !brings(call)).map(form);
                let expected: Vec<_> = expected.collect();
                assert_eq!(others, expected, "{what}, up to {:?}", step.most);
            }
            asks_for_experts(target, &model, slots as u32, &steps, &whole_steps);
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

/// Compares the steps of a model whose experts stay in the file with those of experts in host memory: the host is asked in each layer, behind
/// what tells it, in place of the copies. Only the shared expert runs beside the answer, from there on or in a dispatch of its own.
fn asks_for_experts(target: &Target, model: &Model, slots: u32, in_host: &[Step], whole: &[Step]) {
    let what = format!("{slots} slots on {}", target.name);
    let (steps, planned) = plan(target, model, Residence::File(slots));
    assert!(planned.host == 0 && planned.file > 0, "{what}");
    let layers = model.layers.len() - model.config.leading_dense_block_count;
    for ((step, in_host), whole) in steps.iter().zip(in_host).zip(whole) {
        let others = |step: &Step| -> Vec<_> {
            let calls = step.calls.iter();
            let calls = calls.filter(|call| call.kernel == "expert_slots" || !brings(call));
            let mut calls: Vec<_> = calls.map(|call| call.kernel).collect();
            calls.sort();
            calls
        };
        let (mut found, expected) = (others(step), others(in_host));
        let has_layers = in_host.calls.len() > whole.calls.len();
        assert_eq!(step.questions.len(), usize::from(has_layers) * layers);
        for question in &step.questions {
            assert!(brings(&step.calls[question.asked - 1]), "{what}");
            let rooms = question.to.weights();
            let reads = |call: &Call| rooms.iter().any(|room| call.binds(room));
            let [beside, behind] = [question.asked..question.due, question.due..step.calls.len()];
            let beside = &step.calls[beside];
            // Products of the shared expert, which are gate and up together, and down where it has a dispatch of its own.
            assert!(
                !beside.is_empty() && beside.len() <= 3,
                "{what}: {beside:?}"
            );
            assert!(
                !beside.iter().any(|call| brings(call) || reads(call)),
                "{what}"
            );
            assert!(reads(&step.calls[behind.start]), "{what}");
        }
        // Where the shared expert is in the dispatch of the others elsewhere, it has one of its own here.
        let more = found.len() - expected.len();
        assert!(more == 0 || more == layers, "{what}: {more} more");
        for _ in 0..more {
            let own = found.iter().position(|kernel| *kernel == "token_gate_up");
            found.remove(own.expect("it is one of them"));
        }
        assert_eq!(found, expected, "{what}, up to {:?}", step.most);
        resolved(target, &what, step);
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

/// Holds the parts of a replay with these `works` against what they are for: each room is full when it is read, and nothing beside a part binds what
/// that writes. Returns how often a room was read.
#[expect(
    clippy::mutable_key_type,
    reason = "buffers are equal and hash by identity, whatever happens to them"
)]
fn check_parts(what: &str, step: &Step, resolved: &[Resolved], works: &[Work]) -> usize {
    // The end of the parts that were copied to each room since it was read.
    let mut copied: HashMap<&Buffer, u32> = HashMap::new();
    let (mut taken, mut reads) = (HashSet::new(), 0);
    for work in works {
        let call = &step.calls[work.dispatch];
        if call.kernel != "expert_part" {
            let rooms = call.bindings.iter();
            for (_, room) in rooms.filter(|(name, _)| ["w_q", "u_q"].contains(name)) {
                if let Some(end) = copied.remove(&room.buffer) {
                    assert_eq!(end, u32::MAX, "{what}: parts of {room:?} are missing");
                    reads += 1;
                }
            }
            continue;
        }
        // It is repeated for each block of the context, a share of it each time.
        if !taken.insert(work.dispatch) {
            continue;
        }
        let [first, behind] = numbers(call, ["first", "behind"]);
        let [quants, scales, more, experts] =
            numbers(call, ["quant_parts", "records", "subs", "experts"]);
        let vectors = call.variant.consts["WG"] * call.variant.consts["LOADS"];
        let all = (quants + (scales + more).div_ceil(vectors)) * experts;
        let room = &call.bound("to_q").expect("it is bound").buffer;
        let end = copied.entry(room).or_default();
        assert_eq!(*end, first, "{what}: parts in order");
        *end = if behind == all { u32::MAX } else { behind };
        let part = &resolved[work.dispatch];
        let bindings = part.spec.access.iter().zip(&part.bindings);
        let written: Vec<_> = bindings
            .filter(|(access, _)| **access == Access::Write)
            .map(|(_, range)| &range.buffer)
            .collect();
        let level = works.iter().filter(|other| other.level == work.level);
        let mut others = level
            .filter(|other| other.dispatch != work.dispatch)
            .peekable();
        assert!(others.peek().is_some(), "{what}: nothing beside a part");
        for other in others {
            let mut bound = step.calls[other.dispatch].ranges();
            assert!(
                !bound.any(|range| written.contains(&&range.buffer)),
                "{what}"
            );
        }
    }
    assert!(copied.is_empty(), "{what}");
    reads
}

/// Whether bringing and computing take hardly longer than the slower of both, if all levels take the time of their operations, and parts that of
/// their bytes, all of them so many times that of all operations.
fn is_even(step: &Step, works: &[Work], slower: f64) -> bool {
    let last = works.last().map_or(0, |work| work.level);
    let mut levels = vec![[0.0; 2]; last + 1];
    for work in works {
        let [computing, bringing] = &mut levels[work.level];
        match brings(&step.calls[work.dispatch]) {
            true => *bringing += work.bytes as f64,
            false => *computing += work.flops as f64,
        }
    }
    let sum = |of: &dyn Fn(&[f64; 2]) -> f64| levels.iter().map(of).sum::<f64>();
    let [computing, bringing] = [0, 1].map(|i| sum(&|level| level[i]));
    let factor = slower * computing / bringing;
    sum(&|level| level[0].max(factor * level[1])) < 1.05 * computing * slower.max(1.0)
}

#[test]
fn a_long_chunk_brings_all_experts_beside_what_computes() {
    let profiles = profiles();
    let targets: Vec<_> = profiles.iter().filter(|t| t.tier.has_subgroups()).collect();
    let models = [ModelName::Glm47Flash, ModelName::DeepseekV2Lite];
    for (&target, &name) in drawn_pairs(&targets, &models).into_iter().take(4) {
        let model = model(name, Recipe::Q4KM);
        let experts = model.config.experts.as_ref().expect("it has experts");
        let slots = [0, experts.used, 20, 62][Rng::fresh().below(4)] as u32;
        let what = format!("{name} on {}, {slots} slots", target.name);
        let plan = Plan::of_one(target, &model, Residence::Slots(slots), 4000, None);
        let plan = plan.expect("it fits");
        let mut steps = plan.steps.iter();
        let (_, step) = steps
            .find(|(name, _)| *name == "chunk")
            .expect("it has one");
        let resolved = resolved(target, &what, step);
        let works = |tokens| {
            let state = State {
                tokens,
                few: false,
                ..plan.state(target, 100)
            };
            works(step, &state).expect("it is resolved")
        };
        let has = |tokens, kernel| {
            let works = works(tokens);
            works
                .iter()
                .any(|work| step.calls[work.dispatch].kernel == kernel)
        };
        assert!(has(9, "expert_fill") && !has(9, "expert_part"), "{what}");
        assert!(!has(2000, "expert_fill"), "{what}");
        let works = works(step.most.tokens);
        let layers = model.layers.len() - model.config.leading_dense_block_count;
        assert_eq!(
            check_parts(&what, step, &resolved, &works),
            3 * layers,
            "{what}"
        );
        // If nearly all have slots, the bus need not work all the time.
        for slower in [0.5, 3.0]
            .into_iter()
            .filter(|slower| slots < 60 || *slower < 1.0)
        {
            assert!(is_even(step, &works, slower), "{what}, {slower}");
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
        &["ffn_gate_exps", "one room"],
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
