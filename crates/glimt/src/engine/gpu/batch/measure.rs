//! The times at which the dispatches of a batch's step run, and what its prediction layer computes.

use super::{BatchStep, BatchToken, GpuBatch, Prediction, sites};
use crate::engine::gpu::measure::{DraftedPart, Separation, Timed};
use crate::gpu::GpuError;
use crate::gpu::call::{Listed, State, Taken};
use crate::gpu::geometry::Site;
use crate::gpu::record::Recording;
use crate::gpu::wait::Wait;
use crate::kernels::sample;
use crate::kernels::sampling::Sampling;
use std::collections::HashSet;
use std::sync::Arc;

impl GpuBatch {
    /// The parts of a step of the token at `last` and of `drafts` drafts behind it, which the prediction layer makes or which are given. All tokens of
    /// a step before, of as many drafts, count as accepted.
    ///
    /// # Errors
    /// The errors of [`prepare`](Self::prepare).
    pub(in crate::engine::gpu) async fn parts_of_drafted(
        &mut self,
        last: usize,
        drafts: usize,
        predicted: bool,
    ) -> Result<Vec<(DraftedPart, &Recording, State)>, GpuError> {
        let rows = drafts + 1;
        let token = |position: usize| BatchToken {
            sequence: 0,
            position: position as u32,
        };
        let tokens: Vec<_> = (last..last + rows).map(token).collect();
        let prediction = predicted.then(|| Prediction {
            sequence: 0,
            position: last as u32,
            behind: rows.min(last + 1) as u32,
            drafts: drafts as u32,
        });
        self.prepare(rows, rows).await?;
        let ordered = self.prepare_drafts(prediction.as_slice()).await?;
        let greedy = Sampling::GREEDY;
        let words = |token: &BatchToken| sample::words(&greedy, u64::from(token.position) + 1);
        let words: Vec<_> = tokens.iter().map(words).collect();
        let state = self.write(&tokens, &words);
        let chosen: Vec<_> = tokens.iter().map(|token| (token, &greedy)).collect();
        let of_drafts = self.replays_of_drafts(&ordered, &chosen, state);
        let names =
            (0..drafts).flat_map(|number| [DraftedPart::Layer(number), DraftedPart::Draft(number)]);
        let of_rows = [DraftedPart::Rows, DraftedPart::Choices].into_iter();
        let parts = names.zip(of_drafts);
        let parts = parts.chain(of_rows.zip(self.replays(rows, rows, state)));
        Ok(parts
            .map(|(part, (recording, state))| (part, recording, state))
            .collect())
    }

    /// The drafts that the prediction layer makes behind the token at `last`, the best ones, and the logits of the last of them, in a step that
    /// computes this token and so many of the drafts. The layer's rows up to that token are made if they are missing.
    ///
    /// # Errors
    /// The errors of [`submit`](Self::submit) and of [`land`](Self::land).
    pub(in crate::engine::gpu) async fn predicted(
        &mut self,
        last: usize,
        drafts: usize,
        computed: usize,
    ) -> Result<(Vec<u32>, Vec<f32>), GpuError> {
        let token = |position: usize| BatchToken {
            sequence: 0,
            position: position as u32,
        };
        let tokens: Vec<_> = (last..=last + computed).map(token).collect();
        let prediction = Prediction {
            sequence: 0,
            position: last as u32,
            behind: (last + 1).saturating_sub(self.layer_rows).max(1) as u32,
            drafts: drafts as u32,
        };
        let step = BatchStep {
            tokens: &tokens,
            choices: &vec![Sampling::GREEDY; tokens.len()],
            biases: &[],
            logits: &[],
            predictions: &[prediction],
        };
        let flight = self.submit(step).await?;
        let landing = self.land(flight).await?;
        self.layer_rows = last + 1;
        let logits = match &self.drafting {
            None => vec![],
            Some(of) => {
                let bytes = 4 * self.model.model.config().vocab_size as u64;
                let logits = &of.logits;
                (self.gpu().read(&logits.buffer, logits.offset, bytes)).await?
            }
        };
        Ok((landing.drafts, logits))
    }

    /// The sites of steps of up to `most` tokens, for which a geometry can be chosen. The steps need not be compiled yet.
    ///
    /// # Errors
    /// [`GpuError::TierUnsupported`].
    pub fn sites(&self, most: u32) -> Result<Vec<Site>, GpuError> {
        let most = self.class(most as usize);
        let step = self.recipes.step(self.gpu(), most)?;
        let drawn = most.min(self.sizes.most_drawn());
        let head = (self.recipes).head(self.gpu(), most, drawn, &self.logits)?;
        Ok(sites(&[step.calls, head.calls].concat()))
    }

    /// Experts of a layer that the last step of `tokens` tokens touched, on average over the layers whose lists are still there: all of
    /// them where each layer has buffers of its own, else the last. None without experts.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn experts_touched(&self, tokens: usize) -> Result<Option<f64>, GpuError> {
        if tokens == 1 {
            let experts = self.model.model.config().experts.as_ref();
            return Ok(experts.map(|experts| experts.used as f64));
        }
        let experts = self.model.model.config().experts.as_ref();
        let used = experts.map_or(0, |experts| experts.used);
        let Some(lists) = self.lists.get(&self.class(tokens)) else {
            return Ok(None);
        };
        let mut sum = 0;
        for Listed { tiles, words } in lists {
            let all: Vec<u32> = self
                .gpu()
                .read(&tiles.buffer, tiles.offset, tiles.size)
                .wait()?;
            let experts: HashSet<u32> = match words {
                1 => all.into_iter().take(tokens * used).collect(),
                _ => {
                    let used = all.chunks(*words as usize).filter(|tile| tile[2] > 0);
                    used.map(|tile| tile[0]).collect()
                }
            };
            sum += experts.len();
        }
        Ok((!lists.is_empty()).then(|| sum as f64 / lists.len() as f64))
    }

    /// Computes a step of `tokens`, after the first of which, as many as may be, the best token is chosen, and tells of each dispatch what it is and when it began
    /// and ended, in nanoseconds.
    ///
    /// # Errors
    /// The error that the device reports, also if it tells no times ([`GpuError::is_of_clock`]).
    pub fn time_dispatches(
        &mut self,
        tokens: &[BatchToken],
    ) -> Result<Vec<(Taken, [f64; 2])>, GpuError> {
        self.model.distrust_slots();
        let gpu = Arc::clone(&self.model.gpu);
        let mut all = vec![];
        for (recording, state) in self.ready(tokens).wait()? {
            let timed = Timed::submit(&gpu, recording, &state, Separation::Stamps)?;
            let times = timed.read(&gpu)?;
            all.extend(timed.taken.into_iter().zip(times));
        }
        Ok(all)
    }
}
