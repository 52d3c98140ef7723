//! Text and tokens: the [`tokenizer`] of a model file, and its chat template.

pub mod tokenizer;

pub(crate) use glimt_formats::{effort, gguf, plural};
