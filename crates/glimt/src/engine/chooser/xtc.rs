//! XTC, "exclude top choices": now and then the most probable tokens are left out.

use super::candidates::probabilities;
use crate::kernels::sample::{Candidate, rank};

/// The settings of XTC: when it applies, and to which tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Xtc {
    /// The probability with which it applies; 0 is off.
    pub probability: f32,
    /// Tokens at least so probable are left out, but for the least probable of them; above one half there cannot be two.
    pub threshold: f32,
}

impl Xtc {
    /// The threshold, if nobody says it.
    pub const THRESHOLD: f32 = 0.1;

    /// Leaves out the top choices where `u`, a number in [0, 1), says so.
    pub(super) fn apply(&self, candidates: &mut Vec<Candidate>, u: f32) {
        if u >= self.probability || self.threshold > 0.5 {
            return;
        }
        let probabilities = probabilities(candidates, 1.0);
        let top: Vec<Candidate> = candidates
            .iter()
            .zip(probabilities)
            .filter(|(_, p)| *p >= f64::from(self.threshold))
            .map(|(candidate, _)| *candidate)
            .collect();
        if let Some(last) = top.iter().max_by(|a, b| rank(a, b)) {
            candidates.retain(|c| rank(c, last).is_ge());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::candidates::candidates;
    use super::*;

    fn left(threshold: f32, probability: f32, u: f32) -> Vec<u32> {
        let logits = [0.4f32, 0.05, 0.3, 0.15, 0.1].map(f32::ln);
        let mut left = candidates(&logits);
        let xtc = Xtc {
            probability,
            threshold,
        };
        xtc.apply(&mut left, u);
        left.iter().map(|c| c.id).collect()
    }

    #[test]
    fn top_choices_are_left_out_but_the_last_of_them() {
        assert_eq!(left(0.14, 1.0, 0.9), [1, 3, 4]);
        assert_eq!(left(0.2, 1.0, 0.9), [1, 2, 3, 4]);
        assert_eq!(left(0.35, 1.0, 0.9), [0, 1, 2, 3, 4], "one alone stays");
        assert_eq!(left(0.45, 1.0, 0.9), [0, 1, 2, 3, 4]);
        assert_eq!(left(0.51, 1.0, 0.0), [0, 1, 2, 3, 4], "off");
        assert_eq!(left(0.0, 1.0, 0.9), [1], "the last of all stays");
    }

    #[test]
    fn it_applies_as_often_as_asked() {
        assert_eq!(left(0.1, 0.5, 0.5).len(), 5);
        assert!(left(0.1, 0.5, 0.49).len() < 5);
        assert_eq!(left(0.1, 0.0, 0.0).len(), 5);
    }
}
