//! Perplexity by the method of llama.cpp's tools/perplexity/perplexity.cpp.

use std::ops::ControlFlow;

use super::backend::OnPrompt;
use super::log_softmax::log_sum_exp;
use super::{EngineError, Session};

/// Negative log-likelihoods collected chunk by chunk.
#[derive(Debug, Clone, Default)]
pub struct Perplexity {
    count: usize,
    sum: f64,
    sum_of_squares: f64,
}

impl Perplexity {
    /// Scores a chunk: each token of its second half, given all before it in the chunk. A model that begins its texts
    /// with a BOS token sees it in place of the chunk's first token. The session is started anew. `on_prompt` is told meanwhile how
    /// many tokens of the chunk are as good as evaluated. A break there ends it, and nothing of the chunk is scored: whether it was.
    ///
    /// # Errors
    /// The errors of [`Session::logits`], such as that of a chunk longer than the context.
    pub async fn add_chunk_watched(
        &mut self,
        session: &mut Session,
        chunk: &[u32],
        on_prompt: &mut OnPrompt<'_>,
    ) -> Result<bool, EngineError> {
        let mut tokens = chunk.to_vec();
        let tokenizer = session.engine().tokenizer();
        // An empty text is BOS alone, where the model's file asks for one.
        if tokenizer.encode("", true)?.first() == tokenizer.bos().as_ref()
            && let (Some(first), Some(bos)) = (tokens.first_mut(), tokenizer.bos())
        {
            *first = bos;
        }
        // The last token is only predicted: its own prediction would need the next chunk.
        tokens.pop();
        session.reset();
        let mut scores = self.clone();
        let on_row = &mut |pos: usize, logits: &[f32]| {
            // The chunk and not `tokens`: what is scored is the text, and BOS is never scored.
            let logit = logits[chunk[pos + 1] as usize];
            scores.add(log_sum_exp(logits) - f64::from(logit));
            ControlFlow::Continue(())
        };
        let evaluated = session
            .logits_watched(&tokens, chunk.len() / 2, on_prompt, on_row)
            .await?;
        let whole = evaluated == tokens.len();
        if whole {
            *self = scores;
        }
        Ok(whole)
    }

    fn add(&mut self, nll: f64) {
        self.count += 1;
        self.sum += nll;
        self.sum_of_squares += nll * nll;
    }

    /// Tokens scored so far.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Mean negative log-likelihood, in nats per token.
    pub fn mean(&self) -> f64 {
        self.sum / self.count as f64
    }

    /// The perplexity, e to the [`mean`](Self::mean).
    pub fn perplexity(&self) -> f64 {
        self.mean().exp()
    }

    /// The standard error of the perplexity: that of the mean, propagated through the exponential. Zero where it is
    /// not defined (fewer than two tokens).
    pub fn error(&self) -> f64 {
        if self.count < 2 {
            return 0.0;
        }
        let variance = self.sum_of_squares / self.count as f64 - self.mean().powi(2);
        (variance.max(0.0) / (self.count - 1) as f64).sqrt() * self.perplexity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_error_follow_their_definitions() {
        let values = [1.0, 2.5, 0.25, 3.0, 1.25];
        let mut scores = Perplexity::default();
        values.iter().for_each(|&nll| scores.add(nll));
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        // The unbiased variance over n is the biased one over n - 1.
        let unbiased = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
        assert_eq!(scores.count(), 5);
        assert!((scores.perplexity() - mean.exp()).abs() < 1e-12);
        assert!((scores.error() - (unbiased / n).sqrt() * mean.exp()).abs() < 1e-12);
    }

    #[test]
    fn a_uniform_guess_has_no_spread() {
        let mut scores = Perplexity::default();
        (0..100).for_each(|_| scores.add(4096f64.ln()));
        assert!((scores.perplexity() - 4096.0).abs() < 1e-6);
        assert!(scores.error() < 1e-3);
        assert_eq!(Perplexity::default().error(), 0.0);
    }
}
