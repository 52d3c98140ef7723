//! Decoding with drafts on the CPU: a step computes the last token and the drafts behind it at once.

use std::ops::ControlFlow;

use web_time::Instant;

use super::{CHUNK, CpuBackend, Work, chosen};
use crate::engine::apart::Heard;
use crate::engine::backend::{BackendError, OnToken, check_context};
use crate::engine::draft::{Drafter, Proposal, Verified};
use crate::kernels::logit_bias::Biases;
use crate::kernels::sampling::Sampling;
use crate::models::Part;

/// The most drafts of a step: any number would do, since a row of the CPU does not depend on those beside it.
pub(super) const MOST: usize = CHUNK / 2;

/// The hidden states of the tokens that were computed last, after the last norm. The prediction layer takes them.
#[derive(Clone, Default)]
pub(super) struct States {
    /// The position of the first.
    first: usize,
    values: Vec<f32>,
}

impl States {
    /// The state of the token before `pos`; zeros at the beginning, or where it was not computed here.
    fn before(&self, pos: usize, width: usize) -> Vec<f32> {
        let index = pos.checked_sub(self.first + 1);
        let known = index.and_then(|index| self.values.get(index * width..(index + 1) * width));
        known.map_or_else(|| vec![0.0; width], <[f32]>::to_vec)
    }
}

