//! The block formats of 32 weights with f16 scales: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 (ggml-common.h).
//!
//! In the 4- and 5-bit formats byte `j` of `qs` holds weight `j` in its low and weight `j + 16` in its high nibble;
//! bit `j` of `qh` is the fifth bit of weight `j`.

use bytemuck::{Pod, Zeroable};

use super::block::{Block, widen};
use super::types::{GgmlType, SMALL_BLOCK};

/// 4-bit codes `q`, weight = d (q - 8).
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Q4_0 {
    pub(crate) d: [u8; 2],
    pub(crate) qs: [u8; 16],
}
const _: () = assert!(size_of::<Q4_0>() == GgmlType::Q4_0.block_bytes());

/// 4-bit codes `q`, weight = d q + m.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Q4_1 {
    pub(crate) d: [u8; 2],
    pub(crate) m: [u8; 2],
    pub(crate) qs: [u8; 16],
}
const _: () = assert!(size_of::<Q4_1>() == GgmlType::Q4_1.block_bytes());

/// 5-bit codes `q`, weight = d (q - 16).
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Q5_0 {
    pub(crate) d: [u8; 2],
    pub(crate) qh: [u8; 4],
    pub(crate) qs: [u8; 16],
}
const _: () = assert!(size_of::<Q5_0>() == GgmlType::Q5_0.block_bytes());

/// 5-bit codes `q`, weight = d q + m.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Q5_1 {
    pub(crate) d: [u8; 2],
    pub(crate) m: [u8; 2],
    pub(crate) qh: [u8; 4],
    pub(crate) qs: [u8; 16],
}
const _: () = assert!(size_of::<Q5_1>() == GgmlType::Q5_1.block_bytes());

/// 8-bit signed codes `q`, weight = d q.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Q8_0 {
    pub(crate) d: [u8; 2],
    pub(crate) qs: [i8; 32],
}
const _: () = assert!(size_of::<Q8_0>() == GgmlType::Q8_0.block_bytes());

/// The 5-bit codes of a block: the nibbles of `qs` with the bits of `qh` above them.
fn codes5(qs: &[u8; 16], qh: [u8; 4]) -> [u8; SMALL_BLOCK] {
    let bits = u32::from_le_bytes(qh);
    std::array::from_fn(|j| {
        let nibble = if j < 16 { qs[j] & 15 } else { qs[j - 16] >> 4 };
        let high = if bits & (1 << j) != 0 { 16 } else { 0 };
        nibble | high
    })
}

impl Block<SMALL_BLOCK> for Q4_0 {
    fn dequantize(&self, out: &mut [f32; SMALL_BLOCK]) {
        let d = widen(self.d);
        for (j, q) in self.qs.iter().enumerate() {
            out[j] = (i32::from(q & 15) - 8) as f32 * d;
            out[j + 16] = (i32::from(q >> 4) - 8) as f32 * d;
        }
    }
}

impl Block<SMALL_BLOCK> for Q4_1 {
    fn dequantize(&self, out: &mut [f32; SMALL_BLOCK]) {
        let (d, m) = (widen(self.d), widen(self.m));
        for (j, q) in self.qs.iter().enumerate() {
            out[j] = f32::from(q & 15) * d + m;
            out[j + 16] = f32::from(q >> 4) * d + m;
        }
    }
}

impl Block<SMALL_BLOCK> for Q5_0 {
    fn dequantize(&self, out: &mut [f32; SMALL_BLOCK]) {
        let d = widen(self.d);
        for (out, q) in out.iter_mut().zip(codes5(&self.qs, self.qh)) {
            *out = (i32::from(q) - 16) as f32 * d;
        }
    }
}

impl Block<SMALL_BLOCK> for Q5_1 {
    fn dequantize(&self, out: &mut [f32; SMALL_BLOCK]) {
        let (d, m) = (widen(self.d), widen(self.m));
        for (out, q) in out.iter_mut().zip(codes5(&self.qs, self.qh)) {
            *out = f32::from(q) * d + m;
        }
    }
}

impl Block<SMALL_BLOCK> for Q8_0 {
    fn dequantize(&self, out: &mut [f32; SMALL_BLOCK]) {
        let d = widen(self.d);
        for (out, &q) in out.iter_mut().zip(&self.qs) {
            *out = f32::from(q) * d;
        }
    }
}
