//! The quantised types as unsigned or signed codes in the order of the weights, with a scale for every 16 of them, the code of 0, and for
//! some an offset.
//!
//! The codes of a type with a grid are the values of its points with their signs, which plain code looks up once for a tile of inputs, plus
//! the largest value, so that they are unsigned. Codes of IQ1_S and IQ1_M are in eighths of the scale: they have the offset in them.

use std::array::from_fn;

use bytemuck::Pod;

use super::simd::Simd;
use crate::quant::block::widen;
use crate::quant::grids;
use crate::quant::iq1::{self, Iq1M, Iq1S};
use crate::quant::iq2::{Iq2S, Iq2Xs, Iq2Xxs};
use crate::quant::iq3::{Iq3S, Iq3Xxs};
use crate::quant::iq4::{CODEBOOK, Iq4Nl, Iq4Xs, unpack_scales_xs};
use crate::quant::k_quants::{Q2K, Q3K, Q4K, Q5K, Q6K, unpack_scales_mins6, unpack_scales6};
use crate::quant::legacy::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use crate::quant::mxfp4::{Mxfp4, VALUES, power};

/// The weights that share an offset, for types that have some.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Offsets {
    None,
    Of16,
    Of32,
}

/// A type's codes.
pub(super) trait Coded {
    /// Whether the codes are of eight bits, from [`Simd::signed`].
    const WIDE: bool;
    /// The offsets of the type.
    const OFFSETS: Offsets;

    /// The code of 0, but for offsets.
    fn zero<S: Simd>() -> i32;
}

/// Blocks of which `N` have 256 weights.
pub(super) trait Packed<const N: usize>: Coded + Pod {
    /// A scale and an offset for every 16 weights: weight i is `scales[i / 16] * (codes[i] - zero) + offsets[i / 16]`. Nobody reads the
    /// offsets of types that have none.
    fn affine<S: Simd>(simd: S, blocks: &[Self; N]) -> Affine<S>;

    /// The codes of a quarter of the weights, in their order.
    fn codes<S: Simd>(simd: S, blocks: &[Self; N], quarter: usize) -> S::Bytes;
}

/// A scale and an offset for every 16 of 256 weights.
pub(super) type Affine<S> = [<S as Simd>::Floats; 2];

/// Scales without offsets.
#[inline(always)]
pub(super) fn linear<S: Simd>(scales: S::Floats) -> Affine<S> {
    [scales, scales]
}

/// The f16 `d` times the numbers less `zero`.
#[inline(always)]
pub(super) fn scaled<S: Simd>(simd: S, d: [u8; 2], numbers: [u8; 16], zero: f32) -> S::Floats {
    let numbers = simd.add(simd.unsigned(&numbers), simd.splat(-zero));
    simd.mul(numbers, simd.half(d))
}

/// The f16 with its other sign.
#[inline(always)]
fn negative(half: [u8; 2]) -> [u8; 2] {
    [half[0], half[1] ^ 0x80]
}

/// The scales and offsets of weights `scale * code - min`, with scales and minima that have the factors `d` and `dmin`.
#[inline(always)]
pub(super) fn above_minima<S: Simd>(
    simd: S,
    [d, dmin]: [[u8; 2]; 2],
    (scales, minima): ([u8; 8], [u8; 8]),
) -> Affine<S> {
    [
        simd.mul(simd.pairs(scales), simd.half(d)),
        simd.mul(simd.pairs(minima), simd.half(negative(dmin))),
    ]
}

/// Types of 32 weights: their scales and offsets, and the codes of blocks 2 * quarter and 2 * quarter + 1.
macro_rules! small {
    (
        $ty:ident, wide $wide:literal, offsets $offsets:ident, zero $zero:expr,
        $simd:ident, |$blocks:ident| $affine:expr, |$a:ident, $b:ident| $codes:expr
    ) => {
        impl Coded for $ty {
            const WIDE: bool = $wide;
            const OFFSETS: Offsets = Offsets::$offsets;

            #[inline(always)]
            fn zero<S: Simd>() -> i32 {
                $zero
            }
        }

        impl Packed<8> for $ty {
            #[inline(always)]
            fn affine<S: Simd>($simd: S, $blocks: &[Self; 8]) -> Affine<S> {
                $affine
            }

            #[inline(always)]
            fn codes<S: Simd>($simd: S, blocks: &[Self; 8], quarter: usize) -> S::Bytes {
                let ($a, $b) = (&blocks[2 * quarter], &blocks[2 * quarter + 1]);
                $codes
            }
        }
    };
}

