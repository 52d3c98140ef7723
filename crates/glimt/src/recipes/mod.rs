//! The steps of any transformer as plain functions: from the places of its weights, the target, the context and, for prompts, the buffers of a
//! chunk to a [`Step`](crate::gpu::Step). No device is needed: [`Recording`](crate::gpu::record::Recording) makes a step real.
//!
//! [`few`] is for up to 64 tokens and [`prompt`] for more. Both leave to a family what lies between the norm before its attention and
//! `attn_output` ([`Attention`]).

mod attention;
mod body;
pub mod chunk;
mod context;
pub mod few;
mod frame;
mod nextn;
mod places;
pub mod prompt;
mod residence;
mod steps;
mod weights;

pub use attention::{Attention, AttentionWeights, Chosen};
pub(crate) use body::check_sizes;
pub use body::{Body, GpuBlock, GpuNextn};
pub use chunk::{Chunk, ChunkSize, RowsBuffer};
pub use context::{BatchSizes, Context, Room};
pub use places::{Made, Places};
pub use residence::{HostShare, Residence, Rooms, Slots};
pub use steps::Steps;
pub use weights::{Placed, Sessions, Weights};

use crate::gpu::Target;
use crate::model::{Config, Experts};

/// The most tokens of a prompt that count as few.
pub const FEW: u32 = 8;
/// The most tokens of a prompt at once: what a grid of workgroups has room for, with 8 experts each.
pub const MAX_CHUNK: u32 = 4096;

/// The device, weights and context that every recipe is given.
#[derive(Clone, Copy)]
pub struct Given<'a> {
    /// The device.
    pub target: &'a Target,
    /// The places of the weights of all but the attention, and the model's sizes.
    pub body: &'a Body,
    /// The cache and the tables of sequences.
    pub context: &'a Context,
}

impl<'a> Given<'a> {
    /// The model's sizes.
    pub fn config(self) -> &'a Config {
        &self.body.config
    }

    /// The epsilon of every norm.
    pub fn eps(self) -> f32 {
        self.config().rms_eps
    }

    /// Values of the residual stream.
    pub fn width(self) -> u32 {
        self.config().embedding_length as u32
    }

    /// How the experts of a layer that has some are chosen: the loader refuses such a layer where the file does not say.
    fn experts(self) -> &'a Experts {
        let experts = self.config().experts.as_ref();
        experts.expect("a MoE layer has experts in its config")
    }
}
