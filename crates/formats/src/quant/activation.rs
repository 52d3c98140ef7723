//! Activations as signed bytes, for integer dot products with weights of the quantised types: the CPU twin of what the
//! shaders write and read.
//!
//! Sixteen values share a scale `s = max |x| / 127`, and each becomes the whole number nearest to `x / s`, the even one
//! of two (as WGSL's `round`). With weights `scale * code + offset` (`affine` and `codes` in `wgsl/shared`) half a unit
//! contributes `scale * s * dot(codes, bytes) + offset * s * sum(bytes)` to a dot product, so the last factor is kept
//! with the bytes.

use bytemuck::{Pod, Zeroable};

use super::halves::{BLOCK_UNITS, HalvesBlock};
use super::repack::{HALF, UNIT};

/// The form of a product's output for the next product of a decoded token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// [`Q8Unit`]s, for integer dot products.
    Bytes,
    /// [`HalvesBlock`]s.
    Halves {
        /// Whether the halves are multiplied in pairs, by codes that are halves as they stand, on devices that keep halves below the
        /// smallest normal one; else each is widened to f32 first.
        packed: bool,
    },
    /// f32.
    Floats,
}

impl Activation {
    /// The form's name in messages and files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Halves { packed: true } => "packed halves",
            Self::Halves { packed: false } => "halves",
            Self::Floats => "floats",
        }
    }

    /// Bytes of `units` units of 32 values: of whole blocks, where units come in blocks.
    pub const fn bytes(self, units: u64) -> u64 {
        match self {
            Self::Bytes => units * size_of::<Q8Unit>() as u64,
            Self::Halves { .. } => {
                units.div_ceil(BLOCK_UNITS as u64) * size_of::<HalvesBlock>() as u64
            }
            Self::Floats => units * (UNIT * size_of::<f32>()) as u64,
        }
    }

    /// Whether the values are halves, multiplied one way or the other.
    pub const fn is_halves(self) -> bool {
        matches!(self, Self::Halves { .. })
    }

    /// Whether values are rounded, so that what must not be, the choice of experts, is made from the f32 beside them.
    pub const fn rounds(self) -> bool {
        !matches!(self, Self::Floats)
    }
}

/// Values of which the largest is smaller become 0: their scale or its inverse would leave the normal f32, which a GPU may
/// flush to 0.
pub const SMALLEST: f32 = 1e-35;

/// 32 consecutive values, as three `vec4<u32>` of a storage buffer: values 0..16, values 16..32, `scales` and
/// `scaled_sums`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct Q8Unit {
    /// The values divided by their scale, in order, -127..=127.
    pub codes: [[i8; HALF]; 2],
    /// The scale of each half.
    pub scales: [f32; 2],
    /// Scale times sum of the codes, of each half.
    pub scaled_sums: [f32; 2],
}

const _: () = assert!(size_of::<Q8Unit>() == 48);

/// Quantises finite values, 32 per unit. The error of a value is at most half its scale, but for rounding in f32.
///
/// # Panics
/// If the length of `x` is no multiple of 32.
pub fn quantize_activation(x: &[f32]) -> Vec<Q8Unit> {
    let (units, rest) = x.as_chunks::<UNIT>();
    assert!(rest.is_empty(), "{} values are no whole units", x.len());
    units
        .iter()
        .map(|values| {
            let (halves, _) = values.as_chunks::<HALF>();
            let mut unit = Q8Unit::zeroed();
            for (i, values) in halves.iter().enumerate() {
                let (codes, scale) = quantize_half(values);
                let sum: i32 = codes.iter().map(|&code| i32::from(code)).sum();
                unit.codes[i] = codes;
                unit.scales[i] = scale;
                unit.scaled_sums[i] = scale * sum as f32;
            }
            unit
        })
        .collect()
}

/// Codes and scale of 16 values. The scale is no number, or infinite, where a value is.
#[inline(always)]
pub(super) fn quantize_half(values: &[f32; HALF]) -> ([i8; HALF], f32) {
    // As integers, floats without their signs have the same order, above which are infinity and what is no number. And sums of a value
    // below 2^22 with this one have it as a whole number in their lowest bits.
    const WHOLE: f32 = 12_582_912.0;
    let bits = values.map(|v| v.abs().to_bits());
    let largest = f32::from_bits(bits.into_iter().fold(0, u32::max));
    if largest < SMALLEST {
        return ([0; HALF], 0.0);
    }
    let inverse = 127.0 / largest;
    let codes = values.map(|v| (v * inverse + WHOLE).to_bits() as i8);
    (codes, largest / 127.0)
}

/// The values that the units stand for, 32 per unit.
pub fn dequantize_activation(units: &[Q8Unit]) -> Vec<f32> {
    units
        .iter()
        .flat_map(|unit| unit.codes.iter().zip(unit.scales))
        .flat_map(|(codes, scale)| codes.map(|code| scale * f32::from(code)))
        .collect()
}

