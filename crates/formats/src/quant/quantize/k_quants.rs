//! Q2_K to Q6_K: scales by search, then quantised themselves, then the codes nearest under the quantised scales.

use super::search::{Affine, fit_affine, fit_scale, normalised};
use super::{Quantize, code, extreme, inverse, narrow};
use crate::quant::block::widen;
use crate::quant::k_quants::{Q2K, Q3K, Q4K, Q5K, Q6K};
use crate::quant::types::SUPER_BLOCK;

/// Stretches of [`fit_affine`] for 2-bit codes, where cutting off the tails pays.
const AFFINE_2: [f32; 16] = steps(-0.5, 0.1);
/// Stretches of [`fit_affine`] for 4- and 5-bit codes.
const AFFINE_45: [f32; 16] = steps(-2.0, 0.2);
/// Stretches of [`fit_scale`].
const SCALE: [f32; 16] = steps(-0.9, 0.12);

const fn steps<const COUNT: usize>(first: f32, step: f32) -> [f32; COUNT] {
    let mut steps = [0.0; COUNT];
    let mut i = 0;
    while i < COUNT {
        steps[i] = first + step * i as f32;
        i += 1;
    }
    steps
}

/// A superblock of groups: the f16 factors of scales and of minima, these as integers, and the codes.
type Affines<const GROUPS: usize> = ([[u8; 2]; 2], [[u8; GROUPS]; 2], [u8; SUPER_BLOCK]);

/// The nonnegative `values` times `unit` as integers up to `top` times an f16.
fn integers<const GROUPS: usize>(
    values: [f32; GROUPS],
    top: f32,
    unit: f32,
) -> ([u8; 2], [u8; GROUPS]) {
    let largest = values.iter().copied().fold(0.0, f32::max);
    let d = narrow(largest * unit / top);
    let inv = unit * inverse(widen(d));
    (d, values.map(|v| code(v * inv, 0.0, top) as u8))
}

/// Quantises a superblock as weight = d s q - dmin t with groups of `N` weights, s and t up to `top_scale`.
fn quantize_affine<const N: usize, const GROUPS: usize>(
    weights: &[f32; SUPER_BLOCK],
    top_code: f32,
    top_scale: f32,
    stretches: &[f32],
) -> Affines<GROUPS> {
    const { assert!(N * GROUPS == SUPER_BLOCK) };
    let Some((scaled, largest)) = normalised(weights) else {
        return ([[0; 2]; 2], [[0; GROUPS]; 2], [0; SUPER_BLOCK]);
    };
    let (groups, _) = scaled.as_chunks::<N>();
    let fits: [Affine; GROUPS] =
        std::array::from_fn(|i| fit_affine(&groups[i], top_code, stretches));
    let (d, scales) = integers(fits.map(|fit| fit.scale), top_scale, largest);
    let (dmin, mins) = integers(fits.map(|fit| fit.min), top_scale, largest);

    let mut codes = [0; SUPER_BLOCK];
    let (original, _) = weights.as_chunks::<N>();
    let (code_groups, _) = codes.as_chunks_mut::<N>();
    for (i, (codes, weights)) in code_groups.iter_mut().zip(original).enumerate() {
        let inv = inverse(widen(d) * f32::from(scales[i]));
        let min = widen(dmin) * f32::from(mins[i]);
        for (q, w) in codes.iter_mut().zip(weights) {
            *q = code((w + min) * inv, 0.0, top_code) as u8;
        }
    }
    ([d, dmin], [scales, mins], codes)
}

/// Quantises a superblock as weight = d s (q - bias) with 16 groups of 16 weights and s in -top..top; returns the f16
/// d, the scales s and the codes q.
fn quantize_symmetric(
    weights: &[f32; SUPER_BLOCK],
    bias: f32,
    top: f32,
) -> ([u8; 2], [i8; 16], [u8; SUPER_BLOCK]) {
    let Some((scaled, largest)) = normalised(weights) else {
        return ([0; 2], [0; 16], [bias as u8; SUPER_BLOCK]);
    };
    let (groups, _) = scaled.as_chunks::<16>();
    let value = |v| code(v, -bias, bias - 1.0);
    let fits: [f32; 16] =
        std::array::from_fn(|i| fit_scale(&groups[i], value, &[-bias, bias], &SCALE));
    // The largest scale becomes -top, which has one more step than +top.
    let d = narrow(-extreme(&fits) * largest / top);
    let inv = largest * inverse(widen(d));
    let scales = fits.map(|s| code(s * inv, -top, top - 1.0) as i8);

    let mut codes = [0; SUPER_BLOCK];
    let (original, _) = weights.as_chunks::<16>();
    let (code_groups, _) = codes.as_chunks_mut::<16>();
    for ((codes, weights), scale) in code_groups.iter_mut().zip(original).zip(scales) {
        let inv = inverse(widen(d) * f32::from(scale));
        for (q, w) in codes.iter_mut().zip(weights) {
            *q = (code(w * inv, -bias, bias - 1.0) + bias) as u8;
        }
    }
    (d, scales, codes)
}

