//! F32, F16 and BF16 rows.

use half::{bf16, f16, slice::HalfFloatSliceExt};

/// Reads little-endian f32.
pub(crate) fn dequantize_f32(src: &[u8], dst: &mut [f32]) {
    let (words, _) = src.as_chunks::<4>();
    for (word, out) in words.iter().zip(dst) {
        *out = f32::from_le_bytes(*word);
    }
}

/// Widens little-endian f16.
pub(crate) fn dequantize_f16(src: &[u8], dst: &mut [f32]) {
    // The slice conversion uses the F16C instructions where the processor has them, several times as fast.
    if cfg!(target_endian = "little")
        && let Ok(halves) = bytemuck::try_cast_slice::<u8, f16>(src)
    {
        halves.convert_to_f32_slice(dst);
        return;
    }
    let (words, _) = src.as_chunks::<2>();
    for (word, out) in words.iter().zip(dst) {
        *out = f16::from_le_bytes(*word).to_f32();
    }
}

/// Widens little-endian bf16, which is exact.
pub(crate) fn dequantize_bf16(src: &[u8], dst: &mut [f32]) {
    let (words, _) = src.as_chunks::<2>();
    for (word, out) in words.iter().zip(dst) {
        *out = bf16::from_le_bytes(*word).to_f32();
    }
}
