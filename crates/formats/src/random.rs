//! Random numbers that are the same for the same seed.

/// A generator of 64 bits at a time: splitmix64 (Steele, Lea, Flood 2014).
#[derive(Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The generator of this seed.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits.
    pub fn next_bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.state)
    }

    /// Fills `out` with random bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        let mut words = out.chunks_exact_mut(8);
        for word in &mut words {
            word.copy_from_slice(&self.next_bits().to_le_bytes());
        }
        let rest = words.into_remainder();
        let last = self.next_bits().to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }

    /// About normal, mean 0, standard deviation 1, never beyond 3.5: the sum of four uniform numbers.
    pub fn normal(&mut self) -> f32 {
        let bits = self.next_bits();
        let sum: u64 = (0..4).map(|i| bits >> (16 * i) & 0xFFFF).sum();
        // Four uniform numbers of width 1 have variance 4/12.
        (sum as f32 / 65536.0 - 2.0 + 2.0 / 65536.0) * 3f32.sqrt()
    }
}

/// Spreads every bit of `z` over all others: the output function of splitmix64.
pub const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
