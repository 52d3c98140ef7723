//! Mirostat 2 (Basu et al., "Mirostat: A Neural Text Decoding Algorithm that Directly Controls Perplexity", 2021).

use super::candidates::probabilities;
use crate::kernels::sample::{Candidate, best, draw};

/// The target and how fast it is approached.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mirostat {
    /// The surprise of a token, in bits, that the answer shall have on average.
    pub tau: f32,
    /// The share of an error that the next choice corrects.
    pub eta: f32,
}

impl Mirostat {
    /// The target, if nobody says it.
    pub const TAU: f32 = 5.0;
    /// The share of an error that the next choice corrects, if nobody says it.
    pub const ETA: f32 = 0.1;
}

/// The state of Mirostat, learnt from the answer so far.
#[derive(Debug)]
pub(super) struct MirostatState {
    mirostat: Mirostat,
    /// The most surprise, in bits, that a token may have.
    most: f64,
}

impl MirostatState {
    pub(super) fn new(mirostat: Mirostat) -> Self {
        Self {
            mirostat,
            most: 2.0 * f64::from(mirostat.tau),
        }
    }

    /// Draws by `u` among the tokens whose surprise is not too great, at least the best, and learns from the choice.
    pub(super) fn choose(
        &mut self,
        candidates: &mut Vec<Candidate>,
        temperature: f32,
        u: f32,
    ) -> Option<u32> {
        let best = best(candidates)?;
        let surprise = |p: f64| -p.log2();
        let mut masses = probabilities(candidates, temperature).into_iter();
        candidates.retain(|c| {
            let mass = masses.next().unwrap_or(0.0);
            c.id == best.id || surprise(mass) <= self.most
        });
        let id = draw(candidates, best, temperature, u);
        let drawn = candidates.iter().position(|c| c.id == id)?;
        let observed = surprise(probabilities(candidates, temperature)[drawn]);
        let Mirostat { tau, eta } = self.mirostat;
        self.most -= f64::from(eta) * (observed - f64::from(tau));
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::super::candidates::candidates;
    use super::*;
    use crate::kernels::sampling::uniform;
    use crate::kernels::testing::Rng;

    #[test]
    fn what_is_too_surprising_is_left_out_and_the_bound_follows() {
        let logits = [0.5f32, 0.25, 0.125, 0.125].map(f32::ln);
        let mirostat = Mirostat { tau: 1.1, eta: 0.5 };
        let mut state = MirostatState::new(mirostat);
        // At most 2.2 bits at first: the tokens of 1 and 2 bits.
        let mut left = candidates(&logits);
        assert_eq!(state.choose(&mut left, 1.0, 0.999), Some(1));
        assert_eq!(left.len(), 2);
        // Among the two its probability is a third: 1.585 bits, half of 0.485 too many.
        assert!((state.most - (2.2 - 0.5 * 0.485)).abs() < 1e-3, "{state:?}");
        // The best is always left.
        state.most = 0.3;
        let mut left = candidates(&logits);
        assert_eq!(state.choose(&mut left, 1.0, 0.999), Some(0));
        assert!((state.most - 0.85).abs() < 1e-6, "{state:?}");
    }

    #[test]
    fn the_mean_surprise_comes_near_the_target() {
        let mut rng = Rng::fresh();
        let logits: Vec<f32> = rng.normals(2000).iter().map(|x| x * 2.0).collect();
        let all = probabilities(&candidates(&logits), 1.0);
        for tau in [2.0, 4.0] {
            let mut state = MirostatState::new(Mirostat { tau, eta: 0.1 });
            let mut sum = 0.0;
            for step in 0..3000 {
                let mut left = candidates(&logits);
                let before = state.most;
                let id = state.choose(&mut left, 1.0, uniform(7, step));
                assert!(id.is_some_and(|id| all[id as usize] > 0.0));
                // The change of the state tells the surprise observed.
                sum += f64::from(tau) + (before - state.most) / f64::from(0.1f32);
            }
            let mean = sum / 3000.0;
            assert!((mean - f64::from(tau)).abs() < 0.1, "{mean} for {tau}");
        }
    }
}