/// The sum of the squares of every 16 values: what an RMS norm needs of the values besides themselves.
///
/// # Panics
/// If the length of `x` is no multiple of 16.
pub fn squares(x: &[f32]) -> Vec<f32> {
    let (halves, rest) = x.as_chunks::<HALF>();
    assert!(rest.is_empty(), "{} values are no whole halves", x.len());
    halves
        .iter()
        .map(|values| values.iter().map(|v| v * v).sum())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Rng;

    /// Normally distributed values, every half of a unit at a magnitude of its own.
    fn random_values(random: &mut Rng, units: usize) -> Vec<f32> {
        (0..2 * units)
            .flat_map(|_| {
                let magnitude = (4.0 * random.normal()).exp();
                std::array::from_fn::<f32, HALF, _>(|_| magnitude * random.normal())
            })
            .collect()
    }

    #[test]
    fn values_are_off_by_half_a_scale_at_most() {
        let mut random = Rng::fresh();
        let x = random_values(&mut random, 300);
        let units = quantize_activation(&x);
        let restored = dequantize_activation(&units);
        assert_eq!(restored.len(), x.len());
        for (i, (v, w)) in x.iter().zip(&restored).enumerate() {
            let scale = units[i / UNIT].scales[i % UNIT / HALF];
            // A code up to 127 is rounded after two operations of relative error 2^-24.
            assert!((v - w).abs() <= 0.5001 * scale, "value {i}: {w} for {v}");
        }
        for (i, half) in x.chunks(HALF).enumerate() {
            let largest = half.iter().fold(0.0f32, |max, v| max.max(v.abs()));
            let unit = &units[i / 2];
            assert_eq!(unit.scales[i % 2], largest / 127.0, "half {i}");
            let reach = unit.codes[i % 2].iter().map(|c| c.unsigned_abs()).max();
            assert_eq!(reach, Some(127), "half {i}");
        }
    }

    #[test]
    fn sums_belong_to_the_restored_values() {
        let mut random = Rng::fresh();
        let x = random_values(&mut random, 100);
        let units = quantize_activation(&x);
        for (i, half) in dequantize_activation(&units).chunks(HALF).enumerate() {
            let unit = &units[i / 2];
            let sum: f64 = half.iter().map(|&v| f64::from(v)).sum();
            let error = (f64::from(unit.scaled_sums[i % 2]) - sum).abs();
            // Sixteen products of up to 127 scales, each rounded to f32.
            let bound = 16.0 * 127.0 * f64::from(unit.scales[i % 2]) * 2f64.powi(-23);
            assert!(error <= bound, "half {i}: off by {error}");
        }
    }

    #[test]
    fn halfway_values_become_the_even_code() {
        let mut x = [0.0; UNIT];
        x[..7].copy_from_slice(&[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 125.5]);
        let unit = quantize_activation(&x)[0];
        assert_eq!(unit.codes[0][..7], [127, 0, 2, 2, 0, -2, 126]);
        assert_eq!(unit.scales, [1.0, 0.0]);
        assert_eq!(unit.scaled_sums, [255.0, 0.0]);
    }

    #[test]
    fn vanishing_values_become_zero_without_touching_their_neighbours() {
        for tiny in [0.0, -0.0, f32::from_bits(1), -0.9 * SMALLEST] {
            let mut x = [tiny; UNIT];
            x[HALF..].fill(-3.0);
            let unit = quantize_activation(&x)[0];
            assert_eq!(unit.codes, [[0; HALF], [-127; HALF]], "{tiny:e}");
            assert_eq!(unit.scales, [0.0, 3.0 / 127.0], "{tiny:e}");
            assert_eq!(unit.scaled_sums[0], 0.0, "{tiny:e}");
        }
        let unit = quantize_activation(&[SMALLEST; UNIT])[0];
        assert_eq!(unit.codes, [[127; HALF]; 2]);
        assert!(unit.scales.iter().all(|s| s.is_normal()));
    }

    #[test]
    fn a_unit_is_three_vec4_for_the_shaders() {
        let mut random = Rng::fresh();
        let unit = quantize_activation(&random_values(&mut random, 1))[0];
        let words: [u32; 12] = bytemuck::cast(unit);
        for i in 0..UNIT {
            let byte = (words[i / 4] >> (8 * (i % 4))) as i8;
            assert_eq!(byte, unit.codes[i / HALF][i % HALF], "value {i}");
        }
        let [s0, s1] = unit.scales;
        let [sum0, sum1] = unit.scaled_sums;
        assert_eq!(words[8..], [s0, s1, sum0, sum1].map(f32::to_bits));
    }

    #[test]
    fn squares_are_summed_per_half() {
        let mut random = Rng::fresh();
        let x = random_values(&mut random, 100);
        let squares = squares(&x);
        assert_eq!(squares.len(), x.len() / HALF);
        for (i, (half, got)) in x.chunks(HALF).zip(&squares).enumerate() {
            let sum: f64 = half.iter().map(|&v| f64::from(v).powi(2)).sum();
            let error = (f64::from(*got) - sum).abs();
            assert!(error <= 1e-6 * sum, "half {i}: {got} for {sum}");
        }
    }

    #[test]
    #[should_panic(expected = "48 values are no whole units")]
    fn half_a_unit_is_refused() {
        quantize_activation(&[1.0; 48]);
    }
}
