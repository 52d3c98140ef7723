//! The formats of less than 2 bits: IQ1_S and IQ1_M (ggml-common.h, ggml-quants.c).
//!
//! A superblock is eight runs of 32 weights. Each eight weights are a point of the grid, whose values are -1, 0 and 1, and an offset for all
//! of them, which is 1/8 or -1/8: weight = d (2 s + 1) (value + offset), with 3-bit scales `s`.

use std::array::from_fn;

use bytemuck::{Pod, Zeroable};

use super::block::{Block, widen};
use super::grids;
use super::types::{GgmlType, SMALL_BLOCK, SUPER_BLOCK};

/// 11-bit indices, a scale and an offset per run.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Iq1S {
    pub(crate) d: [u8; 2],
    /// The lower eight bits of the indices.
    pub(crate) points: [[u8; 4]; 8],
    /// Bits 3i to 3i + 2: the upper bits of index i. Bits 12 to 14: the scale. Bit 15: whether the offset is negative.
    pub(crate) high: [[u8; 2]; 8],
}
const _: () = assert!(size_of::<Iq1S>() == GgmlType::IQ1_S.block_bytes());

/// 11-bit indices, an offset per point, a scale per half run.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Iq1M {
    /// The lower eight bits of the indices.
    pub(crate) points: [[u8; 4]; 8],
    /// Bits 4i to 4i + 2: the upper bits of index i. Bit 4i + 3: whether its offset is negative.
    pub(crate) high: [[u8; 2]; 8],
    /// Bits 3i to 3i + 2: the scale of half i of the two runs. Bits 12 to 15: of the first of the four these are the lowest bits of the f16
    /// d, of the last the highest.
    pub(crate) scales: [[u8; 2]; 4],
}
const _: () = assert!(size_of::<Iq1M>() == GgmlType::IQ1_M.block_bytes());

/// The offset that a block adds to the values of a point, or subtracts.
pub(crate) const OFFSET: f32 = 0.125;

/// The value of a 3-bit scale.
pub(crate) fn scale(d: f32, s: u16) -> f32 {
    d * f32::from(2 * s + 1)
}

impl Iq1M {
    /// The f16 whose four nibbles are the upper bits of the scales.
    pub(crate) fn d(&self) -> [u8; 2] {
        let nibbles = self.scales.iter().rev();
        let d = nibbles.fold(0, |d: u16, &four| d << 4 | u16::from_le_bytes(four) >> 12);
        d.to_le_bytes()
    }

    /// Writes that f16.
    pub(crate) fn set_d(&mut self, d: [u8; 2]) {
        for (scales, nibble) in self
            .scales
            .iter_mut()
            .zip([d[0], d[0] >> 4, d[1], d[1] >> 4])
        {
            scales[1] = scales[1] & 15 | nibble << 4;
        }
    }
}

/// 32 weights: points with an offset each.
pub(crate) struct Run {
    points: [u16; 4],
    /// Whether the offset of a point is negative.
    negative: [bool; 4],
    /// The scale of each half.
    pub(crate) scales: [f32; 2],
}

impl Run {
    fn dequantize(&self, out: &mut [f32; SMALL_BLOCK]) {
        let (groups, _) = out.as_chunks_mut::<8>();
        for (i, out) in groups.iter_mut().enumerate() {
            let offset = if self.negative[i] { -OFFSET } else { OFFSET };
            let point = &grids::IQ1.points[usize::from(self.points[i])];
            for (out, &value) in out.iter_mut().zip(point) {
                *out = self.scales[i / 2] * (f32::from(value) + offset);
            }
        }
    }

    /// The weights divided by an eighth of their scales, plus [`CODE_ZERO`].
    #[inline(always)]
    pub(crate) fn codes(&self) -> [u8; SMALL_BLOCK] {
        let grid = &*grids::IQ1;
        let mut codes = [0; SMALL_BLOCK];
        let (groups, _) = codes.as_chunks_mut::<8>();
        for (i, out) in groups.iter_mut().enumerate() {
            let zero = if self.negative[i] {
                CODE_ZERO - 1
            } else {
                CODE_ZERO + 1
            };
            let point = &grid.points[usize::from(self.points[i])];
            *out = point.map(|value| (zero + 8 * value) as u8);
        }
        codes
    }
}

/// The [code](Run::codes) of 0: no weight is further from it than 9/8 of a scale.
pub(crate) const CODE_ZERO: i8 = 9;

impl Iq1S {
    /// Run `i`, where `d` is the block's scale.
    #[inline(always)]
    pub(crate) fn run(&self, d: f32, i: usize) -> Run {
        let high = u16::from_le_bytes(self.high[i]);
        Run {
            points: from_fn(|l| u16::from(self.points[i][l]) | (high >> (3 * l) & 7) << 8),
            negative: [high >> 15 == 1; 4],
            scales: [scale(d, high >> 12 & 7); 2],
        }
    }
}

impl Iq1M {
    /// Run `i`, where `d` is the block's scale.
    #[inline(always)]
    pub(crate) fn run(&self, d: f32, i: usize) -> Run {
        let high = u16::from_le_bytes(self.high[i]);
        let scales = u16::from_le_bytes(self.scales[i / 2]) >> (6 * (i % 2));
        Run {
            points: from_fn(|l| u16::from(self.points[i][l]) | (high >> (4 * l) & 7) << 8),
            negative: from_fn(|l| high >> (4 * l + 3) & 1 == 1),
            scales: from_fn(|half| scale(d, scales >> (3 * half) & 7)),
        }
    }
}

impl Block<SUPER_BLOCK> for Iq1S {
    fn dequantize(&self, out: &mut [f32; SUPER_BLOCK]) {
        let d = widen(self.d);
        let (runs, _) = out.as_chunks_mut::<SMALL_BLOCK>();
        for (i, out) in runs.iter_mut().enumerate() {
            self.run(d, i).dequantize(out);
        }
    }
}

impl Block<SUPER_BLOCK> for Iq1M {
    fn dequantize(&self, out: &mut [f32; SUPER_BLOCK]) {
        let d = widen(self.d());
        let (runs, _) = out.as_chunks_mut::<SMALL_BLOCK>();
        for (i, out) in runs.iter_mut().enumerate() {
            self.run(d, i).dequantize(out);
        }
    }
}
