//! Whether a model and its context have room in memory, and where its experts lie, told before anything is loaded.

mod smaller;

use super::device::Device;
use super::elsewhere::{AtOnce, Elsewhere, FEWER, Memory, Way};
use super::error::NoRoom;
use super::gpu::MemoryPlan;
use super::gpu::plan::Plan;
use super::gpu::plan::expected::Expected;
use super::host::{Host, size};
use super::partly::{Experts, Partly, wired_limit};
use super::{DEFAULT_CONTEXT, EngineError};
#[cfg(not(target_arch = "wasm32"))]
use crate::gpu::Gpu;
use crate::gpu::behind::ExpertsFrom;
use crate::gpu::machine::{Profile, memory_speed};
use crate::gpu::{GpuError, Target};
use crate::models::Model;
use crate::recipes::Residence;

/// The longest context that a model which thinks gets where none is asked for: thoughts often take thousands of tokens.
const THINKING_CONTEXT: usize = 32768;
/// The step in which contexts are told, in tokens.
const STEP: usize = 256;

/// Tokens per second below which experts from the file are of no use.
const LEAST_SPEED: f64 = 1.0;

/// The device on which a model is to run, as far as its memory matters.
#[derive(Debug, Clone, Copy)]
pub enum Site<'a> {
    /// The CPU.
    Cpu,
    /// A GPU, which may be planned only.
    Gpu(&'a Target, Memory),
}

impl<'a> Site<'a> {
    pub(super) fn of(device: &'a Device) -> Self {
        match device {
            Device::Cpu { .. } => Self::Cpu,
            Device::Gpu(gpu) => Self::Gpu(gpu, Memory::of(gpu)),
        }
    }

    /// Bytes that a model may take there; `None` where nothing tells.
    pub fn has(self) -> Option<u64> {
        match self {
            // More weights than there is memory would be read from the disk for every token.
            Self::Cpu => Host::here().total,
            Self::Gpu(_, memory) => memory.has(),
        }
    }

    /// The name of the device in messages about memory.
    fn name(self) -> String {
        match self {
            Self::Cpu => "this machine".to_owned(),
            Self::Gpu(target, _) => target.name.clone(),
        }
    }
}

/// A model and where it is to run.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// The device on which it is to run.
    pub site: Site<'a>,
    /// The model.
    pub model: &'a dyn Model,
    /// Tokens of a prompt that are computed at once, if asked for. Else there are fewer than usual if experts from the file have no room otherwise.
    pub ubatch: Option<u32>,
    /// Whether `-c` says how long the context is.
    pub has_flag: bool,
}

/// How much of a model a device has room for, from the least on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holds {
    /// It has no room for it.
    Nothing,
    /// Experts lie elsewhere.
    Part,
    /// All of it lies on the device.
    All,
}

impl Holds {
    /// The part of a model that has room, by where its experts lie. `None` says that they lie on the device.
    pub fn of(partly: Result<Option<&Partly>, &EngineError>) -> Self {
        match partly {
            Err(_) => Self::Nothing,
            Ok(Some(_)) => Self::Part,
            Ok(None) => Self::All,
        }
    }
}

/// The memory that a model and a context take.
enum Room {
    /// All of it lies on the device.
    Whole,
    /// It fits with its experts elsewhere, from where they come this way.
    Partly {
        whole: MemoryPlan,
        experts: Experts,
        way: Way,
        /// Tokens of a prompt at once.
        at_once: AtOnce,
    },
    /// It does not fit.
    None {
        whole: MemoryPlan,
        /// Why it does not fit without its experts on the device, as a clause.
        but: String,
    },
}

