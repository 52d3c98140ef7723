//! Protects the cousins of the three models (docs/models.md): with all sizes of their attention, their stream and their experts,
//! every tier gives the logits of the CPU reference, for a prompt and for tokens one by one.

use super::{OneByOne, backend, contrast, contrast_of_prompts, open_tier, token_limits};
use crate::golden::all_logits;
use crate::testing::some;
use glimt::engine::Products;
use glimt::engine::cpu::CpuBackend;
use glimt::gguf::{Array, Gguf, Value};
use glimt::gpu::Tier;
use glimt::models::mla::Model;
use glimt::synth::{ModelName, Plan, Recipe, SynthOptions};
use std::sync::Arc;

/// All of them but Kimi-VL, which has the sizes of Moonlight.
const COUSINS: [ModelName; 5] = [
    ModelName::DeepseekCoderV2Lite,
    ModelName::Glm47FlashReap23b,
    ModelName::Moonlight16bA3b,
    ModelName::Kanana2_30bA3b,
    ModelName::Gigachat3_10bA18b,
];
/// Tokens of the vocabulary, experts and values of the dense network that are left, so that a test takes seconds.
const VOCABULARY: usize = 512;
const EXPERTS: u64 = 8;
const DENSE: u64 = 512;

/// Two layers of a model, the first of them dense, with all sizes of its attention and of each expert, but with few tokens and experts.
fn narrowed(name: ModelName) -> Arc<Model> {
    let options = SynthOptions {
        layers: Some(2),
        ..SynthOptions::default()
    };
    let mut plan = Plan::new(name, Recipe::Q4_0, &options).expect("it has layers");
    for (key, value) in &mut plan.metadata {
        let key = key.strip_prefix("deepseek2.").unwrap_or(key);
        match (key, value) {
            ("vocab_size", value) => *value = Value::U32(VOCABULARY as u32),
            ("expert_count", value) => *value = Value::U32(EXPERTS as u32),
            ("feed_forward_length", value) => *value = Value::U32(DENSE as u32),
            (_, Value::Array(Array::String(all))) => all.truncate(VOCABULARY),
            (_, Value::Array(Array::I32(all))) => all.truncate(VOCABULARY),
            _ => {}
        }
    }
    for tensor in &mut plan.tensors {
        let part = tensor.name.strip_prefix("blk.").map(|name| &name[2..]);
        let dims = &mut tensor.dims;
        match part {
            None if dims.len() == 2 => dims[1] = VOCABULARY as u64,
            Some("ffn_gate_inp.weight") => dims[1] = EXPERTS,
            Some("exp_probs_b.bias") => dims[0] = EXPERTS,
            Some("ffn_gate.weight" | "ffn_up.weight") => dims[1] = DENSE,
            Some("ffn_down.weight") => dims[0] = DENSE,
            Some(part) if part.ends_with("_exps.weight") => dims[2] = EXPERTS,
            _ => {}
        }
    }
    let bytes = plan.in_memory(1).expect("memory takes it");
    let gguf = Gguf::from_bytes(bytes, name.name()).expect("it was just written");
    Arc::new(Model::load(Arc::new(gguf)).expect("it is supported"))
}

/// Holds a tier against the CPU reference.
fn check(name: ModelName, tier: Tier) {
    let Some(gpu) = open_tier(tier) else { return };
    // More than few tokens, so that they take the kernels of prompts.
    let tokens: Vec<u32> = (0..24).map(|i| (37 * i + 11) % VOCABULARY as u32).collect();
    let model = narrowed(name);
    let mut cpu = CpuBackend::new(model.clone(), Products::Exact, 64).expect("a small cache");
    let expected = all_logits(&mut cpu, &tokens, &[]);
    let prompt = all_logits(&mut backend(&gpu, &model, 64), &tokens, &[]);
    let few = &tokens[..4];
    let decoded = all_logits(&mut OneByOne(backend(&gpu, &model, 64)), few, &[]);
    let errors = [
        contrast(&prompt, &expected),
        contrast(&decoded, &expected[..few.len()]),
    ];
    let tier = gpu.tier.name();
    eprintln!("{name}, {tier}: {:.1e} {:.1e}", errors[0], errors[1]);
    let limits = [contrast_of_prompts(&gpu), token_limits(&gpu).1.min(2e-2)];
    assert!(
        errors[0] < limits[0] && errors[1] < limits[1],
        "{name}, {tier}: {errors:?}, allowed are {limits:?}"
    );
}

const TIERS: [Tier; 3] = [Tier::Plain, Tier::Subgroup, Tier::Int8];

#[test]
fn a_cousin_gives_the_logits_of_the_cpu_reference_in_a_tier() {
    for (name, tier) in some(&COUSINS, 1).into_iter().zip(some(&TIERS, 1)) {
        check(name, tier);
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn every_cousin_does_so_in_every_tier() {
    for name in COUSINS {
        TIERS.iter().for_each(|tier| check(name, *tier));
    }
}
