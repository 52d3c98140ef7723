//! Decoding with drafts on the CPU: a step computes the last token and the drafts behind it at once.

use std::ops::ControlFlow;

use web_time::Instant;

use super::{CHUNK, CpuBackend, Work, chosen};
use crate::engine::apart::Heard;
use crate::engine::backend::{BackendError, OnToken, check_context};
use crate::engine::draft::{Drafter, Proposal, Verified};
use crate::kernels::logit_bias::Biases;
use crate::kernels::sampling::Sampling;

/// The most drafts of a step: any number would do, since a row of the CPU does not depend on those beside it.
pub(super) const MOST: usize = CHUNK / 2;

/// A text whose last tokens are drafts.
#[derive(Clone)]
struct Drafted {
    tokens: Vec<u32>,
    /// The tokens that are known.
    known: usize,
}

impl Drafted {
    fn drafts(&self) -> &[u32] {
        &self.tokens[self.known..]
    }
}

impl CpuBackend {
    /// [`Backend::decode_drafted`](crate::engine::backend::Backend::decode_drafted).
    pub(super) async fn decode_with(
        &self,
        context: &[u32],
        sampling: &Sampling,
        limit: usize,
        drafter: &mut dyn Drafter,
        on_token: &mut OnToken<'_>,
    ) -> Result<(), BackendError> {
        check_context(context, self.work().next, limit, self.n_ctx)?;
        let mut text = context.to_vec();
        for step in 0.. {
            let left = context.len() + limit - text.len();
            if left == 0 {
                break;
            }
            let began = Instant::now();
            let drafts = match step {
                // The first token is chosen from logits that are there.
                0 => vec![],
                _ => self.drafts(drafter.propose(&text, MOST.min(left - 1))),
            };
            let given = Drafted {
                known: text.len(),
                tokens: [&text[..], &drafts].concat(),
            };
            let chosen = self.chosen(given, step > 0, sampling).await?;
            let accepted = drafter.accepted(&drafts, &chosen);
            if step > 0 {
                drafter.verified(&Verified {
                    drafted: drafts.len(),
                    accepted,
                    took: began.elapsed(),
                });
            }
            for &token in chosen.iter().take(accepted + 1) {
                text.push(token);
                if on_token(token).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The ids that are proposed.
    fn drafts(&self, proposal: Proposal) -> Vec<u32> {
        match proposal {
            Proposal::Ids(ids) => ids,
            Proposal::None | Proposal::Predict(_) => vec![],
        }
    }

    /// The tokens chosen behind the last known token and behind each draft. The rows of these are `computed`, or else the logits of the last known
    /// token are there.
    async fn chosen(
        &self,
        given: Drafted,
        computed: bool,
        sampling: &Sampling,
    ) -> Result<Vec<u32>, BackendError> {
        let (sampling, biases) = (*sampling, self.biases.clone());
        let compute = move |work: &mut Work, _: &mut Heard<'_, ()>| {
            let how = (&sampling, &biases);
            match computed {
                true => work.verify(&given, how),
                false => Ok(vec![chosen(&work.last_logits, &given.tokens, how)?]),
            }
        };
        let unheard = &mut |()| ControlFlow::Continue(());
        self.computed(compute, unheard).await
    }
}

impl Work {
    /// Computes the last known token and the drafts: the tokens chosen behind each.
    fn verify(
        &mut self,
        given: &Drafted,
        how: (&Sampling, &Biases),
    ) -> Result<Vec<u32>, BackendError> {
        let Drafted { tokens, known } = given;
        let first = known - 1;
        self.check(&tokens[first..], first)?;
        // Rows of drafts may be wrong, so whoever goes on computes the last token again.
        self.next = 0;
        let unwatched = &mut |_| ControlFlow::Continue(());
        let Some(x) = self.chunk(&tokens[first..], 0, first, unwatched) else {
            return Ok(vec![]);
        };
        let mut ids = vec![];
        let logits = self.reference.head(&x);
        for (i, row) in logits.chunks_exact(self.vocab_size).enumerate() {
            match chosen(row, &tokens[..known + i], how) {
                Ok(id) => ids.push(id),
                // A row behind a wrong draft says nothing of the model.
                Err(_) if !given.drafts().starts_with(&ids) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::backend::Backend;
    use crate::engine::testing::{VOCAB, small_model};
    use crate::gpu::wait::Wait;
    use crate::kernels::products::Products;
    use crate::kernels::testing::Rng;
    use crate::models;
    use std::sync::Arc;

    /// Proposes what the text will be, with a wrong token here and there.
    struct Foresees {
        text: Vec<u32>,
        rng: Rng,
        steps: Vec<Verified>,
    }

    impl Drafter for Foresees {
        fn propose(&mut self, text: &[u32], most: usize) -> Proposal {
            assert!(self.text.starts_with(text), "the text is the same");
            let number = self.rng.below(9).min(most);
            let mut ids = self.text[text.len()..][..number].to_vec();
            for id in &mut ids {
                if self.rng.below(4) == 0 {
                    *id = self.rng.below(VOCAB as usize) as u32;
                }
            }
            match number {
                0 => Proposal::None,
                _ => Proposal::Ids(ids),
            }
        }

        fn verified(&mut self, step: &Verified) {
            self.steps.push(*step);
        }
    }

    fn sampled(rng: &mut Rng) -> Sampling {
        Sampling {
            temperature: [0.0, 0.8, 1.5][rng.below(3)],
            top_k: [0, 40][rng.below(2)],
            repeat_penalty: [1.0, 1.3][rng.below(2)],
            frequency_penalty: [0.0, 0.2][rng.below(2)],
            repeat_last_n: [3, 64][rng.below(2)],
            seed: rng.below(1000) as u64,
            ..Sampling::GREEDY
        }
    }

    #[test]
    fn drafts_leave_tokens_and_rows_what_they_are_without() {
        let mut rng = Rng::fresh();
        let model = models::load(Arc::new(small_model())).expect("it is supported");
        let mut backend = CpuBackend::new(model, Products::Quick, 200).expect("there is memory");
        for _ in 0..2 {
            let prompt: Vec<u32> = (0..5).map(|_| rng.below(VOCAB as usize) as u32).collect();
            let (sampling, limit) = (sampled(&mut rng), 24);
            let biases = [(rng.below(VOCAB as usize) as u32, 3.0)];
            backend.set_biases(Biases::new(&biases).expect("one is not too many"));
            // The answer may be broken off.
            let end = 1 + rng.below(2 * limit);
            let mut text = prompt.clone();
            let mut take = |token| {
                text.push(token);
                match text.len() < prompt.len() + end {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                }
            };
            backend.prefill(&prompt, 0).wait().expect("it fits");
            let decoded = backend.decode(&prompt, &sampling, limit, &mut take).wait();
            decoded.expect("it fits");
            let rows = 0..text.len() - 1;
            let wanted_rows = backend
                .read_rows(rows.clone())
                .wait()
                .expect("they are there");

            let mut foreseen = text.clone();
            foreseen.resize(prompt.len() + limit, 7);
            let mut drafter = Foresees {
                text: foreseen,
                rng: Rng::fresh(),
                steps: vec![],
            };
            let wanted = std::mem::replace(&mut text, prompt.clone());
            let mut take = |token| {
                text.push(token);
                match text.len() < prompt.len() + end {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                }
            };
            backend.fill_cache(200).wait().expect("it fits");
            backend.prefill(&prompt, 0).wait().expect("it fits");
            let decoded =
                backend.decode_drafted(&prompt, &sampling, limit, &mut drafter, &mut take);
            decoded.wait().expect("it fits");
            assert_eq!(text, wanted, "{sampling:?}");
            let found = backend.read_rows(rows).wait().expect("they are there");
            assert!(found == wanted_rows, "rows are others");
            let [drafted, accepted] = [|s: &Verified| s.drafted, |s: &Verified| s.accepted]
                .map(|of| drafter.steps.iter().map(of).sum::<usize>());
            assert!(accepted <= drafted);
            let given = drafter.steps.len() + accepted + 1;
            assert!(text.len() - prompt.len() <= given, "{:?}", drafter.steps);
        }
    }
}
