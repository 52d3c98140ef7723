//! The 4-bit formats with a nonlinear codebook: IQ4_NL and IQ4_XS (ggml-common.h).
//!
//! In every run of 32 weights byte `j` holds the code of weight `j` in its low and of weight `j + 16` in its high
//! nibble.

use bytemuck::{Pod, Zeroable};

use super::block::{Block, widen};
use super::types::{GgmlType, SMALL_BLOCK, SUPER_BLOCK};

/// The sixteen values that a 4-bit code stands for (`kvalues_iq4nl` in ggml-common.h).
pub(crate) const CODEBOOK: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// The codebook as floats.
pub(crate) const CODEBOOK_F32: [f32; 16] = {
    let mut values = [0.0; 16];
    let mut i = 0;
    while i < 16 {
        values[i] = CODEBOOK[i] as f32;
        i += 1;
    }
    values
};

/// Codes `q`, weight = d codebook(q).
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Iq4Nl {
    pub(crate) d: [u8; 2],
    pub(crate) qs: [u8; 16],
}
const _: () = assert!(size_of::<Iq4Nl>() == GgmlType::IQ4_NL.block_bytes());

/// Codes `q` and one 6-bit scale `s` per 32 weights, weight = d (s - 32) codebook(q).
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Iq4Xs {
    pub(crate) d: [u8; 2],
    /// Bits 2i and 2i + 1: the upper bits of scale i.
    pub(crate) scales_h: [u8; 2],
    /// Nibble i: the lower bits of scale i.
    pub(crate) scales_l: [u8; 4],
    pub(crate) qs: [[u8; 16]; 8],
}
const _: () = assert!(size_of::<Iq4Xs>() == GgmlType::IQ4_XS.block_bytes());

/// The eight 6-bit scales of IQ4_XS, still with their offset of 32: the nibbles of `low` below the pairs of bits of `high`.
pub(crate) fn unpack_scales_xs(low: [u8; 4], high: [u8; 2]) -> [u8; 8] {
    // All at once: halves of what is left are moved apart until every scale has a byte.
    let spread = |x: u64, shifts: [u32; 3], masks: [u64; 3]| {
        let steps = shifts.iter().zip(masks);
        steps.fold(x, |x, (shift, mask)| (x | x << shift) & mask)
    };
    let low = u64::from(u32::from_le_bytes(low));
    let masks = [
        0x0000_ffff_0000_ffff,
        0x00ff_00ff_00ff_00ff,
        0x0f0f_0f0f_0f0f_0f0f,
    ];
    let low = spread(low, [16, 8, 4], masks);
    let high = u64::from(u16::from_le_bytes(high));
    let masks = [
        0x0000_00ff_0000_00ff,
        0x000f_000f_000f_000f,
        0x0303_0303_0303_0303,
    ];
    (low | spread(high, [24, 12, 6], masks) << 4).to_le_bytes()
}

/// 32 weights from their codes and their scale.
fn look_up(qs: &[u8; 16], d: f32, out: &mut [f32; SMALL_BLOCK]) {
    for (j, q) in qs.iter().enumerate() {
        out[j] = d * CODEBOOK_F32[usize::from(q & 15)];
        out[j + 16] = d * CODEBOOK_F32[usize::from(q >> 4)];
    }
}

impl Block<SMALL_BLOCK> for Iq4Nl {
    fn dequantize(&self, out: &mut [f32; SMALL_BLOCK]) {
        look_up(&self.qs, widen(self.d), out);
    }
}

impl Block<SUPER_BLOCK> for Iq4Xs {
    fn dequantize(&self, out: &mut [f32; SUPER_BLOCK]) {
        let d = widen(self.d);
        let scales = unpack_scales_xs(self.scales_l, self.scales_h);
        let (runs, _) = out.as_chunks_mut::<SMALL_BLOCK>();
        for ((scale, out), qs) in scales.into_iter().zip(runs).zip(&self.qs) {
            look_up(qs, d * (i32::from(scale) - 32) as f32, out);
        }
    }
}
