//! The supported models: configuration from GGUF keys, weights by name, rotation table, precomposed weights.

mod config;
mod error;
mod keys;
mod load;
pub mod precompose;
mod rope;
mod weight;

#[cfg(test)]
pub(crate) mod testing;

pub use config::{Config, Experts, Gating, RopeConfig, Yarn};
pub use error::ModelError;
pub use load::{Ffn, Layer, Model, Query, SharedExpert};
pub use precompose::PrecomposeChoice;
pub use rope::RopeTable;
pub use weight::Weight;
