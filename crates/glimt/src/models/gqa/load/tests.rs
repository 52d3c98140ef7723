//! Protects the search for a model's tensors: each variant of the architectures is found whole, and what nobody asked for is refused.

use super::*;
use crate::model::Ffn;
use crate::models::gqa::testing::*;

/// The bytes of a tensor of the file.
fn file_bytes<'a>(model: &'a Model, name: &str) -> &'a [u8] {
    let tensor = model.gguf.tensor(name).expect("it is in the file");
    model.gguf.data(tensor)
}

#[test]
fn each_architecture_is_found_whole() {
    for architecture in ["llama", "qwen2", "qwen3", "qwen3moe"] {
        let model = Draft::of(architecture).load().expect(architecture);
        assert_eq!(model.layers.len(), BLOCKS as usize);
        assert!(!model.tied);
        let layer = &model.layers[1];
        let attention = &layer.attention;
        let shape = |of: &Projection| (of.weight.groups, of.weight.rows, of.weight.cols);
        assert_eq!(shape(&attention.attn_q), (1, 192, 64));
        assert_eq!(shape(&attention.attn_k), (1, 64, 64));
        assert_eq!(shape(&attention.attn_v), (1, 64, 64));
        let bias: Option<Vec<f32>> = (architecture == "qwen2")
            .then(|| bytemuck::pod_collect_to_vec(file_bytes(&model, "blk.1.attn_k.bias")));
        assert_eq!(attention.attn_k.bias, bias);
        let norms = [&attention.attn_q_norm, &attention.attn_k_norm];
        let has_norms = architecture.starts_with("qwen3");
        assert!(norms.iter().all(|norm| norm.is_some() == has_norms));
        assert_eq!(matches!(layer.ffn, Ffn::Moe(_)), architecture == "qwen3moe");
    }
}

#[test]
fn one_tensor_may_have_the_rows_of_all_three() {
    let mut draft = Draft::of("qwen2");
    for kind in ["weight", "bias"] {
        for name in ["attn_q", "attn_k", "attn_v"] {
            draft.remove(&format!("blk.0.{name}.{kind}"));
        }
    }
    draft.add(
        "blk.0.attn_qkv.weight",
        &[WIDTH, (HEADS + 2 * KV_HEADS) * HEAD],
    );
    draft.add("blk.0.attn_qkv.bias", &[(HEADS + 2 * KV_HEADS) * HEAD]);
    let model = draft.load().expect("it is whole");
    let attention = &model.layers[0].attention;
    let bytes = file_bytes(&model, "blk.0.attn_qkv.weight");
    let row = WIDTH as usize * 4;
    assert_eq!(
        attention.attn_q.weight.row(0, 191),
        &bytes[191 * row..][..row]
    );
    assert_eq!(
        attention.attn_k.weight.row(0, 0),
        &bytes[192 * row..][..row]
    );
    assert_eq!(
        attention.attn_v.weight.row(0, 63),
        &bytes[319 * row..][..row]
    );
    let bias: Vec<f32> = bytemuck::pod_collect_to_vec(file_bytes(&model, "blk.0.attn_qkv.bias"));
    assert_eq!(attention.attn_v.bias.as_deref(), Some(&bias[256..]));
}

#[test]
fn a_missing_head_is_the_embedding() {
    let mut draft = Draft::of("qwen2");
    draft.remove("output.weight");
    let model = draft.load().expect("it is whole");
    assert!(model.tied);
    assert_eq!(model.output.row(0, 7), model.token_embd.row(0, 7));
}

#[test]
fn factors_of_frequencies_are_those_of_llama_alone() {
    let mut draft = Draft::of("llama");
    draft.add("rope_freqs.weight", &[HEAD / 2]);
    let refused = draft.refusal();
    assert!(
        refused.contains("rope_freqs.weight has the factor -"),
        "random values of both signs: {refused}"
    );
    let mut draft = Draft::of("qwen3");
    draft.add("rope_freqs.weight", &[HEAD / 2]);
    let refused = draft.refusal();
    assert!(
        refused.contains("rope_freqs.weight [16] is not known"),
        "{refused}"
    );
}

#[test]
fn tensors_without_code_are_refused_by_name() {
    for (architecture, tensor, dims) in [
        ("llama", "blk.1.attn_output.bias", &[WIDTH][..]),
        ("llama", "blk.0.attn_q_norm.weight", &[HEAD]),
        ("qwen2", "blk.0.attn_sinks.weight", &[HEADS]),
        (
            "qwen3moe",
            "blk.1.ffn_gate_shexp.weight",
            &[WIDTH, EXPERT_FF],
        ),
        ("qwen3", "blk.1.ffn_down.bias", &[WIDTH]),
    ] {
        let mut draft = Draft::of(architecture);
        draft.add(tensor, dims);
        let refused = draft.refusal();
        let expected = format!("tensor {tensor} {dims:?} is not known");
        assert!(refused.contains(&expected), "{refused}");
    }
}

#[test]
fn a_missing_tensor_is_named_with_its_shape() {
    for (architecture, tensor, dims) in [
        ("llama", "blk.1.attn_k.weight", "[64, 64]"),
        ("qwen3", "blk.0.attn_k_norm.weight", "[32]"),
        ("qwen3moe", "blk.1.ffn_gate_inp.weight", "[64, 4]"),
    ] {
        let mut draft = Draft::of(architecture);
        draft.remove(tensor);
        let refused = draft.refusal();
        assert_eq!(refused, format!("tensor {tensor} {dims} is missing"));
    }
}

#[test]
fn a_prediction_layer_is_refused() {
    let other = Draft::of("llama").open();
    for source in [NextnSource::Own, NextnSource::Other(other)] {
        let refused = Model::with_nextn(Draft::of("llama").open(), &source);
        let refused = refused.expect_err("there is no such layer").to_string();
        assert!(
            refused.contains("architecture llama have no layer for multi-token prediction"),
            "{refused}"
        );
    }
    let model = Model::with_nextn(Draft::of("llama").open(), &NextnSource::IfAny);
    assert!(model.expect("it is not wanted").nextn.is_none());
}