/// The scales of eight blocks.
macro_rules! of_blocks {
    ($simd:ident, $blocks:ident, $field:ident) => {
        $simd.half_pairs(from_fn(|i| $blocks[i].$field))
    };
}

small!(Q4_0, wide false, offsets None, zero 8, simd, |blocks| linear::<S>(of_blocks!(simd, blocks, d)), |a, b| {
    simd.nibbles(&a.qs, &b.qs)
});
small!(Q4_1, wide false, offsets Of32, zero 0, simd, |blocks| {
    [of_blocks!(simd, blocks, d), of_blocks!(simd, blocks, m)]
}, |a, b| simd.nibbles(&a.qs, &b.qs));
small!(Q5_0, wide false, offsets None, zero 16, simd, |blocks| linear::<S>(of_blocks!(simd, blocks, d)), |a, b| {
    simd.above(simd.nibbles(&a.qs, &b.qs), simd.sixteens(a.qh, b.qh), 0)
});
small!(Q5_1, wide false, offsets Of32, zero 0, simd, |blocks| {
    [of_blocks!(simd, blocks, d), of_blocks!(simd, blocks, m)]
}, |a, b| simd.above(simd.nibbles(&a.qs, &b.qs), simd.sixteens(a.qh, b.qh), 0));
small!(Q8_0, wide true, offsets None, zero S::BIAS, simd, |blocks| linear::<S>(of_blocks!(simd, blocks, d)), |a, b| {
    simd.signed(simd.join(bytemuck::cast_ref(&a.qs), bytemuck::cast_ref(&b.qs)))
});
small!(Iq4Nl, wide true, offsets None, zero S::BIAS, simd, |blocks| linear::<S>(of_blocks!(simd, blocks, d)), |a, b| {
    simd.signed(simd.look_up(&CODEBOOK, simd.nibbles(&a.qs, &b.qs)))
});

/// The largest of [`VALUES`], which makes unsigned codes of them.
const LARGEST: i8 = 12;

small!(Mxfp4, wide false, offsets None, zero i32::from(LARGEST), simd, |blocks| {
    linear::<S>(simd.floats(&from_fn(|i| power(blocks[i / 2].e))))
}, |a, b| {
    const CODES: [i8; 16] = {
        let (mut codes, mut i) = (VALUES, 0);
        while i < 16 {
            codes[i] += LARGEST;
            i += 1;
        }
        codes
    };
    simd.look_up(&CODES, simd.nibbles(&a.qs, &b.qs))
});

/// Types of 256 weights: their scales and offsets, and the codes of a quarter.
macro_rules! large {
    (
        $ty:ident, wide $wide:literal, offsets $offsets:ident, zero $zero:expr,
        $simd:ident, $block:ident, $affine:expr, |$quarter:ident| $codes:expr
    ) => {
        impl Coded for $ty {
            const WIDE: bool = $wide;
            const OFFSETS: Offsets = Offsets::$offsets;

            #[inline(always)]
            fn zero<S: Simd>() -> i32 {
                $zero
            }
        }

        impl Packed<1> for $ty {
            #[inline(always)]
            fn affine<S: Simd>($simd: S, [$block]: &[Self; 1]) -> Affine<S> {
                $affine
            }

            #[inline(always)]
            fn codes<S: Simd>($simd: S, [$block]: &[Self; 1], $quarter: usize) -> S::Bytes {
                $codes
            }
        }
    };
}

