//! IQ1_S and IQ1_M: of both offsets the one with the smaller error is taken.

use std::sync::LazyLock;

use super::Quantize;
use super::grids::{Nearest, Scales};
use crate::quant::grids::IQ1;
use crate::quant::iq1::{Iq1M, Iq1S, OFFSET, scale};
use crate::quant::types::{SMALL_BLOCK, SUPER_BLOCK};

static NEAREST: LazyLock<Nearest<8>> = LazyLock::new(|| Nearest::new(&IQ1));

const SCALES: Scales = Scales {
    top: 1.0 + OFFSET,
    codes: 8,
    value: |code| scale(1.0, u16::from(code)),
};

/// The points nearest to `M` weights times `inv` with one offset for all, whether that is negative, and the values with it.
fn nearest<const M: usize, const POINTS: usize>(
    x: &[f32; M],
    inv: f32,
) -> ([u16; POINTS], bool, [f32; M]) {
    const { assert!(8 * POINTS == M) };
    let (eights, _) = x.as_chunks::<8>();
    let of = |negative: bool| {
        let offset = if negative { -OFFSET } else { OFFSET };
        let point = |i: usize| NEAREST.point(eights[i].iter().map(|x| x * inv - offset));
        let points: [u16; POINTS] = std::array::from_fn(point);
        let mut values = [0.0; M];
        for (values, point) in values.chunks_mut(8).zip(points) {
            values.copy_from_slice(&NEAREST.values(point).map(|value| value + offset));
        }
        let errors = values.iter().zip(x).map(|(v, x)| (x * inv - v).powi(2));
        (errors.sum::<f32>(), (points, negative, values))
    };
    let (plus, minus) = (of(false), of(true));
    if minus.0 < plus.0 { minus.1 } else { plus.1 }
}

impl Quantize<SUPER_BLOCK> for Iq1S {
    fn quantize(weights: &[f32; SUPER_BLOCK]) -> Self {
        let snap = |x: &[f32; SMALL_BLOCK], inv| nearest::<SMALL_BLOCK, 4>(x, inv).2;
        let (d, codes) = SCALES.search::<SMALL_BLOCK, 8>(weights, snap);
        let (runs, _) = weights.as_chunks::<SMALL_BLOCK>();
        let mut block = Iq1S {
            d,
            points: [[0; 4]; 8],
            high: [[0; 2]; 8],
        };
        for (i, run) in runs.iter().enumerate() {
            let (points, negative, _) = nearest::<SMALL_BLOCK, 4>(run, SCALES.inverse(d, codes[i]));
            let upper = points.iter().rev();
            let upper = upper.fold(0, |high: u16, point| high << 3 | point >> 8);
            let high = upper | u16::from(codes[i]) << 12 | u16::from(negative) << 15;
            block.points[i] = points.map(|point| point as u8);
            block.high[i] = high.to_le_bytes();
        }
        block
    }
}

impl Quantize<SUPER_BLOCK> for Iq1M {
    fn quantize(weights: &[f32; SUPER_BLOCK]) -> Self {
        let snap = |x: &[f32; 16], inv| {
            let (eights, _) = x.as_chunks::<8>();
            let values = |i: usize| nearest::<8, 1>(&eights[i], inv).2;
            let mut both = [0.0; 16];
            for (i, both) in both.chunks_mut(8).enumerate() {
                both.copy_from_slice(&values(i));
            }
            both
        };
        let (d, codes) = SCALES.search::<16, 16>(weights, snap);
        let mut block = Iq1M {
            points: [[0; 4]; 8],
            high: [[0; 2]; 8],
            scales: [[0; 2]; 4],
        };
        let (eights, _) = weights.as_chunks::<8>();
        for (i, eight) in eights.iter().enumerate() {
            let ([point], negative, _) = nearest::<8, 1>(eight, SCALES.inverse(d, codes[i / 2]));
            let nibble = (point >> 8) as u8 | u8::from(negative) << 3;
            block.points[i / 4][i % 4] = point as u8;
            block.high[i / 4][i % 4 / 2] |= nibble << (4 * (i % 2));
        }
        block.scales = std::array::from_fn(|i| {
            let four = codes[4 * i..4 * i + 4].iter().rev();
            let packed = four.fold(0, |packed: u16, &code| packed << 3 | u16::from(code));
            packed.to_le_bytes()
        });
        block.set_d(d);
        block
    }
}
