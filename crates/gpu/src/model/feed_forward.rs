//! The feed-forward network of a transformer block: of weights as the file has them, of their places while they are loaded, or of weights
//! on a device.

use super::Weight;

/// The feed-forward network of a block.
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

/// A conversion of a layer's tensors: of weights to their places, or of places to weights.
pub trait Convert<'a, W, V> {
    /// The result for a matrix.
    type Weight;
    /// The result for a vector.
    type Vector;
    /// Why one cannot.
    type Error;

    /// Converts a matrix.
    fn weight(&mut self, weight: &'a W) -> Result<Self::Weight, Self::Error>;

    /// Converts two matrices that are multiplied by the same input.
    fn pair(&mut self, [a, b]: [&'a W; 2]) -> Result<[Self::Weight; 2], Self::Error> {
        Ok([self.weight(a)?, self.weight(b)?])
    }

    /// Converts the routed experts of a layer.
    fn experts(&mut self, experts: &'a Mlp<W>) -> Result<Mlp<Self::Weight>, Self::Error>
    where
        Self: Sized,
    {
        experts.convert(self)
    }

    /// Converts a vector.
    fn vector(&mut self, vector: &'a V) -> Result<Self::Vector, Self::Error>;
}

impl<W, V> Ffn<W, V> {
    /// This network with its tensors converted, or the first error of `by`.
    pub fn convert<'a, C: Convert<'a, W, V>>(
        &'a self,
        by: &mut C,
    ) -> Result<Ffn<C::Weight, C::Vector>, C::Error> {
        Ok(match self {
            Ffn::Dense(mlp) => Ffn::Dense(mlp.convert(by)?),
            Ffn::Moe(moe) => {
                let experts = by.experts(&moe.experts)?;
                let shared = moe.shared.as_ref().map(|mlp| mlp.convert(by));
                let bias = moe.exp_probs_b.as_ref().map(|bias| by.vector(bias));
                Ffn::Moe(Box::new(Moe {
                    shared: shared.transpose()?,
                    ffn_gate_inp: by.weight(&moe.ffn_gate_inp)?,
                    exp_probs_b: bias.transpose()?,
                    experts,
                }))
            }
        })
    }
}

impl<W> Mlp<W> {
    /// Its weights: gate, up, down.
    pub fn weights(&self) -> [&W; 3] {
        [&self.gate, &self.up, &self.down]
    }

    /// This network with its tensors converted.
    ///
    /// # Errors
    /// The first error of `by`.
    pub fn convert<'a, V, C: Convert<'a, W, V>>(
        &'a self,
        by: &mut C,
    ) -> Result<Mlp<C::Weight>, C::Error> {
        let [gate, up] = by.pair([&self.gate, &self.up])?;
        let down = by.weight(&self.down)?;
        Ok(Mlp { gate, up, down })
    }
}