impl Place<'_> {
    /// The memory that a context of `n_ctx` tokens takes.
    ///
    /// # Errors
    /// The error with which loading the model there would end.
    pub fn plan(&self, residence: Residence, n_ctx: usize) -> Result<MemoryPlan, EngineError> {
        self.plan_at(residence, n_ctx, None)
    }

    /// This plan with so many tokens at once.
    fn plan_at(
        &self,
        residence: Residence,
        n_ctx: usize,
        at_once: AtOnce,
    ) -> Result<MemoryPlan, EngineError> {
        let ubatch = at_once.or(self.ubatch);
        Ok(match self.site {
            Site::Cpu => MemoryPlan::on_cpu(self.model, n_ctx),
            Site::Gpu(target, _) => MemoryPlan::new(target, self.model, residence, n_ctx, ubatch)?,
        })
    }

    /// Whether a context of `n_ctx` tokens has room with all of the model on the device, with a part of it, or not at all.
    fn room(&self, n_ctx: usize) -> Result<Room, EngineError> {
        let whole = self.plan(Residence::Whole, n_ctx)?;
        let Some(has) = self.site.has().filter(|has| whole.total() > *has) else {
            return Ok(Room::Whole);
        };
        let none = |but| Ok(Room::None { whole, but });
        let Site::Gpu(target, memory) = self.site else {
            return none(String::new());
        };
        let Some(experts) = Experts::of(target, self.model)? else {
            return none(String::new());
        };
        let plan = |residence, at_once| self.plan_at(residence, n_ctx, at_once);
        let tried = match self.ubatch {
            None => FEWER,
            Some(_) => &FEWER[..1],
        };
        Ok(match Elsewhere::find(target, memory, (has, tried), &plan) {
            Elsewhere::At(way, _, at_once) => Room::Partly {
                whole,
                experts,
                way,
                at_once,
            },
            Elsewhere::Nowhere(_, but) => Room::None { whole, but },
        })
    }

    /// Tokens per second, computed for a model of which all lies on the device; `None` where the speed of its memory is not known.
    ///
    /// # Errors
    /// The error with which loading the model there would end.
    pub fn computed(&self, n_ctx: usize) -> Result<Option<f64>, EngineError> {
        let Site::Gpu(target, _) = self.site else {
            return Ok(None);
        };
        let Some(speed) = memory_speed(&target.name) else {
            return Ok(None);
        };
        Ok(Some(
            expected(target, self.model, Residence::Whole, n_ctx)?.tokens_per_s(speed),
        ))
    }

    /// Where the experts lie: `None` is on the device with all else, as they do wherever they have room.
    ///
    /// # Errors
    /// [`EngineError::NoRoom`] for a context that has no room, or what loading the model there would refuse.
    pub fn check(&self, n_ctx: usize) -> Result<Option<Partly>, EngineError> {
        let room = match self.room(n_ctx) {
            // Something is too large for one binding. A shorter context helps if it is the cache of a layer, or a chunk of the prompt, which
            // is never longer than the context.
            Err(EngineError::Gpu(error @ GpuError::BindingTooLarge { .. })) => {
                return Err(match self.longest(n_ctx)? {
                    Some(fitting) => EngineError::ContextUnbound {
                        reason: error.to_string(),
                        advice: fitting_context(fitting, self.has_flag),
                    },
                    None => error.into(),
                });
            }
            room => room?,
        };
        match room {
            Room::Whole => Ok(None),
            Room::Partly {
                whole,
                experts,
                way,
                at_once,
            } => self.partly(&whole, experts, (way, at_once)),
            Room::None { whole, but } => Err(self.refusal(&whole, but)?),
        }
    }

    /// The most slots that have room.
    fn partly(
        &self,
        whole: &MemoryPlan,
        experts: Experts,
        (way, at_once): (Way, AtOnce),
    ) -> Result<Option<Partly>, EngineError> {
        let (Site::Gpu(target, memory), Some(has)) = (self.site, self.site.has()) else {
            return Ok(None);
        };
        let way = way.measured(target, self.model, memory);
        let plan = |slots| self.plan_at(way.residence(slots, at_once), whole.ctx, at_once);
        let Some(plan) = experts.most_slots(whole, has, &plan)? else {
            return Ok(None);
        };
        let residence = way.residence(plan.slots.unwrap_or_default(), at_once);
        let expected = expected(target, self.model, residence, whole.ctx)?;
        let found = Partly {
            at_once,
            wired_limit_mb: wired_limit_mb(target, memory, whole.total()),
            ..Partly::new(target, experts, &plan, &expected, way)
        };
        match too_slow(&found, memory) {
            Some(but) => Err(self.no_room(whole, but, self.smaller(whole.ctx)?)),
            None => Ok(Some(found)),
        }
    }

    /// The error that names what was needed, what there is, and what would fit.
    fn refusal(&self, whole: &MemoryPlan, but: String) -> Result<EngineError, EngineError> {
        let advice = match self.longest(whole.ctx)? {
            Some(fitting) => fitting_context(fitting, self.has_flag),
            None => self.smaller(whole.ctx)?,
        };
        Ok(self.no_room(whole, but, advice))
    }

    /// The error with this clause and this advice.
    fn no_room(&self, whole: &MemoryPlan, but: String, advice: String) -> EngineError {
        let wired = match self.site {
            Site::Gpu(target, memory) => wired_limit_mb(target, memory, whole.total()),
            Site::Cpu => None,
        };
        EngineError::from(Box::new(NoRoom {
            needed: size(whole.total()),
            weights: size(whole.weights),
            n_ctx: whole.ctx,
            cache: size(whole.cache),
            device: self.site.name(),
            has: size(self.site.has().unwrap_or_default()),
            but,
            advice: match wired {
                Some(limit) => format!("{}; {advice}", wired_limit(limit)),
                None => advice,
            },
        }))
    }

    /// The context where none is asked for. A model that may think gets the longest one that has room, up to 32768 tokens. No part
    /// of the model leaves the device for the sake of a context longer than the usual one.
    ///
    /// # Errors
    /// The error with which loading the model there would end.
    pub fn default_context(&self, thinks: bool) -> Result<usize, EngineError> {
        let most = self.model.config().context_length;
        let usual = most.min(DEFAULT_CONTEXT);
        if !thinks {
            return Ok(usual);
        }
        let most = most.min(THINKING_CONTEXT);
        let longest = match self.fits(usual, true)? {
            true => longest(most, &|n_ctx| self.fits(n_ctx, true))?,
            false => self.longest(most)?,
        };
        Ok(longest.map_or(usual, |n_ctx| n_ctx.max(usual)))
    }

    /// Whether a context of `n_ctx` tokens has room, or has it with the `whole` model on the device.
    fn fits(&self, n_ctx: usize, whole: bool) -> Result<bool, EngineError> {
        match self.room(n_ctx) {
            Err(EngineError::Gpu(GpuError::BindingTooLarge { .. })) => Ok(false),
            room => Ok(match room? {
                Room::Whole => true,
                Room::Partly { .. } => !whole,
                Room::None { .. } => false,
            }),
        }
    }

    /// The longest context that the model may have, in tokens, with all of it on the device, or else with experts elsewhere. Behind it is how much the
    /// device then holds. `None` where not even the shortest has room.
    ///
    /// # Errors
    /// The error with which loading the model there would end.
    pub fn longest_context(&self) -> Result<Option<(usize, Holds)>, EngineError> {
        let most = self.model.config().context_length;
        Ok(match longest(most, &|n_ctx| self.fits(n_ctx, true))? {
            Some(n_ctx) => Some((n_ctx, Holds::All)),
            None => self.longest(most)?.map(|n_ctx| (n_ctx, Holds::Part)),
        })
    }

    /// The longest context up to `most` that has room; `None` where not even the shortest does.
    fn longest(&self, most: usize) -> Result<Option<usize>, EngineError> {
        longest(most, &|n_ctx| self.fits(n_ctx, false))
    }
}

