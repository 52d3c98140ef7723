//! Keeps what the model expected at each token of an answer.

use web_time::Duration;

use super::{Chooser, ChooserError};
use crate::engine::log_softmax::{best_of, log_sum_exp};

/// The log-probabilities that the model gave where a token was chosen, before any sampler. They are natural logarithms.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogProbs {
    /// The token that was chosen.
    pub token: u32,
    /// The log-probability of `token`.
    pub log_prob: f32,
    /// The most probable tokens with theirs, best first, equal ones by id.
    pub top: Vec<(u32, f32)>,
}

/// A chooser that keeps the log-probabilities of what another one chooses from.
pub struct LogProbs<C> {
    inner: C,
    most: Option<usize>,
    kept: Vec<TokenLogProbs>,
    /// The logits before the choice. Their memory is used again for each choice.
    before: Vec<f32>,
}

impl<C: Chooser> LogProbs<C> {
    /// Keeps the `most` best at each token that `inner` chooses; `None` keeps nothing, not even the token's own.
    pub fn new(inner: C, most: Option<usize>) -> Self {
        Self {
            inner,
            most,
            kept: vec![],
            before: vec![],
        }
    }

    /// The chooser whose choices are kept.
    pub fn inner(&mut self) -> &mut C {
        &mut self.inner
    }

    /// Takes what was kept since the last call.
    pub fn take(&mut self) -> Vec<TokenLogProbs> {
        std::mem::take(&mut self.kept)
    }

    /// The log-probabilities that were kept, also for a token that ended the answer; `None` where none were to be kept.
    pub fn kept(&self) -> Option<&[TokenLogProbs]> {
        self.most.map(|_| self.kept.as_slice())
    }
}

impl<C: Chooser> Chooser for LogProbs<C> {
    fn choose(&mut self, logits: &mut [f32], context: &[u32]) -> Result<u32, ChooserError> {
        let Some(most) = self.most else {
            return self.inner.choose(logits, context);
        };
        let sum = log_sum_exp(logits);
        let top = best_of(logits, most, sum);
        self.before.clear();
        self.before.extend_from_slice(logits);
        let token = self.inner.choose(logits, context)?;
        let logit = self.before.get(token as usize).copied().unwrap_or(f32::NAN);
        let log_prob = (f64::from(logit) - sum) as f32;
        self.kept.push(TokenLogProbs {
            token,
            log_prob,
            top,
        });
        Ok(token)
    }

    fn accept(&mut self, token: u32) -> Result<(), ChooserError> {
        self.inner.accept(token)
    }

    fn is_ready(&mut self, most: Duration) -> bool {
        self.inner.is_ready(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Excludes the best, then takes the last.
    struct Last;

    impl Chooser for Last {
        fn choose(&mut self, logits: &mut [f32], _: &[u32]) -> Result<u32, ChooserError> {
            logits.fill(0.0);
            Ok(logits.len() as u32 - 1)
        }
    }

    #[test]
    fn they_are_those_of_the_model() {
        let mut chooser = LogProbs::new(Last, Some(2));
        let mut logits = [0.125f32, 0.5, 0.25, 0.125].map(f32::ln);
        assert!(matches!(chooser.choose(&mut logits, &[]), Ok(3)));
        let Some([kept]) = chooser.kept() else {
            panic!("{:?}", chooser.kept());
        };
        assert_eq!(kept.token, 3);
        assert!((kept.log_prob - 0.125f32.ln()).abs() < 1e-6, "{kept:?}");
        let ids: Vec<u32> = kept.top.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, [1, 2]);
        assert!((kept.top[0].1 - 0.5f32.ln()).abs() < 1e-6, "{kept:?}");
        let mut chooser = LogProbs::new(Last, None);
        assert!(matches!(chooser.choose(&mut logits, &[]), Ok(3)));
        assert_eq!(chooser.kept(), None);
    }
}
