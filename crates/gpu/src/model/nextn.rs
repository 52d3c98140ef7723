//! The prediction layer of a model (multi-token prediction, `blk.N.nextn.*`): one more block, which predicts the token after next.

use std::convert::Infallible;
use std::sync::Arc;

use super::tensors::Tensors;
use super::{Block, Convert, ModelError, Weight};
use crate::gguf::Gguf;
use crate::quant::dequantize_row;

/// The prediction layer of a model. Fields are called as the tensors `blk.N.nextn.<field>.weight`; N is the number of the model's blocks.
///
/// Its row at position q pairs the embedding of the token there with the hidden state of the model at q - 1, after `output_norm`, or zeros where
/// q is 0: `eh_proj` takes the two normed vectors one behind the other. A whole block and a norm follow. The head makes the logits of the token at
/// q + 1 of that. A further row takes the token that was chosen, and the state behind the norm in place of the hidden state (llama.cpp,
/// src/models/deepseek2.cpp, `graph_mtp`).
#[derive(Debug, Clone)]
pub struct Nextn<A, W = Weight, V = Vec<f32>> {
    /// The embedding, vocab_size x embedding_length; `None` where it is that of the model, or a copy.
    pub embed_tokens: Option<W>,
    /// Norm of the embedding, embedding_length.
    pub enorm: V,
    /// Norm of the hidden state, embedding_length.
    pub hnorm: V,
    /// embedding_length x 2 embedding_length.
    pub eh_proj: W,
    /// The block.
    pub block: Block<A, W, V>,
    /// Norm before the head, embedding_length; that of the model where the layer has none.
    pub shared_head_norm: V,
    /// The output head, vocab_size x embedding_length; `None` where it is that of the model, or a copy.
    pub shared_head_head: Option<W>,
}

/// The file that gives a model its prediction layer.
#[derive(Debug, Clone, Default)]
pub enum NextnSource {
    /// None: nobody wants drafts by the layer.
    #[default]
    None,
    /// The model's own file, if it has a layer that glimt can compute.
    IfAny,
    /// The model's own file, which is refused if it has none.
    Own,
    /// Another file, of the layer alone or with a model.
    Other(Arc<Gguf>),
}

/// Collects the matrices that it converts to nothing.
#[derive(Default)]
pub struct Matrices<'a>(pub Vec<&'a Weight>);

impl<'a> Convert<'a, Weight, Vec<f32>> for Matrices<'a> {
    type Weight = ();
    type Vector = ();
    type Error = Infallible;

    fn weight(&mut self, weight: &'a Weight) -> Result<(), Infallible> {
        self.0.push(weight);
        Ok(())
    }

    fn vector(&mut self, _: &'a Vec<f32>) -> Result<(), Infallible> {
        Ok(())
    }
}

/// The tables that a model shares with its prediction layer.
#[derive(Clone, Copy)]
pub struct Shared<'a> {
    /// The embedding.
    pub token_embd: &'a Weight,
    /// Weights of the last norm.
    pub output_norm: &'a [f32],
    /// The output head.
    pub output: &'a Weight,
}

/// Rows by which a table is compared with that of the model.
const COMPARED: usize = 16;

/// The most that rows of a copy in another type differ, as the squares of the differences over those of the values. Quantisation to 4 bits makes a
/// hundredth, and tables that were trained apart differ by about 1.
const OF_A_COPY: f64 = 0.03;

/// Whether a table of a prediction layer is a copy of that of the model, perhaps in another type: published files hold both again. Where a file
/// has no bytes yet it is taken to be one.
fn is_copy(own: &Weight, of_model: &Weight) -> bool {
    if !own.has_data() || !of_model.has_data() {
        return true;
    }
    let (mut error, mut size) = (0.0, 0.0);
    let values = |weight: &Weight, row: usize| {
        let mut values = vec![0.0; weight.cols];
        dequantize_row(weight.ty, weight.row(0, row), &mut values);
        values
    };
    for row in (0..own.rows).step_by(own.rows.div_ceil(COMPARED)) {
        let (a, b) = (values(own, row), values(of_model, row));
        for (a, b) in a.iter().zip(b) {
            error += f64::from(a - b).powi(2);
            size += f64::from(b).powi(2);
        }
    }
    let copy = error <= OF_A_COPY * size;
    let kept = if copy {
        "not kept twice"
    } else {
        "another, and kept"
    };
    log::debug!("{} is {kept}, beside {}", own.name, of_model.name);
    copy
}

