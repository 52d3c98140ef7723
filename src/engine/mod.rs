//! Engine and Session: a model loaded on a device, and a conversation with it.

pub mod backend;
pub mod cpu;
pub mod gpu;
pub mod sampling;
