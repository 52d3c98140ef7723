//! The common parts of all families' models: sizes from GGUF keys, weights by name, the feed-forward network, the rotation table.

mod config;
mod error;
mod feed_forward;
pub mod keys;
pub mod pairs;
mod rope;
pub mod tensors;
mod weight;

pub use config::{Config, Experts, Gating};
pub use error::ModelError;
pub use feed_forward::{Convert, Ffn, Mlp, Moe};
pub use rope::{RopeConfig, Yarn, rope_table};
pub use weight::Weight;
