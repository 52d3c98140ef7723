//! Measuring: [`mod@bench`] as llama-bench does, [`profile`] each dispatch and layer, [`tune`] geometries. [`verify`] tells whether a device
//! computes what it should, and [`pictures`] show numbers.

pub mod bench;
pub mod pictures;
pub mod profile;
pub mod tune;
pub mod verify;

pub(crate) use glimt::{
    engine, gguf, gpu, kernels, model, models, quant, recipes, synth, tokenizer,
};
#[cfg(test)]
pub(crate) use glimt_formats::testing;
pub(crate) use glimt_formats::{aliases, plural};
