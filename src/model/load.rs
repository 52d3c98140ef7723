//! Finds every tensor of a model by its GGUF name and checks its shape against the configuration.

use std::cell::RefCell;
use std::sync::Arc;

use half::f16;
use rayon::prelude::*;

use super::{Config, Experts, Ffn, Layer, Mlp, ModelError, Moe, Query, Weight};
use crate::gguf::{Gguf, TensorInfo};
use crate::quant::{GgmlType, dequantize_row};

/// Every row is made of units of 32 weights: the granularity of kernels and repacked planes.
const ROW_UNIT: usize = 32;

/// A model: its configuration and where its weights are. No weight is copied but the norms and, in old files, `attn_k_b`.
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
    /// Those of [`Config::from_gguf`]; [`ModelError::MissingTensor`], [`ModelError::WrongShape`],
    /// [`ModelError::WrongType`] and [`ModelError::RowLength`], each naming the tensor.
    pub fn load(gguf: Arc<Gguf>) -> Result<Model, ModelError> {
        let config = Config::from_gguf(&gguf)?;
        let loader = Loader::new(&gguf, &config);
        let (vocab, width) = (config.vocab_size, config.embedding_length);
        let token_embd = loader.matrix("token_embd.weight", 1, vocab, width)?;
        let head = loader.optional_matrix("output.weight", 1, vocab, width)?;
        let tied = head.is_none();
        let output = head.unwrap_or_else(|| token_embd.clone());
        let output_norm = loader.vector("output_norm.weight", width)?;
        let layers = (0..config.block_count)
            .map(|block| loader.layer(block))
            .collect::<Result<_, _>>()?;
        loader.report();
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
    gguf: &'a Arc<Gguf>,
    config: &'a Config,
    /// Which tensors of the file were asked for.
    used: RefCell<Vec<bool>>,
    /// Blocks whose fused `attn_kv_b` was taken apart.
    transposed: RefCell<usize>,
}

impl<'a> Loader<'a> {
    fn new(gguf: &'a Arc<Gguf>, config: &'a Config) -> Self {
        let used = RefCell::new(vec![false; gguf.tensors().len()]);
        Loader {
            gguf,
            config,
            used,
            transposed: RefCell::new(0),
        }
    }

    fn layer(&self, block: usize) -> Result<Layer, ModelError> {
        let c = self.config;
        let name = |tensor: &str| format!("blk.{block}.{tensor}.weight");
        let (width, q_width) = (
            c.embedding_length,
            c.head_count * (c.qk_nope_head_dim + c.qk_rope_head_dim),
        );
        let q = match c.q_lora_rank {
            Some(rank) => Query::Lora {
                attn_q_a: self.matrix(&name("attn_q_a"), 1, rank, width)?,
                attn_q_a_norm: self.vector(&name("attn_q_a_norm"), rank)?,
                attn_q_b: self.matrix(&name("attn_q_b"), 1, q_width, rank)?,
            },
            None => Query::Full {
                attn_q: self.matrix(&name("attn_q"), 1, q_width, width)?,
            },
        };
        let (attn_k_b, attn_v_b) = self.kv_b(&name)?;
        Ok(Layer {
            attn_norm: self.vector(&name("attn_norm"), width)?,
            q,
            attn_kv_a_mqa: self.matrix(&name("attn_kv_a_mqa"), 1, c.cache_row(), width)?,
            attn_kv_a_norm: self.vector(&name("attn_kv_a_norm"), c.kv_lora_rank)?,
            attn_k_b,
            attn_v_b,
            attn_output: self.matrix(
                &name("attn_output"),
                1,
                width,
                c.head_count * c.v_head_dim,
            )?,
            ffn_norm: self.vector(&name("ffn_norm"), width)?,
            ffn: match &c.experts {
                Some(experts) if block >= c.leading_dense_block_count => {
                    self.moe(block, &name, experts)?
                }
                _ => Ffn::Dense(self.swiglu(&name, "", c.feed_forward_length)?),
            },
        })
    }

    /// `ffn_gate`, `ffn_up` and `ffn_down` with a suffix, `ff` wide.
    fn swiglu(
        &self,
        name: &dyn Fn(&str) -> String,
        suffix: &str,
        ff: usize,
    ) -> Result<Mlp, ModelError> {
        let width = self.config.embedding_length;
        let name = |part: &str| name(&format!("ffn_{part}{suffix}"));
        Ok(Mlp {
            gate: self.matrix(&name("gate"), 1, ff, width)?,
            up: self.matrix(&name("up"), 1, ff, width)?,
            down: self.matrix(&name("down"), 1, width, ff)?,
        })
    }

    fn moe(
        &self,
        block: usize,
        name: &dyn Fn(&str) -> String,
        experts: &Experts,
    ) -> Result<Ffn, ModelError> {
        let (width, count, ff) = (
            self.config.embedding_length,
            experts.count,
            experts.feed_forward_length,
        );
        let fused = self.optional_matrix(&name("ffn_gate_up_exps"), count, 2 * ff, width)?;
        let (gate, up) = match fused {
            Some(fused) => (fused.part(0..ff, "gate"), fused.part(ff..2 * ff, "up")),
            None => (
                self.matrix(&name("ffn_gate_exps"), count, ff, width)?,
                self.matrix(&name("ffn_up_exps"), count, ff, width)?,
            ),
        };
        let shared = match self.config.shared_feed_forward_length() {
            0 => None,
            shared_ff => Some(self.swiglu(name, "_shexp", shared_ff)?),
        };
        Ok(Ffn::Moe(Box::new(Moe {
            ffn_gate_inp: self.matrix(&name("ffn_gate_inp"), 1, count, width)?,
            exp_probs_b: self.optional_vector(&format!("blk.{block}.exp_probs_b.bias"), count)?,
            experts: Mlp {
                gate,
                up,
                down: self.matrix(&name("ffn_down_exps"), count, width, ff)?,
            },
            shared,
        })))
    }