/// Why experts from the file are of no use, as a clause; `None` where they are, or where that was asked for.
pub(super) fn too_slow(found: &Partly, memory: Memory) -> Option<String> {
    let speed = found.tokens_per_s;
    let is_slow = matches!(found.way, Way::Disk(_)) && speed < LEAST_SPEED;
    (is_slow && memory.experts == ExpertsFrom::Auto).then(|| {
        format!(
            ", and its experts would have to be read from the file, which gives {speed:.2} tokens/s (--experts file has it so)"
        )
    })
}

/// The cost of a token of `model` beside what comes from elsewhere: the bytes and the arithmetic are those of a model of which all lies on the
/// device, the waits those of one with this residence.
pub(super) fn expected(
    target: &Target,
    model: &dyn Model,
    residence: Residence,
    n_ctx: usize,
) -> Result<Expected, EngineError> {
    let of = |residence| {
        let plan = Plan::of_one(target, model, residence, n_ctx, None)?;
        Expected::of(target, &plan)
    };
    let whole = of(Residence::Whole)?;
    Ok(match residence {
        Residence::Whole => whole,
        Residence::Slots(_) | Residence::File(_) | Residence::OneByOne(_) => {
            whole.with_waits_of(&of(residence)?)
        }
    })
}

/// MiB of the machine's memory that the GPU of a Mac can be given for `needed` bytes, where there is so much.
fn wired_limit_mb(target: &Target, memory: Memory, needed: u64) -> Option<u64> {
    let is_mac = target.machine.profile == Profile::Apple && target.machine.serial_passes;
    let most = memory.host.for_gpu()?;
    (is_mac && needed <= most).then(|| needed.div_ceil(1 << 20))
}

