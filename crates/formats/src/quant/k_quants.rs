//! The superblock formats of 256 weights: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K (ggml-common.h, ggml-quants.c).
//!
//! A superblock is eight runs of 32 weights. Codes of several runs share bytes: in the 4- and 5-bit formats byte `l`
//! of a group of 32 holds weight `l` of an even run in its low and of the next run in its high nibble; in the formats
//! with 2-bit parts byte `l` of a group of 32 holds weight `l` of four consecutive runs, lowest bits first.

use bytemuck::{Pod, Zeroable};

use super::block::{Block, widen};
use super::types::{GgmlType, SMALL_BLOCK, SUPER_BLOCK};

/// 2-bit codes `q`, 4-bit scale `s` and minimum `t` per 16 weights, weight = d s q - dmin t.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Q2K {
    /// Per 16 weights: the scale in the low, the minimum in the high nibble.
    pub(crate) scales: [u8; 16],
    pub(crate) qs: [[u8; 32]; 2],
    pub(crate) d: [u8; 2],
    pub(crate) dmin: [u8; 2],
}
const _: () = assert!(size_of::<Q2K>() == GgmlType::Q2_K.block_bytes());

/// 3-bit codes `q`, 6-bit scale `s` per 16 weights, weight = d (s - 32) (q - 4).
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Q3K {
    /// Bit r of byte l: the third bit of weight l of run r.
    pub(crate) hmask: [u8; 32],
    pub(crate) qs: [[u8; 32]; 2],
    /// Packed as [`unpack_scales6`] reads them.
    pub(crate) scales: [u8; 12],
    pub(crate) d: [u8; 2],
}
const _: () = assert!(size_of::<Q3K>() == GgmlType::Q3_K.block_bytes());

/// 4-bit codes `q`, 6-bit scale `s` and minimum `t` per 32 weights, weight = d s q - dmin t.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Q4K {
    pub(crate) d: [u8; 2],
    pub(crate) dmin: [u8; 2],
    /// Packed as [`unpack_scales_mins6`] reads them.
    pub(crate) scales: [u8; 12],
    pub(crate) qs: [[u8; 32]; 4],
}
const _: () = assert!(size_of::<Q4K>() == GgmlType::Q4_K.block_bytes());

/// 5-bit codes `q`, 6-bit scale `s` and minimum `t` per 32 weights, weight = d s q - dmin t.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Q5K {
    pub(crate) d: [u8; 2],
    pub(crate) dmin: [u8; 2],
    /// Packed as [`unpack_scales_mins6`] reads them.
    pub(crate) scales: [u8; 12],
    /// Bit r of byte l: the fifth bit of weight l of run r.
    pub(crate) qh: [u8; 32],
    pub(crate) qs: [[u8; 32]; 4],
}
const _: () = assert!(size_of::<Q5K>() == GgmlType::Q5_K.block_bytes());

/// 6-bit codes `q`, signed 8-bit scale `s` per 16 weights, weight = d s (q - 32).
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Q6K {
    /// Per half of 128 weights two groups of 32 bytes: group g holds the low nibbles of runs g and g + 2.
    pub(crate) ql: [[[u8; 32]; 2]; 2],
    /// Per half of 128 weights the two upper bits of the codes.
    pub(crate) qh: [[u8; 32]; 2],
    pub(crate) scales: [i8; 16],
    pub(crate) d: [u8; 2],
}
const _: () = assert!(size_of::<Q6K>() == GgmlType::Q6_K.block_bytes());

/// The eight 6-bit scales and eight 6-bit minima of Q4_K and Q5_K.
///
/// Bytes 0..4 hold scales 0..4 and bytes 4..8 minima 0..4 in their low six bits, the upper two bits of scales and of
/// minima 4..8 above them; bytes 8..12 the low nibbles of scales (low) and minima (high) 4..8.
pub(crate) fn unpack_scales_mins6(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    // Four bytes at once.
    let words: [[u8; 4]; 3] = bytemuck::cast(*packed);
    let [scales, mins, both] = words.map(u32::from_le_bytes);
    let upper = |of: u32, nibbles: u32| nibbles & 0x0f0f_0f0f | (of >> 2) & 0x3030_3030;
    let eight = |first: u32, last: u32| (u64::from(last) << 32 | u64::from(first)).to_le_bytes();
    (
        eight(scales & 0x3f3f_3f3f, upper(scales, both)),
        eight(mins & 0x3f3f_3f3f, upper(mins, both >> 4)),
    )
}

