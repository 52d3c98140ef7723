//! GGML block formats: sizes, dequantisation, quantisation and the repacking for 16-byte loads; activations as bytes.
//!
//! A tensor row is a whole number of blocks; a block holds 1, 32 or 256 weights as small integers with shared scales.

pub mod activation;
mod block;
mod float;
pub mod halves;
mod iq4;
mod k_quants;
mod legacy;
mod quantize;
pub mod repack;
mod types;

pub use quantize::{quantize_row, quantize_rows};
pub use types::{GgmlType, SMALL_BLOCK, SUPER_BLOCK};

use block::dequantize_blocks;

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
    match ty {
        GgmlType::F32 => float::dequantize_f32(src, dst),
        GgmlType::F16 => float::dequantize_f16(src, dst),
        GgmlType::BF16 => float::dequantize_bf16(src, dst),
        GgmlType::Q4_0 => dequantize_blocks::<legacy::Q4_0, _>(src, dst),
        GgmlType::Q4_1 => dequantize_blocks::<legacy::Q4_1, _>(src, dst),
        GgmlType::Q5_0 => dequantize_blocks::<legacy::Q5_0, _>(src, dst),
        GgmlType::Q5_1 => dequantize_blocks::<legacy::Q5_1, _>(src, dst),
        GgmlType::Q8_0 => dequantize_blocks::<legacy::Q8_0, _>(src, dst),
        GgmlType::Q2_K => dequantize_blocks::<k_quants::Q2K, _>(src, dst),
        GgmlType::Q3_K => dequantize_blocks::<k_quants::Q3K, _>(src, dst),
        GgmlType::Q4_K => dequantize_blocks::<k_quants::Q4K, _>(src, dst),
        GgmlType::Q5_K => dequantize_blocks::<k_quants::Q5K, _>(src, dst),
        GgmlType::Q6_K => dequantize_blocks::<k_quants::Q6K, _>(src, dst),
        GgmlType::IQ4_NL => dequantize_blocks::<iq4::Iq4Nl, _>(src, dst),
        GgmlType::IQ4_XS => dequantize_blocks::<iq4::Iq4Xs, _>(src, dst),
    }
}

#[cfg(test)]
mod tests;
