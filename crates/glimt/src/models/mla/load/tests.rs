//! Protects the search for a model's tensors: each trap of real files, as a small model, and the real small model.

mod nextn;

use std::path::Path;

use super::*;
use crate::gguf::TensorInfo;
use crate::model::{Ffn, Mlp};
use crate::models::mla::testing::*;

/// A weight's values, groups one after another.
fn values(weight: &Weight) -> Vec<f32> {
    let mut out = vec![0.0; weight.groups * weight.rows * weight.cols];
    for (i, row) in out.chunks_exact_mut(weight.cols).enumerate() {
        dequantize_row(weight.ty, weight.row(i / weight.rows, i % weight.rows), row);
    }
    out
}

/// The bytes of a tensor of the file.
fn file_bytes<'a>(model: &'a Model, name: &str) -> &'a [u8] {
    model.gguf.data(model.gguf.tensor(name).unwrap())
}

#[test]
fn a_whole_model_is_found() {
    let model = Draft::glm(3).load().unwrap();
    assert_eq!(model.layers.len(), 3);
    assert!(!model.tied);
    assert_eq!(
        model.output.rows_bytes(0, 0..VOCAB as usize),
        file_bytes(&model, "output.weight")
    );
    assert!(matches!(model.layers[0].ffn, Ffn::Dense(_)));
    assert!(matches!(model.layers[0].attention.q, Query::Lora { .. }));
    let layer = &model.layers[2];
    let k_b = &layer.attention.attn_k_b;
    assert_eq!(
        (k_b.groups, k_b.rows, k_b.cols),
        (HEADS as usize, LATENT as usize, NOPE as usize)
    );
    let v_b = &layer.attention.attn_v_b;
    assert_eq!(
        (v_b.groups, v_b.rows, v_b.cols),
        (HEADS as usize, V as usize, LATENT as usize)
    );
    let row = NOPE as usize * 4;
    assert_eq!(
        k_b.row(2, 5),
        &file_bytes(&model, "blk.2.attn_k_b.weight")[(2 * LATENT as usize + 5) * row..][..row]
    );
    let Ffn::Moe(moe) = &layer.ffn else {
        panic!("dense")
    };
    let (exp_probs_b, down_exps, shared) = (&moe.exp_probs_b, &moe.experts.down, &moe.shared);
    assert_eq!(
        (down_exps.groups, down_exps.rows, down_exps.cols),
        (4, WIDTH as usize, EXPERT_FF as usize)
    );
    assert_eq!(shared.as_ref().unwrap().gate.rows, 2 * EXPERT_FF as usize);
    let bias: &[f32] = &bytemuck::pod_collect_to_vec(file_bytes(&model, "blk.2.exp_probs_b.bias"));
    assert_eq!(exp_probs_b.as_deref(), Some(bias));
}

#[test]
fn a_missing_head_is_the_embedding() {
    let mut draft = Draft::glm(1);
    draft.remove("output.weight");
    let model = draft.load().unwrap();
    assert!(model.tied);
    assert_eq!(model.output.row(0, 7), model.token_embd.row(0, 7));
}

#[test]
fn a_model_without_a_query_latent() {
    let mut draft = Draft::glm(2);
    for block in 0..2 {
        for part in ["attn_q_a", "attn_q_a_norm", "attn_q_b"] {
            draft.remove(&format!("blk.{block}.{part}.weight"));
        }
        draft.add(
            &format!("blk.{block}.attn_q.weight"),
            &[WIDTH, HEADS * (NOPE + ROPE)],
        );
    }
    // The key is still there: the tensor decides.
    let model = draft.load().unwrap();
    assert_eq!(model.config.q_lora_rank, None);
    let Query::Full { attn_q } = &model.layers[1].attention.q else {
        panic!("a latent")
    };
    assert_eq!(attn_q.name, "blk.1.attn_q.weight");
    draft.unset("attention.q_lora_rank");
    assert_eq!(draft.load().unwrap().config.q_lora_rank, None);
}