/// The drafts of a step, and the tokens that were chosen behind its last known token and behind each draft.
struct Chosen {
    drafts: Vec<u32>,
    ids: Vec<u32>,
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
        let end = context.len() + limit;
        let mut text = context.to_vec();
        while text.len() < end {
            let began = Instant::now();
            // The first token is chosen from logits that are there.
            let proposal = match text.len() > context.len() {
                true => Some(drafter.propose(&text, MOST.min(end - text.len() - 1))),
                false => None,
            };
            let is_computed = proposal.is_some();
            let (known, sampling, biases) = (text.clone(), *sampling, self.biases.clone());
            let compute = move |work: &mut Work, _: &mut Heard<'_, ()>| {
                work.step(known, proposal, (&sampling, &biases))
            };
            let unheard = &mut |()| ControlFlow::Continue(());
            let Chosen { drafts, ids } = self.computed(compute, unheard).await?;
            let accepted = drafter.accepted(&drafts, &ids);
            if is_computed {
                drafter.verified(&Verified {
                    drafted: drafts.len(),
                    accepted,
                    took: began.elapsed(),
                });
            }
            for &token in ids.iter().take(accepted + 1) {
                text.push(token);
                if on_token(token).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

impl Work {
    /// A step behind the `known` tokens, whose last one has no cache row yet. Without a proposal the logits of that token are there already.
    fn step(
        &mut self,
        mut known: Vec<u32>,
        proposal: Option<Proposal>,
        how: (&Sampling, &Biases),
    ) -> Result<Chosen, BackendError> {
        let drafts = match proposal {
            None => {
                let ids = vec![chosen(&self.last_logits, &known, how)?];
                let drafts = vec![];
                return Ok(Chosen { drafts, ids });
            }
            Some(Proposal::None) => vec![],
            Some(Proposal::Ids(ids)) => ids,
            Some(Proposal::Predict(number)) => self.predict(&known, number, how),
        };
        let first = known.len() - 1;
        known.extend(&drafts);
        let ids = self.verify(&known, first, how)?;
        Ok(Chosen { drafts, ids })
    }

    /// Computes the last known token, which is at position `first`, and the drafts behind it: the tokens chosen behind each.
    fn verify(
        &mut self,
        tokens: &[u32],
        first: usize,
        how: (&Sampling, &Biases),
    ) -> Result<Vec<u32>, BackendError> {
        let step = &tokens[first..];
        self.check(step, first)?;
        // Rows of drafts may be wrong, so whoever goes on computes the last token again.
        self.next = 0;
        let unwatched = &mut |_| ControlFlow::Continue(());
        let Some(x) = self.chunk(step, 0, first, unwatched) else {
            return Ok(vec![]);
        };
        let mut ids = vec![];
        let logits = self.reference.head(&x);
        for (i, row) in logits.chunks_exact(self.vocab_size).enumerate() {
            match chosen(row, &tokens[..=first + i], how) {
                Ok(id) => ids.push(id),
                // A row behind a wrong draft says nothing of the model.
                Err(_) if !step[1..].starts_with(&ids) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(ids)
    }

    /// Up to `number` drafts of the prediction layer, each chosen by the number and the settings of its position. Rows behind that of the last
    /// known token stand on drafts; the step that computes these makes them anew.
    pub(super) fn predict(
        &mut self,
        known: &[u32],
        number: usize,
        how: (&Sampling, &Biases),
    ) -> Vec<u32> {
        let mut text = known.to_vec();
        if !self.model.nextn() {
            return vec![];
        }
        let mut state = self.states.before(known.len() - 1, self.embedding_length);
        for last in (known.len() - 1..).take(number) {
            let part = Part {
                tokens: 1,
                pos: last,
                pages: &[],
            };
            state = self.reference.predict(&text[last..], &state, &[part]);
            match chosen(&self.reference.predicted_head(&state), &text, how) {
                Ok(id) => text.push(id),
                Err(_) => break,
            }
        }
        text.split_off(known.len())
    }

    /// Keeps the states of tokens at `pos` that were computed, and makes their rows of the prediction layer, if there is one.
    pub(super) fn keep(&mut self, tokens: &[u32], pos: usize, x: &[f32]) {
        if !self.model.nextn() {
            return;
        }
        let values = self.reference.normed(x);
        let mut before = self.states.before(pos, self.embedding_length);
        before.extend(&values[..values.len() - self.embedding_length]);
        let part = Part {
            tokens: tokens.len(),
            pos,
            pages: &[],
        };
        self.reference.predict_rows(tokens, &before, &[part]);
        self.states = States { first: pos, values };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::backend::Backend;
    use crate::engine::testing::small_model;
    use crate::gpu::wait::Wait;
    use crate::kernels::products::Products;
    use crate::kernels::testing::Rng;
    use crate::model::NextnSource;
    use crate::models::mla::testing::Draft;
    use crate::models::{self};
    use std::ops::Range;
    use std::sync::Arc;

    /// Proposes what the text will be, with a wrong token here and there, or has the layer predict.
    struct Foresees {
        text: Vec<u32>,
        predicts: bool,
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
                    *id = self.rng.below(9) as u32;
                }
            }
            match number {
                0 => Proposal::None,
                _ if self.predicts => Proposal::Predict(number),
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

    /// A model with a prediction layer.
    fn with_layer() -> Arc<dyn models::Model> {
        let mut draft = Draft::glm(2);
        draft.add_nextn(2);
        let model = models::load_with_nextn(draft.open(), &NextnSource::Own);
        model.expect("it has the layer")
    }

    /// The text of an answer, which `end` may cut, and its rows of the cache.
    fn decoded(
        backend: &mut CpuBackend,
        prompt: &[u32],
        (sampling, limit, end): (&Sampling, usize, usize),
        drafter: Option<&mut dyn Drafter>,
    ) -> (Vec<u32>, Vec<u8>) {
        let mut text = prompt.to_vec();
        let take = &mut |token| {
            text.push(token);
            match text.len() < prompt.len() + end {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        };
        backend.fill_cache(60).wait().expect("it fits");
        backend.prefill(prompt, 0).wait().expect("it fits");
        let answer = match drafter {
            None => backend.decode(prompt, sampling, limit, take),
            Some(drafter) => backend.decode_drafted(prompt, sampling, limit, drafter, take),
        };
        answer.wait().expect("it fits");
        let rows = backend.read_rows(0..text.len() - 1).wait();
        (text, rows.expect("they are there"))
    }

    #[test]
    fn drafts_leave_tokens_and_rows_what_they_are_without() {
        let mut rng = Rng::fresh();
        for predicts in [false, true] {
            let model = match predicts {
                false => models::load(Arc::new(small_model())).expect("it is supported"),
                true => with_layer(),
            };
            let vocab = model.config().vocab_size;
            let mut backend = CpuBackend::new(model, Products::Quick, 60).expect("there is memory");
            let prompt: Vec<u32> = (0..5).map(|_| rng.below(vocab) as u32).collect();
            let (sampling, limit) = (sampled(&mut rng), 24);
            let biases = [(rng.below(vocab) as u32, 3.0)];
            backend.set_biases(Biases::new(&biases).expect("one is not too many"));
            // The answer may be broken off.
            let ends = (&sampling, limit, 1 + rng.below(2 * limit));
            let wanted = decoded(&mut backend, &prompt, ends, None);
            let mut drafter = Foresees {
                text: wanted.0.clone(),
                predicts,
                rng: Rng::fresh(),
                steps: vec![],
            };
            drafter.text.resize(prompt.len() + limit, 1);
            let found = decoded(&mut backend, &prompt, ends, Some(&mut drafter));
            assert_eq!(found.0, wanted.0, "{sampling:?}");
            assert!(found.1 == wanted.1, "rows are others");
            let steps = &drafter.steps;
            assert!(steps.iter().all(|step| step.accepted <= step.drafted));
            let given: usize = steps.iter().map(|step| step.accepted + 1).sum();
            assert!(given + 1 >= found.0.len() - prompt.len(), "{steps:?}");
        }
    }

    #[test]
    fn the_layer_predicts_by_the_states_of_the_tokens_before_however_they_were_computed() {
        let model = with_layer();
        let vocab = model.config().vocab_size;
        let mut backend = CpuBackend::new(model, Products::Exact, 64).expect("there is memory");
        let mut rng = Rng::fresh();
        let text: Vec<u32> = (0..12).map(|_| rng.below(vocab) as u32).collect();
        let how = (&Sampling::GREEDY, &Biases::default());
        let predicted = |backend: &mut CpuBackend, calls: &[Range<usize>]| {
            backend.fill_cache(64).wait().expect("it fits");
            for call in calls {
                let tokens = &text[call.clone()];
                backend.prefill(tokens, call.start).wait().expect("it fits");
            }
            backend.work().predict(&text, 3, how)
        };
        let whole = predicted(&mut backend, std::slice::from_ref(&(0..11)));
        assert_eq!(whole.len(), 3);
        assert_eq!(predicted(&mut backend, &[0..4, 4..5, 5..11]), whole);
        // Rows of wrong tokens are made anew.
        assert_eq!(predicted(&mut backend, &[0..4, 4..11, 9..11]), whole);
    }
}
