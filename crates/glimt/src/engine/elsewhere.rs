//! The places of experts that have no room on a device: the memory of the host, or the file.

use std::fmt;

use serde::Serialize;

use super::disk::Disk;
use super::gpu::MemoryPlan;
use super::host::{Host, size};
use super::{EngineError, Serving};
use crate::gpu::behind::{Behind, ExpertsFrom};
use crate::gpu::bus::Bus;
use crate::gpu::{AdapterSummary, Gpu, GpuError, Target};
use crate::model::Weight;
use crate::models::Model;
use crate::recipes::Residence;

/// The memory of a GPU, and what lies behind it.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// Bytes of the GPU that may be taken; `None` where nothing tells.
    pub device: Option<u64>,
    /// The memory behind it.
    pub behind: Behind,
    /// The memory of the machine.
    pub host: Host,
    /// The place from which experts are to come that have no room on the GPU.
    pub experts: ExpertsFrom,
    /// The disk that the file lies on; it is measured where `None`.
    pub disk: Option<Disk>,
}

impl Memory {
    /// The memory of an opened GPU of this machine.
    pub(super) fn of(gpu: &Gpu) -> Self {
        Self {
            device: gpu.memory,
            behind: gpu.behind,
            host: Host::here(),
            experts: gpu.experts,
            disk: None,
        }
    }

    /// The memory of a GPU of this machine, of which at most `limit` bytes may be taken.
    pub fn of_adapter(adapter: &AdapterSummary, limit: Option<u64>) -> Self {
        let device = [adapter.free.or(adapter.memory), limit];
        Self {
            device: device.into_iter().flatten().min(),
            behind: adapter.behind,
            host: Host::here(),
            experts: ExpertsFrom::Auto,
            disk: None,
        }
    }

    /// Bytes that may be taken: the GPU's, or the machine's if the GPU tells nothing.
    pub fn has(self) -> Option<u64> {
        self.device.or(self.host.total)
    }

    /// The bus over which experts can come.
    ///
    /// # Errors
    /// A clause that says why they cannot. It is empty for memory that the GPU shares with the machine.
    fn bus(self, target: &Target) -> Result<Bus, String> {
        match (self.behind, target.check_reads_host()) {
            (Behind::Unified, _) => Err(String::new()),
            (Behind::Browser, _) => Err(
                ", and its experts cannot lie elsewhere, because a browser's shaders read no other memory"
                    .to_owned(),
            ),
            (Behind::Host(bus), Ok(())) => Ok(bus),
            (Behind::Host(_), Err(GpuError::CannotReadHost { missing, .. })) => Err(format!(
                ", and its experts cannot lie in the machine's memory, because the GPU or the tier lacks {missing}"
            )),
            (Behind::Host(_), Err(other)) => Err(format!(", and {other}")),
        }
    }
}

/// The way by which experts come to the device.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// From the memory of the host, over this bus.
    Bus(Bus),
    /// From the file, by reads of the host.
    Disk(Disk),
}

impl Way {
    /// Seconds of a token that misses `bytes` of experts in `layers` layers.
    pub(super) fn seconds(self, bytes: f64, layers: u32) -> f64 {
        match self {
            Self::Bus(bus) => bytes / (bus.gb_per_s() * 1e9),
            Self::Disk(disk) => disk.seconds(bytes, layers),
        }
    }

    /// This way, with the speed of the disk that the file of `model` lies on, unless `memory` tells it.
    pub(super) fn measured(self, target: &Target, model: &dyn Model, memory: Memory) -> Self {
        match (self, memory.disk) {
            (Self::Disk(_), None) => Self::Disk(disk_of(target, model)),
            known => known.0,
        }
    }

    /// The residence with so many slots, if so many tokens of a prompt are computed at once; the usual number where `None`.
    pub(super) fn residence(self, slots: u32, at_once: Option<u32>) -> Residence {
        match (self, at_once) {
            (Self::Bus(_), _) => Residence::Slots(slots),
            (Self::Disk(_), Some(1)) => Residence::OneByOne(slots),
            (Self::Disk(_), _) => Residence::File(slots),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bus(bus) => write!(f, "come over the bus ({bus})"),
            Self::Disk(disk) => write!(f, "are read from the file ({disk})"),
        }
    }
}

/// Tokens of a prompt that are computed at once; the usual number where `None`.
pub(super) type AtOnce = Option<u32>;

