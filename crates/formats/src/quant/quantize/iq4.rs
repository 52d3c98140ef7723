//! IQ4_NL and IQ4_XS: the best scale for a fixed codebook.

use super::legacy::pack_nibbles;
use super::search::{fit_scale, normalised};
use super::{Quantize, code, extreme, inverse, narrow};
use crate::quant::block::widen;
use crate::quant::iq4::{CODEBOOK, CODEBOOK_F32, Iq4Nl, Iq4Xs};
use crate::quant::types::{SMALL_BLOCK, SUPER_BLOCK};

/// Stretches of [`fit_scale`], in units of the codebook.
const STRETCHES: [f32; 16] = [
    -16.0, -14.0, -12.0, -10.0, -8.0, -6.0, -4.0, -2.0, 0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0,
];

/// The values that the weight of largest magnitude is tried on: either end of the codebook.
const REACH: [f32; 2] = [CODEBOOK_F32[0], CODEBOOK_F32[15]];

/// The code nearest to v in -127..=113, at index 2 (v + 127) rounded down. Halves suffice: between two codebook values
/// lies the border at a whole or half number.
const NEAREST: [u8; 481] = {
    let mut table = [0; 481];
    let mut i = 0;
    while i < table.len() {
        // Four times the middle of the interval, to stay with integers.
        let middle = 2 * (i as i32) - 4 * 127 + 1;
        let mut best = 0;
        while best < 15 && middle > 2 * (CODEBOOK[best] as i32 + CODEBOOK[best + 1] as i32) {
            best += 1;
        }
        table[i] = best as u8;
        i += 1;
    }
    table
};

fn nearest_code(v: f32) -> u8 {
    let v = v.clamp(CODEBOOK_F32[0], CODEBOOK_F32[15]);
    NEAREST[((v - CODEBOOK_F32[0]) * 2.0) as usize]
}

fn fit(weights: &[f32; SMALL_BLOCK]) -> f32 {
    fit_scale(
        weights,
        |v| CODEBOOK_F32[usize::from(nearest_code(v))],
        &REACH,
        &STRETCHES,
    )
}

fn codes(weights: &[f32; SMALL_BLOCK], scale: f32) -> [u8; 16] {
    let inv = inverse(scale);
    pack_nibbles(&weights.map(|w| nearest_code(w * inv)))
}

impl Quantize<SMALL_BLOCK> for Iq4Nl {
    fn quantize(weights: &[f32; SMALL_BLOCK]) -> Self {
        let d = narrow(normalised(weights).map_or(0.0, |(scaled, largest)| fit(&scaled) * largest));
        Iq4Nl {
            d,
            qs: codes(weights, widen(d)),
        }
    }
}

impl Quantize<SUPER_BLOCK> for Iq4Xs {
    fn quantize(weights: &[f32; SUPER_BLOCK]) -> Self {
        let (runs, _) = weights.as_chunks::<SMALL_BLOCK>();
        let mut fits = [0.0; 8];
        let mut largest = 0.0;
        if let Some((scaled, unit)) = normalised(weights) {
            largest = unit;
            let (scaled, _) = scaled.as_chunks::<SMALL_BLOCK>();
            fits = std::array::from_fn(|i| fit(&scaled[i]));
        }
        // The largest scale becomes -32, which has one more step than +32.
        let d = narrow(-extreme(&fits) * largest / 32.0);
        let inv = largest * inverse(widen(d));
        let scales = fits.map(|s| code(s * inv, -32.0, 31.0));

        let (mut low, mut high) = (0u32, 0u16);
        for (i, scale) in scales.iter().enumerate() {
            let bits = (scale + 32.0) as u16;
            low |= u32::from(bits & 15) << (4 * i);
            high |= (bits >> 4) << (2 * i);
        }
        Iq4Xs {
            d,
            scales_h: high.to_le_bytes(),
            scales_l: low.to_le_bytes(),
            qs: std::array::from_fn(|i| codes(&runs[i], widen(d) * scales[i])),
        }
    }
}
