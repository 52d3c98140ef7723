//! Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0, by the formulas of ggml-quants.c: the same bytes.

use super::{Quantize, extreme, inverse, narrow};
use crate::quant::legacy::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use crate::quant::types::SMALL_BLOCK;

fn range(weights: &[f32; SMALL_BLOCK]) -> (f32, f32) {
    let low = weights.iter().copied().fold(f32::MAX, f32::min);
    let high = weights.iter().copied().fold(f32::MIN, f32::max);
    (low, high)
}

/// Codes `q` and the scale d of weight = d (q - bias): the weight of largest magnitude becomes exactly -bias d.
fn symmetric(weights: &[f32; SMALL_BLOCK], bias: f32) -> ([u8; SMALL_BLOCK], f32) {
    let d = extreme(weights) / -bias;
    let inv = inverse(d);
    let top = 2 * bias as i8 - 1;
    let codes = weights.map(|w| ((w * inv + (bias + 0.5)) as i8).clamp(0, top) as u8);
    (codes, d)
}

/// Codes `q`, the scale d and the minimum m of weight = d q + m.
fn asymmetric(weights: &[f32; SMALL_BLOCK], top: i8) -> ([u8; SMALL_BLOCK], f32, f32) {
    let (low, high) = range(weights);
    let d = (high - low) / f32::from(top);
    let inv = inverse(d);
    let codes = weights.map(|w| (((w - low) * inv + 0.5) as i8).clamp(0, top) as u8);
    (codes, d, low)
}

/// The low nibbles of the codes as in the blocks.
pub(super) fn pack_nibbles(codes: &[u8; SMALL_BLOCK]) -> [u8; 16] {
    std::array::from_fn(|j| codes[j] & 15 | codes[j + 16] << 4)
}

fn fifth_bits(codes: &[u8; SMALL_BLOCK]) -> [u8; 4] {
    let mut bits = 0u32;
    for (j, &code) in codes.iter().enumerate() {
        bits |= u32::from(code >> 4) << j;
    }
    bits.to_le_bytes()
}

impl Quantize<SMALL_BLOCK> for Q4_0 {
    fn quantize(weights: &[f32; SMALL_BLOCK]) -> Self {
        let (codes, d) = symmetric(weights, 8.0);
        Q4_0 {
            d: narrow(d),
            qs: pack_nibbles(&codes),
        }
    }
}

impl Quantize<SMALL_BLOCK> for Q4_1 {
    fn quantize(weights: &[f32; SMALL_BLOCK]) -> Self {
        let (codes, d, m) = asymmetric(weights, 15);
        Q4_1 {
            d: narrow(d),
            m: narrow(m),
            qs: pack_nibbles(&codes),
        }
    }
}

impl Quantize<SMALL_BLOCK> for Q5_0 {
    fn quantize(weights: &[f32; SMALL_BLOCK]) -> Self {
        let (codes, d) = symmetric(weights, 16.0);
        Q5_0 {
            d: narrow(d),
            qh: fifth_bits(&codes),
            qs: pack_nibbles(&codes),
        }
    }
}

impl Quantize<SMALL_BLOCK> for Q5_1 {
    fn quantize(weights: &[f32; SMALL_BLOCK]) -> Self {
        let (codes, d, m) = asymmetric(weights, 31);
        Q5_1 {
            d: narrow(d),
            m: narrow(m),
            qh: fifth_bits(&codes),
            qs: pack_nibbles(&codes),
        }
    }
}

impl Quantize<SMALL_BLOCK> for Q8_0 {
    fn quantize(weights: &[f32; SMALL_BLOCK]) -> Self {
        let d = extreme(weights).abs() / 127.0;
        let inv = inverse(d);
        Q8_0 {
            d: narrow(d),
            // Ties away from zero, as C's roundf.
            qs: weights.map(|w| (w * inv).round() as i8),
        }
    }
}
