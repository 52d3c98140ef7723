//! Finds every tensor of a model by its GGUF name.

use std::cell::Cell;
use std::sync::Arc;

use half::f16;
use rayon::prelude::*;

use super::{Config, Layer, Query};
use crate::gguf::Gguf;
use crate::model::tensors::{Tensors, check_row};
use crate::model::{ModelError, Weight};
use crate::plural::count;
use crate::quant::{GgmlType, dequantize_row};

/// A model with multi-head latent attention: its configuration and where its weights are. No weight is copied but the norms and, in old files, `attn_k_b`.
#[derive(Debug)]
pub struct Model {
    /// Sizes and constants.
    pub config: Config,
    /// The embedding, vocab_size x embedding_length.
    pub token_embd: Weight,
    /// The blocks, without the nextn ones.
    pub layers: Vec<Layer>,
    /// Weights of the last norm, embedding_length.
    pub output_norm: Vec<f32>,
    /// The output head, vocab_size x embedding_length; `token_embd` where the model has no other.
    pub output: Weight,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// The file the weights are views of.
    pub gguf: Arc<Gguf>,
}

impl Model {
    /// Reads the configuration and finds all weights; tensor data is touched only where a fused `attn_kv_b` must be
    /// transposed.
    ///
    /// # Errors
    /// The errors of [`Config::from_gguf`]; [`ModelError::Tensor`].
    pub fn load(gguf: Arc<Gguf>) -> Result<Model, ModelError> {
        let config = Config::from_gguf(&gguf)?;
        let loader = Loader {
            tensors: Tensors::new(&gguf, &config),
            config: &config,
            transposed: Cell::new(0),
        };
        let tensors = &loader.tensors;
        tensors.check_not_prediction_alone()?;
        let (vocab, width) = (config.vocab_size, config.embedding_length);
        let token_embd = tensors.matrix("token_embd.weight", 1, vocab, width)?;
        let head = tensors.optional_matrix("output.weight", 1, vocab, width)?;
        let tied = head.is_none();
        let output = head.unwrap_or_else(|| token_embd.clone());
        let output_norm = tensors.vector("output_norm.weight", width)?;
        let layers = (0..config.block_count)
            .map(|block| loader.layer(block))
            .collect::<Result<_, _>>()?;
        tensors.check_rest()?;
        let transposed = loader.transposed.get();
        if transposed > 0 {
            log::info!(
                "attn_kv_b of {} is of the old fused form: its keys were transposed to F16",
                count(transposed, "block")
            );
        }
        Ok(Model {
            token_embd,
            layers,
            output_norm,
            output,
            tied,
            gguf: Arc::clone(&gguf),
            config,
        })
    }
}

struct Loader<'a> {
    tensors: Tensors<'a>,
    config: &'a Config,
    /// Blocks whose fused `attn_kv_b` was taken apart.
    transposed: Cell<usize>,
}

impl Loader<'_> {
    fn layer(&self, block: usize) -> Result<Layer, ModelError> {
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
        Ok(Layer {
            attn_norm: tensors.vector(&name("attn_norm"), width)?,
            q,
            attn_kv_a_mqa: tensors.matrix(&name("attn_kv_a_mqa"), 1, c.cache_row(), width)?,
            attn_kv_a_norm: tensors.vector(&name("attn_kv_a_norm"), c.kv_lora_rank)?,
            attn_k_b,
            attn_v_b,
            attn_output: tensors.matrix(
                &name("attn_output"),
                1,
                width,
                c.head_count * c.v_head_dim,
            )?,
            ffn_norm: tensors.vector(&name("ffn_norm"), width)?,
            ffn: tensors.feed_forward(block)?,
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
