//! The tensors of grouped-query attention, named as in the file: of weights as the file has them, of their places while they are loaded, or of
//! weights on a device.

use crate::model::{Block, Convert, Weight};

/// One transformer block.
pub type Layer<W = Weight, V = Vec<f32>> = Block<Attention<W, V>, W, V>;

/// The attention of a block. Fields are called as the tensors `blk.N.<field>.weight`; `W` is a matrix, `V` a vector.
#[derive(Debug, Clone)]
pub struct Attention<W = Weight, V = Vec<f32>> {
    /// (heads * key) x embedding_length.
    pub attn_q: Projection<W, V>,
    /// (kv_heads * key) x embedding_length.
    pub attn_k: Projection<W, V>,
    /// (kv_heads * value) x embedding_length.
    pub attn_v: Projection<W, V>,
    /// Norm of each query head, key.
    pub attn_q_norm: Option<V>,
    /// Norm of each key head, key.
    pub attn_k_norm: Option<V>,
}

/// A matrix and what is added to its products.
#[derive(Debug, Clone)]
pub struct Projection<W = Weight, V = Vec<f32>> {
    /// `<field>.weight`.
    pub weight: W,
    /// `<field>.bias`, a value for each row.
    pub bias: Option<V>,
}

impl<W, V> Attention<W, V> {
    /// This attention with its tensors converted.
    ///
    /// # Errors
    /// The first error of `by`.
    pub fn convert<'a, C: Convert<'a, W, V>>(
        &'a self,
        by: &mut C,
    ) -> Result<Attention<C::Weight, C::Vector>, C::Error> {
        let norm =
            |norm: &'a Option<V>, by: &mut C| norm.as_ref().map(|v| by.vector(v)).transpose();
        Ok(Attention {
            attn_q: self.attn_q.convert(by)?,
            attn_k: self.attn_k.convert(by)?,
            attn_v: self.attn_v.convert(by)?,
            attn_q_norm: norm(&self.attn_q_norm, by)?,
            attn_k_norm: norm(&self.attn_k_norm, by)?,
        })
    }
}

impl<W, V> Projection<W, V> {
    /// This projection with its tensors converted, or the first error of `by`.
    fn convert<'a, C: Convert<'a, W, V>>(
        &'a self,
        by: &mut C,
    ) -> Result<Projection<C::Weight, C::Vector>, C::Error> {
        Ok(Projection {
            weight: by.weight(&self.weight)?,
            bias: self.bias.as_ref().map(|bias| by.vector(bias)).transpose()?,
        })
    }
}
