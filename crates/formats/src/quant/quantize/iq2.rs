//! IQ2_XXS, IQ2_XS and IQ2_S.

use std::sync::LazyLock;

use super::Quantize;
use super::grids::{Nearest, Scales, sevens, take_signs};
use crate::quant::grids::{IQ2_S, IQ2_XS, IQ2_XXS};
use crate::quant::iq2::{Iq2S, Iq2Xs, Iq2Xxs, Iq2XxsRun, scale};
use crate::quant::types::{SMALL_BLOCK, SUPER_BLOCK};

static NEAREST_XXS: LazyLock<Nearest<8>> = LazyLock::new(|| Nearest::new(&IQ2_XXS));
static NEAREST_XS: LazyLock<Nearest<8>> = LazyLock::new(|| Nearest::new(&IQ2_XS));
static NEAREST_S: LazyLock<Nearest<8>> = LazyLock::new(|| Nearest::new(&IQ2_S));

const SCALES: Scales = Scales {
    top: 43.0,
    codes: 16,
    value: |code| scale(1.0, code),
};

/// Scales per 16 weights: the f16 d, per run both scales in a byte, and the points.
fn by_halves(nearest: &Nearest<8>, rest: &[f32; SUPER_BLOCK]) -> ([u8; 2], [u8; 8], [[u16; 4]; 8]) {
    let (d, codes) = SCALES.search::<16, 16>(rest, |x, inv| nearest.snap(x, inv));
    let (runs, _) = rest.as_chunks::<SMALL_BLOCK>();
    let inv = |i: usize| [codes[2 * i], codes[2 * i + 1]].map(|code| SCALES.inverse(d, code));
    (
        d,
        std::array::from_fn(|i| codes[2 * i] | codes[2 * i + 1] << 4),
        std::array::from_fn(|i| nearest.points(&runs[i], inv(i))),
    )
}

impl Quantize<SUPER_BLOCK> for Iq2Xxs {
    fn quantize(weights: &[f32; SUPER_BLOCK]) -> Self {
        let nearest = &*NEAREST_XXS;
        let (rest, signs) = take_signs(weights, true);
        let (d, codes) = SCALES.search::<SMALL_BLOCK, 8>(&rest, |x, inv| nearest.snap(x, inv));
        let (runs, _) = rest.as_chunks::<SMALL_BLOCK>();
        let run = |i: usize| Iq2XxsRun {
            points: nearest
                .points(&runs[i], [SCALES.inverse(d, codes[i]); 2])
                .map(|point| point as u8),
            signs_scale: (sevens(signs[i]) | u32::from(codes[i]) << 28).to_le_bytes(),
        };
        Iq2Xxs {
            d,
            runs: std::array::from_fn(run),
        }
    }
}

impl Quantize<SUPER_BLOCK> for Iq2Xs {
    fn quantize(weights: &[f32; SUPER_BLOCK]) -> Self {
        let (rest, signs) = take_signs(weights, true);
        let (d, scales, points) = by_halves(&NEAREST_XS, &rest);
        let point = |i: usize, l: usize| {
            let seven = signs[i] >> (8 * l) & 127;
            (points[i][l] | (seven as u16) << 9).to_le_bytes()
        };
        Iq2Xs {
            d,
            points: std::array::from_fn(|i| std::array::from_fn(|l| point(i, l))),
            scales,
        }
    }
}

impl Quantize<SUPER_BLOCK> for Iq2S {
    fn quantize(weights: &[f32; SUPER_BLOCK]) -> Self {
        let (rest, signs) = take_signs(weights, false);
        let (d, scales, points) = by_halves(&NEAREST_S, &rest);
        let high = |points: [u16; 4]| {
            let points = points.iter().rev();
            points.fold(0, |high, point| high << 2 | (point >> 8) as u8)
        };
        Iq2S {
            d,
            points: points.map(|run| run.map(|point| point as u8)),
            signs: signs.map(u32::to_le_bytes),
            high: points.map(high),
            scales,
        }
    }
}
