//! Small models built with the GGUF writer, for the traps that no fixture has.

use std::sync::Arc;

use super::Model;
use crate::gguf::{Gguf, GgufWriter, Value};
use crate::model::ModelError;
use crate::quant::GgmlType;

/// A model to be written: metadata and tensors in a list that tests change.
pub(crate) struct Draft {
    pub metadata: Vec<(String, Value)>,
    pub tensors: Vec<(String, GgmlType, Vec<u64>)>,
    seed: u64,
}

/// Heads, latent, nope, rope and v of a [`Draft`].
pub(crate) const HEADS: u64 = 3;
pub(crate) const LATENT: u64 = 96;
pub(crate) const NOPE: u64 = 32;
pub(crate) const ROPE: u64 = 16;
pub(crate) const V: u64 = 64;
/// Width, dense and expert feed-forward lengths, experts, vocabulary and query latent.
pub(crate) const WIDTH: u64 = 64;
pub(crate) const FF: u64 = 128;
pub(crate) const EXPERT_FF: u64 = 32;
pub(crate) const EXPERTS: u64 = 4;
pub(crate) const VOCAB: u64 = 40;
pub(crate) const Q_LORA: u64 = 32;

impl Draft {
    /// A model like GLM-4.7-Flash with `blocks` blocks, the first dense, split `attn_k_b` and `attn_v_b`.
    pub fn glm(blocks: u64) -> Draft {
        let seed = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_nanos() as u64
            | 1;
        let mut draft = Draft {
            metadata: Vec::new(),
            tensors: Vec::new(),
            seed,
        };
        draft.set_raw("general.architecture", "deepseek2");
        draft.set_raw("general.name", "draft");
        for (key, value) in [
            ("block_count", blocks),
            ("context_length", 512),
            ("embedding_length", WIDTH),
            ("feed_forward_length", FF),
            ("attention.head_count", HEADS),
            ("attention.head_count_kv", 1),
            ("leading_dense_block_count", 1),
            ("vocab_size", VOCAB),
            ("attention.q_lora_rank", Q_LORA),
            ("attention.kv_lora_rank", LATENT),
            ("attention.key_length", LATENT + ROPE),
            ("attention.value_length", LATENT),
            ("attention.key_length_mla", NOPE + ROPE),
            ("attention.value_length_mla", V),
            ("rope.dimension_count", ROPE),
            ("expert_feed_forward_length", EXPERT_FF),
            ("expert_shared_count", 2),
            ("expert_count", EXPERTS),
            ("expert_used_count", 2),
            ("expert_gating_func", 2),
        ] {
            draft.set(key, value as u32);
        }
        draft.set("attention.layer_norm_rms_epsilon", 1e-5f32);
        draft.set("expert_weights_scale", 1.8f32);
        draft.set("expert_weights_norm", true);

        draft.add("token_embd.weight", &[WIDTH, VOCAB]);
        draft.add("output_norm.weight", &[WIDTH]);
        draft.add("output.weight", &[WIDTH, VOCAB]);
        for block in 0..blocks {
            draft.add_block(block, block == 0);
        }
        draft
    }

    pub fn add_block(&mut self, block: u64, dense: bool) {
        let attention: [(&str, &[u64]); 10] = [
            ("attn_norm", &[WIDTH]),
            ("attn_q_a", &[WIDTH, Q_LORA]),
            ("attn_q_a_norm", &[Q_LORA]),
            ("attn_q_b", &[Q_LORA, HEADS * (NOPE + ROPE)]),
            ("attn_kv_a_mqa", &[WIDTH, LATENT + ROPE]),
            ("attn_kv_a_norm", &[LATENT]),
            ("attn_k_b", &[NOPE, LATENT, HEADS]),
            ("attn_v_b", &[LATENT, V, HEADS]),
            ("attn_output", &[HEADS * V, WIDTH]),
            ("ffn_norm", &[WIDTH]),
        ];
        for (name, dims) in &attention {
            self.add(&format!("blk.{block}.{name}.weight"), dims);
        }
        let ffn: &[(&str, &[u64])] = if dense {
            &[
                ("ffn_gate", &[WIDTH, FF]),
                ("ffn_up", &[WIDTH, FF]),
                ("ffn_down", &[FF, WIDTH]),
            ]
        } else {
            &[
                ("ffn_gate_inp", &[WIDTH, EXPERTS]),
                ("ffn_gate_exps", &[WIDTH, EXPERT_FF, EXPERTS]),
                ("ffn_up_exps", &[WIDTH, EXPERT_FF, EXPERTS]),
                ("ffn_down_exps", &[EXPERT_FF, WIDTH, EXPERTS]),
                ("ffn_gate_shexp", &[WIDTH, 2 * EXPERT_FF]),
                ("ffn_up_shexp", &[WIDTH, 2 * EXPERT_FF]),
                ("ffn_down_shexp", &[2 * EXPERT_FF, WIDTH]),
            ]
        };
        for (name, dims) in ffn {
            self.add(&format!("blk.{block}.{name}.weight"), dims);
        }
        if !dense {
            self.add(&format!("blk.{block}.exp_probs_b.bias"), &[EXPERTS]);
        }
    }

