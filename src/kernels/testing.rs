//! Random inputs and exact (f64) expectations for the tests of the kernels.

pub(crate) mod bounds;
pub(crate) mod coop;

use std::hash::{BuildHasher, RandomState};

use half::{bf16, f16};

use crate::model::Weight;
use crate::quant::{GgmlType, dequantize_row};

/// A small random generator (SplitMix64) with a new seed in every run; the seed is printed with a failing test.
pub(crate) struct Rng(u64);

impl Rng {
    /// A generator seeded from the system's entropy.
    pub(crate) fn fresh() -> Self {
        let seed = RandomState::new().hash_one(0u8);
        eprintln!("random seed {seed:#x}");
        Rng(seed)
    }

    /// 64 random bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1).
    pub(crate) fn uniform(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Uniform in 0..n.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// Normally distributed values of mean 0 and variance 1 (Box-Muller).
    pub(crate) fn normals(&mut self, n: usize) -> Vec<f32> {
        let mut normal = || {
            let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
            radius * (std::f32::consts::TAU * self.uniform()).cos()
        };
        (0..n).map(|_| normal()).collect()
    }
}

/// `n` random rows of a cache, `width` values each, and three behind them that are NaN: reading one would show.
pub(crate) fn cache_rows(rng: &mut Rng, n: usize, width: usize) -> Vec<f16> {
    let values = rng.normals((n + 3) * width).into_iter();
    let mut cache: Vec<f16> = values.map(f16::from_f32).collect();
    cache[n * width..].fill(f16::NAN);
    cache
}

/// A weight of random values, scaled so that a product with normal inputs is of size 1.
///
/// Quantised blocks are random bytes but for their f16 scales: every pattern of bits occurs, also those no quantiser
/// writes.
pub(crate) fn random_weight(
    rng: &mut Rng,
    ty: GgmlType,
    groups: usize,
    rows: usize,
    cols: usize,
) -> Weight {
    let values = groups * rows * cols;
    let size = 1.0 / (cols as f32).sqrt();
    let bytes = match f16_fields(ty) {
        None => {
            let values = rng.normals(values).into_iter().map(|x| x * size);
            match ty {
                GgmlType::F32 => values.flat_map(f32::to_le_bytes).collect(),
                GgmlType::F16 => values
                    .flat_map(|x| f16::from_f32(x).to_le_bytes())
                    .collect(),
                _ => values
                    .flat_map(|x| bf16::from_f32(x).to_le_bytes())
                    .collect(),
            }
        }
        Some(fields) => {
            let blocks = values / ty.block_len();
            let mut bytes: Vec<u8> = (0..blocks * ty.block_bytes())
                .map(|_| rng.bits() as u8)
                .collect();
            for block in bytes.chunks_exact_mut(ty.block_bytes()) {
                for &(offset, step) in fields {
                    let scale = f16::from_f32(step * size * (0.5 + rng.uniform()));
                    block[offset..offset + 2].copy_from_slice(&scale.to_le_bytes());
                }
            }
            bytes
        }
    };
    Weight::from_bytes(
        format!("random {}", ty.name()),
        ty,
        groups,
        rows,
        cols,
        bytes,
    )
}

/// Byte offset of each f16 in a block, and what it is for weights of size 1 (ggml-common.h); none for float types.
fn f16_fields(ty: GgmlType) -> Option<&'static [(usize, f32)]> {
    match ty {
        GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 => None,
        GgmlType::Q4_0 => Some(&[(0, 0.2)]),
        GgmlType::Q4_1 => Some(&[(0, 0.2), (2, -1.5)]),
        GgmlType::Q5_0 => Some(&[(0, 0.1)]),
        GgmlType::Q5_1 => Some(&[(0, 0.1), (2, -1.6)]),
        GgmlType::Q8_0 => Some(&[(0, 0.013)]),
        GgmlType::Q2_K => Some(&[(80, 0.1), (82, 0.15)]),
        GgmlType::Q3_K => Some(&[(108, 0.02)]),
        GgmlType::Q4_K => Some(&[(0, 0.006), (2, 0.045)]),
        GgmlType::Q5_K => Some(&[(0, 0.003), (2, 0.045)]),
        GgmlType::Q6_K => Some(&[(208, 7e-4)]),
        GgmlType::IQ4_NL => Some(&[(0, 0.015)]),
        GgmlType::IQ4_XS => Some(&[(0, 8e-4)]),
    }
}

/// The exact products of every row of one group with `x`.
pub(crate) fn exact_rows(w: &Weight, group: usize, x: &[f32]) -> Vec<f64> {
    let mut values = vec![0.0f32; w.cols];
    (0..w.rows)
        .map(|row| {
            dequantize_row(w.ty, w.row(group, row), &mut values);
            values
                .iter()
                .zip(x)
                .map(|(a, b)| f64::from(*a) * f64::from(*b))
                .sum()
        })
        .collect()
}

/// `x * sigmoid(x)` in f64.
pub(crate) fn exact_silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// Sum of squared differences over sum of squared expectations.
pub(crate) fn nmse(found: &[f32], exact: &[f64]) -> f64 {
    assert_eq!(found.len(), exact.len());
    let error: f64 = found
        .iter()
        .zip(exact)
        .map(|(a, b)| (f64::from(*a) - b).powi(2))
        .sum();
    let size: f64 = exact.iter().map(|b| b * b).sum();
    if error == 0.0 { 0.0 } else { error / size }
}

/// Fails unless the NMSE is at most `limit`; a NaN fails.
#[track_caller]
pub(crate) fn assert_close(found: &[f32], exact: &[f64], limit: f64, what: &str) {
    let error = nmse(found, exact);
    assert!(
        error <= limit,
        "{what}: NMSE {error:.3e} is above {limit:.0e}"
    );
}
