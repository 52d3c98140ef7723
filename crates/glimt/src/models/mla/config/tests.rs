//! Protects what is read of a file's keys: every one that can be missing, contradictory or unsupported is named, and the constants of the real models come out.

use super::*;
use crate::kernels::CacheType;
use crate::model::{Experts, RopeConfig};
use crate::models::mla::testing::*;

fn config(draft: &Draft) -> Config {
    Config::from_gguf(&draft.open()).unwrap()
}

fn refusal(draft: &Draft) -> String {
    Config::from_gguf(&draft.open()).unwrap_err().to_string()
}

/// The refusal of a whole model with one key set.
fn refusal_with(key: &str, value: impl Into<crate::gguf::Value>) -> String {
    let mut draft = Draft::glm(2);
    draft.set(key, value);
    refusal(&draft)
}

#[test]
fn all_fields_are_read() {
    let common = model::Config {
        name: "draft".to_owned(),
        architecture: "deepseek2".to_owned(),
        block_count: 3,
        nextn_predict_layers: 0,
        leading_dense_block_count: 1,
        embedding_length: 64,
        head_count: 3,
        feed_forward_length: 128,
        experts: Some(Experts {
            count: 4,
            used: 2,
            shared_count: 2,
            feed_forward_length: 32,
            gating: Gating::Sigmoid,
            weights_norm: true,
            weights_scale: 1.8,
        }),
        vocab_size: 40,
        context_length: 512,
        rms_eps: 1e-5,
        rope: RopeConfig {
            freq_base: 10_000.0,
            attn_factor: 1.0,
            yarn: None,
        },
    };
    let expected = Config {
        q_lora_rank: Some(32),
        kv_lora_rank: 96,
        qk_nope_head_dim: 32,
        qk_rope_head_dim: 16,
        v_head_dim: 64,
        cache: CacheType::F16,
        common,
    };
    let config = config(&Draft::glm(3));
    assert_eq!(config, expected);
    assert_eq!(
        (config.cache_values(), config.shared_feed_forward_length()),
        (112, 64)
    );
    assert_eq!(config.softmax_scale(), 1.0 / 48f32.sqrt());
}

#[test]
fn a_missing_key_is_named() {
    for key in [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.kv_lora_rank",
        "attention.value_length_mla",
        "attention.layer_norm_rms_epsilon",
        "rope.dimension_count",
        "expert_feed_forward_length",
        "expert_used_count",
        "vocab_size",
    ] {
        let mut draft = Draft::glm(2);
        draft.unset(key);
        let message = refusal(&draft);
        assert!(
            message.contains(&format!("deepseek2.{key} (")) && message.ends_with("is missing"),
            "{message}"
        );
    }
}

#[test]
fn a_missing_gating_key_depends_on_the_shape_and_on_a_bias() {
    let gating = |blocks: u32, vocab: u32| {
        let mut draft = Draft::glm(1);
        draft
            .tensors
            .retain(|(name, ..)| !name.contains("exp_probs_b"));
        draft.unset("expert_gating_func");
        draft.set("block_count", blocks);
        draft.set("vocab_size", vocab);
        config(&draft).common.experts.unwrap().gating
    };
    assert_eq!(gating(47, 154_880), Gating::Sigmoid);
    assert_eq!(gating(48, 154_880), Gating::Sigmoid);
    assert_eq!(gating(47, 102_400), Gating::Softmax);
    assert_eq!(gating(27, 154_880), Gating::Softmax);
    // A bias for the choice tells as much, whatever the shape is.
    let mut draft = Draft::glm(2);
    draft.unset("expert_gating_func");
    assert_eq!(
        config(&draft).common.experts.unwrap().gating,
        Gating::Sigmoid
    );
    let mut draft = Draft::glm(1);
    draft.set("expert_gating_func", 1u32);
    draft.set("block_count", 47u32);
    draft.set("vocab_size", 154_880u32);
    assert_eq!(
        config(&draft).common.experts.unwrap().gating,
        Gating::Softmax
    );
    // 47 blocks and one nextn block.
    draft.unset("expert_gating_func");
    draft.set("block_count", 48u32);
    draft.set("nextn_predict_layers", 1u32);
    assert_eq!(
        config(&draft).common.experts.unwrap().gating,
        Gating::Sigmoid
    );
}