    /// `attn_k_b` and `attn_v_b`, from the tensors of that name or from the fused `attn_kv_b` of older files.
    fn kv_b(&self, name: &dyn Fn(&str) -> String) -> Result<(Weight, Weight), ModelError> {
        let c = self.config;
        let (heads, nope, v, latent) = (
            c.head_count,
            c.qk_nope_head_dim,
            c.v_head_dim,
            c.kv_lora_rank,
        );
        let fused_name = name("attn_kv_b");
        let has_split = self.gguf.tensor(&name("attn_k_b")).is_some();
        if has_split || self.gguf.tensor(&fused_name).is_none() {
            let k_b = self.matrix(&name("attn_k_b"), heads, latent, nope)?;
            let v_b = self.matrix(&name("attn_v_b"), heads, v, latent)?;
            // Files of spring 2025 carry both forms; the fused one holds nothing else.
            self.find(&fused_name);
            return Ok((k_b, v_b));
        }
        let fused = self.matrix(&fused_name, 1, heads * (nope + v), latent)?;
        let per_head = fused.split_rows(heads);
        *self.transposed.borrow_mut() += 1;
        let k_b = transpose(&per_head.part(0..nope, "k_b"))?;
        Ok((k_b, per_head.part(nope..nope + v, "v_b")))
    }

    /// The tensor and its index; noted as known.
    fn find(&self, name: &str) -> Option<(usize, &'a TensorInfo)> {
        let index = self.gguf.tensor_index(name)?;
        self.used.borrow_mut()[index] = true;
        Some((index, &self.gguf.tensors()[index]))
    }

    fn matrix(
        &self,
        name: &str,
        groups: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Weight, ModelError> {
        self.optional_matrix(name, groups, rows, cols)?
            .ok_or_else(|| ModelError::MissingTensor {
                tensor: name.to_owned(),
                expected: dims(groups, rows, cols),
            })
    }

    fn optional_matrix(
        &self,
        name: &str,
        groups: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Option<Weight>, ModelError> {
        let Some((index, info)) = self.find(name) else {
            return Ok(None);
        };
        check_shape(info, dims(groups, rows, cols))?;
        check_row(name, cols)?;
        Ok(Some(Weight::from_tensor(
            self.gguf, index, groups, rows, cols,
        )))
    }

    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        self.optional_vector(name, len)?
            .ok_or_else(|| ModelError::MissingTensor {
                tensor: name.to_owned(),
                expected: vec![len as u64],
            })
    }

    fn optional_vector(&self, name: &str, len: usize) -> Result<Option<Vec<f32>>, ModelError> {
        let Some((_, info)) = self.find(name) else {
            return Ok(None);
        };
        check_shape(info, vec![len as u64])?;
        if !matches!(info.ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16) {
            let (tensor, found) = (name.to_owned(), info.ty.name());
            return Err(ModelError::WrongType {
                tensor,
                found,
                expected: "F32, F16 or BF16",
            });
        }
        let mut vector = vec![0.0; len];
        dequantize_row(info.ty, self.gguf.data(info), &mut vector);
        Ok(Some(vector))
    }

    /// Logs what a reader of the file should know: tensors without use, and what was converted.
    fn report(&self) {
        let blocks = self.config.block_count;
        for (info, _) in self
            .gguf
            .tensors()
            .iter()
            .zip(self.used.borrow().iter())
            .filter(|(_, used)| !**used)
        {
            if block_of(&info.name).is_none_or(|block| block < blocks) {
                log::warn!(
                    "tensor {} {:?} is not known to glimt and has no effect",
                    info.name,
                    info.dims
                );
            }
        }
        let transposed = *self.transposed.borrow();
        if transposed > 0 {
            log::info!(
                "attn_kv_b of {transposed} blocks is of the old fused form: its keys were transposed to F16"
            );
        }
    }
}

/// N of `blk.N.*`.
fn block_of(tensor: &str) -> Option<usize> {
    tensor.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

/// GGUF dimensions of a weight.
fn dims(groups: usize, rows: usize, cols: usize) -> Vec<u64> {
    let mut dims = vec![cols as u64, rows as u64];
    if groups > 1 {
        dims.push(groups as u64);
    }
    dims
}

/// Compares dimensions up to ones at the end, which llama.cpp drops when it writes a file.
fn check_shape(info: &TensorInfo, expected: Vec<u64>) -> Result<(), ModelError> {
    fn trimmed(mut dims: &[u64]) -> &[u64] {
        while let [rest @ .., 1] = dims {
            dims = rest;
        }
        dims
    }
    if trimmed(&info.dims) == trimmed(&expected) {
        return Ok(());
    }
    Err(ModelError::WrongShape {
        tensor: info.name.clone(),
        found: info.dims.clone(),
        expected,
    })
}

fn check_row(tensor: &str, cols: usize) -> Result<(), ModelError> {
    if cols.is_multiple_of(ROW_UNIT) {
        return Ok(());
    }
    Err(ModelError::RowLength {
        tensor: tensor.to_owned(),
        cols,
    })
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

/// Engines share a model between threads.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Model>();
};

#[cfg(test)]
mod tests;
