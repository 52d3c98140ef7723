//! Finds every tensor of a model by its GGUF name.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::Arc;

use half::f16;
use rayon::prelude::*;

use super::{Attention, Config, Query};
use crate::gguf::Gguf;
use crate::model::tensors::{Tensors, check_row};
use crate::model::{ModelError, Nextn, NextnSource, Transformer, Weight};
use crate::plural::count;
use crate::quant::{GgmlType, dequantize_row};

/// A model with multi-head latent attention: its configuration and where its weights are.
#[derive(Debug)]
pub struct Model {
    /// Sizes and constants.
    pub config: Config,
    /// The weights.
    pub weights: Transformer<Attention>,
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
    /// The model without its prediction layer.
    ///
    /// # Errors
    /// The errors of [`with_nextn`](Self::with_nextn).
    pub fn load(gguf: Arc<Gguf>) -> Result<Model, ModelError> {
        Self::with_nextn(gguf, &NextnSource::None)
    }

    /// Reads the configuration and finds all weights, also those of the prediction layer of `source`; tensor data is touched only where a fused
    /// `attn_kv_b` must be transposed.
    ///
    /// # Errors
    /// The errors of [`Config::from_gguf`], [`Transformer::load`] and [`Nextn::load`]; [`ModelError::OtherModel`].
    pub fn with_nextn(gguf: Arc<Gguf>, source: &NextnSource) -> Result<Model, ModelError> {
        let config = Config::from_gguf(&gguf)?;
        let loader = Loader::new(&gguf, &config);
        let (tensors, values) = (&loader.tensors, loader.values());
        let mut weights = Transformer::load(tensors, values, source, |n| loader.attention(n))?;
        let mut transposed = loader.transposed.get();
        if let NextnSource::Other(file) = source {
            let own = Config::from_gguf(file)?;
            own.check_layer_of(&config)?;
            // Its copies of the model's embedding, last norm and head are left in the file.
            let loader = Loader::new(file, &own);
            let attention = |n| loader.attention(n);
            let shared = weights.shared();
            weights.nextn = Some(Nextn::load(&loader.tensors, values, shared, attention)?);
            transposed += loader.transposed.get();
        }
        if transposed > 0 {
            log::info!(
                "attn_kv_b of {} is of the old fused form: its keys were transposed to F16",
                count(transposed, "block")
            );
        }
        Ok(Model {
            weights,
            gguf: Arc::clone(&gguf),
            config,
        })
    }

    /// Layers that have rows in the cache: the blocks, and behind them the prediction layer if it is in use.
    pub fn cached_layers(&self) -> usize {
        self.layers.len() + usize::from(self.nextn.is_some())
    }
}

struct Loader<'a> {
    tensors: Tensors<'a>,
    config: &'a Config,
    /// Blocks whose fused `attn_kv_b` was taken apart.
    transposed: Cell<usize>,
}

impl<'a> Loader<'a> {
    fn new(gguf: &'a Arc<Gguf>, config: &'a Config) -> Self {
        Self {
            tensors: Tensors::new(gguf, config),
            config,
            transposed: Cell::new(0),
        }
    }

    /// The values of all heads.
    fn values(&self) -> usize {
        self.config.head_count * self.config.v_head_dim
    }

    fn attention(&self, block: usize) -> Result<Attention, ModelError> {
        let (c, tensors) = (self.config, &self.tensors);
        let name = |tensor: &str| format!("blk.{block}.{tensor}.weight");
        let (width, q_width) = (
            c.embedding_length,
            c.head_count * (c.qk_nope_head_dim + c.qk_rope_head_dim),
        );
        let q = match c.q_lora_rank {
            Some(rank) => Query::Lora {
                attn_q_a: tensors.matrix(&name("attn_q_a"), 1, rank, width)?,
                attn_q_a_norm: tensors.vector(&name("attn_q_a_norm"), rank)?,
                attn_q_b: tensors.matrix(&name("attn_q_b"), 1, q_width, rank)?,
            },
            None => Query::Full {
                attn_q: tensors.matrix(&name("attn_q"), 1, q_width, width)?,
            },
        };
        let (attn_k_b, attn_v_b) = self.kv_b(&name)?;
        Ok(Attention {
            q,
            attn_kv_a_mqa: tensors.matrix(&name("attn_kv_a_mqa"), 1, c.cache_values(), width)?,
            attn_kv_a_norm: tensors.vector(&name("attn_kv_a_norm"), c.kv_lora_rank)?,
            attn_k_b,
            attn_v_b,
        })
    }

    /// `attn_k_b` and `attn_v_b`, from the tensors of that name or from the fused `attn_kv_b` of older files.
    fn kv_b(&self, name: &dyn Fn(&str) -> String) -> Result<(Weight, Weight), ModelError> {
        let (c, tensors) = (self.config, &self.tensors);
        let (heads, nope, v, latent) = (
            c.head_count,
            c.qk_nope_head_dim,
            c.v_head_dim,
            c.kv_lora_rank,
        );
        let fused_name = name("attn_kv_b");
        let has_split = tensors.gguf.tensor(&name("attn_k_b")).is_some();
        if has_split || tensors.gguf.tensor(&fused_name).is_none() {
            let k_b = tensors.matrix(&name("attn_k_b"), heads, latent, nope)?;
            let v_b = tensors.matrix(&name("attn_v_b"), heads, v, latent)?;
            // Files of spring 2025 carry both forms; the fused one holds nothing else.
            tensors.find(&fused_name);
            return Ok((k_b, v_b));
        }
        let fused = tensors.matrix(&fused_name, 1, heads * (nope + v), latent)?;
        let per_head = fused.split_rows(heads);
        self.transposed.update(|n| n + 1);
        let k_b = transpose(&per_head.part(0..nope, "k_b"))?;
        Ok((k_b, per_head.part(nope..nope + v, "v_b")))
    }
}

/// Each group's matrix transposed, as F16: blocks of another type run along the wrong direction.
fn transpose(weight: &Weight) -> Result<Weight, ModelError> {
    let (rows, cols) = (weight.rows, weight.cols);
    check_row(&weight.name, rows)?;
    let mut halves = vec![f16::ZERO; weight.groups * rows * cols];
    halves
        .par_chunks_mut(rows * cols)
        .enumerate()
        .for_each(|(group, out)| {
            let mut values = vec![0.0; cols];
            for row in 0..rows {
                dequantize_row(weight.ty, weight.row(group, row), &mut values);
                for (col, &value) in values.iter().enumerate() {
                    out[col * rows + row] = f16::from_f32(value);
                }
            }
        });
    let bytes: Vec<u8> = halves.iter().flat_map(|half| half.to_le_bytes()).collect();
    Ok(Weight::from_bytes(
        &weight.name,
        GgmlType::F16,
        weight.groups,
        cols,
        rows,
        bytes,
    ))
}

#[cfg(test)]
mod tests;