#[test]
fn nextn_blocks_are_skipped() {
    let mut draft = Draft::glm(3);
    draft.set("block_count", 4u32);
    draft.set("nextn_predict_layers", 1u32);
    draft.add("blk.3.nextn.eh_proj.weight", &[2 * WIDTH, WIDTH]);
    let model = draft.load().unwrap();
    assert_eq!(
        (
            model.config.block_count,
            model.config.nextn_predict_layers,
            model.layers.len()
        ),
        (3, 1, 3)
    );
    draft.set("nextn_predict_layers", 4u32);
    assert!(
        draft.refusal().contains("nextn_predict_layers is 4"),
        "{}",
        draft.refusal()
    );
}

/// A draft in the form of files from before 2025: one attn_kv_b, head sizes in key_length and value_length.
fn fused_kv_b(ty: GgmlType) -> Draft {
    let mut draft = Draft::glm(2);
    for block in 0..2 {
        draft.remove(&format!("blk.{block}.attn_k_b.weight"));
        draft.remove(&format!("blk.{block}.attn_v_b.weight"));
        let name = format!("blk.{block}.attn_kv_b.weight");
        draft.add(&name, &[LATENT, HEADS * (NOPE + V)]);
        draft.tensor(&name).1 = ty;
    }
    draft.unset("attention.key_length_mla");
    draft.unset("attention.value_length_mla");
    draft.set("attention.key_length", (NOPE + ROPE) as u32);
    draft.set("attention.value_length", V as u32);
    draft.set("attention.head_count_kv", HEADS as u32);
    draft
}

#[test]
fn a_fused_kv_b_is_taken_apart() {
    for ty in [GgmlType::F32, GgmlType::F16, GgmlType::Q8_0] {
        let model = fused_kv_b(ty).load().unwrap();
        let (nope, v, latent) = (NOPE as usize, V as usize, LATENT as usize);
        let mut fused = vec![0.0; HEADS as usize * (nope + v) * latent];
        dequantize_row(ty, file_bytes(&model, "blk.1.attn_kv_b.weight"), &mut fused);
        let (k_b, v_b) = (
            &model.layers[1].attention.attn_k_b,
            &model.layers[1].attention.attn_v_b,
        );
        assert_eq!(
            (k_b.ty, k_b.groups, k_b.rows, k_b.cols),
            (GgmlType::F16, 3, latent, nope)
        );
        assert_eq!((v_b.ty, v_b.groups, v_b.rows, v_b.cols), (ty, 3, v, latent));
        let (k_values, v_values) = (values(k_b), values(v_b));
        for head in 0..HEADS as usize {
            let head_rows = &fused[head * (nope + v) * latent..];
            for l in 0..latent {
                for n in 0..nope {
                    let expected = f16::from_f32(head_rows[n * latent + l]).to_f32();
                    assert_eq!(
                        k_values[(head * latent + l) * nope + n],
                        expected,
                        "head {head}, {l}, {n}"
                    );
                }
            }
            assert_eq!(
                v_values[head * v * latent..][..v * latent],
                head_rows[nope * latent..][..v * latent]
            );
        }
    }
}

#[test]
fn a_file_with_both_forms_of_kv_b_uses_the_split_one() {
    let mut draft = Draft::glm(1);
    draft.add("blk.0.attn_kv_b.weight", &[LATENT, HEADS * (NOPE + V)]);
    let model = draft.load().unwrap();
    assert_eq!(
        model.layers[0].attention.attn_k_b.name,
        "blk.0.attn_k_b.weight"
    );
}

#[test]
fn fused_gate_and_up_are_taken_apart() {
    let mut draft = Draft::glm(2);
    draft.remove("blk.1.ffn_gate_exps.weight");
    draft.remove("blk.1.ffn_up_exps.weight");
    draft.add(
        "blk.1.ffn_gate_up_exps.weight",
        &[WIDTH, 2 * EXPERT_FF, EXPERTS],
    );
    let model = draft.load().unwrap();
    let Ffn::Moe(moe) = &model.layers[1].ffn else {
        panic!("dense")
    };
    let (gate_exps, up_exps) = (&moe.experts.gate, &moe.experts.up);
    let bytes = file_bytes(&model, "blk.1.ffn_gate_up_exps.weight");
    let half = EXPERT_FF as usize * WIDTH as usize * 4;
    for expert in 0..EXPERTS as usize {
        let rows = 0..EXPERT_FF as usize;
        assert_eq!(
            gate_exps.rows_bytes(expert, rows.clone()),
            &bytes[2 * expert * half..][..half]
        );
        assert_eq!(
            up_exps.rows_bytes(expert, rows),
            &bytes[(2 * expert + 1) * half..][..half]
        );
    }
}

