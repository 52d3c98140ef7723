//! Decoding with drafts: a step computes the last token and its drafts, and the host compares these with what was chosen.

use super::GpuBackend;
use super::batch::BatchFlight;
use super::batch::compiled::ReadyDrafts;
use super::flight::Stretch;
use crate::engine::backend::{BackendError, OnToken};
use crate::engine::batch::{BatchLanding, BatchStep, BatchToken, Prediction};
use crate::engine::draft::{Drafter, MOST_PREDICTED, Proposal, Verified};
use crate::gpu::GpuError;
use crate::kernels::keep_states::KEPT;
use crate::kernels::logit_bias::Biases;
use crate::kernels::sampling::Sampling;
use std::ops::ControlFlow;
use web_time::Instant;

/// An answer that is being decoded.
pub(super) struct Answered<'a, 'b> {
    /// Its context and all tokens so far.
    pub(super) text: Vec<u32>,
    /// Tokens that may still come.
    pub(super) left: usize,
    /// The most drafts of a step that is compiled.
    ready: ReadyDrafts,
    pub(super) sampling: &'a Sampling,
    pub(super) drafter: &'a mut dyn Drafter,
    on_token: &'a mut OnToken<'b>,
    /// The end of the step before.
    before: Instant,
}

impl Answered<'_, '_> {
    /// The drafts of the step of the last token: none of which no room is left for, of ids only those below `vocab`, and at most `predicts` of the
    /// prediction layer.
    pub(super) fn propose(&mut self, vocab: usize, predicts: usize) -> Proposal {
        let most = self.ready.most().min(self.left.saturating_sub(1));
        if most == 0 {
            return Proposal::None;
        }
        let mut proposal = self.drafter.propose(&self.text, most);
        let count = match &mut proposal {
            Proposal::None => 0,
            Proposal::Ids(ids) => {
                ids.truncate(most);
                let known = ids.iter().take_while(|id| (**id as usize) < vocab);
                let known = known.count();
                ids.truncate(known);
                known
            }
            Proposal::Predict(count) => {
                *count = (*count).min(most).min(predicts);
                *count
            }
        };
        match count {
            0 => Proposal::None,
            _ => proposal,
        }
    }

    /// Takes the tokens that a step gave, up to the end of the answer.
    pub(super) fn take(&mut self, ids: &[u32]) -> ControlFlow<()> {
        for id in ids.iter().take(self.left) {
            self.text.push(*id);
            self.left -= 1;
            (self.on_token)(*id)?;
        }
        match self.left {
            0 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }

    /// Tells the drafter what became of a step.
    pub(super) fn tell(&mut self, drafted: usize, accepted: usize) {
        let now = Instant::now();
        let took = now - std::mem::replace(&mut self.before, now);
        self.drafter.verified(&Verified {
            drafted,
            accepted,
            took,
        });
    }
}

impl GpuBackend {
    /// [`Backend::decode_drafted`](crate::engine::backend::Backend::decode_drafted).
    pub(super) async fn draft(
        &mut self,
        context: &[u32],
        sampling: &Sampling,
        limit: usize,
        drafter: &mut dyn Drafter,
        on_token: &mut OnToken<'_>,
    ) -> Result<(), BackendError> {
        self.begin_decode(context, limit)?;
        if limit == 0 {
            return Ok(());
        }
        let mut answered = Answered {
            text: context.to_vec(),
            left: limit,
            ready: self.batch.ready.clone(),
            sampling,
            drafter,
            on_token,
            before: Instant::now(),
        };
        // The first token is only chosen.
        let mut flow = self.fly_from(&mut answered, context.len(), 1).await?;
        while flow.is_continue() {
            flow = match answered.propose(self.vocab(), self.batch.recipes.predicts()) {
                Proposal::None => self.fly_from(&mut answered, context.len(), limit).await?,
                Proposal::Predict(count) if self.may_fly(count) => {
                    self.fly_predicted(&mut answered, count).await?
                }
                proposal => self.verify(&mut answered, proposal).await?,
            };
        }
        Ok(self.gpu().done().await?)
    }

    /// Compiles the steps with drafts of the prediction layer, where there is one, which would hold up an answer otherwise.
    pub(super) async fn prepare_predicted(&mut self) -> Result<(), GpuError> {
        let most = self.batch.recipes.predicts().min(MOST_PREDICTED);
        if self.batch.takes_unknown(most) {
            self.batch.prepare_unknown(most).await?;
        }
        let rows = self.batch.recipes.as_one();
        for drafts in 1..=most {
            self.batch.prepare(drafts + 1, drafts + 1).await?;
            let powers = (0..u32::BITS).map(|power| 1 << power);
            for behind in powers.take_while(|behind| *behind <= rows) {
                let prediction = Prediction {
                    sequence: 0,
                    position: behind - 1,
                    behind,
                    drafts: drafts as u32,
                };
                self.batch.prepare_drafts(&[prediction]).await?;
            }
        }
        Ok(())
    }

