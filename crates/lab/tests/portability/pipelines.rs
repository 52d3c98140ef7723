//! Every pipeline that steps of the models ask for, on every kind of device. They are recorded without one.

use glimt::engine::gpu::plan::Plan;
use glimt::gpu::buffer::Range;
use glimt::gpu::call::Call;
use glimt::gpu::interface;
use glimt::gpu::memory::Loader;
use glimt::gpu::pipeline::Spec;
use glimt::gpu::target::profiles;
use glimt::gpu::{Step, Target, Tier};
use glimt::kernels::keep_states::States;
use glimt::kernels::nextn_input::{GpuNextnInput, StatesFrom};
use glimt::kernels::{CacheType, accept_drafts, keep_states, mark, read};
use glimt::model::pairs::Pair;
use glimt::model::{Convert, NextnSource, Transformer, Weight};
use glimt::models::{Model, gqa, mla};
use glimt::quant::GgmlType;
use glimt::quant::activation::Activation;
use glimt::recipes::{BatchSizes, Residence};
use glimt::synth::{ModelName, Recipe, SynthOptions, without_matrices};
use rayon::prelude::*;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;

/// Which devices are given a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Devices {
    /// All that have the tier.
    All,
    /// Devices with cooperative matrices of 16 rows, on Vulkan alone.
    Matrices,
    /// Devices with cooperative matrices of 8 rows, on Vulkan and Metal.
    MatricesAndMetal,
}

/// A pipeline and who is given it.
#[derive(Debug, Clone)]
pub struct Pipeline {
    /// The kernel and the variant that make the pipeline.
    pub spec: Spec,
    /// `Plain`, or `Subgroup` also for `Int8`, which is the same with other flags.
    pub tier: Tier,
    /// The devices that it is for.
    pub devices: Devices,
}

/// The kernels by cooperative matrices.
const COOP: [&str; 5] = [
    "attention_coop",
    "expand_kv_coop",
    "gemm_coop",
    "grouped_attention_coop",
    "prompt_attention_coop",
];

/// Rows of a context that every form of the attention has a dispatch for. A browser's bindings have room for fewer of Llama-3.1-8B.
const N_CTX: usize = 40_000;

/// A batch whose steps take every kernel for several sequences.
const BATCH: BatchSizes = BatchSizes {
    n_ctx: 4000,
    pages: 500,
    sequences: 64,
    tokens: 512,
    chunk: 512,
    drafts: 0,
};

