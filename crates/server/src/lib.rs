//! Models for many users: the [`server`] over HTTP, and files of requests.

#[cfg(feature = "fuzz")]
#[macro_use]
extern crate glimt_formats;

pub mod server;

pub(crate) use glimt::{chat, engine, gguf, gpu, tokenizer};
pub(crate) use glimt_formats::effort;