/// The low nibbles of the codes of two runs of 32 in each group of 32 bytes.
fn pack_nibbles(codes: &[u8; SUPER_BLOCK]) -> [[u8; 32]; 4] {
    std::array::from_fn(|pair| {
        std::array::from_fn(|l| codes[64 * pair + l] & 15 | codes[64 * pair + 32 + l] << 4)
    })
}

/// Two bits, from bit `from`, of the codes of four runs of 32 in each group of 32 bytes.
fn pack_crumbs(codes: &[u8; SUPER_BLOCK], from: u32) -> [[u8; 32]; 2] {
    let crumb = |i: usize| (codes[i] >> from) & 3;
    std::array::from_fn(|half| {
        std::array::from_fn(|l| {
            (0..4).fold(0, |byte, run| {
                byte | crumb(128 * half + 32 * run + l) << (2 * run)
            })
        })
    })
}

/// Bit `from` of the codes of all eight runs.
fn pack_bits(codes: &[u8; SUPER_BLOCK], from: u32) -> [u8; 32] {
    std::array::from_fn(|l| {
        (0..8).fold(0, |byte, run| {
            byte | ((codes[32 * run + l] >> from) & 1) << run
        })
    })
}

/// The inverse of `unpack_scales_mins6`.
fn pack_scales_mins6(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for i in 0..4 {
        packed[i] = scales[i] | (scales[i + 4] >> 4) << 6;
        packed[i + 4] = mins[i] | (mins[i + 4] >> 4) << 6;
        packed[i + 8] = scales[i + 4] & 15 | mins[i + 4] << 4;
    }
    packed
}

/// The inverse of `unpack_scales6`.
fn pack_scales6(scales: &[u8; 16]) -> [u8; 12] {
    let mut packed = [0; 12];
    for (i, scale) in scales.iter().enumerate() {
        packed[i % 8] |= (scale & 15) << (4 * (i / 8));
        packed[8 + i % 4] |= (scale >> 4) << (2 * (i / 4));
    }
    packed
}

impl Quantize<SUPER_BLOCK> for Q2K {
    fn quantize(weights: &[f32; SUPER_BLOCK]) -> Self {
        let ([d, dmin], [scales, mins], codes) =
            quantize_affine::<16, 16>(weights, 3.0, 15.0, &AFFINE_2);
        Q2K {
            scales: std::array::from_fn(|i| scales[i] | mins[i] << 4),
            qs: pack_crumbs(&codes, 0),
            d,
            dmin,
        }
    }
}

impl Quantize<SUPER_BLOCK> for Q3K {
    fn quantize(weights: &[f32; SUPER_BLOCK]) -> Self {
        let (d, scales, codes) = quantize_symmetric(weights, 4.0, 32.0);
        Q3K {
            hmask: pack_bits(&codes, 2),
            qs: pack_crumbs(&codes, 0),
            scales: pack_scales6(&scales.map(|s| (s + 32) as u8)),
            d,
        }
    }
}

impl Quantize<SUPER_BLOCK> for Q4K {
    fn quantize(weights: &[f32; SUPER_BLOCK]) -> Self {
        let ([d, dmin], [scales, mins], codes) =
            quantize_affine::<32, 8>(weights, 15.0, 63.0, &AFFINE_45);
        Q4K {
            d,
            dmin,
            scales: pack_scales_mins6(&scales, &mins),
            qs: pack_nibbles(&codes),
        }
    }
}

impl Quantize<SUPER_BLOCK> for Q5K {
    fn quantize(weights: &[f32; SUPER_BLOCK]) -> Self {
        let ([d, dmin], [scales, mins], codes) =
            quantize_affine::<32, 8>(weights, 31.0, 63.0, &AFFINE_45);
        Q5K {
            d,
            dmin,
            scales: pack_scales_mins6(&scales, &mins),
            qh: pack_bits(&codes, 4),
            qs: pack_nibbles(&codes),
        }
    }
}

impl Quantize<SUPER_BLOCK> for Q6K {
    fn quantize(weights: &[f32; SUPER_BLOCK]) -> Self {
        let (d, scales, codes) = quantize_symmetric(weights, 32.0, 128.0);
        let low = |half: usize, group: usize, l: usize| {
            let i = 128 * half + 32 * group + l;
            codes[i] & 15 | codes[i + 64] << 4
        };
        Q6K {
            ql: std::array::from_fn(|half| {
                std::array::from_fn(|group| std::array::from_fn(|l| low(half, group, l)))
            }),
            qh: pack_crumbs(&codes, 4),
            scales,
            d,
        }
    }
}
