//! What a model is: its sizes and constants, read once from the GGUF metadata and checked whole.
//!
//! Field names are the GGUF keys'. The meaning of each key is that of llama.cpp (src/models/deepseek2.cpp,
//! `load_arch_hparams`; src/llama-model.cpp, `load_hparams`).

use serde::Serialize;

use super::ModelError;
use super::keys::Keys;
use crate::gguf::Gguf;

/// The one architecture there is code for.
const ARCHITECTURE: &str = "deepseek2";
/// The converter writes `yarn_log_multiplier` as 0.1 times the model's `mscale_all_dim` (llama.cpp, pull 17945).
const YARN_LOG_MULTIPLIER_FACTOR: f64 = 0.1;
/// GLM-4.7-Flash's vocabulary: tells its early files, which lack `expert_gating_func`, from DeepSeek's.
const GLM_VOCAB_SIZE: usize = 154_880;

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

/// The sizes and constants of a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Config {
    /// `general.name`, or the file's name where the key is absent.
    pub name: String,
    /// `general.architecture`.
    pub architecture: String,
    /// Transformer blocks that decoding runs: `block_count` without the nextn blocks.
    pub block_count: usize,
    /// `nextn_predict_layers`: blocks behind the others that predict further tokens; their tensors are not read.
    pub nextn_predict_layers: usize,
    /// How many of the first blocks have a dense feed-forward part; all of them in a model without experts.
    pub leading_dense_block_count: usize,
    /// Width of the residual stream.
    pub embedding_length: usize,
    /// Attention heads.
    pub head_count: usize,
    /// Width of the query's latent; `None` where the model has a plain `attn_q`.
    pub q_lora_rank: Option<usize>,
    /// Width of the latent that keys and values share.
    pub kv_lora_rank: usize,
    /// Query and key dimensions per head without position.
    pub qk_nope_head_dim: usize,
    /// Query and key dimensions per head that are rotated, `rope.dimension_count`.
    pub qk_rope_head_dim: usize,
    /// Value dimensions per head.
    pub v_head_dim: usize,
    /// Width of the dense feed-forward parts; 0 where no block is dense.
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
    /// Shared experts; they form one feed-forward part of `shared_count * feed_forward_length`.
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

/// Constants of the rotary position embedding.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RopeConfig {
    /// `rope.freq_base`: the wavelength of pair `i` is `2 pi freq_base^(2i/dims)` positions.
    pub freq_base: f32,
    /// `rope.scaling.attn_factor`, a factor on the rotated vectors and, squared, on the scores; 1 in all known files.
    pub attn_factor: f32,
    /// Context extension by YaRN, if the model has it.
    pub yarn: Option<Yarn>,
}

/// Constants of YaRN (Peng et al. 2023, arXiv 2309.00071).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Yarn {
    /// How many times longer the context is than the original one.
    pub factor: f32,
    /// The context length the frequencies were made for.
    pub original_context_length: usize,
    /// The model's `mscale_all_dim`: `rope.scaling.yarn_log_multiplier` without the converter's factor 0.1.
    pub log_multiplier: f64,
    /// Rotations in the original context above which a pair keeps its frequency.
    pub beta_fast: f32,
    /// Rotations in the original context below which a pair is interpolated.
    pub beta_slow: f32,
}

impl RopeConfig {
    /// What cosines and sines are multiplied by. llama.cpp calls it `attn_factor`, once the division of
    /// src/llama-context.cpp and the multiplication of ggml's `rope_yarn` have cancelled each other.
    pub fn magnitude(&self) -> f64 {
        let yarn = match &self.yarn {
            // mscale / mscale_all_dim, which DeepSeek's configurations set to the same value.
            Some(yarn) if yarn.log_multiplier != 0.0 => 1.0,
            Some(yarn) => 1.0 + 0.1 * f64::from(yarn.factor).ln(),
            None => 1.0,
        };
        f64::from(self.attn_factor) * yarn
    }
}

