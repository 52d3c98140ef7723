//! Which tier a model decodes in on a device where none was asked for: its largest products are timed with activations as halves and
//! as bytes, once, and the choice is kept.

use super::GpuModel;
use crate::gpu::buffer::{Range, Role};
use crate::gpu::call::{Call, State};
use crate::gpu::clock::{self, Clock};
use crate::gpu::memory::GpuWeight;
use crate::gpu::record::Recording;
use crate::gpu::tuning::{self, MeasuredTier};
use crate::gpu::{Gpu, GpuError, Tier};
use crate::gpu::{Most, Step};
use crate::kernels::router::GpuRouter;
use crate::kernels::token::{Divided, TokenInput};
use crate::kernels::token_gate_up::GpuTokenGateUp;
use crate::kernels::token_matvec::{GpuTokenMatvec, Input};
use crate::model::{Ffn, Moe};
use crate::quant::activation::Activation;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use web_time::{Duration, Instant};

/// What bytes must be faster by: they round, floats do not.
const LEAST_GAIN: f64 = 1.1;
/// Layers whose gate and up are timed at most: together they are larger than second-level caches.
const LAYERS: usize = 8;
/// The tiers that are timed, as the results have them.
const TIERS: [Tier; 2] = [Tier::Subgroup, Tier::Int8];
/// Rounds in which everything is timed once: medians are over them.
const ROUNDS: usize = 5;
/// Time before they begin: clocks rise, and pipelines and memory are touched for the first time.
const WARM_UP: Duration = Duration::from_millis(20);

/// What was measured to choose a tier.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TierTrial {
    /// The choice.
    pub tier: Tier,
    /// Microseconds of the head and of gate and up of all layers, in `subgroup` and in `int8`.
    pub us: [f64; 2],
    /// Whose clock told them.
    pub clock: Clock,
}

impl TierTrial {
    fn of(us: [f64; 2], clock: Clock) -> Self {
        let tier = match us[0] >= us[1] * LEAST_GAIN {
            true => Tier::Int8,
            false => Tier::Subgroup,
        };
        Self { tier, us, clock }
    }
}

impl fmt::Display for TierTrial {
    /// One line: the choice and its reason.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [subgroup, int8] = self.us.map(|us| us / 1e3);
        let host = match self.clock {
            Clock::Gpu => "",
            Clock::Host => " by the host's clock",
        };
        write!(
            f,
            "tier: {}, measured{host}: head, gate and up of a token take {subgroup:.3} ms in subgroup, {int8:.3} ms in int8",
            self.tier.name()
        )
    }
}

