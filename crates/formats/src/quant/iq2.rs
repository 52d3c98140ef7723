//! The 2-bit formats with a grid: IQ2_XXS, IQ2_XS and IQ2_S (ggml-common.h, ggml-quants.c).
//!
//! A superblock is eight runs of 32 weights. Each eight weights are a point of the grid with signs. A 4-bit scale `s` of a run, or of half a
//! run, stands for d (s + 1/2) / 4.

use bytemuck::{Pod, Zeroable};

use super::block::{Block, widen};
use super::grids::{self, Grid, Run, even_signs};
use super::types::{GgmlType, SMALL_BLOCK, SUPER_BLOCK};

/// 8-bit indices, even signs, one scale per run.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Iq2Xxs {
    pub(crate) d: [u8; 2],
    pub(crate) runs: [Iq2XxsRun; 8],
}
const _: () = assert!(size_of::<Iq2Xxs>() == GgmlType::IQ2_XXS.block_bytes());

/// A run of IQ2_XXS.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Iq2XxsRun {
    pub(crate) points: [u8; 4],
    /// Bits 0 to 27: seven signs of each point. Bits 28 to 31: the scale.
    pub(crate) signs_scale: [u8; 4],
}

/// 9-bit indices, even signs, a scale per half run.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Iq2Xs {
    pub(crate) d: [u8; 2],
    /// Bits 0 to 8: the index of a point. Bits 9 to 15: seven of its signs.
    pub(crate) points: [[[u8; 2]; 4]; 8],
    /// Per run the scale of the first half in the low, of the second half in the high nibble.
    pub(crate) scales: [u8; 8],
}
const _: () = assert!(size_of::<Iq2Xs>() == GgmlType::IQ2_XS.block_bytes());

/// 10-bit indices, a sign per weight, a scale per half run.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Iq2S {
    pub(crate) d: [u8; 2],
    /// The lower eight bits of the indices.
    pub(crate) points: [[u8; 4]; 8],
    pub(crate) signs: [[u8; 4]; 8],
    /// Per run: bits 2i and 2i + 1 are the upper bits of index i.
    pub(crate) high: [u8; 8],
    /// As in [`Iq2Xs`].
    pub(crate) scales: [u8; 8],
}
const _: () = assert!(size_of::<Iq2S>() == GgmlType::IQ2_S.block_bytes());

/// The scale of a run of weights with the 4-bit number `s`, in a block with the factor `d`.
pub(crate) fn scale(d: f32, s: u8) -> f32 {
    d * (0.5 + f32::from(s)) * 0.25
}

/// The scales of both halves of a run.
fn scales(d: f32, both: u8) -> [f32; 2] {
    [scale(d, both & 15), scale(d, both >> 4)]
}

impl Iq2Xxs {
    /// Run `i`, where `d` is the block's scale.
    #[inline(always)]
    pub(crate) fn run(&self, d: f32, i: usize) -> Run<4> {
        let run = self.runs[i];
        let word = u32::from_le_bytes(run.signs_scale);
        Run {
            points: run.points.map(u16::from),
            signs: even_signs(word),
            scales: [scale(d, (word >> 28) as u8); 2],
        }
    }
}

impl Iq2Xs {
    /// Run `i`, where `d` is the block's scale.
    #[inline(always)]
    pub(crate) fn run(&self, d: f32, i: usize) -> Run<4> {
        let points = self.points[i].map(u16::from_le_bytes);
        let sevens = points.iter().rev();
        let stored = sevens.fold(0, |word, &point| word << 7 | u32::from(point >> 9));
        Run {
            points: points.map(|point| point & 511),
            signs: even_signs(stored),
            scales: scales(d, self.scales[i]),
        }
    }
}

impl Iq2S {
    /// Run `i`, where `d` is the block's scale.
    #[inline(always)]
    pub(crate) fn run(&self, d: f32, i: usize) -> Run<4> {
        let high = u16::from(self.high[i]);
        let point = |l: usize| u16::from(self.points[i][l]) | (high >> (2 * l) & 3) << 8;
        Run {
            points: std::array::from_fn(point),
            signs: u32::from_le_bytes(self.signs[i]),
            scales: scales(d, self.scales[i]),
        }
    }
}

/// A superblock of runs of points.
fn dequantize(grid: &Grid<8>, out: &mut [f32; SUPER_BLOCK], run: impl Fn(usize) -> Run<4>) {
    let (runs, _) = out.as_chunks_mut::<SMALL_BLOCK>();
    for (i, out) in runs.iter_mut().enumerate() {
        run(i).dequantize(grid, out);
    }
}

impl Block<SUPER_BLOCK> for Iq2Xxs {
    fn dequantize(&self, out: &mut [f32; SUPER_BLOCK]) {
        let d = widen(self.d);
        dequantize(&grids::IQ2_XXS, out, |i| self.run(d, i));
    }
}

impl Block<SUPER_BLOCK> for Iq2Xs {
    fn dequantize(&self, out: &mut [f32; SUPER_BLOCK]) {
        let d = widen(self.d);
        dequantize(&grids::IQ2_XS, out, |i| self.run(d, i));
    }
}

impl Block<SUPER_BLOCK> for Iq2S {
    fn dequantize(&self, out: &mut [f32; SUPER_BLOCK]) {
        let d = widen(self.d);
        dequantize(&grids::IQ2_S, out, |i| self.run(d, i));
    }
}