/// Tokens of a session's prompt at once that are tried in turn, until experts from the file have room.
pub(super) const FEWER: &[AtOnce] = &[None, Some(512), Some(64), Some(1)];

/// Those of the steps of several sequences: one of each has a token at least.
pub(super) const FEWER_OF_MANY: &[AtOnce] = &[None, Some(Serving::MOST)];

/// A search for such a place.
pub(super) enum Elsewhere {
    /// Experts come this way, if so many tokens are computed at once. The plan has no slots.
    At(Way, MemoryPlan, AtOnce),
    /// There is none: the plan without experts on the device, where that is possible, and why it does not fit, as a clause.
    Nowhere(Option<MemoryPlan>, String),
}

impl Elsewhere {
    /// The place for experts on a device of which `has` bytes may be taken, by `plan`. Experts from the file are tried with these numbers of
    /// tokens at once.
    pub(super) fn find(
        target: &Target,
        memory: Memory,
        (has, tried): (u64, &[AtOnce]),
        plan: &dyn Fn(Residence, AtOnce) -> Result<MemoryPlan, EngineError>,
    ) -> Self {
        let bus = match memory.experts {
            ExpertsFrom::File => Err(String::new()),
            ExpertsFrom::Auto | ExpertsFrom::Host => memory.bus(target),
        };
        let in_host = match bus {
            Err(but) => Self::Nowhere(None, but),
            Ok(bus) => match plan(Residence::Slots(0), None) {
                Err(error) => Self::Nowhere(None, unplaced(&error)),
                Ok(least) => match objection(&least, has).or_else(|| no_host(&least, memory)) {
                    Some(but) => Self::Nowhere(Some(least), but),
                    None => return Self::At(Way::Bus(bus), least, None),
                },
            },
        };
        let may_read = memory.experts != ExpertsFrom::Host
            && memory.behind != Behind::Browser
            && target.check_brings_experts().is_ok();
        if !may_read {
            return in_host;
        }
        let way = Way::Disk(memory.disk.unwrap_or(Disk::ASSUMED));
        let mut but = (None, String::new());
        for at_once in tried {
            but = match plan(way.residence(0, *at_once), *at_once) {
                Err(error) => (None, unplaced(&error)),
                Ok(least) => match objection(&least, has) {
                    Some(but) => (Some(least), but),
                    None => return Self::At(way, least, *at_once),
                },
            };
        }
        match (in_host, but) {
            // Experts from the file need the least memory of the device.
            (_, (Some(least), but)) => Self::Nowhere(Some(least), but),
            (Self::Nowhere(None, why), (None, but)) if why.is_empty() => Self::Nowhere(None, but),
            (nowhere, _) => nowhere,
        }
    }
}

/// The speed of the disk that the file of `model` lies on.
fn disk_of(target: &Target, model: &dyn Model) -> Disk {
    let Ok(placed) = model.place(target, Residence::File(0)) else {
        return Disk::ASSUMED;
    };
    let rooms = placed.weights.body.rooms.iter().flatten();
    let experts = rooms.filter_map(|rooms| rooms.file.as_ref());
    let experts: Vec<&Weight> = experts.flat_map(|experts| experts.weights()).collect();
    Disk::measured(&experts)
}

/// Why a model does not fit without its experts on the device, as a clause; `None` where it does.
fn objection(least: &MemoryPlan, has: u64) -> Option<String> {
    (least.total() > has).then(|| {
        let needed = size(least.total());
        format!(", and {needed} are needed there without any expert")
    })
}

/// Why its experts do not fit the memory of the host, as a clause; `None` where they do.
fn no_host(least: &MemoryPlan, memory: Memory) -> Option<String> {
    let room = memory.host.for_experts()?;
    (least.host > room).then(|| {
        format!(
            ", and its experts, {}, have no room in the machine's memory, where {} are free for them",
            size(least.host),
            size(room)
        )
    })
}

/// Why experts cannot be given places elsewhere, as a clause.
fn unplaced(error: &EngineError) -> String {
    match error {
        EngineError::Gpu(GpuError::BindingTooLarge { .. }) => {
            ", and its experts cannot lie elsewhere, because those of a layer are larger than a binding of the GPU"
        }
        _ => ", and its experts have sizes that cannot lie in the machine's memory",
    }
    .to_owned()
}
