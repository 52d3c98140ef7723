//! GGML block formats: sizes, dequantisation, quantisation and the repacking for 16-byte loads.

mod types;

pub use types::{GgmlType, SMALL_BLOCK, SUPER_BLOCK};
