//! Random numbers and weights.

use half::{bf16, f16};

use crate::model::Weight;
use crate::quant::{GgmlType, set_scales};
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
            set_scales(ty, block, || size * (0.5 + self.uniform()));
            // The two powers below the normal floats, which no quantiser is likely to write: such weights are nothing.
            if ty == GgmlType::MXFP4 && self.below(16) == 0 {
                block[0] = self.below(2) as u8;
            }
        }
        bytes
    }
}