impl GpuModel {
    /// Gives the model the tier that suits it on its device, if none was asked for and another is possible: the one kept in
    /// `folder`, else the one measured now, which is kept there.
    ///
    /// What cannot be kept or read is named in the log: it costs a measurement at every start.
    pub(super) async fn settle_tier(&mut self, folder: Option<&Path>) -> Result<(), GpuError> {
        let (key, info) = (self.tier_key(), &self.gpu.info);
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
                let trial = match self.try_tiers().await {
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

    /// What a choice is kept under: the products that are timed.
    fn tier_key(&self) -> String {
        let of = |weights: &[&GpuWeight]| {
            let names = weights
                .iter()
                .map(|w| format!("{} {}", w.ty.name(), w.shape()));
            names.collect::<Vec<_>>().join(" + ")
        };
        let head = of(&[self.weights.output()]);
        match self.gate_ups().first() {
            Some(Ffn::Moe(moe)) => {
                let used = self.experts().used;
                let experts = of(&[&moe.experts.gate, &moe.experts.up]);
                let shared = moe.shared.as_ref().map(|s| of(&[&s.gate, &s.up]));
                format!(
                    "{head}, {used} of {experts}, {}",
                    shared.unwrap_or_default()
                )
            }
            Some(Ffn::Dense(mlp)) => format!("{head}, {}", of(&[&mlp.gate, &mlp.up])),
            None => head,
        }
    }

    /// The feed-forward networks of which most layers are: those with experts, if there are any.
    fn gate_ups(&self) -> Vec<&Ffn<GpuWeight, Range>> {
        let all = || self.weights.feed_forwards().into_iter();
        let routed: Vec<_> = all().filter(|f| matches!(f, Ffn::Moe(_))).collect();
        match routed.is_empty() {
            true => all().collect(),
            false => routed,
        }
    }

    /// Times the products in each tier. Nothing of it stays.
    ///
    /// # Errors
    /// [`GpuError::TierUnsupported`] where a kernel does not take the sizes; no memory, or what the device reports.
    pub(super) async fn try_tiers(&self) -> Result<TierTrial, GpuError> {
        let before = self.gpu.allocated();
        let us = self.time_tiers().await;
        self.gpu.count_dropped(before);
        Ok(TierTrial::of(us?, Clock::of(&self.gpu)))
    }

    async fn time_tiers(&self) -> Result<[f64; 2], GpuError> {
        let ffns = self.gate_ups();
        let timed = ffns.len().min(LAYERS);
        let some: Vec<_> = (0..timed).map(|i| ffns[i * ffns.len() / timed]).collect();
        let mut recordings = vec![];
        for tier in TIERS {
            let gpu = self.gpu.in_tier(tier);
            let bench = Bench::new(self, &gpu);
            let gate_ups = some.iter().map(|ffn| bench.gate_up(ffn));
            let gate_ups = gate_ups.collect::<Result<Vec<_>, _>>()?.concat();
            for calls in [bench.head()?, gate_ups] {
                let step = Step::of(Most::token(1), calls);
                recordings.push(Recording::new_async(&gpu, &step).await?);
            }
        }
        let (gpu, steps) = (&self.gpu, recordings.iter().collect::<Vec<_>>());
        let state = State {
            tokens: 1,
            ..State::default()
        };
        let began = Instant::now();
        loop {
            clock::in_turn_async(gpu, &steps, &state, 1).await?;
            if began.elapsed() >= WARM_UP {
                break;
            }
        }
        let times = clock::in_turn_async(gpu, &steps, &state, ROUNDS).await?;
        let medians = times.into_iter().map(|mut us| {
            us.sort_by(f64::total_cmp);
            us[us.len() / 2]
        });
        let medians: Vec<_> = medians.collect();
        // As often as a token has them.
        let layers = ffns.len() as f64 / timed.max(1) as f64;
        Ok([0, 1].map(|tier| medians[2 * tier] + layers * medians[2 * tier + 1]))
    }
}

/// A buffer of `n` values of its own.
fn floats(n: u32) -> Range {
    Range::floats("trial of tiers", u64::from(n))
}

/// Inputs of zeros, which take as long as others.
struct Bench<'a> {
    model: &'a GpuModel,
    gpu: &'a Gpu,
    activation: Activation,
    x: TokenInput,
}

impl<'a> Bench<'a> {
    fn new(model: &'a GpuModel, gpu: &'a Gpu) -> Self {
        let activation = gpu.activation();
        let width = model.weights.output().cols;
        let squares = floats(width / 16);
        Self {
            model,
            gpu,
            activation,
            x: TokenInput {
                values: Range::prepared("trial of tiers", activation, width),
                rms: Some((squares, model.model.config().rms_eps)),
            },
        }
    }

    fn head(&self) -> Result<Vec<Call>, GpuError> {
        let weight = self.model.weights.output();
        let head = GpuTokenMatvec::new(weight, self.activation, Input::Prepared(self.x.clone(), 0))
            .bind("y", &floats(weight.total_rows()));
        head.calls(self.gpu)
    }

    /// Gate and up of a layer, which wait for no other layer's: each leaves a buffer of its own.
    fn gate_up(&self, ffn: &Ffn<GpuWeight, Range>) -> Result<Vec<Call>, GpuError> {
        let (experts, shared, rows) = match ffn {
            Ffn::Dense(mlp) => (None, Some([&mlp.gate, &mlp.up]), mlp.gate.rows),
            Ffn::Moe(moe) => {
                let Moe {
                    exp_probs_b,
                    experts,
                    shared,
                    ..
                } = &**moe;
                let config = self.model.experts();
                let router = GpuRouter {
                    logits: floats(config.count as u32),
                    partial_sums: 1,
                    bias: exp_probs_b.clone(),
                    experts: config,
                    max_tokens: 1,
                    ids: floats(config.used as u32).holding(Role::Words),
                    weights: floats(config.used as u32),
                };
                let rows = config.used as u32 * experts.gate.rows
                    + shared.as_ref().map_or(0, |s| s.gate.rows);
                let shared = shared.as_ref().map(|s| [&s.gate, &s.up]);
                (Some(([&experts.gate, &experts.up], router)), shared, rows)
            }
        };
        let gate_up = GpuTokenGateUp {
            tokens: 1,
            experts,
            raw_logits: false,
            shared,
            activation: self.activation,
            x: self.x.clone(),
            h: Range::prepared("trial of tiers", self.activation, rows),
        };
        gate_up.calls(self.gpu)
    }
}

#[cfg(test)]
mod tests;
