//! The common parts of all families' models: sizes from GGUF keys, weights by name, the blocks, the rotation table.

mod block;
mod config;
mod error;
mod feed_forward;
pub mod keys;
mod nextn;
pub mod pairs;
mod rope;
pub mod tensors;
mod transformer;
mod weight;

pub use block::Block;
pub use config::{Config, Experts, Gating};
pub use error::ModelError;
pub use feed_forward::{Convert, Ffn, Mlp, Moe};
pub use nextn::{Matrices, Nextn, NextnSource, Shared, has_nextn};
pub use rope::{RopeConfig, Yarn, rope_table, rope_table_by};
pub use transformer::Transformer;
pub use weight::Weight;
