//! Random numbers and weights.

use half::{bf16, f16};

use crate::model::Weight;
use crate::quant::GgmlType;
use crate::random;

/// A generator of what cases are given.
pub(crate) struct Random(random::Random);

impl Random {
    pub const fn new(seed: u64) -> Self {
        Self(random::Random::new(seed))
    }

    /// Uniform in [0, 1).
    pub fn uniform(&mut self) -> f32 {
        (self.0.next_bits() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Uniform in 0..n.
    pub fn below(&mut self, n: usize) -> usize {
        (self.0.next_bits() % n as u64) as usize
    }

    /// Brings `all` into a random order.
    pub fn shuffle<T>(&mut self, all: &mut [T]) {
        for i in (1..all.len()).rev() {
            all.swap(i, self.below(i + 1));
        }
    }

    /// `n` normally distributed numbers, of mean 0 and variance 1 (Box-Muller).
    pub fn normals(&mut self, n: usize) -> Vec<f32> {
        let normal = |_| {
            let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
            radius * (std::f32::consts::TAU * self.uniform()).cos()
        };
        (0..n).map(normal).collect()
    }

    /// A weight of random values, scaled so that a product with normal inputs is of size 1.
    ///
    /// Quantised blocks are random bytes but for their f16 scales: every pattern of bits occurs, also those no quantiser
    /// writes.
    pub fn weight(&mut self, ty: GgmlType, groups: usize, rows: usize, cols: usize) -> Weight {
        let n = groups * rows * cols;
        let size = 1.0 / (cols as f32).sqrt();
        let mut values = |n| self.normals(n).into_iter().map(|x| x * size);
        let bytes: Vec<u8> = match ty {
            GgmlType::F32 => values(n).flat_map(f32::to_le_bytes).collect(),
            GgmlType::F16 => {
                let halves = values(n).map(f16::from_f32);
                halves.flat_map(f16::to_le_bytes).collect()
            }
            GgmlType::BF16 => {
                let halves = values(n).map(bf16::from_f32);
                halves.flat_map(bf16::to_le_bytes).collect()
            }
            _ => self.blocks(ty, n / ty.block_len(), size),
        };
        Weight::from_bytes(format!("random {ty}"), ty, groups, rows, cols, bytes)
    }

    fn blocks(&mut self, ty: GgmlType, blocks: usize, size: f32) -> Vec<u8> {
        let mut bytes = vec![0; blocks * ty.block_bytes()];
        self.0.fill(&mut bytes);
        for block in bytes.chunks_exact_mut(ty.block_bytes()) {
            for &(offset, step) in f16_fields(ty) {
                let scale = f16::from_f32(step * size * (0.5 + self.uniform()));
                block[offset..offset + 2].copy_from_slice(&scale.to_le_bytes());
            }
        }
        bytes
    }
}

/// Byte offset of each f16 in a block, and what it is for weights of size 1 (ggml-common.h); none for float types.
const fn f16_fields(ty: GgmlType) -> &'static [(usize, f32)] {
    match ty {
        GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 => &[],
        GgmlType::Q4_0 => &[(0, 0.2)],
        GgmlType::Q4_1 => &[(0, 0.2), (2, -1.5)],
        GgmlType::Q5_0 => &[(0, 0.1)],
        GgmlType::Q5_1 => &[(0, 0.1), (2, -1.6)],
        GgmlType::Q8_0 => &[(0, 0.013)],
        GgmlType::Q2_K => &[(80, 0.1), (82, 0.15)],
        GgmlType::Q3_K => &[(108, 0.02)],
        GgmlType::Q4_K => &[(0, 0.006), (2, 0.045)],
        GgmlType::Q5_K => &[(0, 0.003), (2, 0.045)],
        GgmlType::Q6_K => &[(208, 7e-4)],
        GgmlType::IQ4_NL => &[(0, 0.015)],
        GgmlType::IQ4_XS => &[(0, 8e-4)],
    }
}
