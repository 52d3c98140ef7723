//! When the dispatches of a batch's step run.

use super::{BatchToken, GpuBatch, Listed};
use crate::engine::gpu::measure::{Separation, Timed};
use crate::engine::gpu::sites;
use crate::gpu::GpuError;
use crate::gpu::call::{State, Taken};
use crate::gpu::geometry::Site;
use crate::gpu::record::Recording;
use crate::kernels::sample;
use crate::kernels::sampling::Sampling;
use std::collections::HashSet;

impl GpuBatch {
    /// What of steps of up to `most` tokens a geometry can be chosen for, for steps that are not compiled yet.
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
    /// What the device reports.
    pub fn experts_touched(&self, tokens: usize) -> Result<Option<f64>, GpuError> {
        if tokens == 1 {
            let experts = self.model.model.config().experts.as_ref();
            return Ok(experts.map(|experts| experts.used as f64));
        }
        let Some(lists) = self.lists.get(&self.class(tokens)) else {
            return Ok(None);
        };
        let mut sum = 0;
        for Listed { tiles, words } in lists {
            let all: Vec<u32> = self.gpu().read(&tiles.buffer, tiles.offset, tiles.size)?;
            let used = all.chunks(*words as usize).filter(|tile| tile[2] > 0);
            let experts: HashSet<u32> = used.map(|tile| tile[0]).collect();
            sum += experts.len();
        }
        Ok((!lists.is_empty()).then(|| sum as f64 / lists.len() as f64))
    }

    /// Compiles the step of `tokens` and its head and writes what they read. Returns the words of a replay of each: after as many of the
    /// first tokens as may be, the best one is chosen.
    ///
    /// # Errors
    /// Those of [`prepare_async`](Self::prepare_async).
    pub(in crate::engine::gpu) async fn ready_async(
        &mut self,
        tokens: &[BatchToken],
    ) -> Result<[State; 2], GpuError> {
        let drawn = self.drawn(tokens.len());
        self.prepare_async(tokens.len(), drawn).await?;
        let words =
            |token: &BatchToken| sample::words(&Sampling::GREEDY, u64::from(token.position) + 1);
        let choices: Vec<_> = tokens[..drawn].iter().map(words).collect();
        let state = State {
            slot: 0,
            ..self.write(tokens, &choices)
        };
        let head = State {
            tokens: drawn as u32,
            ..state
        };
        Ok([state, head])
    }

    /// The step of so many tokens and its head, once they are [ready](Self::ready_async).
    pub(in crate::engine::gpu) fn recordings(&self, tokens: usize) -> [&Recording; 2] {
        let head = self.head_of(tokens, self.drawn(tokens));
        [&self.steps[&self.class(tokens)], &self.heads[&head]]
    }

    /// Tokens of a step of so many after which one is chosen, at most.
    fn drawn(&self, tokens: usize) -> usize {
        tokens.min(self.sizes.most_drawn() as usize)
    }

    /// Computes a step of `tokens`, after the first of which, as many as may be, the best token is chosen, and tells of each dispatch what it is and when it began
    /// and ended, in nanoseconds.
    ///
    /// # Errors
    /// What the device reports, also if it tells no times ([`GpuError::is_of_clock`]).
    pub fn time_dispatches(
        &mut self,
        tokens: &[BatchToken],
    ) -> Result<Vec<(Taken, [f64; 2])>, GpuError> {
        let states = self.ready(tokens)?;
        let mut all = vec![];
        for (recording, state) in self.recordings(tokens.len()).into_iter().zip(&states) {
            let timed = Timed::submit(self.gpu(), recording, state, Separation::Stamps)?;
            let times = timed.read(self.gpu())?;
            all.extend(timed.taken.into_iter().zip(times));
        }
        Ok(all)
    }
}
