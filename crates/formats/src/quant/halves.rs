//! Activations as f16 with a scale for every 16 values: the CPU twin of what the shaders write and read
//! (`wgsl/shared/halves.wgsl`).
//!
//! The scale is the power of two with which the largest of the 16 halves lies between 2^14 and 2^15. So halves lose only what
//! f16 rounds, and their products with codes, which stand for multiples of the smallest half, are normal halves. The sum of the
//! halves is kept beside them: a weight's offset meets it, and so does the bias of codes that become halves by their bits.

use super::repack::{HALF, UNIT};
use bytemuck::{Pod, Zeroable};
use half::f16;

/// Units of a block.
pub const BLOCK_UNITS: usize = 8;

/// 256 consecutive values, as 40 `vec4<u32>` of a storage buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct HalvesBlock {
    /// Value plane p holds values 8p..8p + 8 of every unit, in the order 0, 2, 1, 3, 4, 6, 5, 7.
    pub values: [[[f16; 8]; BLOCK_UNITS]; 4],
    /// The scale of each half of a unit, and the scale times the sum of the halves.
    pub scales: [[[f32; 2]; 2]; BLOCK_UNITS],
}

const _: () = assert!(size_of::<HalvesBlock>() == 640);

/// Values of which the largest is smaller become 0, so that a scale and its inverse are normal f32: above 2^-112.
const SMALLEST: f32 = 1e-33;

/// The exponent of the largest half.
const EXPONENT: u32 = 14;

/// The index of value i of 8 in its `vec4`. A mask of every other byte leaves the codes of a word in this order.
const PLACES: [usize; 8] = [0, 2, 1, 3, 4, 6, 5, 7];

/// Rounds finite values, the last block filled up with zeroes.
///
/// # Panics
/// If the length of `x` is no multiple of 32.
pub fn halve(x: &[f32]) -> Vec<HalvesBlock> {
    let (units, rest) = x.as_chunks::<UNIT>();
    assert!(rest.is_empty(), "{} values are no whole units", x.len());
    let mut blocks = vec![HalvesBlock::zeroed(); units.len().div_ceil(BLOCK_UNITS)];
    for (u, unit) in units.iter().enumerate() {
        let block = &mut blocks[u / BLOCK_UNITS];
        let (halves, _) = unit.as_chunks::<HALF>();
        for (h, values) in halves.iter().enumerate() {
            let largest = values.iter().fold(0.0f32, |max, v| max.max(v.abs()));
            let scale = scale(largest);
            let mut sum = 0.0;
            for (i, v) in values.iter().enumerate() {
                let half = f16::from_f32(if scale > 0.0 { v / scale } else { 0.0 });
                sum += f32::from(half);
                block.values[2 * h + i / 8][u % BLOCK_UNITS][PLACES[i % 8]] = half;
            }
            block.scales[u % BLOCK_UNITS][h] = [scale, scale * sum];
        }
    }
    blocks
}

/// The power of two by which a magnitude becomes a half between 2^14 and 2^15; 0 where it vanishes.
fn scale(largest: f32) -> f32 {
    if largest < SMALLEST {
        return 0.0;
    }
    f32::from_bits(((largest.to_bits() >> 23) - EXPONENT) << 23)
}

/// The first `n` values that the blocks stand for.
pub fn restore(blocks: &[HalvesBlock], n: usize) -> Vec<f32> {
    let value = |i: usize| {
        let (u, in_unit) = (i / UNIT, i % UNIT);
        let block = &blocks[u / BLOCK_UNITS];
        let half = block.values[in_unit / 8][u % BLOCK_UNITS][PLACES[in_unit % 8]];
        block.scales[u % BLOCK_UNITS][in_unit / HALF][0] * f32::from(half)
    };
    (0..n).map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Rng;

    fn random_values(random: &mut Rng, units: usize) -> Vec<f32> {
        (0..2 * units)
            .flat_map(|_| {
                let magnitude = (4.0 * random.normal()).exp();
                std::array::from_fn::<f32, HALF, _>(|_| magnitude * random.normal())
            })
            .collect()
    }

    #[test]
    fn values_lose_only_what_halves_round() {
        let mut random = Rng::fresh();
        for units in [1, 8, 27] {
            let x = random_values(&mut random, units);
            let blocks = halve(&x);
            let restored = restore(&blocks, x.len());
            for (i, (values, found)) in x.chunks(HALF).zip(restored.chunks(HALF)).enumerate() {
                let [scale, scaled_sum] = blocks[i / 16].scales[i / 2 % BLOCK_UNITS][i % 2];
                let largest = values.iter().fold(0.0f32, |max, v| max.max(v.abs()));
                let half = f16::from_f32(largest / scale).to_f32();
                assert!((16384.0..=32768.0).contains(&half), "half {i}: {half}");
                for (v, w) in values.iter().zip(found) {
                    // Half a unit in the last place; below 2^-14 that of the smallest normal half.
                    let step = v.abs().max(scale * 2f32.powi(-14)) * 2f32.powi(-11);
                    assert!((v - w).abs() <= step, "half {i}: {w} for {v}");
                }
                let sum: f32 = found.iter().sum();
                assert!((sum - scaled_sum).abs() <= 1e-5 * largest, "half {i}");
            }
        }
    }

    #[test]
    fn the_largest_and_the_smallest_values_stay_finite() {
        let mut x = [3e38f32; 2 * UNIT];
        x[HALF..UNIT].fill(0.9 * SMALLEST);
        x[UNIT..].fill(SMALLEST);
        let restored = restore(&halve(&x), x.len());
        assert!(
            restored[..HALF]
                .iter()
                .all(|v| (v / 3e38 - 1.0).abs() < 1e-3)
        );
        assert!(restored[HALF..UNIT].iter().all(|v| *v == 0.0));
        assert!(
            restored[UNIT..]
                .iter()
                .all(|v| (v / SMALLEST - 1.0).abs() < 1e-3)
        );
    }

    #[test]
    fn a_block_is_five_planes_for_the_shaders() {
        let mut random = Rng::fresh();
        let x = random_values(&mut random, BLOCK_UNITS);
        let words: [u32; 160] = bytemuck::cast(halve(&x)[0]);
        for unit in 0..BLOCK_UNITS {
            for i in 0..UNIT {
                let pair = [0, 1, 0, 1][i % 4] + 2 * (i / 4);
                let word = words[(pair / 4 * BLOCK_UNITS + unit) * 4 + pair % 4];
                let half = f16::from_bits((word >> (16 * (i % 4 / 2))) as u16);
                let scale = f32::from_bits(words[128 + unit * 4 + 2 * (i / HALF)]);
                let v = x[unit * UNIT + i];
                assert!(
                    (scale * f32::from(half) - v).abs() <= scale * 32.0,
                    "{unit} {i}"
                );
            }
        }
    }
}
