//! The 3-bit formats with a grid: IQ3_XXS and IQ3_S (ggml-common.h, ggml-quants.c).
//!
//! A superblock is eight runs of 32 weights. Each four weights are a point of the grid with signs.

use bytemuck::{Pod, Zeroable};

use super::block::{Block, widen};
use super::grids::{self, Run, even_signs};
use super::types::{GgmlType, SMALL_BLOCK, SUPER_BLOCK};

/// 8-bit indices, even signs, one scale per run.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Iq3Xxs {
    pub(crate) d: [u8; 2],
    pub(crate) points: [[u8; 8]; 8],
    /// Bits 0 to 27: seven signs of each eight weights. Bits 28 to 31: the scale s, which stands for d (s + 1/2) / 2.
    pub(crate) signs_scale: [[u8; 4]; 8],
}
const _: () = assert!(size_of::<Iq3Xxs>() == GgmlType::IQ3_XXS.block_bytes());

/// 9-bit indices, a sign per weight, one scale per run.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Iq3S {
    pub(crate) d: [u8; 2],
    /// The lower eight bits of the indices.
    pub(crate) points: [[u8; 8]; 8],
    /// Per run: bit i is the upper bit of index i.
    pub(crate) high: [u8; 8],
    pub(crate) signs: [[u8; 4]; 8],
    /// Nibble i: the scale s of run i, which stands for d (2 s + 1).
    pub(crate) scales: [u8; 4],
}
const _: () = assert!(size_of::<Iq3S>() == GgmlType::IQ3_S.block_bytes());

/// The value of a 4-bit scale of IQ3_XXS.
pub(crate) fn scale_xxs(d: f32, s: u8) -> f32 {
    d * (0.5 + f32::from(s)) * 0.5
}

/// The value of a 4-bit scale of IQ3_S.
pub(crate) fn scale_s(d: f32, s: u8) -> f32 {
    d * f32::from(1 + 2 * s)
}

impl Iq3Xxs {
    /// Run `i`, where `d` is the block's scale.
    #[inline(always)]
    pub(crate) fn run(&self, d: f32, i: usize) -> Run<8> {
        let word = u32::from_le_bytes(self.signs_scale[i]);
        Run {
            points: self.points[i].map(u16::from),
            signs: even_signs(word),
            scales: [scale_xxs(d, (word >> 28) as u8); 2],
        }
    }
}

impl Iq3S {
    /// Run `i`, where `d` is the block's scale.
    #[inline(always)]
    pub(crate) fn run(&self, d: f32, i: usize) -> Run<8> {
        let high = u16::from(self.high[i]);
        let point = |l: usize| u16::from(self.points[i][l]) | (high >> l & 1) << 8;
        Run {
            points: std::array::from_fn(point),
            signs: u32::from_le_bytes(self.signs[i]),
            scales: [scale_s(d, self.scales[i / 2] >> (4 * (i % 2)) & 15); 2],
        }
    }
}

impl Block<SUPER_BLOCK> for Iq3Xxs {
    fn dequantize(&self, out: &mut [f32; SUPER_BLOCK]) {
        let d = widen(self.d);
        let (runs, _) = out.as_chunks_mut::<SMALL_BLOCK>();
        for (i, out) in runs.iter_mut().enumerate() {
            self.run(d, i).dequantize(&grids::IQ3_XXS, out);
        }
    }
}

impl Block<SUPER_BLOCK> for Iq3S {
    fn dequantize(&self, out: &mut [f32; SUPER_BLOCK]) {
        let d = widen(self.d);
        let (runs, _) = out.as_chunks_mut::<SMALL_BLOCK>();
        for (i, out) in runs.iter_mut().enumerate() {
            self.run(d, i).dequantize(&grids::IQ3_S, out);
        }
    }
}
