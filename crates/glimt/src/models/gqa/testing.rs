//! Small models built with the GGUF writer, one of each architecture.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::Model;
use crate::gguf::{Gguf, Value};
use crate::model::{ModelError, NextnSource};
use crate::models::mla::testing::Draft as Written;

/// A model to be written: metadata and tensors in a list that tests change.
pub(super) struct Draft {
    written: Written,
    architecture: &'static str,
    sizes: Sizes,
}

/// The heads of a [`Draft`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub heads: u64,
    pub kv_heads: u64,
    /// The width of a head.
    pub head: u64,
    /// Whether one tensor has the rows of queries, keys and values.
    pub fused: bool,
}

/// Query heads, key heads, and the width of a head of a [`Draft`] of no other sizes.
pub(super) const HEADS: u64 = 6;
pub(super) const KV_HEADS: u64 = 2;
pub(super) const HEAD: u64 = 32;
/// Width, feed-forward length, experts, feed-forward length of an expert, and vocabulary.
pub(super) const WIDTH: u64 = 64;
pub(super) const FF: u64 = 128;
pub(super) const EXPERTS: u64 = 4;
pub(super) const EXPERT_FF: u64 = 32;
pub(super) const VOCAB: u64 = 40;
/// Blocks.
pub(super) const BLOCKS: u64 = 2;

impl Deref for Draft {
    type Target = Written;

    fn deref(&self) -> &Written {
        &self.written
    }
}

impl DerefMut for Draft {
    fn deref_mut(&mut self) -> &mut Written {
        &mut self.written
    }
}

impl Draft {
    /// A model of two blocks as files of `architecture` have it.
    pub fn of(architecture: &'static str) -> Self {
        let sizes = Sizes {
            heads: HEADS,
            kv_heads: KV_HEADS,
            head: HEAD,
            fused: false,
        };
        Self::sized(architecture, sizes)
    }

    /// Such a model with other heads.
    pub fn sized(architecture: &'static str, sizes: Sizes) -> Self {
        let mut written = Written::glm(0);
        written.metadata.clear();
        written.tensors.clear();
        let mut draft = Self {
            written,
            architecture,
            sizes,
        };
        draft.set_raw("general.architecture", architecture);
        draft.set_raw("general.name", "draft");
        for (key, value) in [
            ("block_count", BLOCKS),
            ("context_length", 512),
            ("embedding_length", WIDTH),
            ("attention.head_count", sizes.heads),
            ("attention.head_count_kv", sizes.kv_heads),
            ("attention.key_length", sizes.head),
            ("attention.value_length", sizes.head),
            ("vocab_size", VOCAB),
        ] {
            draft.put(key, value as u32);
        }
        draft.put("attention.layer_norm_rms_epsilon", 1e-5f32);
        if draft.has_experts() {
            for (key, value) in [
                ("expert_count", EXPERTS),
                ("expert_used_count", 2),
                ("expert_feed_forward_length", EXPERT_FF),
            ] {
                draft.put(key, value as u32);
            }
        } else {
            draft.put("feed_forward_length", FF as u32);
        }
        draft.add("token_embd.weight", &[WIDTH, VOCAB]);
        draft.add("output_norm.weight", &[WIDTH]);
        draft.add("output.weight", &[WIDTH, VOCAB]);
        for block in 0..BLOCKS {
            draft.add_attention(block);
            draft.add_feed_forward(block);
        }
        draft
    }

    fn has_experts(&self) -> bool {
        self.architecture == "qwen3moe"
    }

    fn add_attention(&mut self, block: u64) {
        let sizes = self.sizes;
        let [q, k] = [sizes.heads, sizes.kv_heads].map(|heads| heads * sizes.head);
        let parts: &[_] = match sizes.fused {
            true => &[("attn_qkv", q + 2 * k)],
            false => &[("attn_q", q), ("attn_k", k), ("attn_v", k)],
        };
        for (name, rows) in parts.iter().copied() {
            self.add(&format!("blk.{block}.{name}.weight"), &[WIDTH, rows]);
            if self.architecture == "qwen2" {
                self.add(&format!("blk.{block}.{name}.bias"), &[rows]);
            }
        }
        if self.architecture.starts_with("qwen3") {
            for name in ["attn_q_norm", "attn_k_norm"] {
                self.add(&format!("blk.{block}.{name}.weight"), &[sizes.head]);
            }
        }
        self.add(&format!("blk.{block}.attn_output.weight"), &[q, WIDTH]);
        for name in ["attn_norm", "ffn_norm"] {
            self.add(&format!("blk.{block}.{name}.weight"), &[WIDTH]);
        }
    }

    fn add_feed_forward(&mut self, block: u64) {
        let tensors: &[(&str, &[u64])] = match self.has_experts() {
            true => &[
                ("ffn_gate_inp", &[WIDTH, EXPERTS]),
                ("ffn_gate_exps", &[WIDTH, EXPERT_FF, EXPERTS]),
                ("ffn_up_exps", &[WIDTH, EXPERT_FF, EXPERTS]),
                ("ffn_down_exps", &[EXPERT_FF, WIDTH, EXPERTS]),
            ],
            false => &[
                ("ffn_gate", &[WIDTH, FF]),
                ("ffn_up", &[WIDTH, FF]),
                ("ffn_down", &[FF, WIDTH]),
            ],
        };
        for (name, dims) in tensors {
            self.add(&format!("blk.{block}.{name}.weight"), dims);
        }
    }

    /// Sets `<architecture>.<key>`.
    pub fn put(&mut self, key: &str, value: impl Into<Value>) {
        let key = format!("{}.{key}", self.architecture);
        self.set_raw(&key, value);
    }

    /// The draft without `<architecture>.<key>`, which must be there.
    pub fn without(mut self, key: &str) -> Self {
        let key = format!("{}.{key}", self.architecture);
        let before = self.metadata.len();
        self.metadata.retain(|(k, _)| *k != key);
        assert_eq!(self.metadata.len(), before - 1, "{key}");
        self
    }

    /// The draft with `<architecture>.<key>` set.
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.put(key, value);
        self
    }

    pub fn load(&self) -> Result<Model, ModelError> {
        load(self.open())
    }

    /// The message with which loading fails.
    pub fn refusal(&self) -> String {
        let loaded = self.load().map(|model| model.config);
        loaded.expect_err("it is refused").to_string()
    }
}

/// The model of a file.
pub(super) fn load(gguf: Arc<Gguf>) -> Result<Model, ModelError> {
    Model::with_nextn(gguf, &NextnSource::None)
}