    /// Compiles the steps with drafts that are given as ids beside the answers. Until they are compiled answers have fewer drafts, and none waits.
    ///
    /// # Errors
    /// [`GpuError`] where such a step cannot be had.
    pub fn compile_drafts(&mut self) -> Result<(), GpuError> {
        if self.batch.sizes().drafts == 0 {
            return Ok(());
        }
        let predicted = self.batch.recipes.predicts().min(MOST_PREDICTED);
        self.batch.compile_given(predicted)
    }

    /// Compiles these steps now, for those who measure answers.
    ///
    /// # Errors
    /// [`GpuError`] where such a step cannot be had.
    pub async fn compile_drafts_now(&mut self) -> Result<(), GpuError> {
        self.batch.prepare_given().await
    }

    pub(super) fn vocab(&self) -> usize {
        self.batch.model.model.config().vocab_size
    }

    /// Computes tokens one by one, up to `end` of an answer behind `context` tokens, until drafts are proposed.
    async fn fly_from(
        &mut self,
        answered: &mut Answered<'_, '_>,
        context: usize,
        end: usize,
    ) -> Result<ControlFlow<()>, BackendError> {
        let (vocab, predicts) = (self.vocab(), self.batch.recipes.predicts());
        let sampling = answered.sampling;
        let begin = answered.text.len() - context;
        let stretch = Stretch::new(context, sampling, begin..end);
        let mut flow = ControlFlow::Continue(());
        let on_token = &mut |id| {
            if answered.text.len() > context {
                answered.tell(0, 0);
            }
            flow = answered.take(&[id]);
            let goes_on = flow.is_continue() && !stretch.is_stopped();
            if goes_on && answered.propose(vocab, predicts) != Proposal::None {
                stretch.stop();
            }
            flow
        };
        self.fly_over(&stretch, on_token).await?;
        Ok(flow)
    }

    /// Computes the last token and its drafts in one step.
    async fn verify(
        &mut self,
        answered: &mut Answered<'_, '_>,
        proposal: Proposal,
    ) -> Result<ControlFlow<()>, BackendError> {
        let last = answered.text.len() - 1;
        let (flight, mut drafts, predicted) = self.submit_drafted(answered, proposal).await?;
        let count = drafts.len().max(predicted);
        let rows = count + 1;
        // Mostly the next step is like this one.
        if answered.left > 2 * rows {
            let next = tokens(last + rows, rows);
            let is_biased = !self.biases.is_empty();
            self.batch.encode_ahead(&next, predicted, is_biased);
        }
        let landing = self.batch.land(flight).await?;
        if predicted > 0 {
            drafts = landing.drafts.clone();
            self.batch.layer_rows = last + 1;
        }
        let accepted = answered.drafter.accepted(&drafts, &landing.ids);
        let ids = accepted_ids(&landing, last, accepted)?;
        answered.tell(count, accepted);
        Ok(answered.take(ids))
    }

    /// Submits the step of the last token and its drafts, and returns those that are known and the number of those that the prediction layer makes.
    pub(super) async fn submit_drafted(
        &mut self,
        answered: &mut Answered<'_, '_>,
        proposal: Proposal,
    ) -> Result<(BatchFlight, Vec<u32>, usize), BackendError> {
        let last = answered.text.len() - 1;
        let (mut drafts, mut predictions) = (vec![], vec![]);
        match proposal {
            Proposal::None => {}
            Proposal::Ids(ids) => {
                self.batch.write_ids(0, last + 1, &ids);
                drafts = ids;
            }
            Proposal::Predict(count) => predictions.push(self.prediction(last, count)),
        }
        let predicted = predictions.first().map_or(0, |of| of.drafts as usize);
        let rows = drafts.len().max(predicted) + 1;
        let tokens = tokens(last, rows);
        let biases: Vec<Biases> = match self.biases.is_empty() {
            true => vec![],
            false => vec![self.biases.clone(); rows],
        };
        let choices = vec![*answered.sampling; rows];
        let flight = self.batch.submit(BatchStep {
            tokens: &tokens,
            choices: &choices,
            biases: &biases,
            logits: &[],
            predictions: &predictions,
        });
        Ok((flight.await?, drafts, predicted))
    }

    /// The drafts of the prediction layer behind the token at `last`, with its rows that are missing: as many as there are states for.
    pub(super) fn prediction(&self, last: usize, drafts: usize) -> Prediction {
        let most = KEPT.saturating_sub(self.batch.sizes().drafts + 1).max(1);
        let behind = (last + 1).saturating_sub(self.batch.layer_rows) as u32;
        Prediction {
            sequence: 0,
            position: last as u32,
            behind: behind.clamp(1, most),
            drafts: drafts as u32,
        }
    }
}

/// Tokens of the sequence from `first` on.
fn tokens(first: usize, count: usize) -> Vec<BatchToken> {
    let token = |position: usize| BatchToken {
        sequence: 0,
        position: position as u32,
    };
    (first..first + count).map(token).collect()
}

/// The tokens that a step at `last` gave, with so many accepted drafts.
pub(super) fn accepted_ids(
    landing: &BatchLanding,
    last: usize,
    accepted: usize,
) -> Result<&[u32], BackendError> {
    let broken = &landing.broken[..=accepted];
    match broken.iter().position(|broken| *broken) {
        Some(row) => Err(BackendError::NotFinite {
            position: last + row,
        }),
        None => Ok(&landing.ids[..=accepted]),
    }
}