large!(Q2K, wide false, offsets Of16, zero 0, simd, block, [
    scaled(simd, block.d, block.scales.map(|s| s & 15), 0.0),
    scaled(simd, negative(block.dmin), block.scales.map(|s| s >> 4), 0.0),
], |quarter| {
    let (low, qs) = (4 * (quarter as u32 % 2), &block.qs[quarter / 2]);
    simd.codes(simd.join(qs, qs), low, low + 2, 3)
});
large!(Q3K, wide false, offsets None, zero 4, simd, block, {
    linear::<S>(scaled(simd, block.d, unpack_scales6(&block.scales), 32.0))
}, |quarter| {
    let (low, qs) = (4 * (quarter as u32 % 2), &block.qs[quarter / 2]);
    let (run, highs) = (2 * quarter as u32, simd.join(&block.hmask, &block.hmask));
    let lows = simd.codes(simd.join(qs, qs), low, low + 2, 3);
    simd.above(lows, simd.codes(highs, run, run + 1, 1), 2)
});
large!(Q4K, wide false, offsets Of32, zero 0, simd, block, {
    above_minima(simd, [block.d, block.dmin], unpack_scales_mins6(&block.scales))
}, |quarter| {
    let qs = &block.qs[quarter];
    simd.codes(simd.join(qs, qs), 0, 4, 15)
});
large!(Q5K, wide false, offsets Of32, zero 0, simd, block, {
    above_minima(simd, [block.d, block.dmin], unpack_scales_mins6(&block.scales))
}, |quarter| {
    let (run, qs) = (2 * quarter as u32, &block.qs[quarter]);
    let lows = simd.codes(simd.join(qs, qs), 0, 4, 15);
    let highs = simd.join(&block.qh, &block.qh);
    simd.above(lows, simd.codes(highs, run, run + 1, 1), 4)
});
large!(Q6K, wide false, offsets None, zero 32, simd, block, {
    // Signed bytes with 128 added are unsigned.
    let scales = block.scales.map(|scale| scale as u8 ^ 128);
    linear::<S>(scaled(simd, block.d, scales, 128.0))
}, |quarter| {
    let (low, half) = (4 * (quarter as u32 % 2), quarter / 2);
    let lows = simd.codes(simd.bytes(bytemuck::cast_ref(&block.ql[half])), low, low, 15);
    let highs = simd.join(&block.qh[half], &block.qh[half]);
    simd.above(lows, simd.codes(highs, low, low + 2, 3), 4)
});
large!(Iq4Xs, wide true, offsets None, zero S::BIAS, simd, block, {
    let scales = unpack_scales_xs(block.scales_l, block.scales_h);
    let scales = simd.add(simd.pairs(scales), simd.splat(-32.0));
    linear::<S>(simd.mul(scales, simd.half(block.d)))
}, |quarter| {
    let nibbles = simd.nibbles(&block.qs[2 * quarter], &block.qs[2 * quarter + 1]);
    simd.signed(simd.look_up(&CODEBOOK, nibbles))
});

/// Types of runs of points: the block's scale, the part of a run's scale that is 1 in its codes, the code of 0, and the codes of a run.
macro_rules! points {
    ($ty:ident, |$block:ident| $d:expr, unit $unit:expr, zero $zero:expr, |$run:ident| $codes:expr) => {
        large!($ty, wide false, offsets None, zero i32::from($zero), simd, $block, {
            let d = $unit * $d;
            linear::<S>(simd.floats(&from_fn(|i| $block.run(d, i / 2).scales[i % 2])))
        }, |quarter| {
            let [low, high] = [0, 1].map(|half| {
                let $run = $block.run(0.0, 2 * quarter + half);
                $codes
            });
            simd.join(&low, &high)
        });
    };
}

points!(Iq1S, |block| widen(block.d), unit iq1::OFFSET, zero iq1::CODE_ZERO, |run| run.codes());
points!(Iq1M, |block| widen(block.d()), unit iq1::OFFSET, zero iq1::CODE_ZERO, |run| run.codes());
points!(Iq2Xxs, |block| widen(block.d), unit 1.0, zero grids::IQ2_XXS.largest(), |run| run.codes(&grids::IQ2_XXS));
points!(Iq2Xs, |block| widen(block.d), unit 1.0, zero grids::IQ2_XS.largest(), |run| run.codes(&grids::IQ2_XS));
points!(Iq2S, |block| widen(block.d), unit 1.0, zero grids::IQ2_S.largest(), |run| run.codes(&grids::IQ2_S));
points!(Iq3Xxs, |block| widen(block.d), unit 1.0, zero grids::IQ3_XXS.largest(), |run| run.codes(&grids::IQ3_XXS));
points!(Iq3S, |block| widen(block.d), unit 1.0, zero grids::IQ3_S.largest(), |run| run.codes(&grids::IQ3_S));
