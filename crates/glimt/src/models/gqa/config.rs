//! The configuration of a model: its sizes and constants, read once from the GGUF metadata and checked whole.
//!
//! Field names are the GGUF keys'. The meaning of each key is that of llama.cpp (src/models/{qwen2,qwen3,qwen3moe,llama}.cpp;
//! src/llama-model.cpp, `load_hparams`).

use std::ops::Deref;

use crate::gguf::Gguf;
use crate::kernels::{CacheType, GroupedDims, Pairing};
use crate::model::keys::Keys;
use crate::model::{self, Gating, ModelError};

/// Keys that change the computation when they are not zero, and that only other families have code for.
const MUST_BE_ZERO: [&str; 7] = [
    "attention.sliding_window_pattern",
    "attention.key_length_mla",
    "attention.kv_lora_rank",
    "expert_shared_count",
    "expert_shared_feed_forward_length",
    "nextn_predict_layers",
    "rope.dimension_sections",
];

/// The sizes and constants of a model with grouped-query attention.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The configuration that models of all families have; its fields are reached as if they were here.
    pub common: model::Config,
    /// The sizes of the attention blocks, which all blocks of a model share.
    pub dims: GroupedDims,
    /// The facts that are the architecture's.
    pub traits: Traits,
}

/// The facts of an architecture that no key tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traits {
    /// The pairs that are rotated in its files. The converter brings the rows of Llama's queries and keys into an order of pairs.
    pub pairing: Pairing,
    /// Whether each head of queries and keys is normed.
    pub norms: bool,
    /// Whether its files may have factors of frequencies, `rope_freqs.weight`.
    pub frequency_factors: bool,
}

impl Traits {
    /// The facts of an architecture of the family.
    fn of(architecture: &str) -> Self {
        let llama = architecture == "llama";
        Self {
            pairing: match llama {
                true => Pairing::Adjacent,
                false => Pairing::Halves,
            },
            norms: matches!(architecture, "qwen3" | "qwen3moe"),
            frequency_factors: llama,
        }
    }
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
        for name in MUST_BE_ZERO {
            keys.refuse_nonzero(name)?;
        }
        if !keys.bool_or("attention.causal", true)? {
            let supported = "true: models that generate text".to_owned();
            return Err(keys.unsupported("attention.causal", false, supported));
        }
        let mut common = model::Config::read(gguf, &keys, |_, _| Gating::Softmax)?;
        if let Some(experts) = &mut common.experts {
            if experts.gating != Gating::Softmax {
                let supported = "1 (softmax)".to_owned();
                return Err(keys.unsupported("expert_gating_func", "2 (sigmoid)", supported));
            }
            // These architectures have no key for the division of the weights by their sum. llama.cpp always divides.
            experts.weights_norm = true;
        }
        let traits = Traits::of(&common.architecture);
        let dims = read_dims(&keys, &common, traits.pairing)?;
        keys.warn_about_unknown();
        Ok(Config {
            common,
            dims,
            traits,
        })
    }

    /// The factor of attention scores. YaRN's magnitude is in the rotated queries and keys.
    pub fn softmax_scale(&self) -> f32 {
        (1.0 / (self.dims.key as f64).sqrt()) as f32
    }
}

/// The sizes of the heads. The width of a head that no key tells is its share of the residual stream.
fn read_dims(
    keys: &Keys<'_>,
    common: &model::Config,
    pairing: Pairing,
) -> Result<GroupedDims, ModelError> {
    let (heads, width) = (common.head_count, common.embedding_length);
    let kv_heads = keys.count_or("attention.head_count_kv", heads)?;
    if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        let expected = format!("a divisor of the {heads} query heads");
        return Err(keys.invalid("attention.head_count_kv", kv_heads, expected));
    }
    let length = |name| match keys.count(name)? {
        Some(_) => keys.size(name),
        None if width.is_multiple_of(heads) => Ok(width / heads),
        None => {
            let expected =
                format!("a divisor of the {width} of embedding_length, {name} being absent,");
            Err(keys.invalid("attention.head_count", heads, expected))
        }
    };
    let (key, value) = (
        length("attention.key_length")?,
        length("attention.value_length")?,
    );
    let rope = keys.count_or("rope.dimension_count", key)?;
    if rope == 0 || rope > key || !rope.is_multiple_of(2) {
        let expected = format!("an even number up to the {key} of a head, pairs being rotated,");
        return Err(keys.invalid("rope.dimension_count", rope, expected));
    }
    for head in [key, value] {
        keys.check_product("attention.head_count", heads, head)?;
    }
    Ok(GroupedDims {
        heads,
        kv_heads,
        key,
        value,
        rope,
        pairing,
        cache: CacheType::F16,
    })
}

#[cfg(test)]
mod tests;