/// Where the experts of `model` lie on a GPU, for commands that have no flag for the context. Prompts are computed in chunks of `ubatch` tokens, or
/// as usual where `None`, or in smaller ones if only these have room.
///
/// # Errors
/// The errors of [`Place::check`].
#[cfg(not(target_arch = "wasm32"))]
pub fn check_gpu(
    gpu: &Gpu,
    model: &dyn Model,
    n_ctx: usize,
    ubatch: Option<u32>,
) -> Result<Option<Partly>, EngineError> {
    let place = Place {
        site: Site::Gpu(gpu, Memory::of(gpu)),
        model,
        ubatch,
        has_flag: false,
    };
    place.check(n_ctx)
}

/// Like [`check_gpu`], the residence of the experts: on the device with all else where that is to be forced. `told` hears of one that is not
/// whole. Behind it is the number of tokens of a chunk; `None` is the usual one.
///
/// # Errors
/// The errors of [`Place::check`].
#[cfg(not(target_arch = "wasm32"))]
pub fn residence(
    gpu: &Gpu,
    model: &dyn Model,
    (n_ctx, ubatch): (usize, Option<u32>),
    force: bool,
    told: &mut dyn FnMut(&Partly),
) -> Result<(Residence, Option<u32>), EngineError> {
    if force {
        return Ok((Residence::Whole, ubatch));
    }
    let partly = check_gpu(gpu, model, n_ctx, ubatch)?;
    partly.as_ref().map(told);
    let at_once = partly.and_then(|partly| partly.at_once);
    Ok((Partly::residence_of(partly.as_ref()), at_once.or(ubatch)))
}

/// The advice to take a context of `tokens` tokens, by the flag if there is one.
pub(super) fn fitting_context(tokens: usize, has_flag: bool) -> String {
    let flag = match has_flag {
        true => format!(": -c {tokens}"),
        false => String::new(),
    };
    format!("a context of {tokens} tokens fits{flag}")
}

/// The longest context up to `most` that `fits`, in steps of 256 tokens; `None` where not even the shortest does.
fn longest(
    most: usize,
    fits: &dyn Fn(usize) -> Result<bool, EngineError>,
) -> Result<Option<usize>, EngineError> {
    if fits(most)? {
        return Ok(Some(most));
    }
    // Below the first number it fits, at the second it does not.
    let (mut low, mut high) = (0, most.div_ceil(STEP));
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match fits(middle * STEP)? {
            true => low = middle,
            false => high = middle,
        }
    }
    Ok((low > 0).then_some(low * STEP))
}

#[cfg(test)]
mod tests;
