//! Loading a model, and the tier that it decodes in on a device where none was asked for: its steps are timed with activations as halves and
//! as bytes, once, and the choice is kept.
//!
//! A session is timed by the step of one token, a server by the step of as many tokens as it answers sequences at once: which tier is
//! faster depends on that.

use super::batch::{BatchToken, GpuBatch};
use super::model::GpuModel;
use super::tier_trial::TierTrial;
use super::trial::TokenTrial;
use crate::engine::random::random_tokens;
use crate::gpu::call::State;
use crate::gpu::clock::{self, Clock};
use crate::gpu::record::Recording;
use crate::gpu::tuning::{self, MeasuredTier};
use crate::gpu::{Gpu, GpuError, Tier};
use crate::kernels::sequences::PAGE;
use crate::models::Model;
use crate::recipes::{BatchSizes, Residence};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use web_time::{Duration, Instant};

/// The tiers that are timed, in the order of the results.
const TIERS: [Tier; 2] = [Tier::Subgroup, Tier::Int8];
/// The most and the fewest rounds in which every step is timed once. The results are medians over them.
const ROUNDS: [usize; 2] = [25, 5];
/// Time for all rounds. A device that is slower takes fewer rounds.
const BUDGET: Duration = Duration::from_millis(400);
/// Time before the rounds, in which clocks rise and memory is touched for the first time.
const WARM_UP: Duration = Duration::from_millis(100);
/// The most positions of the contexts that the timed steps attend to.
const ROWS: usize = 512;