#[test]
fn trailing_ones_may_be_missing_from_dimensions() {
    let mut draft = Draft::glm(2);
    draft.set("expert_count", 1u32);
    draft.set("expert_used_count", 1u32);
    for part in ["gate", "up", "down"] {
        draft
            .tensor(&format!("blk.1.ffn_{part}_exps.weight"))
            .2
            .pop();
    }
    draft.tensor("blk.1.ffn_gate_inp.weight").2.pop();
    draft.tensor("blk.1.exp_probs_b.bias").2 = vec![1];
    draft.load().unwrap();
}

#[test]
fn norms_of_half_precision_are_widened() {
    let mut draft = Draft::glm(1);
    draft.tensor("output_norm.weight").1 = GgmlType::BF16;
    draft.tensor("blk.0.attn_norm.weight").1 = GgmlType::F16;
    let model = draft.load().unwrap();
    let bits = |name, i: usize| {
        u16::from_le_bytes([
            file_bytes(&model, name)[2 * i],
            file_bytes(&model, name)[2 * i + 1],
        ])
    };
    for i in 0..WIDTH as usize {
        assert_eq!(
            model.output_norm[i].to_bits(),
            u32::from(bits("output_norm.weight", i)) << 16
        );
        assert_eq!(
            model.layers[0].attn_norm[i],
            f16::from_bits(bits("blk.0.attn_norm.weight", i)).to_f32()
        );
    }
    draft.tensor("output_norm.weight").1 = GgmlType::Q8_0;
    assert_eq!(
        draft.refusal(),
        "tensor output_norm.weight is of type Q8_0; F32, F16 or BF16 was expected"
    );
}

#[test]
fn wrong_and_missing_tensors_are_named_with_dimensions() {
    let mut draft = Draft::glm(2);
    draft.tensor("blk.1.ffn_down_exps.weight").2 = vec![64, 64, 4];
    assert_eq!(
        draft.refusal(),
        "tensor blk.1.ffn_down_exps.weight has the dimensions [64, 64, 4]; the configuration says [32, 64, 4]"
    );
    draft.remove("blk.0.ffn_norm.weight");
    assert_eq!(
        draft.refusal(),
        "tensor blk.0.ffn_norm.weight [64] is missing"
    );
    draft.remove("blk.0.attn_k_b.weight");
    assert_eq!(
        draft.refusal(),
        "tensor blk.0.attn_k_b.weight [32, 96, 3] is missing"
    );
}

#[test]
fn rows_that_do_not_fill_units_are_named() {
    let mut draft = Draft::glm(1);
    draft.set("feed_forward_length", 72u32);
    draft.tensor("blk.0.ffn_gate.weight").2 = vec![WIDTH, 72];
    draft.tensor("blk.0.ffn_up.weight").2 = vec![WIDTH, 72];
    draft.tensor("blk.0.ffn_down.weight").2 = vec![72, WIDTH];
    assert_eq!(
        draft.refusal(),
        "tensor blk.0.ffn_down.weight has rows of 72 values; glimt needs a multiple of 32"
    );
}

#[test]
fn unknown_tensors_of_what_is_computed_are_refused_by_name() {
    for name in [
        "blk.0.attn_q_a.bias",
        "blk.1.attn_output.bias",
        "blk.1.attn_q_b.scale",
        "blk.0.something_new.weight",
        "output.bias",
        "something_else",
        "rope_freqs.weight",
    ] {
        let mut draft = Draft::glm(2);
        draft.add(name, &[3]);
        let expected = format!("tensor {name} [3] is not known to glimt;");
        assert!(
            draft.refusal().starts_with(&expected),
            "{}",
            draft.refusal()
        );
    }
}

#[test]
fn unknown_tensors_that_change_nothing_are_no_obstacle() {
    let mut draft = Draft::glm(3);
    draft.set("block_count", 4u32);
    draft.set("nextn_predict_layers", 1u32);
    // An encoder for pictures, and a block that predicts further tokens.
    for name in [
        "v.blk.0.attn_q.weight",
        "mm.0.bias",
        "blk.3.something_new.bias",
    ] {
        draft.add(name, &[3]);
    }
    draft.load().unwrap();
}