impl Config {
    /// Reads and checks the configuration of a model.
    ///
    /// # Errors
    /// [`ModelError::Architecture`] for other architectures, [`ModelError::Unsupported`] for settings without code,
    /// [`ModelError::Invalid`] for contradictory ones, [`ModelError::Gguf`] for missing keys and wrong types.
    pub fn from_gguf(gguf: &Gguf) -> Result<Config, ModelError> {
        let architecture = gguf.require_str("general.architecture")?;
        if architecture != ARCHITECTURE {
            return Err(ModelError::Architecture {
                found: architecture.to_owned(),
            });
        }
        if gguf.tensors().is_empty() {
            return Err(ModelError::NoTensors);
        }
        let keys = Keys::new(gguf, architecture);
        for name in MUST_BE_ZERO {
            keys.refuse_nonzero(name)?;
        }

        let all_blocks = keys.size("block_count")?;
        let nextn_predict_layers = keys.count_or("nextn_predict_layers", 0)?;
        if nextn_predict_layers >= all_blocks {
            return Err(keys.invalid(
                "nextn_predict_layers",
                nextn_predict_layers,
                format!("fewer than the {all_blocks} blocks"),
            ));
        }
        let block_count = all_blocks - nextn_predict_layers;
        let vocab_size = read_vocab_size(gguf, &keys)?;
        let experts = read_experts(&keys, block_count, vocab_size)?;
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

        let head_count = keys.size("attention.head_count")?;
        let heads_kv = keys.count_or("attention.head_count_kv", head_count)?;
        if heads_kv != 1 && heads_kv != head_count {
            let supported = format!("1, or {head_count} as in files with a fused attn_kv_b");
            return Err(keys.unsupported("attention.head_count_kv", heads_kv, supported));
        }
        let kv_lora_rank = keys.size("attention.kv_lora_rank")?;
        let (qk_nope_head_dim, qk_rope_head_dim, v_head_dim) = read_head_dims(&keys, kv_lora_rank)?;
        // The tensor decides, not the key: DeepSeek-V2-Lite has a plain attn_q.
        let has_attn_q = gguf.tensor("blk.0.attn_q.weight").is_some();
        let q_lora_rank = keys
            .count("attention.q_lora_rank")?
            .filter(|&rank| rank > 0 && !has_attn_q);

        let config = Config {
            name: read_name(gguf)?,
            architecture: architecture.to_owned(),
            block_count,
            nextn_predict_layers,
            leading_dense_block_count,
            embedding_length: keys.size("embedding_length")?,
            head_count,
            q_lora_rank,
            kv_lora_rank,
            qk_nope_head_dim,
            qk_rope_head_dim,
            v_head_dim,
            feed_forward_length: match leading_dense_block_count {
                0 => 0,
                _ => keys.size("feed_forward_length")?,
            },
            experts,
            vocab_size,
            context_length: keys.size("context_length")?,
            rms_eps: keys.positive("attention.layer_norm_rms_epsilon", None)?,
            rope: read_rope(&keys)?,
        };
        config.check_widths(&keys)?;
        keys.warn_about_unknown();
        Ok(config)
    }

    /// Values in one row of the cache: the latent, then the rotated key (576 in all three models).
    pub fn cache_row(&self) -> usize {
        self.kv_lora_rank + self.qk_rope_head_dim
    }

    /// What attention scores are multiplied by: `mscale^2 / sqrt(nope + rope)`, where YaRN's
    /// `mscale = magnitude (1 + 0.1 log_multiplier ln factor)` and 1 without YaRN (src/models/deepseek2.cpp).
    pub fn softmax_scale(&self) -> f32 {
        let mscale = match &self.rope.yarn {
            Some(yarn) => 1.0 + 0.1 * yarn.log_multiplier * f64::from(yarn.factor).ln(),
            None => 1.0,
        };
        let mscale = self.rope.magnitude() * mscale;
        let head = (self.qk_nope_head_dim + self.qk_rope_head_dim) as f64;
        (mscale * mscale / head.sqrt()) as f32
    }

    /// Width of the shared experts together; 0 where there are none.
    pub fn shared_feed_forward_length(&self) -> usize {
        self.experts
            .as_ref()
            .map_or(0, |e| e.shared_count * e.feed_forward_length)
    }

    /// Refuses products of sizes that no model has, so that later arithmetic cannot overflow.
    fn check_widths(&self, keys: &Keys<'_>) -> Result<(), ModelError> {
        let heads = self.head_count;
        let qk = self.qk_nope_head_dim + self.qk_rope_head_dim;
        let shared = self.experts.as_ref().map_or(0, |e| e.shared_count);
        let expert = self.experts.as_ref().map_or(0, |e| e.feed_forward_length);
        for (key, a, b) in [
            ("attention.head_count", heads, qk),
            (
                "attention.head_count",
                heads,
                self.qk_nope_head_dim + self.v_head_dim,
            ),
            ("expert_shared_count", shared, expert),
        ] {
            if a.checked_mul(b)
                .is_none_or(|width| width > super::keys::MAX_SIZE)
            {
                return Err(keys.invalid(
                    key,
                    a,
                    format!("at most {} in all for {b} each", super::keys::MAX_SIZE),
                ));
            }
        }
        Ok(())
    }
}

fn read_name(gguf: &Gguf) -> Result<String, ModelError> {
    if let Some(name) = gguf.get_str("general.name")? {
        return Ok(name.to_owned());
    }
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
            format!("at least the {tokens} entries of tokenizer.ggml.tokens"),
        )),
        (None, Some(tokens)) if tokens > 0 => Ok(tokens),
        _ => keys.size("vocab_size"),
    }
}

