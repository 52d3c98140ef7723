//! GGML block formats: sizes, dequantisation, quantisation and the repacking for 16-byte loads; activations as bytes.
//!
//! A tensor row is a whole number of blocks; a block holds 1, 32 or 256 weights as small integers with shared scales.

pub mod activation;
mod block;
mod blocks;
pub mod dot;
mod float;
mod grids;
pub mod halves;
mod iq1;
mod iq2;
mod iq3;
mod iq4;
mod k_quants;
mod legacy;
mod mxfp4;
mod quantize;
pub mod repack;
mod sized;
mod types;

pub use quantize::{quantize_row, quantize_rows};
pub use sized::{f16_fields, set_scales};
pub use types::{GgmlType, SMALL_BLOCK, SUPER_BLOCK};

use block::dequantize_blocks;
use blocks::with_block;

/// Widens `dst.len()` weights of type `ty` to f32, bit for bit as `dequantize_row_*` of ggml-quants.c does.
///
/// # Panics
/// If `dst` is not a whole number of blocks, or `src` not exactly their bytes: both lengths follow from a tensor's
/// shape, which is checked where the tensor is read.
pub fn dequantize_row(ty: GgmlType, src: &[u8], dst: &mut [f32]) {
    assert_eq!(
        Some(src.len()),
        ty.row_bytes(dst.len()),
        "{} bytes of {ty} for {} weights",
        src.len(),
        dst.len(),
    );
    with_block!(ty, B => dequantize_blocks::<B, _>(src, dst),
        GgmlType::F32 => float::dequantize_f32(src, dst),
        GgmlType::F16 => float::dequantize_f16(src, dst),
        GgmlType::BF16 => float::dequantize_bf16(src, dst),
    )
}

#[cfg(test)]
mod tests;
