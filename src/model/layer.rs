//! The tensors of a transformer block, named as in the file: of weights as the file has them, of their places while they are loaded, or
//! of weights on a device.

use super::Weight;

/// One transformer block. Fields are called as the tensors `blk.N.<field>.weight`; `W` is a matrix, `V` a vector.
#[derive(Debug, Clone)]
pub struct Layer<W = Weight, V = Vec<f32>> {
    /// Norm before attention, embedding_length.
    pub attn_norm: V,
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
    /// embedding_length x (heads * v).
    pub attn_output: W,
    /// Norm before the feed-forward part, embedding_length.
    pub ffn_norm: V,
    /// The feed-forward part.
    pub ffn: Ffn<W, V>,
}

/// The query projection of a block.
#[derive(Debug, Clone)]
pub enum Query<W = Weight, V = Vec<f32>> {
    /// Through a latent of q_lora_rank values.
    Lora {
        /// q_lora_rank x embedding_length.
        attn_q_a: W,
        /// Norm of the latent, q_lora_rank.
        attn_q_a_norm: V,
        /// (heads * (nope + rope)) x q_lora_rank.
        attn_q_b: W,
    },
    /// In one step.
    Full {
        /// (heads * (nope + rope)) x embedding_length.
        attn_q: W,
    },
}

/// The feed-forward part of a block.
#[derive(Debug, Clone)]
pub enum Ffn<W = Weight, V = Vec<f32>> {
    /// One SwiGLU for all tokens.
    Dense(Mlp<W>),
    /// Experts chosen by a router.
    Moe(Box<Moe<W, V>>),
}

/// A SwiGLU: down (silu(gate x) * (up x)). Of experts each tensor holds all.
#[derive(Debug, Clone)]
pub struct Mlp<W = Weight> {
    /// Width x embedding_length, per expert.
    pub gate: W,
    /// Width x embedding_length, per expert.
    pub up: W,
    /// embedding_length x width, per expert.
    pub down: W,
}

/// The experts of a block.
#[derive(Debug, Clone)]
pub struct Moe<W = Weight, V = Vec<f32>> {
    /// The router, expert count x embedding_length.
    pub ffn_gate_inp: W,
    /// Added to the probabilities for the choice, not for the weights; one per expert.
    pub exp_probs_b: Option<V>,
    /// `ffn_gate_exps`, `ffn_up_exps`, `ffn_down_exps`.
    pub experts: Mlp<W>,
    /// The shared experts side by side as one: `ffn_gate_shexp`, `ffn_up_shexp`, `ffn_down_shexp`.
    pub shared: Option<Mlp<W>>,
}

/// What makes other tensors of a layer's: places of weights, weights of places.
pub trait Convert<'a, W, V> {
    /// What a matrix becomes.
    type Weight;
    /// What a vector becomes.
    type Vector;
    /// Why one cannot.
    type Error;

    /// What a matrix becomes.
    ///
    /// # Errors
    /// Its own.
    fn weight(&mut self, weight: &'a W) -> Result<Self::Weight, Self::Error>;

    /// What two matrices become that are multiplied together.
    ///
    /// # Errors
    /// Its own.
    fn pair(&mut self, [a, b]: [&'a W; 2]) -> Result<[Self::Weight; 2], Self::Error> {
        Ok([self.weight(a)?, self.weight(b)?])
    }

    /// What a vector becomes.
    ///
    /// # Errors
    /// Its own.
    fn vector(&mut self, vector: &'a V) -> Result<Self::Vector, Self::Error>;
}

impl<W, V> Layer<W, V> {
    /// The same layer of other tensors.
    ///
    /// # Errors
    /// The first of `by`.
    pub fn convert<'a, C: Convert<'a, W, V>>(
        &'a self,
        by: &mut C,
    ) -> Result<Layer<C::Weight, C::Vector>, C::Error> {
        Ok(Layer {
            attn_norm: by.vector(&self.attn_norm)?,
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
            attn_output: by.weight(&self.attn_output)?,
            ffn_norm: by.vector(&self.ffn_norm)?,
            ffn: match &self.ffn {
                Ffn::Dense(mlp) => Ffn::Dense(mlp.convert(by)?),
                Ffn::Moe(moe) => {
                    let experts = moe.experts.convert(by)?;
                    let shared = moe.shared.as_ref().map(|mlp| mlp.convert(by));
                    let bias = moe.exp_probs_b.as_ref().map(|bias| by.vector(bias));
                    Ffn::Moe(Box::new(Moe {
                        shared: shared.transpose()?,
                        ffn_gate_inp: by.weight(&moe.ffn_gate_inp)?,
                        exp_probs_b: bias.transpose()?,
                        experts,
                    }))
                }
            },
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

impl<W> Mlp<W> {
    fn convert<'a, V, C: Convert<'a, W, V>>(
        &'a self,
        by: &mut C,
    ) -> Result<Mlp<C::Weight>, C::Error> {
        let [gate, up] = by.pair([&self.gate, &self.up])?;
        let down = by.weight(&self.down)?;
        Ok(Mlp { gate, up, down })
    }
}
