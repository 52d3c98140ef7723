//! A model whose experts have no room on its device: how many of them stay there, and how fast it should be.

use std::fmt;

use serde::Serialize;

use super::EngineError;
use super::elsewhere::Way;
use super::gpu::MemoryPlan;
use super::gpu::plan::expected::Expected;
use super::host::size;
use super::processor::{ComputedShare, Processor};
use super::share::Layers;
use crate::gpu::machine::memory_speed;
use crate::gpu::{GpuError, Target};
use crate::models::Model;
use crate::recipes::Residence;

/// Parts of the names of the tensors that hold experts, and of the one of these that each layer with experts has.
const EXPERTS: &str = "_exps.";
const DOWN: &str = "ffn_down_exps.";

/// The experts of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Experts {
    /// Experts of a layer.
    pub(super) count: u32,
    /// Experts of a layer that a token uses.
    pub(super) used: u32,
    /// Bytes of those that a token uses, over all layers.
    pub(super) of_token: u64,
    /// Layers with experts.
    pub(super) layers: u32,
}

impl Experts {
    /// The experts of `model` as they lie on `target`; `None` where it has none.
    pub(super) fn of(target: &Target, model: &dyn Model) -> Result<Option<Self>, GpuError> {
        let Some(experts) = &model.config().experts else {
            return Ok(None);
        };
        let (count, used) = (experts.count as u32, experts.used as u32);
        let placed = model.place(target, Residence::Whole)?;
        let all = placed.matrices.iter();
        let layers = all
            .clone()
            .filter(|matrix| matrix.name.contains(DOWN))
            .count();
        let bytes: u64 = all
            .filter(|matrix| matrix.name.contains(EXPERTS))
            .map(|matrix| matrix.bytes())
            .sum();
        Ok(Some(Self {
            count,
            used,
            of_token: bytes * u64::from(used) / u64::from(count.max(1)),
            layers: layers as u32,
        }))
    }

    /// The most slots with which a plan has room in `has` bytes, and that plan; `None` where not even the plan without slots has. Fewer
    /// slots than a token uses experts keep none, so then there are none.
    pub(super) fn most_slots(
        self,
        whole: &MemoryPlan,
        has: u64,
        plan: &dyn Fn(u32) -> Result<MemoryPlan, EngineError>,
    ) -> Result<Option<MemoryPlan>, EngineError> {
        let least = plan(0)?;
        if least.total() > has {
            return Ok(None);
        }
        let experts = whole.weights.saturating_sub(least.weights);
        let of_slot = (experts / u64::from(self.count.max(1))).max(1);
        let most = self.count.saturating_sub(1);
        // Slots take the same room as their experts elsewhere, but for the ends of buffers.
        let mut slots = most.min(u32::try_from((has - least.total()) / of_slot).unwrap_or(most));
        let mut best = None;
        while slots >= self.used.max(1) && slots <= most {
            let tried = match plan(slots) {
                Err(EngineError::Gpu(GpuError::BindingTooLarge { .. })) => None,
                tried => Some(tried?).filter(|tried| tried.total() <= has),
            };
            match (tried, &best) {
                (Some(tried), _) => (best, slots) = (Some(tried), slots + 1),
                (None, Some(_)) => break,
                (None, None) => slots -= 1,
            }
        }
        Ok(Some(best.unwrap_or(least)))
    }
}

/// A model whose experts lie in the memory of the host or in the file, with slots for some of them on the device.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Partly {
    /// Slots of each layer for experts.
    pub slots: u32,
    /// Experts of each layer.
    pub experts: u32,
    /// Bytes of weights on the device.
    pub resident: u64,
    /// Bytes of experts in the memory of the host, or in the file.
    pub host: u64,
    /// The way by which experts come to the device.
    #[serde(flatten)]
    pub way: Way,
    /// Tokens per second, computed for experts that are chosen evenly. A router that repeats itself is faster.
    pub tokens_per_s: f64,
    /// Whether the speed of the device's memory is not known, so that only the bus or the disk and the dispatches take time.
    pub by_bus_alone: bool,
    /// Tokens of a prompt that are computed at once, if the usual number has no room.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_once: Option<u32>,
    /// The setting of a Mac in MiB with which all of the model fits, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wired_limit_mb: Option<u64>,
    /// The experts.
    #[serde(skip)]
    pub(super) of: Experts,
}

