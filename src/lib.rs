//! glimt runs MLA + mixture-of-experts language models from GGUF files on any GPU that wgpu reaches.
//!
//! The rooms, each of which uses only those before it: [`quant`] knows the block formats, [`gguf`] reads the container, [`hub`] finds and fetches models by name,
//! [`tokenizer`] the text, [`model`] what all models share, [`synth`] invents models, [`gpu`] has adapters, memory and
//! recorded steps, [`kernels`] each operation as a pair of WGSL and Rust, [`models`] the families of models, [`engine`] puts them together, [`chat`] holds conversations, `web` is what a page in a browser calls, [`mod@bench`], [`profile`] and
//! [`tune`] measure, [`server`] serves many users, [`cli`] is the command line. Before all stand `files`, which are
//! replaced whole, `effort`, which ends work that nobody waits for, `plural`, which counts in words, and `pictures` of numbers.

#[macro_use]
mod named;

#[cfg(not(target_arch = "wasm32"))]
pub mod bench;
pub mod chat;
#[cfg(not(target_arch = "wasm32"))]
pub mod cli;
pub(crate) mod effort;
pub mod engine;
pub(crate) mod files;
pub mod gguf;
pub mod gpu;
#[cfg(not(target_arch = "wasm32"))]
pub mod hub;
pub mod kernels;
pub mod model;
pub mod models;
#[cfg(not(target_arch = "wasm32"))]
pub(crate) mod pictures;
pub(crate) mod plural;
#[cfg(not(target_arch = "wasm32"))]
pub mod profile;
pub mod quant;
pub mod recipes;
#[cfg(not(target_arch = "wasm32"))]
pub mod server;
pub mod synth;
#[cfg(test)]
pub(crate) mod testing;
pub mod tokenizer;
#[cfg(not(target_arch = "wasm32"))]
pub mod tune;
#[cfg(not(target_arch = "wasm32"))]
pub mod verify;
#[cfg(target_arch = "wasm32")]
pub mod web;

/// The examples of the README and of the page about embedding, compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../docs/embedding.md")]
struct Examples;
