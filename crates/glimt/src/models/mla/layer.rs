//! The tensors of multi-head latent attention, named as in the file: of weights as the file has them, of their places while they are loaded, or
//! of weights on a device.

use crate::model::{Block, Convert, Weight};

/// One transformer block.
pub type Layer<W = Weight, V = Vec<f32>> = Block<Attention<W, V>, W, V>;

/// The attention of a block. Fields are called as the tensors `blk.N.<field>.weight`; `W` is a matrix, `V` a vector.
#[derive(Debug, Clone)]
pub struct Attention<W = Weight, V = Vec<f32>> {
    /// The query projection.
    pub q: Query<W, V>,
    /// kv_lora_rank + rope rows x embedding_length.
    pub attn_kv_a_mqa: W,
    /// Norm of the latent, kv_lora_rank.
    pub attn_kv_a_norm: V,
    /// Per head kv_lora_rank x nope: folds the keys' projection into the query.
    pub attn_k_b: W,
    /// Per head v x kv_lora_rank: latent to values.
    pub attn_v_b: W,
}

/// The query projection of a block.
#[derive(Debug, Clone)]
pub enum Query<W = Weight, V = Vec<f32>> {
    /// Through a latent of q_lora_rank values.
    Lora {
        /// A matrix of q_lora_rank x embedding_length.
        attn_q_a: W,
        /// Norm of the latent, q_lora_rank.
        attn_q_a_norm: V,
        /// A matrix of (heads * (nope + rope)) x q_lora_rank.
        attn_q_b: W,
    },
    /// The projection in one step.
    Full {
        /// A matrix of (heads * (nope + rope)) x embedding_length.
        attn_q: W,
    },
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
        Ok(Attention {
            q: match &self.q {
                Query::Lora {
                    attn_q_a,
                    attn_q_a_norm,
                    attn_q_b,
                } => Query::Lora {
                    attn_q_a: by.weight(attn_q_a)?,
                    attn_q_a_norm: by.vector(attn_q_a_norm)?,
                    attn_q_b: by.weight(attn_q_b)?,
                },
                Query::Full { attn_q } => Query::Full {
                    attn_q: by.weight(attn_q)?,
                },
            },
            attn_kv_a_mqa: by.weight(&self.attn_kv_a_mqa)?,
            attn_kv_a_norm: by.vector(&self.attn_kv_a_norm)?,
            attn_k_b: by.weight(&self.attn_k_b)?,
            attn_v_b: by.weight(&self.attn_v_b)?,
        })
    }

    /// The projection that makes the query's heads.
    pub fn query_heads(&self) -> &W {
        match &self.q {
            Query::Lora { attn_q_b, .. } => attn_q_b,
            Query::Full { attn_q } => attn_q,
        }
    }
}
