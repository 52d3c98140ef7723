//! The common part of all families' configurations: sizes and constants, read from the GGUF metadata.
//!
//! Field names are the GGUF keys'. The meaning of each key is that of llama.cpp (src/llama-model.cpp, `load_hparams`).

use serde::Serialize;

use super::keys::Keys;
use super::{ModelError, RopeConfig};
use crate::gguf::{Gguf, Value};
use crate::plural::count;

/// Keys that change the computation when they are not zero, and that glimt has no code for.
const MUST_BE_ZERO: &[&str] = &[
    "attention.temperature_scale",
    "attention.sliding_window",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attention.scale",
    "attention.indexer.head_count",
    "attention.indexer.top_k",
    "logit_scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "router_logit_softcapping",
    "expert_latent_length",
];

/// The sizes and constants that a model of any family has.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Config {
    /// `general.name`, or the file's name where the key is absent.
    pub name: String,
    /// `general.architecture`.
    pub architecture: String,
    /// Transformer blocks that decoding runs: `block_count` without the nextn blocks.
    pub block_count: usize,
    /// `nextn_predict_layers`: blocks behind the others that predict further tokens ([`Nextn`](super::Nextn)).
    pub nextn_predict_layers: usize,
    /// The number of first blocks that have a dense feed-forward network; all of them in a model without experts.
    pub leading_dense_block_count: usize,
    /// Width of the residual stream.
    pub embedding_length: usize,
    /// Attention heads.
    pub head_count: usize,
    /// Width of the dense feed-forward networks; 0 where no block is dense.
    pub feed_forward_length: usize,
    /// The routed and shared experts; `None` in a dense model.
    pub experts: Option<Experts>,
    /// Rows of the embedding and of the output head.
    pub vocab_size: usize,
    /// Positions the model was trained for.
    pub context_length: usize,
    /// Epsilon of every RMS norm.
    pub rms_eps: f32,
    /// Rotation of positions.
    pub rope: RopeConfig,
}

/// The mixture of experts of a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Experts {
    /// Routed experts per block.
    pub count: usize,
    /// Routed experts used per token.
    pub used: usize,
    /// Shared experts; they form one feed-forward network of `shared_count * feed_forward_length`.
    pub shared_count: usize,
    /// Width of one expert.
    pub feed_forward_length: usize,
    /// How router logits become probabilities.
    pub gating: Gating,
    /// Whether the used experts' weights are divided by their sum.
    pub weights_norm: bool,
    /// Factor on the used experts' weights.
    pub weights_scale: f32,
}

/// How router logits become probabilities (`expert_gating_func`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Gating {
    /// Over all experts; value 1.
    Softmax,
    /// Each expert by itself; value 2.
    Sigmoid,
}

impl Config {
    /// Reads what all families have; `gating` is that of files without `expert_gating_func`, by blocks and vocabulary.
    ///
    /// # Errors
    /// [`ModelError::NoTensors`], [`ModelError::Unsupported`] for settings without code, [`ModelError::Invalid`] for contradictory ones,
    /// [`ModelError::Gguf`] for missing keys and wrong types.
    pub fn read(
        gguf: &Gguf,
        keys: &Keys<'_>,
        gating: impl FnOnce(usize, usize) -> Gating,
    ) -> Result<Self, ModelError> {
        if gguf.tensors().is_empty() {
            return Err(ModelError::NoTensors);
        }
        for name in MUST_BE_ZERO {
            keys.refuse_nonzero(name)?;
        }
        let all_blocks = keys.size("block_count")?;
        let nextn_predict_layers = keys.count_or("nextn_predict_layers", 0)?;
        if nextn_predict_layers >= all_blocks {
            return Err(keys.invalid(
                "nextn_predict_layers",
                nextn_predict_layers,
                format!("fewer than the {}", count(all_blocks, "block")),
            ));
        }
        let block_count = all_blocks - nextn_predict_layers;
        let vocab_size = read_vocab_size(gguf, keys)?;
        let experts = read_experts(keys, || gating(block_count, vocab_size))?;
        let leading_dense_block_count = match (&experts, keys.count("leading_dense_block_count")?) {
            (Some(_), dense) => dense.unwrap_or(0).min(block_count),
            (None, Some(dense)) if dense < block_count => {
                let expected = format!("{block_count}, there being no expert_count");
                return Err(keys.invalid("leading_dense_block_count", dense, expected));
            }
            (None, _) => block_count,
        };
        // A model whose blocks are all dense has no use for experts, whatever its keys say.
        let experts = experts.filter(|_| leading_dense_block_count < block_count);
        Ok(Self {
            name: read_name(gguf)?,
            architecture: gguf.require_str("general.architecture")?.to_owned(),
            block_count,
            nextn_predict_layers,
            leading_dense_block_count,
            embedding_length: keys.size("embedding_length")?,
            head_count: keys.size("attention.head_count")?,
            feed_forward_length: match leading_dense_block_count {
                0 => 0,
                _ => keys.size("feed_forward_length")?,
            },
            experts,
            vocab_size,
            context_length: keys.size("context_length")?,
            rms_eps: keys.positive("attention.layer_norm_rms_epsilon", None)?,
            rope: RopeConfig::read(keys)?,
        })
    }

