//! Protects the steps of every model on every kind of device, recorded without one: calls go with what their kernels declare, and
//! neither dispatches nor memory change unnoticed.

use crate::engine::gpu::plan::Plan;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, State};
use crate::gpu::interface::Resolved;
use crate::gpu::target::profiles;
use crate::gpu::testing::unmade_weight;
use crate::gpu::{Most, Step, Target};
use crate::kernels::sequences::{CHOICE, PAGE};
use crate::kernels::{copy_rows, logit_bias, sample};
use crate::model::pairs::Pair;
use crate::model::{Convert, Weight};
use crate::models::Model as _;
use crate::models::mla::{Layer, Model};
use crate::quant::GgmlType;
use crate::recipes::{BatchSizes, Residence, Steps, Weights};
use crate::synth::{ModelName, Recipe, SynthOptions, without_matrices};
use crate::testing::{drawn, drawn_pairs};
use std::convert::Infallible;
use std::fmt::Write;
use std::sync::Arc;

mod chunk;
mod levels;
mod slots;

/// The architecture of the models whose steps are recorded here.
const ARCHITECTURE: &str = "deepseek2";

/// Rows of a context that every form of the attention has a dispatch for.
const N_CTX: usize = 40_000;

/// A model of these sizes and types with three layers, of which the first may be dense.
fn model(name: ModelName, recipe: Recipe) -> Model {
    let options = SynthOptions {
        layers: Some(3),
        ..SynthOptions::default()
    };
    let gguf = without_matrices(name, recipe, &options).expect("a plan");
    Model::load(Arc::new(gguf)).expect("it is supported")
}

/// Makes every matrix whose rows allow it one of `types`, in turn.
struct Retyped {
    types: Vec<GgmlType>,
    next: usize,
}

impl<'a> Convert<'a, Weight, Vec<f32>> for Retyped {
    type Weight = Weight;
    type Vector = Vec<f32>;
    type Error = Infallible;

    fn weight(&mut self, weight: &'a Weight) -> Result<Weight, Infallible> {
        let ty = self.types[self.next % self.types.len()];
        self.next += 1;
        let mut weight = weight.clone();
        // The router and other weights of few values keep what they are.
        if weight.cols.is_multiple_of(ty.block_len()) && weight.ty != GgmlType::F32 {
            weight.ty = ty;
        }
        Ok(weight)
    }

    fn vector(&mut self, vector: &'a Vec<f32>) -> Result<Vec<f32>, Infallible> {
        Ok(vector.clone())
    }
}

/// The `model` with weights of `types`.
fn retyped(mut model: Model, types: &[GgmlType]) -> Model {
    let mut by = Retyped {
        types: types.to_vec(),
        next: 0,
    };
    let convert = |layer: &Layer| {
        let Ok(layer) = layer.convert(&mut by, |attention, by| attention.convert(by));
        layer
    };
    model.weights.layers = model.layers.iter().map(convert).collect();
    model
}

/// The session of `model` on `target`, recorded.
fn record(target: &Target, model: &Model) -> Plan {
    let plan = Plan::of_one(target, model, Residence::Whole, N_CTX, None);
    plan.unwrap_or_else(|e| panic!("{}, {}: {e}", model.config.name, target.name))
}

/// The calls of a step, held against what their kernels declare.
#[track_caller]
fn resolved(target: &Target, what: &str, step: &Step) -> Vec<Resolved> {
    let calls = step.resolve();
    calls.unwrap_or_else(|e| panic!("{what} on {}, {}: {e}", target.name, target.tier.name()))
}

/// The steps of these sizes.
fn steps(target: &Target, weights: &Weights, sizes: BatchSizes) -> Steps {
    let steps = weights.untried(target).steps(target, sizes);
    steps.expect("a cache")
}