fn read_experts(
    keys: &Keys<'_>,
    block_count: usize,
    vocab_size: usize,
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
        // Older files lack the key.
        0 if (block_count == 47 || block_count == 48) && vocab_size == GLM_VOCAB_SIZE => {
            Gating::Sigmoid
        }
        0 | 1 => Gating::Softmax,
        2 => Gating::Sigmoid,
        other => {
            let supported = "1 (softmax), 2 (sigmoid)".to_owned();
            return Err(keys.unsupported("expert_gating_func", other, supported));
        }
    };
    let weights_scale = keys.float_or("expert_weights_scale", 1.0)?;
    Ok(Some(Experts {
        count,
        used,
        shared_count: keys.count_or("expert_shared_count", 0)?,
        feed_forward_length: keys.size("expert_feed_forward_length")?,
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

/// (nope, rope, v) per head, from either generation of files: since 2025 `key_length` is that of the latent cache and
/// the `_mla` keys hold the head's; before, `key_length` and `value_length` were the head's.
fn read_head_dims(
    keys: &Keys<'_>,
    kv_lora_rank: usize,
) -> Result<(usize, usize, usize), ModelError> {
    let rope = keys.size("rope.dimension_count")?;
    if !rope.is_multiple_of(2) {
        return Err(keys.invalid(
            "rope.dimension_count",
            rope,
            "an even number, pairs being rotated".to_owned(),
        ));
    }
    let (key, value) = ("attention.key_length", "attention.value_length");
    let (key_mla, value_mla) = ("attention.key_length_mla", "attention.value_length_mla");
    let (qk_key, qk, v) = if keys.count(key_mla)?.is_some() || keys.count(value_mla)?.is_some() {
        for (cache_key, expected) in [(key, kv_lora_rank + rope), (value, kv_lora_rank)] {
            let found = keys.count_or(cache_key, expected)?;
            if found != expected {
                let expected = format!("{expected}, the width of the latent cache,");
                return Err(keys.invalid(cache_key, found, expected));
            }
        }
        (key_mla, keys.size(key_mla)?, keys.size(value_mla)?)
    } else {
        (key, keys.size(key)?, keys.size(value)?)
    };
    if qk <= rope {
        return Err(keys.invalid(
            qk_key,
            qk,
            format!("more than the {rope} of rope.dimension_count"),
        ));
    }
    Ok((qk - rope, rope, v))
}

fn read_rope(keys: &Keys<'_>) -> Result<RopeConfig, ModelError> {
    let freq_base = keys.positive("rope.freq_base", Some(10_000.0))?;
    if freq_base <= 1.0 {
        return Err(keys.invalid("rope.freq_base", freq_base, "more than 1".to_owned()));
    }
    let attn_factor = keys.positive("rope.scaling.attn_factor", Some(1.0))?;
    // llama.cpp reads a missing type as "linear" and a missing factor as 1, which together scale nothing.
    let kind = keys.str("rope.scaling.type")?.unwrap_or("linear");
    let factor = match keys.float_or("rope.scaling.factor", 0.0)? {
        0.0 => keys.float_or("rope.scale_linear", 0.0)?,
        factor => factor,
    };
    let factor = if factor == 0.0 { 1.0 } else { factor };
    let yarn = match kind {
        "none" => None,
        "linear" if factor == 1.0 => None,
        "linear" => {
            let found = format!("linear with factor {factor}");
            return Err(keys.unsupported("rope.scaling.type", found, "none, yarn".to_owned()));
        }
        "yarn" => Some(read_yarn(keys, factor)?),
        other => return Err(keys.unsupported("rope.scaling.type", other, "none, yarn".to_owned())),
    };
    Ok(RopeConfig {
        freq_base,
        attn_factor,
        yarn,
    })
}

fn read_yarn(keys: &Keys<'_>, factor: f32) -> Result<Yarn, ModelError> {
    if !(1.0..=1e6).contains(&factor) {
        return Err(keys.invalid("rope.scaling.factor", factor, "1 to 1000000".to_owned()));
    }
    // llama.cpp does not read these two for deepseek2; values other than 1 would be computed differently by each engine.
    for name in [
        "rope.scaling.yarn_ext_factor",
        "rope.scaling.yarn_attn_factor",
    ] {
        let found = keys.float_or(name, 1.0)?;
        if found != 1.0 {
            return Err(keys.unsupported(name, found, "1".to_owned()));
        }
    }
    let original = "rope.scaling.original_context_length";
    let original_context_length = match keys.count(original)? {
        Some(_) => keys.size(original)?,
        None => keys.size("context_length")?,
    };
    let beta_fast = keys.positive("rope.scaling.yarn_beta_fast", Some(32.0))?;
    let beta_slow = keys.positive("rope.scaling.yarn_beta_slow", Some(1.0))?;
    if beta_fast <= beta_slow {
        let expected = format!("more than the {beta_slow} of yarn_beta_slow");
        return Err(keys.invalid("rope.scaling.yarn_beta_fast", beta_fast, expected));
    }
    let log_multiplier = f64::from(keys.float_or("rope.scaling.yarn_log_multiplier", 0.0)?);
    Ok(Yarn {
        factor,
        original_context_length,
        log_multiplier: log_multiplier / YARN_LOG_MULTIPLIER_FACTOR,
        beta_fast,
        beta_slow,
    })
}

#[cfg(test)]
pub(super) mod tests;
