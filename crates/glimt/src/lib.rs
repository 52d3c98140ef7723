//! glimt runs MLA + mixture-of-experts language models from GGUF files on any GPU that wgpu reaches.
//!
//! [`quant`] knows the block formats, [`gguf`] reads the container,
//! [`tokenizer`] the text, [`model`] what all models share, [`gpu`] has adapters, memory and
//! recorded steps, [`kernels`] each operation as a pair of WGSL and Rust, [`synth`] invents models, [`models`] are the families of models, [`engine`] puts them together, [`chat`] holds conversations, `web` is what a page in a browser calls.

#[macro_use]
extern crate glimt_formats;

pub mod chat;
pub mod engine;
pub mod models;
pub mod recipes;
pub mod synth;
#[cfg(target_arch = "wasm32")]
pub mod web;

#[cfg(test)]
pub(crate) use glimt_formats::testing;
pub(crate) use glimt_formats::{aliases, effort, files, plural, random, team};
pub use glimt_formats::{gguf, quant};
pub use glimt_gpu::{gpu, kernels, model};
pub use glimt_tokenizer::tokenizer;

/// The examples of the README and of the page about embedding, compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../../../docs/embedding.md")]
struct Examples;
