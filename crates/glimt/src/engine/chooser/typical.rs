//! Locally typical sampling (Meister et al., "Locally Typical Sampling", 2022).

use super::candidates::probabilities;
use crate::kernels::sample::{Candidate, rank};

/// Keeps those whose surprise is nearest to the entropy of all, until their probabilities exceed `p`; 1 keeps all.
pub(super) fn typical(candidates: &mut Vec<Candidate>, p: f32) {
    if p >= 1.0 {
        return;
    }
    let probabilities = probabilities(candidates, 1.0);
    // A token that has lost all its probability to rounding adds nothing to the entropy.
    let surprise = |mass: f64| -mass.max(f64::MIN_POSITIVE).ln();
    let entropy: f64 = probabilities.iter().map(|&p| p * surprise(p)).sum();
    let mut by_distance: Vec<(f64, f64, Candidate)> = candidates
        .drain(..)
        .zip(probabilities)
        .map(|(candidate, p)| ((surprise(p) - entropy).abs(), p, candidate))
        .collect();
    by_distance.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then_with(|| rank(&a.2, &b.2)));
    let mut sum = 0.0;
    for (_, mass, candidate) in by_distance {
        candidates.push(candidate);
        sum += mass;
        if sum > f64::from(p) {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::candidates::candidates;
    use super::*;

    fn kept(probabilities: &[f32], p: f32) -> Vec<u32> {
        let logits: Vec<f32> = probabilities.iter().map(|p| p.ln()).collect();
        let mut left = candidates(&logits);
        typical(&mut left, p);
        left.sort_unstable_by_key(|c| c.id);
        left.iter().map(|c| c.id).collect()
    }

    #[test]
    fn the_nearest_to_the_entropy_are_kept() {
        // The entropy is 1.218 nats. Surprises are 0.693, 1.386, 2.079 and 2.079: the second token is nearest, then the first.
        let even = [0.5, 0.25, 0.125, 0.125];
        assert_eq!(kept(&even, 0.2), [1]);
        assert_eq!(kept(&even, 0.5), [0, 1]);
        // The sum of the kept ones must exceed p: the first two sum up to 0.75. Of the last two the lower id comes first.
        assert_eq!(kept(&even, 0.8), [0, 1, 2]);
        assert_eq!(kept(&even, 0.9), [0, 1, 2, 3]);
        assert_eq!(kept(&even, 1.0), [0, 1, 2, 3]);
        // The best is the least typical where most of the mass is spread: entropy 2.5, surprises 1.2 and 2.6.
        let mut spread = vec![0.3];
        spread.extend([0.07; 10]);
        assert!(!kept(&spread, 0.5).contains(&0));
    }
}
