//! Exponentials: of SiLU and of softmax.

use super::simd::{FLOATS, Simd, Work};

/// `e^x`, to some 2^-22 of it for x from -87 to 88, and that of the nearest of these for others. What is no number stays none.
#[inline(always)]
fn exp<S: Simd>(simd: S, x: S::Floats) -> S::Floats {
    // Sums of a value below 2^22 with this one have it as a whole number in their lowest bits.
    const WHOLE: f32 = 12_582_912.0;
    // ln 2 in two parts, of which the first times a whole number of 8 bits is exact.
    const HIGH: f32 = 0.693_359_4;
    const LOW: f32 = -2.121_944_4e-4;
    // The second operand is the result where the other is no number.
    let x = simd.max(simd.splat(-87.0), simd.min(simd.splat(88.0), x));
    let log = simd.splat(std::f32::consts::LOG2_E);
    let exponents = simd.fma(x, log, simd.splat(WHOLE));
    let n = simd.add(exponents, simd.splat(-WHOLE));
    let r = simd.fma(n, simd.splat(-HIGH), x);
    let r = simd.fma(n, simd.splat(-LOW), r);
    // The Taylor series of e^r, for |r| up to ln 2 / 2.
    let mut sum = simd.splat(1.0 / 5040.0);
    for factorial in [720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0f32] {
        sum = simd.fma(sum, r, simd.splat(1.0 / factorial));
    }
    simd.times_power(sum, exponents)
}

/// 16 values of `x` from `16 * i` on, the last of which are filled up with `filler`.
#[inline(always)]
fn sixteen(x: &[f32], i: usize, filler: f32) -> [f32; FLOATS] {
    let rest = &x[FLOATS * i..];
    match rest.first_chunk() {
        Some(values) => *values,
        None => {
            let mut values = [filler; FLOATS];
            values[..rest.len()].copy_from_slice(rest);
            values
        }
    }
}

/// Stores what [`sixteen`] reads.
#[inline(always)]
fn store<S: Simd>(simd: S, values: S::Floats, x: &mut [f32], i: usize) {
    let rest = &mut x[FLOATS * i..];
    match rest.first_chunk_mut() {
        Some(to) => simd.store(values, to),
        None => {
            let mut last = [0.0; FLOATS];
            simd.store(values, &mut last);
            rest.copy_from_slice(&last[..rest.len()]);
        }
    }
}

// No closures here: they might become functions without the instructions.

/// `gate[i] = silu(gate[i]) * up[i]`.
pub(super) struct SiluTimes<'a> {
    pub(super) gate: &'a mut [f32],
    pub(super) up: &'a [f32],
}

impl Work for SiluTimes<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let one = simd.splat(1.0);
        for i in 0..self.gate.len().div_ceil(FLOATS) {
            let gate = simd.floats(&sixteen(self.gate, i, 0.0));
            let up = simd.floats(&sixteen(self.up, i, 0.0));
            let grown = exp(simd, simd.mul(gate, simd.splat(-1.0)));
            let opened = simd.mul(simd.div(gate, simd.add(one, grown)), up);
            store(simd, opened, self.gate, i);
        }
    }
}

/// `x[i] = e^(scale * (x[i] - the largest))`, with `scale` times the largest and the sum of the new values as `stats`.
pub(super) struct Exponentials<'a> {
    pub(super) x: &'a mut [f32],
    pub(super) scale: f32,
    pub(super) stats: &'a mut [f32; 2],
}

impl Work for Exponentials<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let count = self.x.len().div_ceil(FLOATS);
        let mut largest = simd.splat(f32::NEG_INFINITY);
        for i in 0..count {
            let x = simd.floats(&sixteen(self.x, i, f32::NEG_INFINITY));
            largest = simd.max(largest, x);
        }
        let mut sixteenths = [0.0; FLOATS];
        simd.store(largest, &mut sixteenths);
        let largest = sixteenths.into_iter().fold(f32::NEG_INFINITY, f32::max);
        let mut sum = simd.splat(0.0);
        for i in 0..count {
            let x = simd.floats(&sixteen(self.x, i, f32::NEG_INFINITY));
            let shifted = simd.add(x, simd.splat(-largest));
            let grown = exp(simd, simd.mul(shifted, simd.splat(self.scale)));
            // What fills up the last vector gives e^-87, which no sum that has 1 in it notices.
            sum = simd.add(sum, grown);
            store(simd, grown, self.x, i);
        }
        *self.stats = [self.scale * largest, simd.sum(sum)];
    }
}