/// Whether a file has a prediction layer.
pub fn has_nextn(gguf: &Gguf) -> bool {
    let mut tensors = gguf.tensors().iter();
    tensors.any(|tensor| tensor.name.ends_with(".nextn.eh_proj.weight"))
}

impl<A, W, V> Nextn<A, W, V> {
    /// This layer with its tensors converted, those of the attention by `attention`.
    ///
    /// # Errors
    /// The first error of `by`.
    pub fn convert<'a, C: Convert<'a, W, V>, B>(
        &'a self,
        by: &mut C,
        attention: impl FnOnce(&'a A, &mut C) -> Result<B, C::Error>,
    ) -> Result<Nextn<B, C::Weight, C::Vector>, C::Error> {
        let embed_tokens = self.embed_tokens.as_ref().map(|w| by.weight(w));
        let head = self.shared_head_head.as_ref().map(|w| by.weight(w));
        Ok(Nextn {
            embed_tokens: embed_tokens.transpose()?,
            enorm: by.vector(&self.enorm)?,
            hnorm: by.vector(&self.hnorm)?,
            eh_proj: by.weight(&self.eh_proj)?,
            block: self.block.convert(by, attention)?,
            shared_head_norm: by.vector(&self.shared_head_norm)?,
            shared_head_head: head.transpose()?,
        })
    }
}

impl<A> Nextn<A> {
    /// The prediction layer of a file, if the heads of its block have `values` values and `attention` finds the tensors of one. Copies of what
    /// `model` has are left in the file.
    ///
    /// # Errors
    /// The errors of `attention`; [`ModelError::NoPrediction`], [`ModelError::Unsupported`] for several layers, [`ModelError::Tensor`] for a tensor
    /// that is missing or of another shape, and [`ModelError::UnknownTensor`] for one of the layer that nobody asked for.
    pub fn load(
        tensors: &Tensors<'_>,
        values: usize,
        model: Shared<'_>,
        attention: impl FnOnce(usize) -> Result<A, ModelError>,
    ) -> Result<Self, ModelError> {
        let config = tensors.config;
        let number = config.block_count;
        match config.nextn_predict_layers {
            1 if has_nextn(tensors.gguf) => {}
            0 | 1 => return Err(ModelError::NoPrediction { number }),
            several => {
                return Err(ModelError::Unsupported {
                    key: format!("{}.nextn_predict_layers", config.architecture),
                    found: several.to_string(),
                    supported: "1 layer, as GLM-4.7-Flash has".to_owned(),
                });
            }
        }
        let (vocab, width) = (config.vocab_size, config.embedding_length);
        let name = |tensor: &str| format!("blk.{number}.nextn.{tensor}.weight");
        let table = |tensor: &str, of_model: &Weight| {
            let own = tensors.optional_matrix(&name(tensor), 1, vocab, width)?;
            Ok::<_, ModelError>(own.filter(|own| !is_copy(own, of_model)))
        };
        let norm = tensors.optional_vector(&name("shared_head_norm"), width)?;
        let layer = Self {
            embed_tokens: table("embed_tokens", model.token_embd)?,
            enorm: tensors.vector(&name("enorm"), width)?,
            hnorm: tensors.vector(&name("hnorm"), width)?,
            eh_proj: tensors.matrix(&name("eh_proj"), 1, width, width.saturating_mul(2))?,
            block: Block::load(tensors, number, values, attention)?,
            shared_head_norm: norm.unwrap_or_else(|| model.output_norm.to_vec()),
            shared_head_head: table("shared_head_head", model.output)?,
        };
        tensors.check_block(number)?;
        Ok(layer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::{GgmlType, quantize_row};

    fn table(ty: GgmlType, values: &[f32]) -> Weight {
        let mut bytes = vec![0; values.len() / ty.block_len() * ty.block_bytes()];
        quantize_row(ty, values, &mut bytes);
        Weight::from_bytes("table", ty, 1, values.len() / 256, 256, bytes)
    }

    #[test]
    fn a_copy_is_known_in_any_type() {
        let values = |factor: usize| -> Vec<f32> {
            let value = |i: usize| ((i * factor) % 251) as f32 / 251.0 - 0.5;
            (0..40 * 256).map(value).collect()
        };
        let of_model = table(GgmlType::Q6_K, &values(97));
        for ty in [GgmlType::F32, GgmlType::Q8_0, GgmlType::Q4_K] {
            assert!(is_copy(&table(ty, &values(97)), &of_model), "{ty}");
            assert!(!is_copy(&table(ty, &values(89)), &of_model), "{ty}");
        }
    }
}
