//! Devices by wgpu ([`gpu`]), and each operation of a model as a kernel and its twin ([`kernels`]). Beside them stands what all families of
//! models share ([`model`]).

#[macro_use]
extern crate glimt_formats;

pub mod gpu;
pub mod kernels;
pub mod model;

#[cfg(not(target_arch = "wasm32"))]
pub(crate) use glimt_formats::random;
#[cfg(any(test, feature = "testing"))]
pub(crate) use glimt_formats::testing;
pub(crate) use glimt_formats::{files, gguf, plural, quant, team};
