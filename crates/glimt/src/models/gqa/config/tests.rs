//! Protects what is read of a file's keys: sizes, what an architecture says and no key does, and the refusals by name.

use super::*;
use crate::gguf::Value;
use crate::models::gqa::testing::*;

fn config(draft: &Draft) -> Config {
    Config::from_gguf(&draft.open()).expect("it is supported")
}

#[test]
fn sizes_and_the_facts_of_each_architecture_are_read() {
    for (architecture, pairing, norms, experts) in [
        ("llama", Pairing::Adjacent, false, false),
        ("qwen2", Pairing::Halves, false, false),
        ("qwen3", Pairing::Halves, true, false),
        ("qwen3moe", Pairing::Halves, true, true),
    ] {
        let found = config(&Draft::of(architecture));
        let expected = GroupedDims {
            heads: 6,
            kv_heads: 2,
            key: 32,
            value: 32,
            rope: 32,
            pairing,
            cache: CacheType::F16,
        };
        assert_eq!(found.dims, expected, "{architecture}");
        assert_eq!(found.traits.norms, norms);
        assert_eq!(found.traits.frequency_factors, architecture == "llama");
        assert_eq!(found.softmax_scale(), 1.0 / 32f32.sqrt());
        assert_eq!(found.experts.is_some(), experts);
        if let Some(experts) = &found.experts {
            assert_eq!(
                (experts.count, experts.used, experts.shared_count),
                (4, 2, 0)
            );
            assert!(experts.weights_norm && experts.weights_scale == 1.0);
            assert_eq!(experts.gating, Gating::Softmax);
            assert_eq!(found.leading_dense_block_count, 0);
        }
    }
}

#[test]
fn keys_that_may_be_absent_follow_from_others() {
    let draft = Draft::of("llama")
        .without("attention.key_length")
        .without("attention.value_length")
        .without("attention.head_count_kv")
        .with("attention.head_count", 4u32)
        .with("rope.dimension_count", 8u32);
    let dims = config(&draft).dims;
    assert_eq!((dims.heads, dims.kv_heads), (4, 4));
    assert_eq!((dims.key, dims.value, dims.rope), (16, 16, 8));
}

#[test]
fn settings_without_code_are_refused_by_key_and_value() {
    let qwen = || Draft::of("qwen3moe");
    let flags = || Value::from(vec![1i32, 1]);
    for (draft, parts) in [
        (
            qwen().with("attention.sliding_window", 4096u32),
            [
                "qwen3moe.attention.sliding_window is uint32 4096",
                "models without it",
            ],
        ),
        (
            qwen().with("attention.sliding_window_pattern", flags()),
            ["attention.sliding_window_pattern is", "models without it"],
        ),
        (
            qwen().with("attention.causal", false),
            ["attention.causal is false", "generate text"],
        ),
        (
            qwen().with("expert_shared_count", 1u32),
            ["expert_shared_count is uint32 1", "models without it"],
        ),
        (
            qwen().with("expert_gating_func", 2u32),
            ["expert_gating_func is 2 (sigmoid)", "1 (softmax)"],
        ),
        (
            qwen().with("rope.scaling.type", "longrope"),
            ["rope.scaling.type is longrope", "none, yarn"],
        ),
        (
            qwen().with("nextn_predict_layers", 1u32),
            ["nextn_predict_layers is uint32 1", "models without it"],
        ),
        (
            qwen().with("attention.head_count_kv", 4u32),
            [
                "attention.head_count_kv is 4",
                "a divisor of the 6 query heads",
            ],
        ),
        (
            qwen().with("attention.head_count_kv", 0u32),
            [
                "attention.head_count_kv is 0",
                "a divisor of the 6 query heads",
            ],
        ),
        (
            qwen().with("rope.dimension_count", 34u32),
            ["rope.dimension_count is 34", "up to the 32 of a head"],
        ),
        (
            qwen().with("rope.dimension_count", 7u32),
            ["rope.dimension_count is 7", "an even number"],
        ),
        (
            qwen().without("attention.key_length"),
            ["attention.head_count is 6", "a divisor of the 64"],
        ),
    ] {
        let message = draft.refusal();
        for part in parts {
            assert!(message.contains(part), "{message}");
        }
    }
}