    /// Adds a prediction layer behind `blocks` blocks.
    pub fn add_nextn(&mut self, blocks: u64) {
        self.set("block_count", blocks as u32 + 1);
        self.set("nextn_predict_layers", 1u32);
        self.add_block(blocks, false);
        let tensors: [(&str, &[u64]); 4] = [
            ("eh_proj", &[2 * WIDTH, WIDTH]),
            ("enorm", &[WIDTH]),
            ("hnorm", &[WIDTH]),
            ("shared_head_norm", &[WIDTH]),
        ];
        for (name, dims) in tensors {
            self.add(&format!("blk.{blocks}.nextn.{name}.weight"), dims);
        }
    }

    /// A file of the layer alone behind `blocks` blocks, with copies of the model's embedding, last norm and head.
    pub fn nextn_alone(blocks: u64) -> Draft {
        let mut draft = Self::glm(0);
        draft.add_nextn(blocks);
        draft
    }

    /// Sets `deepseek2.<key>`.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.set_raw(&format!("deepseek2.{key}"), value);
    }

    pub fn set_raw(&mut self, key: &str, value: impl Into<Value>) {
        self.metadata.retain(|(k, _)| k != key);
        self.metadata.push((key.to_owned(), value.into()));
    }

    /// Removes `deepseek2.<key>`, which must be there.
    pub fn unset(&mut self, key: &str) {
        let before = self.metadata.len();
        self.metadata
            .retain(|(k, _)| k.strip_prefix("deepseek2.") != Some(key));
        assert_eq!(self.metadata.len(), before - 1, "{key}");
    }

    /// Adds an F32 tensor.
    pub fn add(&mut self, name: &str, dims: &[u64]) {
        self.tensors
            .push((name.to_owned(), GgmlType::F32, dims.to_vec()));
    }

    /// Removes the tensor, which must be there.
    pub fn remove(&mut self, name: &str) {
        let before = self.tensors.len();
        self.tensors.retain(|(n, ..)| n != name);
        assert_eq!(self.tensors.len(), before - 1, "{name}");
    }

    /// The tensor's entry, to change its type or dimensions.
    pub fn tensor(&mut self, name: &str) -> &mut (String, GgmlType, Vec<u64>) {
        self.tensors.iter_mut().find(|(n, ..)| n == name).unwrap()
    }

    /// Writes the file with random values in -1..1 and opens it. Quantised tensors must be Q8_0.
    pub fn open(&self) -> Arc<Gguf> {
        let mut writer = GgufWriter::new(Vec::new());
        for (key, value) in &self.metadata {
            writer.metadata(key, value.clone()).unwrap();
        }
        let sizes: Vec<u64> = self
            .tensors
            .iter()
            .map(|(n, ty, dims)| writer.tensor(n, *ty, dims).unwrap())
            .collect();
        let mut data = writer.begin_data().unwrap();
        let mut state = self.seed;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for ((_, ty, _), size) in self.tensors.iter().zip(sizes) {
            let bytes: Vec<u8> = match ty {
                GgmlType::F32 => {
                    let mut value = || (random() >> 40) as f32 / (1 << 23) as f32 - 1.0;
                    (0..size / 4).flat_map(|_| value().to_le_bytes()).collect()
                }
                GgmlType::F16 | GgmlType::BF16 => {
                    // Exponents of 2^-2 and below in both formats.
                    (0..size / 2)
                        .flat_map(|_| (random() as u16 & 0xb3ff).to_le_bytes())
                        .collect()
                }
                GgmlType::Q8_0 => (0..size / 34)
                    .flat_map(|_| {
                        let mut block = std::array::from_fn::<u8, 34, _>(|_| random() as u8);
                        // A scale of 2^-8.
                        block[..2].copy_from_slice(&0x1c00u16.to_le_bytes());
                        block
                    })
                    .collect(),
                other => panic!("no random values of {other}"),
            };
            data.write(&bytes).unwrap();
        }
        let bytes = data.finish().unwrap();
        Arc::new(Gguf::from_bytes(bytes, "draft.gguf").unwrap())
    }

    pub fn load(&self) -> Result<Model, ModelError> {
        Model::load(self.open())
    }

    /// The message with which loading fails.
    pub fn refusal(&self) -> String {
        self.load()
            .map(|model| model.config)
            .unwrap_err()
            .to_string()
    }
}