/// The steps of a batch of several sequences, for few tokens and for many, with the choice of a token for each.
fn batches(target: &Target, model: &Model) -> Vec<(&'static str, Step)> {
    let placed = model.place(target, Residence::Whole).expect("it fits");
    let sizes = BatchSizes {
        n_ctx: 4000,
        pages: 500,
        sequences: 64,
        tokens: 512,
        chunk: 0,
        drafts: 0,
    };
    let batch = steps(target, &placed.weights, sizes);
    let vocab = model.config.vocab_size as u32;
    let mut all = vec![];
    for (what, of) in [
        ("batch of 1", 1),
        ("batch of 4", 4),
        ("batch of 64", 64),
        ("batch of 512", 512),
    ] {
        let step = batch.step(target, of).expect("its shapes suit");
        all.push((what, step));
        let most = of.min(sizes.most_drawn());
        let logits = Range::floats("logits", u64::from(most * vocab));
        let choices = Range::words("choices", u64::from(most) * CHOICE as u64);
        let biases = Range::whole(&logit_bias::buffer(most));
        let result = Range::words("ids", u64::from(most) * 4);
        let sequences = batch.sequences().map(|s| s.of_steps(of));
        let rows = sample::Rows {
            sequences: sequences.as_ref(),
            choices: &choices,
            biases: &biases,
            most,
        };
        let choose = sample::calls(Some(&rows), &logits, vocab, batch.history(), &[result]);
        let head = batch.head(target, of, most, &logits);
        let head = head.expect("its shapes suit");
        all.push((what, head.then(&choose)));
    }
    let list = Range::words("copies", 4 * u64::from(copy_rows::MOST));
    let rows = sizes.pages * PAGE;
    let copies = batch.cache().iter().map(|cache| {
        let values = cache.size / 2 / u64::from(rows);
        copy_rows::call(cache, rows, values as u32, &list)
    });
    let most = Most {
        tokens: copy_rows::MOST,
        context: sizes.n_ctx as u32,
    };
    all.push(("copies", Step::of(most, copies)));
    all
}

/// Dispatches of a replay over one token, or over as many as the step is for, in a short context.
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
    for name in ModelName::of(ARCHITECTURE) {
        let model = model(name, Recipe::Q4_0);
        for target in profiles() {
            let plan = record(&target, &model);
            let batches = batches(&target, &model);
            let count = |(name, step): &(&str, Step)| {
                resolved(&target, name, step);
                format!("{name} {}", dispatches(step))
            };
            let counts: Vec<_> = plan.steps.iter().chain(&batches).map(count).collect();
            let mib = plan.bytes.map(|bytes| bytes >> 20);
            let (device, tier, counts) = (&target.name, target.tier.name(), counts.join(", "));
            writeln!(text, "{name}, {device}, {tier}: {counts}; {mib:?} MiB").expect("it grows");
        }
    }
    text
}

#[test]
fn every_model_is_recorded_for_every_device() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/steps.txt");
    let now = document();
    println!("{now}");
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
fn a_sequence_alone_takes_the_dispatches_of_a_session() {
    for name in ModelName::of(ARCHITECTURE) {
        let model = model(name, Recipe::Q4_0);
        for target in profiles() {
            let batches = batches(&target, &model);
            let batch = batches.iter().filter(|(what, _)| *what == "batch of 1");
            let batch = batch.flat_map(|(_, step)| &step.calls);
            let found: Vec<_> = batch
                .map(|call| (call.kernel, call.when, call.grid))
                .collect();
            if target.tier.has_subgroups() {
                let plan =
                    Plan::of_one(&target, &model, Residence::Whole, 4000, None).expect("it fits");
                let token = &plan.steps[0].1.calls;
                let token: Vec<_> = token
                    .iter()
                    .map(|call| (call.kernel, call.when, call.grid))
                    .collect();
                assert_eq!(found, token, "{name}, {}", target.name);
            }
            let step = &batches[0].1;
            assert!(step.calls.iter().all(|call| call.bound("table").is_none()));
        }
    }
}

