//! The tensors of grouped-query attention, named as in the file: of weights as the file has them, of their places while they are loaded, or of
//! weights on a device.

use crate::model::{Block, Weight};

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
