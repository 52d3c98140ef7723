//! MXFP4 of the OCP microscaling formats: floats of 4 bits (E2M1) with a power of two (E8M0) per 32 weights.
//!
//! Byte `j` holds the code of weight `j` in its low and of weight `j + 16` in its high nibble (ggml-common.h).

use bytemuck::{Pod, Zeroable};

use super::block::Block;
use super::types::{GgmlType, SMALL_BLOCK};

/// Twice the numbers that the codes stand for: bit 3 is the sign, bits 1 and 2 are the exponent, bit 0 is the fraction.
pub(crate) const VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Codes `q`, weight = 2^(e - 128) values(q).
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Mxfp4 {
    pub(crate) e: u8,
    pub(crate) qs: [u8; 16],
}
const _: () = assert!(size_of::<Mxfp4>() == GgmlType::MXFP4.block_bytes());

/// 2^(e - 128). The standard's NaN, 255, is a power as all others, as in llama.cpp.
pub(crate) fn power(e: u8) -> f32 {
    match e {
        // Below the normal floats.
        0 | 1 => f32::from_bits(0x0020_0000 << e),
        _ => f32::from_bits(u32::from(e - 1) << 23),
    }
}

impl Block<SMALL_BLOCK> for Mxfp4 {
    fn dequantize(&self, out: &mut [f32; SMALL_BLOCK]) {
        let d = power(self.e);
        for (j, q) in self.qs.iter().enumerate() {
            out[j] = d * f32::from(VALUES[usize::from(q & 15)]);
            out[j + 16] = d * f32::from(VALUES[usize::from(q >> 4)]);
        }
    }
}