#[test]
fn prompts_in_pages_take_the_dispatches_of_a_session() {
    let sizes = BatchSizes {
        n_ctx: 4000,
        pages: 500,
        sequences: 64,
        tokens: 512,
        chunk: 512,
        drafts: 0,
    };
    for name in ModelName::of(ARCHITECTURE) {
        let model = model(name, Recipe::Q4_0);
        for target in profiles() {
            let placed = model.place(&target, Residence::Whole).expect("it fits");
            let record = |sizes: BatchSizes| {
                let steps = steps(&target, &placed.weights, sizes);
                let step = steps.prompt(&target, 1, 512).expect("its shapes suit");
                let calls = resolved(&target, "a chunk", &step);
                // Tier `plain` may bind no more storage buffers.
                let few = calls.iter().all(|call| call.bindings.len() <= 8);
                assert!(few || target.tier.has_subgroups(), "{}", target.name);
                let calls = step.calls.iter();
                let dispatches = calls.map(|call| (call.kernel, call.when, call.grid, call.blocks));
                (dispatches.collect::<Vec<_>>(), step)
            };
            let (in_session, _) = record(BatchSizes::of_one(4000, 512));
            let (in_pages, step) = record(sizes);
            assert_eq!(in_pages, in_session, "{name}, {}", target.name);
            // Whatever reads or writes the cache finds its rows by the pages, and no kernel reads the table.
            for call in &step.calls {
                let bound = |name: &str| call.bound(name).is_some();
                assert_eq!(bound("cache"), bound("pages"), "{}", call.kernel);
                assert!(!bound("table"), "{}", call.kernel);
            }
        }
    }
}

#[test]
fn calls_go_with_their_kernels_for_weights_of_every_type() {
    // A run records 15 of the types with one of the models, for a third of the devices. Other tests record every model for every device.
    let names = [
        ModelName::Glm47Flash,
        ModelName::DeepseekV2Lite,
        ModelName::YoutuLlm2b,
        ModelName::Kanana2_30bA3b,
        ModelName::Gigachat3_10bA18b,
    ];
    let profiles = profiles();
    let others = GgmlType::ALL.iter().cycle().skip(1);
    let types: Vec<_> = GgmlType::ALL.iter().zip(others).collect();
    let types: Vec<_> = drawn(&types, 15).into_iter().copied().collect();
    for (&(&ty, &other), &name) in drawn_pairs(&types, &names) {
        let model = retyped(model(name, Recipe::Q4_0), &[ty, other]);
        for target in drawn(&profiles, profiles.len() / 3) {
            let plan = record(target, &model);
            for (step, calls) in plan.steps.iter().chain(&batches(target, &model)) {
                resolved(target, step, calls);
            }
        }
    }
}

#[test]
fn weights_that_do_not_fit_one_binding_are_recorded_in_pieces() {
    let model = model(ModelName::Glm47Flash, Recipe::Q4_0);
    for target in profiles() {
        let small = Target {
            max_binding: 48 << 20,
            ..target
        };
        let plan =
            Plan::of_one(&small, &model, Residence::Whole, 4096, Some(512)).expect("it fits");
        for (step, calls) in &plan.steps {
            resolved(&small, step, calls);
        }
        let token = &plan.steps[0].1;
        let up = ["u_q", "eu_q", "su_q"];
        let pieces = token
            .calls
            .iter()
            .filter(|call| up.iter().any(|name| call.bound(name).is_some()));
        assert!(pieces.count() > model.layers.len(), "{}", small.name);
    }
}

#[test]
fn products_of_weights_save_a_token_dispatches() {
    let names = ModelName::of(ARCHITECTURE);
    for (target, name) in profiles().iter().zip(names.into_iter().cycle()) {
        let model = model(name, Recipe::Q8_0);
        let mut placed = model.place(target, Residence::Whole).expect("it fits");
        let dispatches = [&[][..], &Pair::ALL].map(|pairs| {
            for pair in pairs {
                let factors = model.factors(*pair).into_iter();
                let product = |(ty, rows, cols)| unmade_weight(ty, 1, rows as u32, cols as u32);
                let products = factors.map(|f| product(f.shape())).collect();
                placed.weights.products()[*pair as usize] = products;
            }
            let steps = steps(target, &placed.weights, BatchSizes::of_one(4096, 1));
            let logits = Range::floats("logits", model.config.vocab_size as u64);
            let token = steps.token(target, &logits).expect("its shapes suit");
            resolved(target, "a token", &token).len()
        });
        // With subgroups fewer dispatches are left to save.
        let least = if target.tier.has_subgroups() { 0 } else { 6 };
        let what = format!("{dispatches:?} on {}", target.name);
        assert!(dispatches[1] + least <= dispatches[0], "{what}");
    }
}
