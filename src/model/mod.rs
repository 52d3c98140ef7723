//! The supported models: configuration from GGUF keys, weights by name, rotation table.

mod config;
mod error;
mod keys;
mod layer;
mod load;
mod rope;
mod weight;

#[cfg(test)]
pub(crate) mod testing;

pub use config::{Config, Experts, Gating, RopeConfig, Yarn};
pub use error::ModelError;
pub use layer::{Convert, Ffn, Layer, Mlp, Moe, Query};
pub use load::Model;
pub use rope::RopeTable;
pub use weight::Weight;