#[test]
fn a_prediction_layer_alone_is_told() {
    let mut draft = Draft::glm(2);
    draft.set("block_count", 3u32);
    draft.set("nextn_predict_layers", 1u32);
    draft.tensors.retain(|(name, ..)| !name.starts_with("blk."));
    draft.add_block(2, false);
    draft.add("blk.2.nextn.eh_proj.weight", &[2 * WIDTH, WIDTH]);
    let expected =
        "the file holds only the layer for multi-token prediction (MTP), block 2 behind 2";
    assert!(draft.refusal().starts_with(expected), "{}", draft.refusal());
}

#[test]
fn a_bias_for_the_choice_without_a_suffix_is_the_same() {
    let mut draft = Draft::glm(2);
    draft.tensor("blk.1.exp_probs_b.bias").0 = "blk.1.exp_probs_b".to_owned();
    let model = draft.load().unwrap();
    let Ffn::Moe(moe) = &model.layers[1].ffn else {
        panic!("dense")
    };
    assert_eq!(
        moe.exp_probs_b.as_ref().map(Vec::len),
        Some(EXPERTS as usize)
    );
}

#[test]
fn the_embedded_model_loads() {
    let gguf = Gguf::from_bytes(
        include_bytes!("../../../../../../assets/tales-q4_k_m.gguf"),
        "embedded",
    )
    .unwrap();
    check_tales(&Model::load(Arc::new(gguf)).unwrap());
}

#[test]
fn every_type_of_the_tales_fixture_loads() {
    let Ok(fixtures) = std::env::var("GLIMT_FIXTURES") else {
        eprintln!("skipped: the Tales files (GLIMT_FIXTURES not set)");
        return;
    };
    for ty in ["F16", "Q8_0", "Q6_K", "Q5_0", "Q4_K_M", "Q4_0"] {
        let path = Path::new(&fixtures).join(format!("tales/tales-{ty}.gguf"));
        check_tales(&Model::load(Arc::new(Gguf::open(&path).unwrap())).unwrap());
    }
    let vocab = Gguf::open(&Path::new(&fixtures).join("vocab/glm-4.7-flash-vocab.gguf")).unwrap();
    assert!(matches!(
        Model::load(Arc::new(vocab)),
        Err(ModelError::NoTensors)
    ));
}

fn check_tales(model: &Model) {
    let c = &model.config;
    assert_eq!(
        (
            c.block_count,
            c.embedding_length,
            c.head_count,
            c.q_lora_rank
        ),
        (6, 256, 4, Some(256))
    );
    assert_eq!(
        (
            c.kv_lora_rank,
            c.qk_nope_head_dim,
            c.qk_rope_head_dim,
            c.v_head_dim
        ),
        (512, 64, 64, 128)
    );
    assert!(model.tied);
    // Every tensor of the file is used, once: bytes of views add up to the file's.
    let mut bytes = model.token_embd.byte_len();
    let mut vectors = model.output_norm.len();
    for layer in &model.layers {
        let Query::Lora {
            attn_q_a,
            attn_q_a_norm,
            attn_q_b,
        } = &layer.attention.q
        else {
            panic!("no latent")
        };
        let mut weights = vec![
            attn_q_a,
            attn_q_b,
            &layer.attention.attn_kv_a_mqa,
            &layer.attention.attn_k_b,
            &layer.attention.attn_v_b,
            &layer.attn_output,
        ];
        vectors += layer.attn_norm.len()
            + attn_q_a_norm.len()
            + layer.attention.attn_kv_a_norm.len()
            + layer.ffn_norm.len();
        match &layer.ffn {
            Ffn::Dense(Mlp { gate, up, down }) => weights.extend([gate, up, down]),
            Ffn::Moe(moe) => {
                weights.push(&moe.ffn_gate_inp);
                for Mlp { gate, up, down } in [&moe.experts, moe.shared.as_ref().unwrap()] {
                    weights.extend([gate, up, down]);
                }
                vectors += moe.exp_probs_b.as_ref().unwrap().len();
            }
        }
        bytes += weights.iter().map(|w| w.byte_len()).sum::<u64>();
    }
    assert_eq!(
        bytes + 4 * vectors as u64,
        model
            .gguf
            .tensors()
            .iter()
            .map(TensorInfo::byte_len)
            .sum::<u64>()
    );
}
