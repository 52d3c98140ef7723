//! The steps of any transformer as plain functions: from the places of its weights, the target, the context and, for prompts, the buffers of a
//! chunk to a [`Step`](crate::gpu::Step). No device is needed: [`Recording`](crate::gpu::record::Recording) makes a step real.
//!
//! [`few`] is for up to 64 tokens and [`prompt`] for more. Both leave to a family what lies between the norm before its attention and
//! `attn_output` ([`Attention`]).

mod attention;
pub mod chunk;
mod context;
pub mod few;
mod places;
pub mod prompt;
mod steps;
mod weights;

pub use attention::{Attention, AttentionWeights, Chosen, Factors};
pub use chunk::{Chunk, ChunkSize, RowsBuffer};
pub use context::{BatchSizes, Context};
pub use places::{Made, Places};
pub use steps::{Sessions, Steps};
pub use weights::{GpuBlock, Placed, Weights};

use crate::gpu::Target;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Sublayer, belong};
use crate::kernels::compose::Pair;
use crate::kernels::token::{TokenInput, TokenOutput};
use crate::model::{Config, Experts};
use crate::quant::activation::Activation;

/// Up to so many tokens of a prompt are few.
pub const FEW: u32 = 8;
/// The most tokens of a prompt at once: what a grid of workgroups has room for, with 8 experts each.
pub const MAX_CHUNK: u32 = 4096;

/// The device, weights and context that every recipe is given.
#[derive(Clone, Copy)]
pub struct Given<'a> {
    /// The device.
    pub target: &'a Target,
    /// Where the model's weights lie, and its sizes.
    pub weights: &'a Weights,
    /// The cache and the tables of sequences.
    pub context: &'a Context,
    /// The attention, with the buffers that its dispatches share.
    pub attention: &'a dyn Attention,
    /// Which composed weights the step of one token reads, where there are some.
    pub composed: &'a [Pair],
}

impl<'a> Given<'a> {
    /// The model's sizes.
    pub fn config(self) -> &'a Config {
        &self.weights.config
    }

    /// The epsilon of every norm.
    pub fn eps(self) -> f32 {
        self.config().rms_eps
    }

    /// Values of the residual stream.
    fn width(self) -> u32 {
        self.config().embedding_length as u32
    }

    /// How the experts of a layer that has some are chosen: the loader refuses such a layer where the file does not say.
    fn experts(self) -> &'a Experts {
        let experts = self.config().experts.as_ref();
        experts.expect("a MoE layer has experts in its config")
    }
}

/// Tells the `calls` of layer `i` from `begin` on their sublayers, of which the second begins at `middle`.
fn belong_to_layer(calls: &mut [Call], i: usize, begin: usize, middle: usize) {
    belong(&mut calls[begin..middle], Sublayer::Attention(i));
    belong(&mut calls[middle..], Sublayer::FeedForward(i));
}

/// Values before a norm, as one product leaves them for the next.
#[derive(Clone)]
pub struct BeforeNorm {
    /// Times the weight of the norm, prepared.
    values: Range,
    /// The sums of the squares of every 16 values.
    squares: Range,
}

impl BeforeNorm {
    /// New buffers of these names for `n` values.
    fn new([values, squares]: [&str; 2], activation: Activation, n: u32) -> Self {
        Self {
            values: Range::prepared(values, activation, n),
            squares: Range::floats(squares, u64::from(n / 16)),
        }
    }

    /// The output of the first product, if the norm has this weight.
    pub fn output(&self, norm: &Range) -> TokenOutput {
        TokenOutput {
            values: self.values.clone(),
            norm: Some((norm.clone(), self.squares.clone())),
        }
    }

    /// The input of the next product.
    pub fn input(&self, eps: f32) -> TokenInput {
        TokenInput {
            values: self.values.clone(),
            rms: Some((self.squares.clone(), eps)),
        }
    }
}

/// The output of a product that no norm follows.
pub fn without_norm(values: &Range) -> TokenOutput {
    TokenOutput {
        values: values.clone(),
        norm: None,
    }
}
