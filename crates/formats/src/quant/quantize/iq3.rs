//! IQ3_XXS and IQ3_S.

use std::sync::LazyLock;

use super::Quantize;
use super::grids::{Nearest, Scales, sevens, take_signs};
use crate::quant::grids::{IQ3_S, IQ3_XXS};
use crate::quant::iq3::{Iq3S, Iq3Xxs, scale_s, scale_xxs};
use crate::quant::types::{SMALL_BLOCK, SUPER_BLOCK};

static NEAREST_XXS: LazyLock<Nearest<4>> = LazyLock::new(|| Nearest::new(&IQ3_XXS));
static NEAREST_S: LazyLock<Nearest<4>> = LazyLock::new(|| Nearest::new(&IQ3_S));

const SCALES_XXS: Scales = Scales {
    top: 62.0,
    codes: 16,
    value: |code| scale_xxs(1.0, code),
};
const SCALES_S: Scales = Scales {
    top: 15.0,
    codes: 16,
    value: |code| scale_s(1.0, code),
};

/// The f16 d, a scale per run, and the points.
fn by_runs(
    nearest: &Nearest<4>,
    scales: &Scales,
    rest: &[f32; SUPER_BLOCK],
) -> ([u8; 2], [u8; 8], [[u16; 8]; 8]) {
    let (d, codes) = scales.search::<SMALL_BLOCK, 8>(rest, |x, inv| nearest.snap(x, inv));
    let (runs, _) = rest.as_chunks::<SMALL_BLOCK>();
    let points = |i: usize| nearest.points(&runs[i], [scales.inverse(d, codes[i]); 2]);
    (d, codes, std::array::from_fn(points))
}

impl Quantize<SUPER_BLOCK> for Iq3Xxs {
    fn quantize(weights: &[f32; SUPER_BLOCK]) -> Self {
        let (rest, signs) = take_signs(weights, true);
        let (d, codes, points) = by_runs(&NEAREST_XXS, &SCALES_XXS, &rest);
        let word = |i: usize| sevens(signs[i]) | u32::from(codes[i]) << 28;
        Iq3Xxs {
            d,
            points: points.map(|run| run.map(|point| point as u8)),
            signs_scale: std::array::from_fn(|i| word(i).to_le_bytes()),
        }
    }
}

impl Quantize<SUPER_BLOCK> for Iq3S {
    fn quantize(weights: &[f32; SUPER_BLOCK]) -> Self {
        let (rest, signs) = take_signs(weights, false);
        let (d, codes, points) = by_runs(&NEAREST_S, &SCALES_S, &rest);
        let high = |points: [u16; 8]| {
            let points = points.iter().rev();
            points.fold(0, |high, point| high << 1 | (point >> 8) as u8)
        };
        Iq3S {
            d,
            points: points.map(|run| run.map(|point| point as u8)),
            high: points.map(high),
            signs: signs.map(u32::to_le_bytes),
            scales: std::array::from_fn(|i| codes[2 * i] | codes[2 * i + 1] << 4),
        }
    }
}
