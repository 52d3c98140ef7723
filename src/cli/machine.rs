//! The machine that `glimt inspect` plans for: this one, or one that is named.

use clap::Args;

use super::args::DeviceArgs;
use super::error::CliError;
use super::load::{self, Tried};
use super::size::size;
use crate::engine::{
    self, ComputedShare, DeviceChoice, Disk, EngineError, EngineOptions, GpuOptions, Holds, Host,
    Memory, ModelSource, Partly, Place, Processor, Site,
};
use crate::gpu::behind::Behind;
use crate::gpu::bus::Bus;
use crate::gpu::wait::Wait;
use crate::gpu::{AdapterSummary, Target, machine};
use crate::models::Model;

/// The flags that name another machine than this one.
#[derive(Args)]
pub(super) struct MachineArgs {
    /// Plan for a GPU of this name, such as "RTX 4070" or "Apple M4 Pro", with the memory that --gpu-memory names
    #[arg(long, value_name = "NAME", value_parser = known, requires = "most")]
    gpu: Option<&'static str>,
    /// Plan for a machine with so much memory beside the GPU's, such as 32G [default: this machine's, with --gpu not compared]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    host_memory: Option<u64>,
    /// Plan for a GPU on this bus: a generation of PCIe and lanes, such as 4x16 [default: that of the GPU, else 4x16]
    #[arg(long, value_name = "GxN")]
    bus: Option<Bus>,
    /// Plan for a disk that gives so many GB in a second, such as 3.5 [default: measured on this machine, else 3]
    #[arg(long, value_name = "GB/s")]
    disk: Option<Disk>,
    /// Plan for a CPU that multiplies so many GB of experts in a second, such as 16 [default: 16, as 8 cores do]
    #[arg(long, value_name = "GB/s")]
    cpu_speed: Option<Processor>,
}

/// The name of a GPU as data sheets have it.
fn known(text: &str) -> Result<&'static str, String> {
    let wanted = text.to_lowercase();
    let mut names = machine::known();
    names
        .find(|name| wanted.contains(&name.to_lowercase()))
        .ok_or_else(|| {
            let all: Vec<_> = machine::known().collect();
            format!(
                "glimt has no data sheet of {text:?}; it knows {}",
                all.join(", ")
            )
        })
}

/// A machine to plan for.
pub(super) enum Machine {
    /// This machine's CPU.
    Cpu,
    /// An adapter of this machine, which may be given another memory or bus than it has.
    Here {
        adapter: Box<AdapterSummary>,
        memory: Memory,
        changed: bool,
    },
    /// A GPU that is named.
    Named { target: Box<Target>, memory: Memory },
}

impl MachineArgs {
    /// The machine that the flags name.
    pub(super) fn machine(&self, device: &DeviceArgs) -> Result<Machine, CliError> {
        let most = device.memory.most;
        let host = self.host_memory.map(Host::of);
        if let Some((name, target)) = self.gpu.and_then(|name| Some((name, Target::named(name)?))) {
            return Ok(Machine::Named {
                target: Box::new(target),
                memory: Memory {
                    device: most,
                    behind: Behind::named(name, self.bus.unwrap_or(Bus::ASSUMED)),
                    host: host.unwrap_or_default(),
                    experts: device.memory.experts,
                    disk: self.disk.or(Some(Disk::ASSUMED)),
                },
            });
        }
        let options = EngineOptions {
            gpu: device.options(),
            ..EngineOptions::default()
        };
        let Some(adapter) = engine::adapter(&options).wait()? else {
            return Ok(Machine::Cpu);
        };
        let mut memory = Memory {
            experts: device.memory.experts,
            disk: self.disk,
            ..Memory::of_adapter(&adapter, most)
        };
        if let Some(host) = host {
            memory.host = host;
        }
        if let (Some(bus), Behind::Host(_)) = (self.bus, memory.behind) {
            memory.behind = Behind::Host(bus);
        }
        Ok(Machine::Here {
            adapter: Box::new(adapter),
            memory,
            changed: self.host_memory.is_some() || self.bus.is_some() || self.disk.is_some(),
        })
    }
}

