//! The search for scales: of many roundings of a group of weights the one whose least-squares fit leaves the smallest
//! squared error.
//!
//! Given the codes, the best scale (and minimum) is a linear regression in closed form; given the scale, the best
//! codes are the nearest ones. Neither finds the optimum alone, because the codes jump. So the scale that just covers
//! the group is stretched and shrunk in small steps, the weights are rounded at each, and the regression with the
//! smallest remainder wins. The fits want [`normalised`] weights: squares must not overflow or vanish.

use super::{code, extreme, inverse};

/// The weights divided by their largest magnitude, and that magnitude; `None` if all are so small that any scale
/// would be 0 as an f16.
pub(super) fn normalised<const N: usize>(weights: &[f32; N]) -> Option<([f32; N], f32)> {
    let largest = weights.iter().fold(0.0f32, |m, w| m.max(w.abs()));
    if largest < 1e-12 {
        return None;
    }
    Some((weights.map(|w| w / largest), largest))
}

/// weight = scale * code - min, with min >= 0.
#[derive(Clone, Copy, Default)]
pub(super) struct Affine {
    pub(super) scale: f32,
    pub(super) min: f32,
}

/// Fits weight = scale * code - min, codes in 0..=top, min >= 0, as Q2_K, Q4_K and Q5_K need it.
///
/// `stretches` are what is added to `top` when the group's range is divided into steps: below 0 some codes stay
/// unused, above 0 the largest weights are cut off.
pub(super) fn fit_affine<const N: usize>(
    weights: &[f32; N],
    top: f32,
    stretches: &[f32],
) -> Affine {
    let low = weights.iter().copied().fold(0.0, f32::min);
    let high = weights.iter().copied().fold(f32::MIN, f32::max);
    if high <= low {
        // All weights equal and not positive.
        return Affine {
            scale: 0.0,
            min: -low,
        };
    }
    let count = N as f32;
    let sum_x: f32 = weights.iter().sum();
    let mut best = Affine::default();
    let mut best_gain = f32::MIN;
    for stretch in stretches {
        let inv = (top + stretch) / (high - low);
        let [sum_q, sum_qq, sum_qx] = sums(weights, |w| code((w - low) * inv, 0.0, top));
        if sum_qq == 0.0 {
            continue;
        }
        let determinant = count * sum_qq - sum_q * sum_q;
        // 0 if all codes are equal: exactly, for these are integers below 2^24.
        let mut scale = (count * sum_qx - sum_q * sum_x) * inverse(determinant);
        let mut min = (sum_q * sum_qx - sum_qq * sum_x) * inverse(determinant);
        if determinant == 0.0 || min < 0.0 {
            min = 0.0;
            scale = sum_qx / sum_qq;
        }
        // The squared error is sum(x^2) less this.
        let gain = scale * (2.0 * sum_qx + 2.0 * min * sum_q - scale * sum_qq)
            - min * (2.0 * sum_x + count * min);
        if gain > best_gain {
            best_gain = gain;
            best = Affine { scale, min };
        }
    }
    best
}

/// Fits weight = scale * value(code), where `value` gives the value nearest to its argument, and `reach` is the value
/// that the weight of largest magnitude is put on, give or take one of `stretches`.
///
/// Returns the scale; 0 for weights that are all 0.
pub(super) fn fit_scale<const N: usize>(
    weights: &[f32; N],
    value: impl Fn(f32) -> f32,
    reach: &[f32],
    stretches: &[f32],
) -> f32 {
    let extreme = extreme(weights);
    if extreme == 0.0 {
        return 0.0;
    }
    let mut best = 0.0;
    let mut best_gain = 0.0;
    for reach in reach {
        for stretch in stretches {
            let inv = (reach + stretch) / extreme;
            let [_, sum_qq, sum_qx] = sums(weights, |w| value(w * inv));
            // With the best scale sum_qx / sum_qq the squared error is sum(x^2) less this.
            let gain = sum_qx * sum_qx * inverse(sum_qq);
            if gain > best_gain {
                best_gain = gain;
                best = sum_qx / sum_qq;
            }
        }
    }
    best
}

/// The sums of q, q^2 and q w, where q is `round(w)`.
fn sums<const N: usize>(weights: &[f32; N], round: impl Fn(f32) -> f32) -> [f32; 3] {
    // Eight sums of each, because a single chain of additions would not be vectorised.
    let mut lanes = [[0.0; 8]; 3];
    let (chunks, _) = weights.as_chunks::<8>();
    for chunk in chunks {
        for (lane, &w) in chunk.iter().enumerate() {
            let q = round(w);
            lanes[0][lane] += q;
            lanes[1][lane] += q * q;
            lanes[2][lane] += q * w;
        }
    }
    lanes.map(|lanes| lanes.iter().sum())
}
