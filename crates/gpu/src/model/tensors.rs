//! Finds the tensors of a model by their GGUF names and checks their shapes against the configuration.

use std::cell::RefCell;
use std::sync::Arc;

use super::{Config, Experts, Ffn, Mlp, ModelError, Moe, Weight};
use crate::gguf::{Gguf, TensorInfo};
use crate::quant::{GgmlType, dequantize_row};

/// Every row is made of units of 32 weights: the granularity of kernels and repacked planes.
const ROW_UNIT: usize = 32;

/// The tensors of a file, by name. No weight is copied but the vectors.
pub struct Tensors<'a> {
    /// The file.
    pub gguf: &'a Arc<Gguf>,
    /// The model's sizes.
    pub config: &'a Config,
    /// The tensors of the file that were asked for, one flag for each.
    used: RefCell<Vec<bool>>,
}

impl<'a> Tensors<'a> {
    /// The tensors of `gguf`, none of which was asked for yet.
    pub fn new(gguf: &'a Arc<Gguf>, config: &'a Config) -> Self {
        let used = RefCell::new(vec![false; gguf.tensors().len()]);
        Self { gguf, config, used }
    }

    /// The feed-forward network of a block.
    pub fn feed_forward(&self, block: usize) -> Result<Ffn, ModelError> {
        let name = |tensor: &str| format!("blk.{block}.{tensor}.weight");
        match &self.config.experts {
            Some(experts) if block >= self.config.leading_dense_block_count => {
                self.moe(block, &name, experts)
            }
            _ => Ok(Ffn::Dense(self.swiglu(
                &name,
                "",
                self.config.feed_forward_length,
            )?)),
        }
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
            exp_probs_b: self.choice_bias(block, count)?,
            experts: Mlp {
                gate,
                up,
                down: self.matrix(&name("ffn_down_exps"), count, width, ff)?,
            },
            shared,
        })))
    }

    /// `exp_probs_b`, which some converters write without the suffix.
    fn choice_bias(&self, block: usize, count: usize) -> Result<Option<Vec<f32>>, ModelError> {
        let name = format!("blk.{block}.exp_probs_b");
        match self.optional_vector(&format!("{name}.bias"), count)? {
            None => self.optional_vector(&name, count),
            bias => Ok(bias),
        }
    }

    /// The tensor and its index; noted as known.
    pub fn find(&self, name: &str) -> Option<(usize, &'a TensorInfo)> {
        let index = self.gguf.tensor_index(name)?;
        self.used.borrow_mut()[index] = true;
        Some((index, &self.gguf.tensors()[index]))
    }

    /// A weight of `groups` matrices that must be there.
    pub fn matrix(
        &self,
        name: &str,
        groups: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Weight, ModelError> {
        self.optional_matrix(name, groups, rows, cols)?
            .ok_or_else(|| missing(name, &dims(groups, rows, cols)))
    }

    /// A weight of `groups` matrices, if it is there.
    pub fn optional_matrix(
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

    /// A vector that must be there.
    pub fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        self.optional_vector(name, len)?
            .ok_or_else(|| missing(name, &[len as u64]))
    }

    /// A vector, if it is there.
    pub fn optional_vector(&self, name: &str, len: usize) -> Result<Option<Vec<f32>>, ModelError> {
        let Some((_, info)) = self.find(name) else {
            return Ok(None);
        };
        check_shape(info, vec![len as u64])?;
        if !matches!(info.ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16) {
            let problem = format!("is of type {}; F32, F16 or BF16 was expected", info.ty);
            return Err(refused(name, problem));
        }
        let mut vector = vec![0.0; len];
        dequantize_row(info.ty, self.gguf.data(info), &mut vector);
        Ok(Some(vector))
    }

    /// Refuses a file that holds nothing but the blocks that predict further tokens.
    ///
    /// # Errors
    /// [`ModelError::PredictionAlone`].
    pub fn check_not_prediction_alone(&self) -> Result<(), ModelError> {
        let blocks = self.gguf.tensors().iter().filter_map(|t| block_of(&t.name));
        match blocks.min() {
            Some(first) if first >= self.config.block_count => Err(ModelError::PredictionAlone {
                first,
                blocks: self.config.block_count,
            }),
            _ => Ok(()),
        }
    }

    /// Refuses tensors that nothing asked for: without them the model would compute something else. Those of blocks that predict further
    /// tokens change nothing else, those of an encoder for pictures are not used, and factors of 1 change no rotation.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] for more blocks than the file says, [`ModelError::UnknownTensor`].
    pub fn check_rest(&self) -> Result<(), ModelError> {
        let blocks = self.config.block_count;
        let all_blocks = blocks + self.config.nextn_predict_layers;
        let used = self.used.borrow();
        let rest = self.gguf.tensors().iter().zip(used.iter());
        for (info, _) in rest.filter(|(_, used)| !**used) {
            let name = &info.name;
            match block_of(name) {
                Some(block) if block >= all_blocks => {
                    return Err(ModelError::Invalid {
                        key: format!("{}.block_count", self.config.architecture),
                        found: all_blocks.to_string(),
                        expected: format!("a count that includes the block of tensor {name}"),
                    });
                }
                Some(block) if block >= blocks => {}
                None if PICTURES.iter().any(|prefix| name.starts_with(prefix)) => {
                    log::debug!("tensor {name} is for pictures and not used");
                }
                None if name == "rope_freqs.weight" && self.is_ones(info) => {}
                _ => return Err(unknown(info)),
            }
        }
        Ok(())
    }

    /// Refuses tensors of a block that nothing asked for.
    ///
    /// # Errors
    /// [`ModelError::UnknownTensor`].
    pub fn check_block(&self, number: usize) -> Result<(), ModelError> {
        let used = self.used.borrow();
        let mut all = self.gguf.tensors().iter().zip(used.iter());
        match all.find(|(info, used)| !**used && block_of(&info.name) == Some(number)) {
            Some((info, _)) => Err(unknown(info)),
            None => Ok(()),
        }
    }

    /// Whether a tensor of floats has no other value than 1.
    fn is_ones(&self, info: &TensorInfo) -> bool {
        let mut values = vec![0.0; info.element_count() as usize];
        info.ty == GgmlType::F32 && self.gguf.has_data(info) && {
            dequantize_row(info.ty, self.gguf.data(info), &mut values);
            values.iter().all(|&value| value == 1.0)
        }
    }
}

