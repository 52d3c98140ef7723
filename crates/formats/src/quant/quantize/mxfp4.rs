//! MXFP4, by the formula of ggml-quants.c: the same bytes.

use super::Quantize;
use super::legacy::pack_nibbles;
use crate::quant::mxfp4::{Mxfp4, VALUES, power};
use crate::quant::types::SMALL_BLOCK;

impl Quantize<SMALL_BLOCK> for Mxfp4 {
    fn quantize(weights: &[f32; SMALL_BLOCK]) -> Self {
        let largest = weights.iter().fold(0.0f32, |m, w| m.max(w.abs()));
        // The biased exponent of the largest weight; that of the largest value is 2.
        let e = (largest.to_bits() >> 23).saturating_sub(2) as u8;
        let d = power(e);
        let code = |w: f32| {
            let mut best = 0;
            for (i, &value) in VALUES.iter().enumerate() {
                let off = |value: i8| (d * f32::from(value) - w).abs();
                if off(value) < off(VALUES[best]) {
                    best = i;
                }
            }
            best as u8
        };
        Mxfp4 {
            e,
            qs: pack_nibbles(&weights.map(code)),
        }
    }
}