/// Makes every matrix whose rows allow it one of `types`, in turn.
struct Retyped {
    types: [GgmlType; 2],
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

impl Retyped {
    /// Gives the weights of a model the types. A family says how those of its attention are converted.
    fn retype<A>(
        mut self,
        weights: &mut Transformer<A>,
        attention: impl Fn(&A, &mut Self) -> Result<A, Infallible>,
    ) {
        for layer in &mut weights.layers {
            let Ok(retyped) = layer.convert(&mut self, &attention);
            *layer = retyped;
        }
    }
}

/// A model of these sizes with three layers, of which the first may be dense, and weights of `types`. Nothing where it cannot have a cache of this type.
fn model(name: ModelName, types: [GgmlType; 2], cache: CacheType) -> Option<Box<dyn Model>> {
    let options = SynthOptions {
        layers: Some(3),
        ..SynthOptions::default()
    };
    let gguf = without_matrices(name, Recipe::Q4_0, &options).expect("a plan");
    let by = Retyped { types, next: 0 };
    let latent = mla::FAMILY.architectures.iter();
    if latent.flat_map(|a| ModelName::of(a)).any(|of| of == name) {
        let mut model = mla::Model::load(Arc::new(gguf)).expect("it is supported");
        by.retype(&mut model.weights, |attention, by| attention.convert(by));
        return with_cache(model, cache);
    }
    let model = gqa::Model::with_nextn(Arc::new(gguf), &NextnSource::None);
    let mut model = model.expect("it is supported");
    by.retype(&mut model.weights, |attention, by| attention.convert(by));
    with_cache(model, cache)
}

/// The model with a cache of this type, if it can have one.
fn with_cache(mut model: impl Model + 'static, cache: CacheType) -> Option<Box<dyn Model>> {
    model.set_cache_type(cache).ok()?;
    Some(Box::new(model))
}

/// The step of one token by products of weights, where the model has such.
fn precomposed(target: &Target, model: &dyn Model) -> Step {
    let placed = model.place(target, Residence::Whole).expect("it fits");
    let mut weights = placed.weights;
    for pair in Pair::ALL {
        for factors in model.factors(pair) {
            let product = factors.product().expect("there is nothing to read");
            let mut loader = Loader::new(target);
            loader.add(&product).expect("it fits");
            weights.products()[pair as usize].extend(loader.places());
        }
    }
    let recipes = weights
        .untried(target)
        .steps(target, BatchSizes::of_one(4096, 1));
    let recipes = recipes.expect("a cache");
    let logits = Range::floats("logits", model.config().vocab_size as u64);
    let step = recipes.token(target, &logits);
    step.expect("its shapes suit")
}

/// Every step of `model` on `target`.
fn steps(target: &Target, model: &dyn Model) -> Vec<Step> {
    let what = format!("{} on {}", model.config().name, target.name);
    // A layer's cache is one binding.
    let row = (model.cache_row().words() * size_of::<u16>()) as u64;
    let n_ctx = N_CTX.min((target.max_binding / row) as usize);
    let session = Plan::of_one(target, model, Residence::Whole, n_ctx, None);
    let session = session.unwrap_or_else(|e| panic!("{what}: {e}"));
    let batch = Plan::new(target, model, Residence::Whole, BATCH);
    let batch = batch.unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut steps: Vec<_> = session.steps.into_iter().chain(batch.steps).collect();
    // Experts in host memory, with slots for some and for none.
    if target.reads_host {
        for slots in [0, 20] {
            let plan = Plan::new(target, model, Residence::Slots(slots), BATCH);
            steps.extend(plan.unwrap_or_else(|e| panic!("{what}: {e}")).steps);
        }
    }
    let steps = steps.into_iter().map(|(_, step)| step);
    steps.chain([precomposed(target, model)]).collect()
}

/// For whom `target` asks for a pipeline, with the tier's place among [`TIERS`].
fn asked(spec: Spec, target: &Target) -> (Spec, usize, Devices) {
    let metal = target
        .coop
        .is_some_and(|coop| (coop.size, coop.lanes) == (8, 32));
    let devices = match COOP.contains(&spec.kernel) {
        false => Devices::All,
        true if metal => Devices::MatricesAndMetal,
        true => Devices::Matrices,
    };
    (spec, usize::from(target.tier != Tier::Plain), devices)
}

const TIERS: [Tier; 2] = [Tier::Plain, Tier::Subgroup];

/// The kernels of steps with drafts, which models without a prediction layer do not have.
fn of_drafts() -> Vec<Call> {
    let words = |count| Range::words("any", count);
    let floats = |count| Range::floats("any", count);
    let states = States::new(1, 4000, 2048);
    let input = GpuNextnInput {
        embedding: floats(2048),
        states: StatesFrom::Kept(None, &states),
        norms: [floats(2048), floats(2048), floats(2048)],
        eps: 1e-5,
        prepared: floats(4096),
        activation: Activation::Floats,
        width: 2048,
    };
    vec![
        accept_drafts::call(&words(64), 4, &words(4096), 0, &words(64)),
        keep_states::call(None, &floats(2048), &states, 1),
        input.call(),
    ]
}

/// The calls that no step of a model has: marks, the measurement of reading, and the trial of halves.
fn others() -> Vec<Call> {
    let told = Range::words("told", 4);
    let read = read::AT_ONCE.map(|at_once| {
        let data = Range::words("data", read::tile_bytes(at_once) / 4);
        read::call(&data, &told, at_once, 0)
    });
    let range = || Range::words("any", 1 << 20);
    let halves = Call::new("small_halves")
        .flag("PACKED", true)
        .bind("codes", &range())
        .bind("x", &range())
        .bind("y", &range());
    let mut calls = vec![mark::call(&told), halves];
    calls.extend(read);
    calls.extend(of_drafts());
    calls
}

/// Every pipeline that steps of `models` ask for on all devices, once. The weights of a model have a type, and every second one the type
/// that follows it among `types`: a kernel that reads two types imports two modules that share no code, so a pair can only clash by names. No kernel
/// reads a cache and quantised weights but those that write its rows, so each model has a cache of codes with the first of `types` alone.
pub fn pipelines(models: &[ModelName], types: &[GgmlType]) -> Vec<Pipeline> {
    let of_model = |(name, i, cache): (ModelName, usize, CacheType)| {
        let mut found = BTreeSet::new();
        let Some(model) = model(name, [types[i], types[(i + 1) % types.len()]], cache) else {
            return found;
        };
        for target in profiles() {
            for step in steps(&target, &*model) {
                let calls = step.resolve();
                let calls = calls.unwrap_or_else(|e| panic!("{name} on {}: {e}", target.name));
                let specs = calls.into_iter().map(|call| call.spec);
                // Matrices of 8 lanes are those of software, for tests.
                let software = target.coop.is_some_and(|coop| coop.lanes == 8);
                let specs = specs.filter(|spec| !software || !COOP.contains(&spec.kernel));
                found.extend(specs.map(|spec| asked(spec, &target)));
            }
        }
        found
    };
    let cases = models
        .iter()
        .flat_map(|name| (0..types.len()).map(|i| (*name, i, CacheType::F16)));
    let with_codes = models.iter().map(|name| (*name, 0, CacheType::Q8_0));
    let cases: Vec<_> = cases.chain(with_codes).collect();
    let mut all: BTreeSet<_> = cases.into_par_iter().flat_map_iter(of_model).collect();
    for call in others() {
        let spec = interface::spec(&call).unwrap_or_else(|e| panic!("{e}"));
        // Halves are tried where shaders have f16, which tier `plain` does without.
        let trial = spec.kernel == "small_halves";
        let targets = profiles();
        let targets = targets.iter().filter(|t| !trial || t.tier != Tier::Plain);
        all.extend(targets.map(|target| asked(spec.clone(), target)));
    }
    let pipeline = |(spec, tier, devices): (Spec, usize, Devices)| Pipeline {
        spec,
        tier: TIERS[tier],
        devices,
    };
    all.into_iter().map(pipeline).collect()
}
