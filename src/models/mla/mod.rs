//! Models with multi-head latent attention (DeepSeek-V2 paper, section 2.1) and, mostly, a mixture of experts: GLM-4.7-Flash,
//! DeepSeek-V2-Lite, Youtu-LLM.
//!
//! [`Config`] reads the sizes, [`Model`] finds the weights, [`Reference`] computes on the CPU, [`Weights`] has their places on a device,
//! and [`recipes`] are the steps there.

mod config;
mod layer;
mod load;
pub mod recipes;
mod reference;
#[cfg(test)]
pub(crate) mod testing;
mod weights;

pub use config::{ARCHITECTURE, Config};
pub use layer::{Layer, Query};
pub use load::Model;
pub use reference::Reference;
pub use weights::{GpuLayer, VECTORS, Weights};
