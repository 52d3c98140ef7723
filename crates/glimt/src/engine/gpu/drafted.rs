//! Decoding with drafts: a step computes the last token and its drafts, and the host compares these with what was chosen.

use super::GpuBackend;
use super::batch::compiled::ReadyDrafts;
use super::flight::Stretch;
use crate::engine::backend::{BackendError, OnToken};
use crate::engine::batch::{BatchStep, BatchToken, Prediction};
use crate::engine::draft::{Drafter, MOST_PREDICTED, Proposal, Verified};
use crate::gpu::GpuError;
use crate::kernels::keep_states::KEPT;
use crate::kernels::logit_bias::Biases;
use crate::kernels::sampling::Sampling;
use std::ops::ControlFlow;
use web_time::Instant;

/// An answer that is being decoded.
struct Answered<'a, 'b> {
    /// Its context and all tokens so far.
    text: Vec<u32>,
    /// Tokens that may still come.
    left: usize,
    /// The most drafts of a step that is compiled.
    ready: ReadyDrafts,
    sampling: &'a Sampling,
    drafter: &'a mut dyn Drafter,
    on_token: &'a mut OnToken<'b>,
    /// The end of the step before.
    before: Instant,
}

impl Answered<'_, '_> {
    /// The drafts of the step of the last token: none of which no room is left for, of ids only those below `vocab`, and at most `predicts` of the
    /// prediction layer.
    fn propose(&mut self, vocab: usize, predicts: usize) -> Proposal {
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

    /// Takes the tokens that a step gave.
    fn take(&mut self, ids: &[u32]) -> ControlFlow<()> {
        for id in ids {
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
    fn tell(&mut self, drafted: usize, accepted: usize) {
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
                proposal => self.verify(&mut answered, proposal).await?,
            };
        }
        Ok(self.gpu().done().await?)
    }

    /// Compiles the steps with drafts of the prediction layer, where there is one, which would hold up an answer otherwise.
    pub(super) async fn prepare_predicted(&mut self) -> Result<(), GpuError> {
        let most = self.batch.recipes.predicts().min(MOST_PREDICTED);
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

    fn vocab(&self) -> usize {
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
        let (mut drafts, mut predictions) = (vec![], vec![]);
        let count = match proposal {
            Proposal::None => 0,
            Proposal::Ids(ids) => {
                self.batch.write_ids(0, last + 1, &ids);
                drafts = ids;
                drafts.len()
            }
            Proposal::Predict(count) => {
                predictions.push(self.prediction(last, count));
                count
            }
        };
        let rows = count + 1;
        let token = |position: usize| BatchToken {
            sequence: 0,
            position: position as u32,
        };
        let tokens: Vec<_> = (last..last + rows).map(token).collect();
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
        let flight = flight.await?;
        // Mostly the next step is like this one.
        let predicted = predictions.first().map_or(0, |of| of.drafts as usize);
        if answered.left > 2 * rows {
            let next: Vec<_> = (last + rows..last + 2 * rows).map(token).collect();
            self.batch
                .encode_ahead(&next, predicted, !biases.is_empty());
        }
        let landing = self.batch.land(flight).await?;
        if !predictions.is_empty() {
            drafts = landing.drafts;
            self.batch.layer_rows = last + 1;
        }
        let accepted = answered.drafter.accepted(&drafts, &landing.ids);
        let broken = &landing.broken[..=accepted];
        if let Some(row) = broken.iter().position(|broken| *broken) {
            let position = last + row;
            return Err(BackendError::NotFinite { position });
        }
        answered.tell(count, accepted);
        Ok(answered.take(&landing.ids[..=accepted]))
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
