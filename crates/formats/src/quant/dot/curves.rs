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
    let whole = |value: f32| simd.splat(value);
    // The second operand is the result where the other is no number.
    let x = simd.max(whole(-87.0), simd.min(whole(88.0), x));
    let exponents = simd.fma(x, whole(std::f32::consts::LOG2_E), whole(WHOLE));
    let n = simd.add(exponents, whole(-WHOLE));
    let r = simd.fma(n, whole(-HIGH), x);
    let r = simd.fma(n, whole(-LOW), r);
    // The Taylor series of e^r, for |r| up to ln 2 / 2.
    let mut sum = whole(1.0 / 5040.0);
    for factorial in [720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0f32] {
        sum = simd.fma(sum, r, whole(1.0 / factorial));
    }
    simd.times_power(sum, exponents)
}

/// Calls `each` with 16 values of `x` after the other, the last of which are filled up with `filler`, and stores what it returns.
#[inline(always)]
fn map<S: Simd>(
    simd: S,
    x: &mut [f32],
    filler: f32,
    mut each: impl FnMut(usize, S::Floats) -> S::Floats,
) {
    let (sixteens, rest) = x.as_chunks_mut::<FLOATS>();
    let count = sixteens.len();
    for (i, x) in sixteens.iter_mut().enumerate() {
        simd.store(each(i, simd.floats(x)), x);
    }
    if !rest.is_empty() {
        let mut last = [filler; FLOATS];
        last[..rest.len()].copy_from_slice(rest);
        simd.store(each(count, simd.floats(&last)), &mut last);
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// `gate[i] = silu(gate[i]) * up[i]`.
pub(super) struct SiluTimes<'a> {
    pub(super) gate: &'a mut [f32],
    pub(super) up: &'a [f32],
}

impl Work for SiluTimes<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (ups, rest) = self.up.as_chunks::<FLOATS>();
        let mut last = [0.0; FLOATS];
        last[..rest.len()].copy_from_slice(rest);
        map(simd, self.gate, 0.0, |i, gate| {
            let up = simd.floats(ups.get(i).unwrap_or(&last));
            let one = simd.splat(1.0);
            let grown = exp(simd, simd.mul(gate, simd.splat(-1.0)));
            simd.mul(simd.div(gate, simd.add(one, grown)), up)
        });
    }
}

/// `x[i] = e^(scale * x[i])` over the sum of all.
pub(super) struct Softmax<'a> {
    pub(super) x: &'a mut [f32],
    pub(super) scale: f32,
}

impl Work for Softmax<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let max = self.x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sum = simd.splat(0.0);
        let scale = simd.splat(self.scale);
        map(simd, self.x, f32::NEG_INFINITY, |_, x| {
            let shifted = simd.mul(simd.add(x, simd.splat(-max)), scale);
            let grown = exp(simd, shifted);
            sum = simd.add(sum, grown);
            grown
        });
        // What fills up the last vector gives e^-87, which no sum that has 1 in it notices.
        let norm = simd.splat(1.0 / simd.sum(sum));
        map(simd, self.x, 0.0, |_, x| simd.mul(x, norm));
    }
}
