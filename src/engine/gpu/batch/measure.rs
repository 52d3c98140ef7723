//! When the dispatches of a batch's step run.

use super::{BatchToken, GpuBatch, Listed, sites};
use crate::engine::gpu::measure::{Separation, Timed};
use crate::gpu::GpuError;
use crate::gpu::call::{State, Taken};
use crate::gpu::geometry::Site;
use crate::gpu::record::Recording;
use crate::gpu::wait::Wait;
use crate::kernels::sample;
use crate::kernels::sampling::Sampling;
use std::collections::HashSet;
use std::sync::Arc;

impl GpuBatch {
    /// What of steps of up to `most` tokens a geometry can be chosen for, for steps that are not compiled yet.
    ///
    /// # Errors
    /// [`GpuError::TierUnsupported`].
    pub fn sites(&self, most: u32) -> Result<Vec<Site>, GpuError> {
        let most = self.class(most as usize);
        let step = self.recipes.step(self.gpu(), most, &[])?;
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
            let all: Vec<u32> = self
                .gpu()
                .read(&tiles.buffer, tiles.offset, tiles.size)
                .wait()?;
            let used = all.chunks(*words as usize).filter(|tile| tile[2] > 0);
            let experts: HashSet<u32> = used.map(|tile| tile[0]).collect();
            sum += experts.len();
        }
        Ok((!lists.is_empty()).then(|| sum as f64 / lists.len() as f64))
    }

    /// Compiles the step of `tokens` and its head and writes what they read: after as many of the first tokens as may be, the best one is
    /// chosen. Returned is what it replays.
    ///
    /// # Errors
    /// Those of [`prepare`](Self::prepare).
    pub(in crate::engine::gpu) async fn ready(
        &mut self,
        tokens: &[BatchToken],
    ) -> Result<Vec<(&Recording, State)>, GpuError> {
        let drawn = self.drawn(tokens.len());
        self.prepare(tokens.len(), drawn).await?;
        let words =
            |token: &BatchToken| sample::words(&Sampling::GREEDY, u64::from(token.position) + 1);
        let choices: Vec<_> = tokens[..drawn].iter().map(words).collect();
        let state = self.write(tokens, &choices);
        Ok(self.replays(tokens.len(), drawn, state))
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