/// The sixteen 6-bit scales of Q3_K, still with their offset of 32.
///
/// Bytes 0..8 hold the low nibbles of scales 0..8 (low) and 8..16 (high); bits 2k and 2k + 1 of byte 8 + i the upper
/// bits of scale 4k + i.
pub(crate) fn unpack_scales6(packed: &[u8; 12]) -> [u8; 16] {
    // Eight bytes at once.
    let [a, b, c]: [[u8; 4]; 3] = bytemuck::cast(*packed);
    let (lows, highs) = (
        u64::from_le_bytes(bytemuck::cast([a, b])),
        u32::from_le_bytes(c),
    );
    let eight = |lows: u64, highs: u32| {
        let highs = u64::from(highs >> 2) << 32 | u64::from(highs);
        (lows & 0x0f0f_0f0f_0f0f_0f0f | (highs & 0x0303_0303_0303_0303) << 4).to_le_bytes()
    };
    bytemuck::cast([eight(lows, highs), eight(lows >> 4, highs >> 4)])
}

impl Block<SUPER_BLOCK> for Q2K {
    fn dequantize(&self, out: &mut [f32; SUPER_BLOCK]) {
        let (d, dmin) = (widen(self.d), widen(self.dmin));
        let (groups, _) = out.as_chunks_mut::<16>();
        for (i, (out, &scale)) in groups.iter_mut().zip(&self.scales).enumerate() {
            let (run, half) = (i / 2, i % 2);
            let (scale, min) = (d * f32::from(scale & 15), dmin * f32::from(scale >> 4));
            let qs = &self.qs[run / 4][16 * half..16 * half + 16];
            for (out, q) in out.iter_mut().zip(qs) {
                *out = scale * f32::from((q >> (2 * (run % 4))) & 3) - min;
            }
        }
    }
}

impl Block<SUPER_BLOCK> for Q3K {
    fn dequantize(&self, out: &mut [f32; SUPER_BLOCK]) {
        let d = widen(self.d);
        let scales = unpack_scales6(&self.scales);
        let (groups, _) = out.as_chunks_mut::<16>();
        for (i, (out, scale)) in groups.iter_mut().zip(scales).enumerate() {
            let (run, half) = (i / 2, i % 2);
            let scale = d * (i32::from(scale) - 32) as f32;
            let span = 16 * half..16 * half + 16;
            let (qs, highs) = (&self.qs[run / 4][span.clone()], &self.hmask[span]);
            for ((out, q), high) in out.iter_mut().zip(qs).zip(highs) {
                let code = (q >> (2 * (run % 4))) & 3 | ((high >> run) & 1) << 2;
                *out = scale * (i32::from(code) - 4) as f32;
            }
        }
    }
}

impl Block<SUPER_BLOCK> for Q4K {
    fn dequantize(&self, out: &mut [f32; SUPER_BLOCK]) {
        let (d, dmin) = (widen(self.d), widen(self.dmin));
        let (scales, mins) = unpack_scales_mins6(&self.scales);
        let (runs, _) = out.as_chunks_mut::<SMALL_BLOCK>();
        for (run, out) in runs.iter_mut().enumerate() {
            let (scale, min) = (d * f32::from(scales[run]), dmin * f32::from(mins[run]));
            let shift = 4 * (run % 2);
            for (out, q) in out.iter_mut().zip(&self.qs[run / 2]) {
                *out = scale * f32::from((q >> shift) & 15) - min;
            }
        }
    }
}

impl Block<SUPER_BLOCK> for Q5K {
    fn dequantize(&self, out: &mut [f32; SUPER_BLOCK]) {
        let (d, dmin) = (widen(self.d), widen(self.dmin));
        let (scales, mins) = unpack_scales_mins6(&self.scales);
        let (runs, _) = out.as_chunks_mut::<SMALL_BLOCK>();
        for (run, out) in runs.iter_mut().enumerate() {
            let (scale, min) = (d * f32::from(scales[run]), dmin * f32::from(mins[run]));
            let shift = 4 * (run % 2);
            for ((out, q), high) in out.iter_mut().zip(&self.qs[run / 2]).zip(&self.qh) {
                let code = (q >> shift) & 15 | ((high >> run) & 1) << 4;
                *out = scale * f32::from(code) - min;
            }
        }
    }
}

impl Block<SUPER_BLOCK> for Q6K {
    fn dequantize(&self, out: &mut [f32; SUPER_BLOCK]) {
        let d = widen(self.d);
        let (groups, _) = out.as_chunks_mut::<16>();
        for (i, (out, &scale)) in groups.iter_mut().zip(&self.scales).enumerate() {
            let (half, run, span) = (i / 8, i / 2 % 4, 16 * (i % 2)..16 * (i % 2) + 16);
            let scale = d * f32::from(scale);
            let (low_shift, high_shift) = (4 * (run / 2), 2 * run);
            let lows = &self.ql[half][run % 2][span.clone()];
            for ((out, low), high) in out.iter_mut().zip(lows).zip(&self.qh[half][span]) {
                let code = (low >> low_shift) & 15 | ((high >> high_shift) & 3) << 4;
                *out = scale * (i32::from(code) - 32) as f32;
            }
        }
    }
}
