//! A block of a model: of weights as the file has them, of their places while they are loaded, or of weights on a device.

use super::tensors::Tensors;
use super::{Convert, Ffn, ModelError, Weight};

/// One transformer block with the attention `A` of a family. Fields are called as the tensors `blk.N.<field>.weight`; `W` is a matrix, `V` a
/// vector.
#[derive(Debug, Clone)]
pub struct Block<A, W = Weight, V = Vec<f32>> {
    /// Norm before attention, embedding_length.
    pub attn_norm: V,
    /// The tensors between that norm and `attn_output`.
    pub attention: A,
    /// embedding_length x the values of all heads.
    pub attn_output: W,
    /// Norm before the feed-forward network, embedding_length.
    pub ffn_norm: V,
    /// The feed-forward network.
    pub ffn: Ffn<W, V>,
}

impl<A, W, V> Block<A, W, V> {
    /// This block with its tensors converted, those of the attention by `attention`.
    ///
    /// # Errors
    /// The first error of `by`.
    pub fn convert<'a, C: Convert<'a, W, V>, B>(
        &'a self,
        by: &mut C,
        attention: impl FnOnce(&'a A, &mut C) -> Result<B, C::Error>,
    ) -> Result<Block<B, C::Weight, C::Vector>, C::Error> {
        Ok(Block {
            attn_norm: by.vector(&self.attn_norm)?,
            attention: attention(&self.attention, by)?,
            attn_output: by.weight(&self.attn_output)?,
            ffn_norm: by.vector(&self.ffn_norm)?,
            ffn: self.ffn.convert(by)?,
        })
    }
}

impl<A> Block<A> {
    /// The block of this number, if its heads have `values` values and `attention` finds the tensors between norm and `attn_output`.
    ///
    /// # Errors
    /// The errors of `attention`; [`ModelError::Tensor`].
    pub(super) fn load(
        tensors: &Tensors<'_>,
        number: usize,
        values: usize,
        attention: impl FnOnce(usize) -> Result<A, ModelError>,
    ) -> Result<Self, ModelError> {
        let width = tensors.config.embedding_length;
        let name = |tensor: &str| format!("blk.{number}.{tensor}.weight");
        Ok(Block {
            attn_norm: tensors.vector(&name("attn_norm"), width)?,
            attention: attention(number)?,
            attn_output: tensors.matrix(&name("attn_output"), 1, width, values)?,
            ffn_norm: tensors.vector(&name("ffn_norm"), width)?,
            ffn: tensors.feed_forward(number)?,
        })
    }
}