impl MachineArgs {
    /// The CPU's share of missing experts that should pay on `machine`; `None` where nothing is shared.
    pub(super) fn share(
        &self,
        machine: &Machine,
        partly: Option<&Partly>,
    ) -> Option<ComputedShare> {
        let shares = match machine {
            Machine::Cpu => false,
            Machine::Here { adapter, .. } => {
                adapter.backend == "vulkan" && adapter.kind != "software"
            }
            Machine::Named { .. } => true,
        };
        let partly = partly.filter(|_| shares)?;
        partly.share(self.cpu_speed.unwrap_or(Processor::ASSUMED))
    }
}

impl Machine {
    fn site(&self) -> Site<'_> {
        match self {
            Self::Cpu => Site::Cpu,
            Self::Here {
                adapter, memory, ..
            } => Site::Gpu(&adapter.target, *memory),
            Self::Named { target, memory } => Site::Gpu(target, *memory),
        }
    }

    /// The GPU as recipes know it.
    pub(super) fn target(&self) -> Option<&Target> {
        match self.site() {
            Site::Cpu => None,
            Site::Gpu(target, _) => Some(target),
        }
    }

    /// The name of a GPU that is not here.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::Named { target, .. } => Some(&target.name),
            _ => None,
        }
    }

    /// The adapter of this machine.
    pub(super) fn adapter(self) -> Option<AdapterSummary> {
        match self {
            Self::Here { adapter, .. } => Some(*adapter),
            _ => None,
        }
    }

    /// Whether it differs from this machine.
    fn is_other(&self) -> bool {
        match self {
            Self::Cpu => false,
            Self::Here { changed, .. } => *changed,
            Self::Named { .. } => true,
        }
    }
}

/// A model and the machine that it is planned for.
pub(super) struct Subject<'a> {
    pub(super) source: &'a ModelSource,
    pub(super) model: &'a dyn Model,
    pub(super) machine: &'a Machine,
    /// Whether the model may think.
    pub(super) thinks: bool,
}

/// The outcome of trying an answer.
pub(super) struct Answered {
    /// The answer, or why it would be refused.
    pub(super) tried: Result<Tried, CliError>,
    /// The context that it has, in tokens.
    pub(super) n_ctx: usize,
    /// Where the experts lie, if the device has no room for all of them.
    pub(super) partly: Option<Partly>,
}

impl<'a> Subject<'a> {
    /// The place of the model.
    pub(super) fn place(&self, ubatch: Option<u32>) -> Place<'a> {
        Place {
            site: self.machine.site(),
            model: self.model,
            ubatch,
            has_flag: true,
        }
    }

    /// How much of the model the machine has room for in a context of `ctx` tokens; of the usual number where `None`.
    pub(super) fn holds(&self, ctx: Option<usize>, ubatch: Option<u32>) -> Holds {
        let place = self.place(ubatch);
        let n_ctx = match ctx {
            Some(ctx) => engine::context_length(Some(ctx), self.model.config().context_length),
            None => place.default_context(self.thinks),
        };
        let found = n_ctx.and_then(|n_ctx| place.check(n_ctx));
        Holds::of(found.as_ref().map(Option::as_ref))
    }

    /// Tries an answer with `options`, in a context of `usual` tokens where nothing else is found.
    pub(super) fn answered(&self, options: EngineOptions, usual: usize) -> Answered {
        let place = self.place(options.ubatch);
        let mut options = options;
        let force = options.force;
        if self.machine.is_other() {
            // Nothing of this machine counts, so its CPU tries what there is to try beside memory.
            let thinks = options.may_think && self.thinks;
            options.ctx = options.ctx.or_else(|| place.default_context(thinks).ok());
            options.gpu = GpuOptions {
                device: DeviceChoice::Cpu,
                ..GpuOptions::default()
            };
            options.force = true;
        }
        let tried = load::try_answer(self.source, &options);
        let n_ctx = tried.as_ref().map_or(usual, |tried| tried.n_ctx);
        let refused = |error: EngineError| CliError::from(error).in_file(self.source);
        let checked = match (&tried, force) {
            (Err(_), _) | (_, true) => Ok(None),
            (Ok(_), false) => place.check(n_ctx),
        };
        match checked {
            Ok(partly) => Answered {
                tried,
                n_ctx,
                partly,
            },
            Err(error) => Answered {
                tried: tried.and(Err(refused(error))),
                n_ctx,
                partly: None,
            },
        }
    }
}