/// How names of tensors begin that encode pictures, in files of ollama: the encoder and what follows it.
const PICTURES: [&str; 2] = ["v.", "mm."];

/// N of `blk.N.*`.
pub fn block_of(tensor: &str) -> Option<usize> {
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
    let problem = format!(
        "has the dimensions {:?}; the configuration says {expected:?}",
        info.dims
    );
    Err(refused(&info.name, problem))
}

/// The error for a missing tensor that would have these dimensions, row length first.
fn missing(tensor: &str, expected: &[u64]) -> ModelError {
    refused(tensor, format!("{expected:?} is missing"))
}

/// The error for a tensor that nothing asked for.
fn unknown(info: &TensorInfo) -> ModelError {
    ModelError::UnknownTensor {
        tensor: info.name.clone(),
        dims: info.dims.clone(),
    }
}

fn refused(tensor: &str, problem: String) -> ModelError {
    ModelError::Tensor {
        tensor: tensor.to_owned(),
        problem,
    }
}

/// Refuses rows that are not made of whole units.
pub fn check_row(tensor: &str, cols: usize) -> Result<(), ModelError> {
    if cols.is_multiple_of(ROW_UNIT) {
        return Ok(());
    }
    let problem = format!("has rows of {cols} values; glimt needs a multiple of 32");
    Err(refused(tensor, problem))
}
