//! How the next token is chosen from the logits.

/// The parameters of a choice that every backend makes. Their order and meaning are those of llama.cpp's default chain
/// (common/common.h, src/llama-sampler.cpp): penalties, top-k, top-p, min-p, temperature, draw.
///
/// Top-p and min-p look at the probabilities before the temperature is applied.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Divides the logits before the draw; 0 takes the best token (greedy) and makes all else but the penalties idle.
    pub temperature: f32,
    /// Keeps this many of the best tokens; 0 keeps all.
    pub top_k: u32,
    /// Keeps the fewest best tokens whose probabilities reach this sum; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least this fraction as probable as the best one; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of recent tokens, once per distinct token; 1 is off.
    pub repeat_penalty: f32,
    /// Taken from the logits of recent tokens, once per distinct token; 0 is off.
    pub presence_penalty: f32,
    /// Taken from the logit of a recent token as many times as it occurs among them; 0 is off.
    pub frequency_penalty: f32,
    /// The number of last tokens (prompt included) that are recent; 0 is off, the greatest number is the whole context.
    pub repeat_last_n: u32,
    /// Seed of the draws: the same seed, prompt and parameters give the same text.
    pub seed: u64,
}

impl Sampling {
    /// Always the most probable token, no penalty.
    pub const GREEDY: Sampling = Sampling {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repeat_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        repeat_last_n: 64,
        seed: 0,
    };

    /// llama.cpp's defaults, for a model that nobody recommends anything for.
    pub const DEFAULT: Sampling = Sampling {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.05,
        ..Self::GREEDY
    };

    /// A seed that differs each time. It has 32 bits, so that it is short to type again.
    pub fn random_seed() -> u64 {
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one(0) >> 32
    }

    /// The settings with a random seed.
    pub fn with_random_seed(self) -> Self {
        Self {
            seed: Self::random_seed(),
            ..self
        }
    }

    /// Whether recent tokens are penalised in any way.
    pub fn penalises(&self) -> bool {
        self.repeat_last_n > 0
            && (self.repeat_penalty != 1.0
                || self.presence_penalty != 0.0
                || self.frequency_penalty != 0.0)
    }

    /// The tokens the penalties apply to: the last `repeat_last_n` of the context, oldest first.
    pub fn recent<'a>(&self, context: &'a [u32]) -> &'a [u32] {
        &context[context.len().saturating_sub(self.repeat_last_n as usize)..]
    }
}

/// A uniform number in [0, 1), a multiple of 2^-24, from the seed and a step counter alone: no generator state, so that
/// any backend, in any order, draws the same. Steps count modulo 2^32.
///
/// Three rounds of the PCG output permutation (Jarzynski and Olano, "Hash Functions for GPU Rendering", JCGT 2020).
pub fn uniform(seed: u64, step: u64) -> f32 {
    let hash = pcg(pcg(pcg(seed as u32) ^ (seed >> 32) as u32) ^ step as u32);
    (hash >> 8) as f32 / (1u32 << 24) as f32
}

/// The PCG RXS-M-XS permutation of 32 bits after one step of its linear congruence.
fn pcg(x: u32) -> u32 {
    let state = x.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
    let word = ((state >> ((state >> 28) + 4)) ^ state).wrapping_mul(277_803_737);
    (word >> 22) ^ word
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn uniform_fills_the_unit_interval_evenly() {
        for seed in [0, 1, 0xdead_beef_0000_0000] {
            let mut bins = [0u32; 16];
            for step in 0..16_000 {
                let u = uniform(seed, step);
                assert!((0.0..1.0).contains(&u));
                bins[(u * 16.0) as usize] += 1;
            }
            // 1000 expected per bin; 150 is five standard deviations.
            assert!(
                bins.iter().all(|n| n.abs_diff(1000) < 150),
                "seed {seed}: {bins:?}"
            );
        }
    }

    #[test]
    fn seeds_and_steps_give_different_draws() {
        let draws = |seed: u64| {
            (0..8)
                .map(|step| uniform(seed, step).to_bits())
                .collect::<Vec<_>>()
        };
        let all: HashSet<_> = (0..64)
            .map(|bit| draws(1 << bit))
            .chain([draws(0)])
            .collect();
        assert_eq!(all.len(), 65, "each bit of the seed counts");
        let steps: HashSet<u32> = (0..4096).map(|step| uniform(7, step).to_bits()).collect();
        assert!(steps.len() > 4090, "{} distinct draws of 4096", steps.len());
    }

    #[test]
    fn recent_is_the_tail_of_the_context() {
        let s = Sampling {
            repeat_last_n: 2,
            ..Sampling::GREEDY
        };
        assert_eq!(s.recent(&[1, 2, 3]), [2, 3]);
        assert_eq!(s.recent(&[1]), [1]);
        assert_eq!(
            Sampling {
                repeat_last_n: 0,
                ..s
            }
            .recent(&[1, 2]),
            [0u32; 0]
        );
    }
}
