//! The times at which the dispatches of a batch's step run.

use super::{BatchToken, GpuBatch, sites};
use crate::engine::gpu::measure::{Separation, Timed};
use crate::gpu::GpuError;
use crate::gpu::call::{Listed, Taken};
use crate::gpu::geometry::Site;
use crate::gpu::wait::Wait;
use std::collections::HashSet;
use std::sync::Arc;

impl GpuBatch {
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