    /// Width of the shared experts together; 0 where there are none.
    pub fn shared_feed_forward_length(&self) -> usize {
        self.experts
            .as_ref()
            .map_or(0, |e| e.shared_count * e.feed_forward_length)
    }
}

fn read_name(gguf: &Gguf) -> Result<String, ModelError> {
    // It is only shown, so bytes that are not UTF-8 do no harm.
    if let Some(Value::String(name)) = gguf.get("general.name") {
        return Ok(name.clone());
    }
    gguf.get_str("general.name")?;
    let stem = gguf.path().file_stem().unwrap_or_default();
    Ok(stem.to_string_lossy().into_owned())
}

fn read_vocab_size(gguf: &Gguf, keys: &Keys<'_>) -> Result<usize, ModelError> {
    let tokens = gguf
        .get_str_array("tokenizer.ggml.tokens")?
        .map(<[String]>::len);
    match (keys.count("vocab_size")?, tokens) {
        (Some(size), Some(tokens)) if tokens > size => Err(keys.invalid(
            "vocab_size",
            size,
            format!(
                "at least the {} of tokenizer.ggml.tokens",
                count(tokens, "entry")
            ),
        )),
        (None, Some(tokens)) if tokens > 0 => Ok(tokens),
        _ => keys.size("vocab_size"),
    }
}

fn read_experts(
    keys: &Keys<'_>,
    gating: impl FnOnce() -> Gating,
) -> Result<Option<Experts>, ModelError> {
    let count = keys.count_or("expert_count", 0)?;
    if count == 0 {
        return Ok(None);
    }
    let groups = keys.count_or("expert_group_count", 0)?;
    if groups > 1 {
        let supported = "1 group (as in GLM-4.7-Flash and DeepSeek-V2-Lite)".to_owned();
        return Err(keys.unsupported("expert_group_count", groups, supported));
    }
    let used = keys.size("expert_used_count")?;
    if used > count {
        return Err(keys.invalid(
            "expert_used_count",
            used,
            format!("at most the {count} of expert_count"),
        ));
    }
    let gating = match keys.count_or("expert_gating_func", 0)? {
        0 => gating(),
        1 => Gating::Softmax,
        2 => Gating::Sigmoid,
        other => {
            let supported = "1 (softmax), 2 (sigmoid)".to_owned();
            return Err(keys.unsupported("expert_gating_func", other, supported));
        }
    };
    let weights_scale = keys.float_or("expert_weights_scale", 1.0)?;
    let shared_count = keys.count_or("expert_shared_count", 0)?;
    let feed_forward_length = keys.size("expert_feed_forward_length")?;
    keys.check_product("expert_shared_count", shared_count, feed_forward_length)?;
    Ok(Some(Experts {
        count,
        used,
        shared_count,
        feed_forward_length,
        gating,
        weights_norm: keys.bool_or("expert_weights_norm", false)?,
        // llama.cpp's "not set".
        weights_scale: if weights_scale == 0.0 {
            1.0
        } else {
            weights_scale
        },
    }))
}