impl GpuModel {
    /// Uploads every weight, telling `progress` the bytes done and the bytes in all. The weights of a model without a
    /// file ([`crate::synth::without_matrices`]) are made on the device.
    ///
    /// On a device whose tier was not asked for, the tier is chosen then: the one kept for this device and such a model, else by
    /// measuring, where the device [may run](crate::gpu::Tier::may_be_measured) more than one. So the model's
    /// [`gpu`](Self::gpu) can be in another tier than the one passed.
    ///
    /// # Errors
    /// [`GpuError::UnsupportedSize`], [`GpuError::BindingTooLarge`], [`GpuError::OutOfMemory`],
    /// [`GpuError::ReadWeights`] or what the device reports.
    pub async fn load(
        gpu: Arc<Gpu>,
        model: Arc<dyn Model>,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Self, GpuError> {
        Self::load_for(gpu, model, Residence::Whole, 1, progress).await
    }

    /// Loads like [`load`](Self::load), with experts where `residence` says, and chooses the tier for steps with a token of each of `sequences`
    /// sequences.
    ///
    /// # Errors
    /// The errors of [`load`](Self::load).
    pub async fn load_for(
        gpu: Arc<Gpu>,
        model: Arc<dyn Model>,
        residence: Residence,
        sequences: u32,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Self, GpuError> {
        let mut model = Self::upload(gpu, model, residence, progress).await?;
        if model.gpu.tier_is_open {
            let folder = tuning::folder().ok();
            model.settle_tier(sequences, folder.as_deref()).await?;
            if model.tier_trial.is_some() {
                model.distrust_slots();
            }
        }
        Ok(model)
    }

    /// Gives the model the tier that suits it on its device for steps of a token of each of `sequences`, if none was asked for and another
    /// is possible: the one kept in `folder`, else the one measured now, which is kept there.
    ///
    /// A file that cannot be written or read is named in the log: it costs a measurement at every start.
    pub(super) async fn settle_tier(
        &mut self,
        sequences: u32,
        folder: Option<&Path>,
    ) -> Result<(), GpuError> {
        let (key, info) = (self.tier_key(sequences), &self.gpu.info);
        let kept = folder.map_or(Ok(None), |folder| {
            let kept = tuning::tiers(folder, info)?;
            Ok(kept.get(&key).copied())
        });
        let kept = kept.unwrap_or_else(|e: tuning::TuningError| {
            log::warn!("measuring the tier again: {e}");
            None
        });
        let tier = match kept {
            Some(kept) if kept.int8 => Tier::Int8,
            Some(_) => Tier::Subgroup,
            None => {
                let trial = match self.try_tiers(sequences).await {
                    Ok(trial) => trial,
                    // Such a model is refused, with the reason, where its steps are recorded.
                    Err(GpuError::TierUnsupported { .. }) => return Ok(()),
                    Err(error) => return Err(error),
                };
                let [subgroup_us, int8_us] = trial.us;
                let measured = MeasuredTier {
                    int8: trial.tier == Tier::Int8,
                    subgroup_us,
                    int8_us,
                };
                if let Some(folder) = folder
                    && let Err(e) = tuning::save_tier(folder, info, &key, measured)
                {
                    log::warn!("not keeping the tier that was measured: {e}");
                }
                self.tier_trial = Some(trial);
                trial.tier
            }
        };
        self.gpu = Arc::new(self.gpu.in_tier(tier));
        Ok(())
    }

    /// The key that a choice is kept under: the tokens of the step, and the matrices with their number by type and shape.
    fn tier_key(&self, sequences: u32) -> String {
        let mut matrices: BTreeMap<String, u32> = BTreeMap::new();
        for tensor in self.model.gguf().tensors() {
            let dims: Vec<_> = tensor.dims.iter().map(ToString::to_string).collect();
            let kind = format!("{} {}", tensor.ty.name(), dims.join("x"));
            *matrices.entry(kind).or_default() += u32::from(dims.len() > 1);
        }
        matrices.retain(|_, count| *count > 0);
        let matrices = matrices.iter().map(|(kind, n)| format!("{n} {kind}"));
        let matrices: Vec<_> = matrices.collect();
        format!("{sequences}: {}", matrices.join(", "))
    }

    /// Times the step in each tier. Nothing of it stays.
    ///
    /// # Errors
    /// [`GpuError::TierUnsupported`] where a kernel does not take the sizes; no memory, or what the device reports.
    pub(super) async fn try_tiers(&self, sequences: u32) -> Result<TierTrial, GpuError> {
        let before = self.gpu.allocated();
        let us = match sequences {
            1 => self.time_a_token().await,
            _ => self.time_a_batch(sequences).await,
        };
        self.gpu.count_dropped(before);
        Ok(TierTrial::of(sequences, us?, Clock::of(&self.gpu)))
    }

    /// Microseconds of the step of one token in each tier.
    async fn time_a_token(&self) -> Result<[f64; 2], GpuError> {
        let mut trials = vec![];
        for tier in TIERS {
            let gpu = self.gpu.in_tier(tier);
            let trial = TokenTrial::new(self, &gpu, ROWS).await?;
            let recording = trial.record(&gpu).await?;
            let state = trial.recipes.state(gpu.machine, trial.middle(), 1);
            trials.push((trial, recording, state));
        }
        let steps = trials.iter().map(|(_, step, state)| (step, state));
        let us = self.time(&steps.collect::<Vec<_>>()).await?;
        Ok([us[0], us[1]])
    }

    /// Microseconds of the step of one token of each of `sequences` sequences in each tier.
    async fn time_a_batch(&self, sequences: u32) -> Result<[f64; 2], GpuError> {
        let config = self.model.config();
        let n_ctx = config.context_length.min(ROWS);
        let pages = n_ctx.div_ceil(PAGE as usize) as u32;
        let ids = random_tokens(n_ctx * sequences as usize, config.vocab_size);
        let tokens: Vec<_> = (0..sequences)
            .map(|sequence| BatchToken {
                sequence,
                position: n_ctx as u32 / 2,
            })
            .collect();
        let mut batches = vec![];
        for tier in TIERS {
            let model = Arc::new(self.in_tier(tier));
            let sizes = BatchSizes {
                n_ctx,
                pages,
                sequences,
                tokens: sequences,
                chunk: 0,
                drafts: 0,
            };
            let mut batch = GpuBatch::new(model, sizes).await?;
            for (sequence, ids) in (0..).zip(ids.chunks(n_ctx)) {
                batch.write_ids(sequence, 0, ids);
                // All sequences read the pages of the first one, whose rows are zeros.
                batch.write_pages(sequence, 0, &(0..pages).collect::<Vec<_>>());
            }
            batches.push(batch);
        }
        let mut replays = vec![];
        for batch in &mut batches {
            replays.push(batch.ready(&tokens).await?);
        }
        let steps = replays.iter().flatten();
        let steps: Vec<_> = steps.map(|(step, state)| (*step, state)).collect();
        let us = self.time(&steps).await?;
        let (subgroup, int8) = us.split_at(replays[0].len());
        Ok([subgroup, int8].map(|us| us.iter().sum()))
    }

    /// Microseconds of each of `steps`, the medians of several rounds.
    pub(super) async fn time(&self, steps: &[(&Recording, &State)]) -> Result<Vec<f64>, GpuError> {
        let gpu = &self.gpu;
        let began = Instant::now();
        let mut last = Duration::ZERO;
        while began.elapsed() < WARM_UP {
            let round = Instant::now();
            clock::in_turn(gpu, steps, 1).await?;
            last = round.elapsed();
        }
        let fit = BUDGET.as_secs_f64() / last.as_secs_f64().max(1e-9);
        let rounds = (fit as usize).clamp(ROUNDS[1], ROUNDS[0]);
        let times = clock::in_turn(gpu, steps, rounds).await?;
        let medians = times.into_iter().map(|mut us| {
            us.sort_by(f64::total_cmp);
            us[us.len() / 2]
        });
        Ok(medians.collect())
    }

    /// The model in another tier of its device, without a trial.
    fn in_tier(&self, tier: Tier) -> Self {
        Self {
            gpu: Arc::new(self.gpu.in_tier(tier)),
            model: Arc::clone(&self.model),
            residence: self.residence,
            weights: self.weights.clone(),
            answering: None,
            share: None,
            tier_trial: None,
            precomposed: None,
        }
    }
}

#[cfg(test)]
mod tests;
