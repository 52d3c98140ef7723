//! Fresh random numbers for the tests of this module, with the seed shown when one fails.

use std::fmt;
use std::hash::{BuildHasher, RandomState};

/// A small generator (splitmix64), seeded anew in every run.
pub(crate) struct Random {
    seed: u64,
    state: u64,
}

impl Random {
    pub(crate) fn new() -> Self {
        let seed = RandomState::new().hash_one(0);
        Random { seed, state: seed }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..count.div_ceil(8))
            .flat_map(|_| self.next().to_le_bytes())
            .collect();
        bytes.truncate(count);
        bytes
    }

    /// Uniform in 0 < u < 1.
    fn uniform(&mut self) -> f32 {
        ((self.next() >> 41) as f32 + 0.5) / (1u32 << 23) as f32
    }

    /// Normally distributed (Box and Muller).
    pub(crate) fn normal(&mut self) -> f32 {
        let (radius, angle) = (self.uniform(), self.uniform());
        (-2.0 * radius.ln()).sqrt() * (std::f32::consts::TAU * angle).cos()
    }
}

impl fmt::Display for Random {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {:#x}", self.seed)
    }
}
