//! Lists of the tokens that are left, for samplers of the host.

use crate::kernels::sample::{Candidate, best, rank};

/// Has `left` hold every token of a row that is not excluded by a logit of minus infinity, in order of ids.
pub(super) fn refill(left: &mut Vec<Candidate>, logits: &[f32]) {
    let all = (0..).zip(logits);
    let all = all.filter(|(_, logit)| **logit > f32::NEG_INFINITY);
    left.clear();
    left.extend(all.map(|(id, &logit)| Candidate { id, logit }));
}

/// The tokens of a row that `refill` keeps.
#[cfg(test)]
pub(super) fn candidates(logits: &[f32]) -> Vec<Candidate> {
    let mut left = vec![];
    refill(&mut left, logits);
    left
}

/// The probabilities of the candidates among themselves, by the softmax of their logits.
pub(super) fn probabilities(candidates: &[Candidate], temperature: f32) -> Vec<f64> {
    let Some(best) = best(candidates) else {
        return vec![];
    };
    let masses: Vec<f64> = candidates
        .iter()
        .map(|c| (f64::from(c.logit - best.logit) / f64::from(temperature)).exp())
        .collect();
    let total: f64 = masses.iter().sum();
    masses.into_iter().map(|mass| mass / total).collect()
}

/// The number of candidates that are ranked at first, which is mostly enough for top-p.
const RANKED: usize = 256;

/// Keeps the fewest of the best whose probabilities reach `p`, never none. Not all need to be sorted for it.
pub(super) fn top_p(candidates: &mut Vec<Candidate>, p: f32) {
    let Some(best) = best(candidates) else {
        return;
    };
    if p >= 1.0 {
        return;
    }
    let mass = |c: &Candidate| f64::from(c.logit - best.logit).exp();
    let goal = f64::from(p) * candidates.iter().map(mass).sum::<f64>();
    let (mut sum, mut ranked, mut next) = (0.0, 0, RANKED);
    while ranked < candidates.len() {
        let end = next.min(candidates.len());
        if end < candidates.len() {
            candidates[ranked..].select_nth_unstable_by(end - ranked, rank);
        }
        candidates[ranked..end].sort_unstable_by(rank);
        for i in ranked..end {
            sum += mass(&candidates[i]);
            if sum >= goal {
                candidates.truncate(i + 1);
                return;
            }
        }
        (ranked, next) = (end, end * 8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::Rng;

    #[test]
    fn probabilities_are_those_of_the_softmax() {
        let logits = [0.5f32, 0.3, f32::NEG_INFINITY, 0.2].map(f32::ln);
        let kept = candidates(&[logits[0], logits[1], f32::NEG_INFINITY, logits[3]]);
        assert_eq!(kept.iter().map(|c| c.id).collect::<Vec<_>>(), [0, 1, 3]);
        let found = probabilities(&kept, 1.0);
        for (found, expected) in found.iter().zip([0.5, 0.3, 0.2]) {
            assert!((found - expected).abs() < 1e-6, "{found}");
        }
        // At temperature 1/2 they are squared: 25, 9 and 4 of 38.
        let found = probabilities(&kept, 0.5);
        assert!((found[1] - 9.0 / 38.0).abs() < 1e-6, "{found:?}");
        assert!(probabilities(&[], 1.0).is_empty());
    }

    #[test]
    fn top_p_keeps_what_sorting_all_would_keep() {
        let mut rng = Rng::fresh();
        for spread in [0.01, 1.0, 5.0] {
            let logits: Vec<f32> = rng.normals(5000).iter().map(|x| x * spread).collect();
            for p in [0.0, 0.3, 0.9, 0.999, 1.0] {
                let mut sorted = candidates(&logits);
                sorted.sort_unstable_by(rank);
                let mut sum = 0.0;
                let last = probabilities(&sorted, 1.0).into_iter().position(|mass| {
                    sum += mass;
                    sum >= f64::from(p) && p < 1.0
                });
                sorted.truncate(last.map_or(sorted.len(), |last| last + 1));
                let mut found = candidates(&logits);
                top_p(&mut found, p);
                found.sort_unstable_by(rank);
                // Sums in another order may differ by one token.
                assert!(
                    found.len().abs_diff(sorted.len()) <= 1,
                    "{p} at {spread}: {} and {}",
                    found.len(),
                    sorted.len()
                );
                let least = found.len().min(sorted.len());
                assert_eq!(found[..least], sorted[..least], "{p} at {spread}");
            }
        }
    }
}
