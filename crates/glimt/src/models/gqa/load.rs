//! Finds every tensor of a model by its GGUF name.

use std::ops::{Deref, Range};
use std::sync::Arc;

use super::{Attention, Config, Projection};
use crate::gguf::Gguf;
use crate::model::tensors::Tensors;
use crate::model::{ModelError, NextnSource, Transformer};

/// A model with grouped-query attention: its configuration and where its weights are.
#[derive(Debug)]
pub struct Model {
    /// Sizes and constants.
    pub config: Config,
    /// The weights.
    pub weights: Transformer<Attention>,
    /// Divisors of the frequencies of the rotation, (rope / 2), if the file has any.
    pub frequency_factors: Option<Vec<f32>>,
    /// The file the weights are views of.
    pub gguf: Arc<Gguf>,
}

impl Deref for Model {
    type Target = Transformer<Attention>;

    fn deref(&self) -> &Self::Target {
        &self.weights
    }
}

impl Model {
    /// Reads the configuration and finds all weights.
    ///
    /// # Errors
    /// The errors of [`Config::from_gguf`] and [`Transformer::load`]; [`ModelError::NeverPredicts`] where `source` asks for a prediction
    /// layer, which no model of the family has.
    pub fn with_nextn(gguf: Arc<Gguf>, source: &NextnSource) -> Result<Model, ModelError> {
        let config = Config::from_gguf(&gguf)?;
        if matches!(source, NextnSource::Own | NextnSource::Other(_)) {
            let architecture = config.architecture.clone();
            return Err(ModelError::NeverPredicts { architecture });
        }
        let tensors = Tensors::new(&gguf, &config);
        let values = config.dims.heads * config.dims.value;
        let frequency_factors = frequency_factors(&tensors, &config)?;
        let attention = |block| attention(&tensors, &config, block);
        let weights = Transformer::load(&tensors, values, source, attention)?;
        Ok(Model {
            weights,
            frequency_factors,
            gguf: Arc::clone(&gguf),
            config,
        })
    }
}

/// `rope_freqs.weight`, where the architecture may have it.
fn frequency_factors(
    tensors: &Tensors<'_>,
    config: &Config,
) -> Result<Option<Vec<f32>>, ModelError> {
    const NAME: &str = "rope_freqs.weight";
    if !config.traits.frequency_factors {
        return Ok(None);
    }
    let factors = tensors.optional_vector(NAME, config.dims.rope / 2)?;
    let mut all = factors.iter().flatten();
    match all.find(|factor| !(factor.is_finite() && **factor > 0.0)) {
        Some(factor) => Err(ModelError::Tensor {
            tensor: NAME.to_owned(),
            problem: format!("has the factor {factor}; finite numbers above 0 were expected"),
        }),
        None => Ok(factors),
    }
}

/// The tensors of the attention of a block: three projections, or one that has the rows of all three.
fn attention(
    tensors: &Tensors<'_>,
    config: &Config,
    block: usize,
) -> Result<Attention, ModelError> {
    let dims = config.dims;
    let name = |tensor: &str| format!("blk.{block}.{tensor}");
    let rows = [
        dims.heads * dims.key,
        dims.kv_heads * dims.key,
        dims.kv_heads * dims.value,
    ];
    let norm = |tensor: &str| match config.traits.norms {
        true => tensors.vector(&name(tensor), dims.key).map(Some),
        false => Ok(None),
    };
    let [attn_q, attn_k, attn_v] = match fused(tensors, config, &name, rows)? {
        Some(all) => all,
        None => {
            let projection = |tensor: &str, rows| {
                let weight = name(&format!("{tensor}.weight"));
                Ok::<_, ModelError>(Projection {
                    weight: tensors.matrix(&weight, 1, rows, config.embedding_length)?,
                    bias: tensors.optional_vector(&name(&format!("{tensor}.bias")), rows)?,
                })
            };
            [
                projection("attn_q", rows[0])?,
                projection("attn_k", rows[1])?,
                projection("attn_v", rows[2])?,
            ]
        }
    };
    Ok(Attention {
        attn_q,
        attn_k,
        attn_v,
        attn_q_norm: norm("attn_q_norm.weight")?,
        attn_k_norm: norm("attn_k_norm.weight")?,
    })
}

/// The three parts of `attn_qkv`, if the file has it.
fn fused(
    tensors: &Tensors<'_>,
    config: &Config,
    name: &dyn Fn(&str) -> String,
    [q, k, v]: [usize; 3],
) -> Result<Option<[Projection; 3]>, ModelError> {
    let (all, width) = (q + k + v, config.embedding_length);
    let Some(weight) = tensors.optional_matrix(&name("attn_qkv.weight"), 1, all, width)? else {
        return Ok(None);
    };
    let bias = tensors.optional_vector(&name("attn_qkv.bias"), all)?;
    let part = |rows: Range<usize>, part: &str| Projection {
        weight: weight.part(rows.clone(), part),
        bias: bias.as_ref().map(|bias| bias[rows].to_vec()),
    };
    Ok(Some([
        part(0..q, "q"),
        part(q..q + k, "k"),
        part(q + k..all, "v"),
    ]))
}

#[cfg(test)]
mod tests;
