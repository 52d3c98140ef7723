//! Models by name: the [`hub`], its cache, and what other programs have on this machine.

pub mod hub;

pub(crate) use glimt_formats::{aliases, files, gguf, plural, quant};