#[test]
fn settings_without_code_are_refused_by_key_and_value() {
    for (message, parts) in [
        (
            refusal_with("expert_group_count", 8u32),
            ["expert_group_count is 8", "supported: 1 group"],
        ),
        (
            refusal_with("expert_gating_func", 3u32),
            ["expert_gating_func is 3", "1 (softmax), 2 (sigmoid)"],
        ),
        (
            refusal_with("attention.temperature_scale", 0.1f32),
            ["temperature_scale is float32 0.1", "not support"],
        ),
        (
            refusal_with("attention.sliding_window", 512u32),
            ["sliding_window is uint32 512", "not support"],
        ),
        (
            refusal_with("attention.head_count_kv", 2u32),
            ["head_count_kv is 2", "supported: 1, or 3"],
        ),
        (
            refusal_with("rope.scaling.type", "longrope"),
            ["rope.scaling.type is longrope", "none, yarn"],
        ),
        (
            refusal_with("rope.scaling.type", "dynamic"),
            ["rope.scaling.type is dynamic", "none, yarn"],
        ),
        (
            refusal_with("rope.scaling.factor", 4.0f32),
            ["rope.scaling.type is linear with factor 4", "none, yarn"],
        ),
        (
            refusal_with("rope.scale_linear", 2.0f32),
            ["rope.scaling.type is linear with factor 2", "none, yarn"],
        ),
        (
            refusal_with("feed_forward_length", vec![128u32, 256]),
            ["differ from layer to layer", "one value"],
        ),
    ] {
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
    let mut draft = Draft::glm(2);
    draft.set("attention.temperature_scale", 0.0f32);
    draft.set("expert_group_count", 1u32);
    draft.set("rope.scaling.type", "none");
    draft.set("rope.scaling.factor", 4.0f32);
    draft.set("feed_forward_length", vec![128u32, 128]);
    assert_eq!(config(&draft).rope.yarn, None);
}

#[test]
fn contradictions_are_refused_by_key_and_value() {
    for (message, part) in [
        (
            refusal_with("expert_used_count", 5u32),
            "expert_used_count is 5; at most the 4",
        ),
        (
            refusal_with("rope.dimension_count", 15u32),
            "rope.dimension_count is 15; an even number",
        ),
        (
            refusal_with("attention.key_length_mla", 16u32),
            "key_length_mla is 16; more than the 16",
        ),
        (
            refusal_with("attention.key_length", 96u32),
            "key_length is 96; 112, the width of the latent cache",
        ),
        (
            refusal_with("block_count", 0u32),
            "block_count is 0; at least 1",
        ),
        (
            refusal_with("attention.head_count", u32::MAX),
            "head_count is 4294967295; at most",
        ),
        (
            refusal_with("attention.layer_norm_rms_epsilon", f32::NAN),
            "rms_epsilon is NaN; a finite number above 0",
        ),
        (
            refusal_with("rope.freq_base", 0.0f32),
            "freq_base is 0; a finite number above 0",
        ),
        (
            refusal_with("rope.freq_base", 1.0f32),
            "freq_base is 1; more than 1",
        ),
        (
            refusal_with("expert_weights_scale", f32::INFINITY),
            "expert_weights_scale is inf; a finite number",
        ),
        (
            refusal_with("expert_shared_count", 1u32 << 20),
            "expert_shared_count is 1048576; at most",
        ),
        (
            refusal_with("embedding_length", "wide"),
            "embedding_length is string \"wide\"; an unsigned",
        ),
    ] {
        assert!(message.contains(part), "{message}");
    }
    let mut draft = Draft::glm(2);
    draft.set_raw("tokenizer.ggml.tokens", vec!["a".to_owned(); 41]);
    assert!(
        refusal(&draft).contains("vocab_size is 40; at least the 41 entries"),
        "{}",
        refusal(&draft)
    );
}

#[test]
fn the_vocabulary_gives_its_size_where_the_key_is_missing() {
    let mut draft = Draft::glm(1);
    draft.unset("vocab_size");
    draft.set_raw("tokenizer.ggml.tokens", vec!["a".to_owned(); 40]);
    assert_eq!(config(&draft).vocab_size, 40);
}

#[test]
fn older_files_hold_head_sizes_in_key_length() {
    let mut draft = Draft::glm(1);
    draft.unset("attention.key_length_mla");
    draft.unset("attention.value_length_mla");
    draft.set("attention.key_length", 48u32);
    draft.set("attention.value_length", 64u32);
    for heads_kv in [1u32, 3] {
        draft.set("attention.head_count_kv", heads_kv);
        let config = config(&draft);
        assert_eq!(
            (
                config.qk_nope_head_dim,
                config.qk_rope_head_dim,
                config.v_head_dim
            ),
            (32, 16, 64)
        );
    }
    draft.unset("attention.head_count_kv");
    assert_eq!(config(&draft).head_count, 3);
}

#[test]
fn dense_models_need_no_expert_keys() {
    let mut draft = Draft::glm(3);
    for key in [
        "expert_feed_forward_length",
        "expert_shared_count",
        "expert_count",
        "expert_used_count",
        "expert_gating_func",
        "expert_weights_scale",
        "expert_weights_norm",
        "leading_dense_block_count",
    ] {
        draft.unset(key);
    }
    assert_eq!(
        (
            config(&draft).common.experts,
            config(&draft).leading_dense_block_count
        ),
        (None, 3)
    );
    draft.set("leading_dense_block_count", 1u32);
    assert!(
        refusal(&draft).contains("leading_dense_block_count is 1; 3, there being no expert_count")
    );
}

#[test]
fn experts_default_to_all_blocks_without_norm_or_scale() {
    let mut draft = Draft::glm(3);
    draft.unset("leading_dense_block_count");
    draft.unset("expert_weights_norm");
    draft.unset("expert_weights_scale");
    let config = config(&draft);
    let experts = config.experts.as_ref().unwrap();
    assert_eq!(
        (config.leading_dense_block_count, config.feed_forward_length),
        (0, 0)
    );
    assert_eq!((experts.weights_norm, experts.weights_scale), (false, 1.0));
}

/// DeepSeek-V2-Lite: nope 128, rope 64, YaRN factor 40 from 4096, mscale_all_dim 0.707.
fn deepseek_v2_lite() -> Config {
    let mut draft = Draft::glm(1);
    draft.set("attention.key_length", LATENT as u32 + 64);
    draft.set("attention.key_length_mla", 192u32);
    draft.set("rope.dimension_count", 64u32);
    draft.set("context_length", 163_840u32);
    draft.set("rope.scaling.type", "yarn");
    draft.set("rope.scaling.factor", 40.0f32);
    draft.set("rope.scaling.original_context_length", 4096u32);
    draft.set("rope.scaling.yarn_log_multiplier", 0.0707f32);
    config(&draft)
}

#[test]
fn yarn_constants_of_deepseek_v2_lite() {
    let config = deepseek_v2_lite();
    let yarn = config.rope.yarn.as_ref().unwrap();
    assert_eq!((yarn.factor, yarn.original_context_length), (40.0, 4096));
    assert_eq!((yarn.beta_fast, yarn.beta_slow), (32.0, 1.0));
    assert!((yarn.log_multiplier - 0.707).abs() < 1e-7);
    assert_eq!(config.rope.magnitude(), 1.0);
    // modeling_deepseek.py: softmax_scale = 192^-0.5 * yarn_get_mscale(40, 0.707)^2, mscale = 1.260803...
    let mscale = 0.1 * 0.707 * 40f64.ln() + 1.0;
    assert!((mscale - 1.260_80).abs() < 1e-4);
    assert!((f64::from(config.softmax_scale()) - mscale * mscale / 192f64.sqrt()).abs() < 1e-7);
}

#[test]
fn yarn_without_a_log_multiplier_scales_the_rotation() {
    let mut draft = Draft::glm(1);
    draft.set("rope.scaling.type", "yarn");
    draft.set("rope.scaling.factor", 8.0f32);
    draft.set("rope.scaling.attn_factor", 0.5f32);
    let config = config(&draft);
    let magnitude = 0.5 * (1.0 + 0.1 * 8f64.ln());
    assert!((config.rope.magnitude() - magnitude).abs() < 1e-12);
    assert!(
        (f64::from(config.softmax_scale()) - magnitude * magnitude / 48f64.sqrt()).abs() < 1e-7
    );
    assert_eq!(
        config.common.rope.yarn.unwrap().original_context_length,
        512
    );
}

#[test]
fn yarn_keys_are_checked() {
    for (key, value, part) in [
        ("rope.scaling.factor", 0.5, "factor is 0.5; 1 to 1000000"),
        (
            "rope.scaling.factor",
            f32::NAN,
            "factor is NaN; a finite number",
        ),
        (
            "rope.scaling.yarn_ext_factor",
            0.0,
            "yarn_ext_factor is 0, which glimt does not support; supported: 1",
        ),
        (
            "rope.scaling.yarn_attn_factor",
            2.0,
            "yarn_attn_factor is 2, which glimt does not support",
        ),
        (
            "rope.scaling.yarn_beta_fast",
            1.0,
            "yarn_beta_fast is 1; more than the 1",
        ),
        (
            "rope.scaling.yarn_beta_slow",
            0.0,
            "yarn_beta_slow is 0; a finite number above 0",
        ),
    ] {
        let mut draft = Draft::glm(1);
        draft.set("rope.scaling.type", "yarn");
        draft.set(key, value);
        assert!(refusal(&draft).contains(part), "{}", refusal(&draft));
    }
}