impl Partly {
    /// The outcome for the experts of a model, of which a token is `expected` to take so long beside what comes this way.
    pub(super) fn new(
        target: &Target,
        experts: Experts,
        plan: &MemoryPlan,
        expected: &Expected,
        way: Way,
    ) -> Self {
        let slots = plan.slots.unwrap_or(experts.count);
        let missing = 1.0 - f64::from(slots) / f64::from(experts.count.max(1));
        let brought = way.seconds(missing * experts.of_token as f64, experts.layers);
        let speed = memory_speed(&target.name);
        // Memory without end: its reads take no time.
        let seconds = expected.seconds(speed.unwrap_or(f64::INFINITY)) + brought;
        Self {
            slots,
            experts: experts.count,
            resident: plan.weights,
            host: plan.host + plan.file,
            way,
            tokens_per_s: 1.0 / seconds,
            by_bus_alone: speed.is_none(),
            at_once: None,
            wired_limit_mb: None,
            of: experts,
        }
    }

    /// The share of missing experts with which such a processor should make tokens faster by enough, if there is one. Only what comes over a bus
    /// is shared.
    pub fn share(&self, processor: Processor) -> Option<ComputedShare> {
        let Way::Bus(bus) = self.way else {
            return None;
        };
        let layers = Layers {
            count: self.of.layers as usize,
            slots: self.slots as usize,
            experts: self.of.count as usize,
            used: self.of.used as usize,
        };
        let of_expert = self.of.of_token as f64 / f64::from((self.of.layers * self.of.used).max(1));
        processor.share(layers, of_expert, bus, 1.0 / self.tokens_per_s)
    }

    /// Where the experts lie: where `None`, on the device with all else.
    pub fn residence_of(partly: Option<&Self>) -> Residence {
        partly.map_or(Residence::Whole, |partly| {
            partly.way.residence(partly.slots, partly.at_once)
        })
    }
}

impl fmt::Display for Partly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            slots,
            experts,
            way,
            tokens_per_s,
            ..
        } = self;
        let (resident, all) = (size(self.resident), size(self.host));
        write!(
            f,
            "{resident} of the weights lie on the GPU, with {slots} of {experts} experts of each layer; all experts, {all}, "
        )?;
        let (lie, what) = match way {
            Way::Bus(_) => ("lie in the machine's memory and", "bus"),
            Way::Disk(_) => ("stay in the file, and missing ones", "disk"),
        };
        write!(f, "{lie} {way}; computed: ")?;
        let digits = usize::from(*tokens_per_s < 10.0);
        match self.by_bus_alone {
            false => write!(f, "at least {tokens_per_s:.digits$} tokens/s"),
            true => write!(
                f,
                "{tokens_per_s:.digits$} tokens/s for the {what} and the dispatches alone, since the speed of the GPU's memory is not known"
            ),
        }?;
        match self.at_once {
            Some(1) => write!(
                f,
                "; prompts are computed token by token, since no more has room"
            )?,
            Some(n) => write!(
                f,
                "; prompts are computed by {n} tokens, since no more have room"
            )?,
            None => {}
        }
        match self.wired_limit_mb {
            Some(limit) => write!(f, "; all of it would fit: {}", wired_limit(limit)),
            None => Ok(()),
        }
    }
}

/// Advice to let the GPU of a Mac have so many MiB of the machine's memory.
pub(super) fn wired_limit(mb: u64) -> String {
    format!(
        "`sudo sysctl iogpu.wired_limit_mb={mb}` gives the GPU enough until the next start of the machine"
    )
}

#[cfg(test)]
mod tests;
