//! The configuration of a model: its sizes and constants, read once from the GGUF metadata and checked whole.
//!
//! Field names are the GGUF keys'. The meaning of each key is that of llama.cpp (src/models/deepseek2.cpp,
//! `load_arch_hparams`; src/llama-model.cpp, `load_hparams`).

use std::ops::Deref;

use crate::gguf::Gguf;
use crate::kernels::{CacheType, KvDims, MlaDims};
use crate::model::keys::Keys;
use crate::model::{self, Gating, ModelError};

/// GLM-4.7-Flash's vocabulary: tells its early files, which lack `expert_gating_func`, from DeepSeek's.
const GLM_VOCAB_SIZE: usize = 154_880;

/// The sizes and constants of a model with multi-head latent attention.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The configuration that models of all families have; its fields are reached as if they were here.
    pub common: model::Config,
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
    /// The type of the cache's rows, which no file tells: that of [`CacheType::default`] unless the engine asks for another.
    pub cache: CacheType,
}

impl Deref for Config {
    type Target = model::Config;

    fn deref(&self) -> &model::Config {
        &self.common
    }
}

impl Config {
    /// Reads and checks the configuration of a model.
    ///
    /// # Errors
    /// [`ModelError::NoTensors`], [`ModelError::Unsupported`] for settings without code, [`ModelError::Invalid`] for contradictory ones,
    /// [`ModelError::Gguf`] for missing keys and wrong types.
    pub fn from_gguf(gguf: &Gguf) -> Result<Config, ModelError> {
        let keys = Keys::of(gguf)?;
        // A bias for the choice of experts goes with a sigmoid in every model of the family.
        let mut tensors = gguf.tensors().iter();
        let has_bias = tensors.any(|tensor| tensor.name.contains(".exp_probs_b"));
        let gating = |blocks, vocab_size| match (blocks, vocab_size) {
            (47 | 48, GLM_VOCAB_SIZE) => Gating::Sigmoid,
            _ if has_bias => Gating::Sigmoid,
            _ => Gating::Softmax,
        };
        let common = model::Config::read(gguf, &keys, gating)?;
        let head_count = common.head_count;
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
        for head in [
            qk_nope_head_dim + qk_rope_head_dim,
            qk_nope_head_dim + v_head_dim,
        ] {
            keys.check_product("attention.head_count", head_count, head)?;
        }
        keys.warn_about_unknown();
        Ok(Config {
            common,
            q_lora_rank,
            kv_lora_rank,
            qk_nope_head_dim,
            qk_rope_head_dim,
            v_head_dim,
            cache: CacheType::default(),
        })
    }

    /// Refuses a file whose prediction layer is not one of `model`, by the first of the sizes and constants that differs.
    ///
    /// # Errors
    /// [`ModelError::OtherModel`].
    pub fn check_layer_of(&self, model: &Self) -> Result<(), ModelError> {
        let facts = |c: &Self| {
            let experts = c.experts.as_ref();
            let gating = |e: &model::Experts| (e.gating, e.weights_norm, e.weights_scale);
            [
                ("block_count", format!("{} without it", c.block_count)),
                ("embedding_length", format!("{}", c.embedding_length)),
                ("vocab_size", format!("{}", c.vocab_size)),
                ("attention.head_count", format!("{}", c.head_count)),
                ("attention.q_lora_rank", format!("{:?}", c.q_lora_rank)),
                ("attention.kv_lora_rank", format!("{}", c.kv_lora_rank)),
                ("attention.key_length_mla", {
                    format!("{}", c.qk_nope_head_dim + c.qk_rope_head_dim)
                }),
                ("attention.value_length_mla", format!("{}", c.v_head_dim)),
                ("attention.layer_norm_rms_epsilon", format!("{}", c.rms_eps)),
                ("rope.dimension_count", format!("{}", c.qk_rope_head_dim)),
                ("rope", format!("{:?}", c.rope)),
                ("expert_count", format!("{:?}", experts.map(|e| e.count))),
                (
                    "expert_used_count",
                    format!("{:?}", experts.map(|e| e.used)),
                ),
                ("expert_shared_count", {
                    format!("{:?}", experts.map(|e| e.shared_count))
                }),
                ("expert_feed_forward_length", {
                    format!("{:?}", experts.map(|e| e.feed_forward_length))
                }),
                ("expert_gating_func", format!("{:?}", experts.map(gating))),
            ]
        };
        let mut both = facts(self).into_iter().zip(facts(model));
        match both.find(|((_, found), (_, expected))| found != expected) {
            Some(((key, found), (_, expected))) => Err(ModelError::OtherModel {
                key: format!("{}.{key}", self.architecture),
                found,
                expected,
            }),
            None => Ok(()),
        }
    }

    /// The sizes of the attention blocks, which all blocks of a model share.
    pub fn dims(&self) -> MlaDims {
        MlaDims {
            heads: self.head_count,
            nope: self.qk_nope_head_dim,
            rope: self.qk_rope_head_dim,
            kv_lora: self.kv_lora_rank,
            cache: self.cache,
        }
    }

    /// The sizes of attention whose keys and values are expanded.
    pub fn kv_dims(&self) -> KvDims {
        KvDims {
            mla: self.dims(),
            v: self.v_head_dim,
        }
    }

    /// Values in one row of the cache: the latent, then the rotated key (576 in all three models).
    pub fn cache_values(&self) -> usize {
        self.kv_lora_rank + self.qk_rope_head_dim
    }

    /// The factor of attention scores: `mscale^2 / sqrt(nope + rope)`, where YaRN's
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

#[cfg(test)]
mod tests;
