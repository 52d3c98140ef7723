//! The device that a step is recorded for: all that a recipe may know of it. It is a value, so steps can be recorded, counted and checked
//! for devices that nobody has at hand.

use super::geometry::{Choices, Geometry, Site};
use super::machine::{self, Machine, Profile, Repeated};
use super::{Coop, GpuError, Tier};
use crate::quant::activation::Activation;
use std::sync::Arc;
use wgpu::Limits;

/// A device, as recipes know it.
#[derive(Debug, Clone)]
pub struct Target {
    /// The device's name, for errors.
    pub name: String,
    /// The tier of every kernel.
    pub tier: Tier,
    /// The facts by which work is divided on it.
    pub machine: Machine,
    /// The most bytes of one binding.
    pub max_binding: u64,
    /// The most bytes of one buffer.
    pub max_buffer: u64,
    /// The number of bytes that the offset of a binding must be a multiple of.
    pub offset_alignment: u64,
    /// The cooperative matrices that kernels may use, where the device has them.
    pub coop: Option<Coop>,
    /// Whether halves are multiplied in pairs in tier `subgroup`: the verdict of a trial.
    pub packed_halves: bool,
    /// Whether shaders read buffers in host memory ([`Buffer::is_host`](super::buffer::Buffer::is_host)).
    pub reads_host: bool,
    /// How products divide their rows, where something else than the defaults was chosen.
    pub choices: Arc<Choices>,
    /// Whether workgroups repeat small work, where that was asked for ([`GpuOptions::repeats_work`](super::GpuOptions::repeats_work)).
    pub asked_to_repeat: Option<bool>,
}

impl Target {
    /// A device of these facts in `tier`, with bindings and buffers as large as kernels can index, without matrices.
    pub fn new(name: &str, machine: Machine, tier: Tier) -> Self {
        Self {
            name: name.to_owned(),
            tier,
            machine,
            max_binding: u64::from(u32::MAX),
            max_buffer: u64::from(u32::MAX),
            offset_alignment: 256,
            coop: None,
            packed_halves: machine.packed_halves,
            reads_host: tier.has_subgroups(),
            choices: Arc::default(),
            asked_to_repeat: None,
        }
    }

    /// A device of these facts and limits in `tier`, with matrices if it has any.
    pub(super) fn of(
        name: &str,
        machine: Machine,
        tier: Tier,
        limits: &Limits,
        coop: Option<Coop>,
    ) -> Self {
        Self {
            max_binding: limits.max_storage_buffer_binding_size,
            max_buffer: limits.max_buffer_size,
            offset_alignment: u64::from(limits.min_storage_buffer_offset_alignment).max(16),
            coop,
            ..Self::new(name, machine, tier)
        }
    }

    /// The device of this name by the makers' data sheets, in the tier that it is opened in; `None` where they know no such name.
    pub fn named(name: &str) -> Option<Self> {
        let maker = machine::maker(name)?;
        let tier = match machine::is_integrated(name) {
            true => Tier::Subgroup,
            false => Tier::Int8,
        };
        let mut of_makers = profiles().into_iter();
        let of_maker = of_makers.find(|known| (known.machine.profile, known.tier) == (maker, tier));
        let other = || Self::new(name, Machine::with_cores(maker, 8), tier);
        let mut target = of_maker.unwrap_or_else(other);
        name.clone_into(&mut target.name);
        target.machine.cores = machine::cores(name).unwrap_or(target.machine.cores);
        Some(target)
    }

    /// The target that the kernels were measured on ([`Machine::H200`]).
    pub fn h200() -> Self {
        Self {
            coop: Some(Coop::NVIDIA),
            ..Self::new("NVIDIA H200", Machine::H200, Tier::Subgroup)
        }
    }

    /// The form in which the products of few tokens leave their outputs for each other in this tier.
    pub fn activation(&self) -> Activation {
        self.tier.activation(self.packed_halves)
    }

    /// Threads that share a row in the kernels of a decoded token: a subgroup's, at most 32.
    pub fn lanes(&self) -> u32 {
        self.machine.lanes
    }

    /// Whether the workgroups of a decoded token's kernels repeat small work in place of a dispatch that does it once and that all
    /// wait for: as asked for or chosen, else where `more`, which they do more then, costs less ([`Machine::repeats`]).
    pub fn repeats_work(&self, more: Repeated) -> bool {
        self.asked_to_repeat()
            .unwrap_or_else(|| self.machine.repeats(more))
    }

    /// Whether work is to be repeated whatever it costs, or never: as asked for, or chosen by `glimt tune`.
    pub fn asked_to_repeat(&self) -> Option<bool> {
        let chosen = |activation| self.choices.repeats_work(activation);
        (self.asked_to_repeat).or_else(|| chosen(self.activation()))
    }

    /// Slices of the attention up to which `attn_v_b` joins them itself: as chosen, else as tuned for the device.
    pub fn merge_up_to(&self, activation: Activation) -> u32 {
        let chosen = self.choices.merge_up_to(activation);
        chosen.unwrap_or(self.machine.tuned.merged_slices)
    }

    /// Refuses a device whose shaders do not read host memory.
    ///
    /// # Errors
    /// [`GpuError::CannotReadHost`].
    pub fn check_reads_host(&self) -> Result<(), GpuError> {
        self.check_brings_experts()?;
        match self.reads_host {
            true => Ok(()),
            false => Err(GpuError::CannotReadHost {
                adapter: self.name.clone(),
                missing: "buffers that both it and the host reach (MAPPABLE_PRIMARY_BUFFERS)",
            }),
        }
    }

    /// Refuses a tier without kernels for experts that do not lie on the device.
    ///
    /// # Errors
    /// [`GpuError::CannotReadHost`].
    pub fn check_brings_experts(&self) -> Result<(), GpuError> {
        match self.tier.has_subgroups() {
            true => Ok(()),
            false => Err(GpuError::CannotReadHost {
                adapter: self.name.clone(),
                missing: "the tiers 'subgroup' and 'int8', which alone have kernels for that",
            }),
        }
    }

    /// The geometry of a product: the one chosen, or the default; `None` where the device allows none. A choice that
    /// the device or the kernel does not allow is named in the log, once, and left.
    pub fn geometry(&self, site: &Site) -> Option<Geometry> {
        let chosen = self.chosen(site);
        chosen.or_else(|| site.default_geometry(self.machine))
    }

    /// The geometry that was chosen for a product in place of the default, if the device and the kernel allow it.
    pub fn chosen(&self, site: &Site) -> Option<Geometry> {
        self.choices.allowed(site, self.machine, &self.name)
    }
}

/// Devices as recipes see them, where none is at hand: of each maker one, in every tier that it runs. Tests record for them.
pub fn profiles() -> Vec<Target> {
    let machine = |profile, cores, subgroup: [u32; 2], threads, memory_kib: u32| Machine {
        subgroup,
        lanes: subgroup[0].min(32),
        threads,
        workgroup_memory: memory_kib << 10,
        ..Machine::with_cores(profile, cores)
    };
    let apple = Machine {
        serial_passes: true,
        ..machine(Profile::Apple, 32, [32; 2], 1024, 32)
    };
    let intel = Machine {
        packed_halves: false,
        ..machine(Profile::Intel, 32, [8, 32], 1024, 32)
    };
    let software = Machine {
        packed_halves: false,
        ..machine(Profile::Software, 8, [8; 2], 1024, 32)
    };
    let devices = [
        ("NVIDIA H200", Machine::H200, Some(Coop::NVIDIA)),
        ("Apple M1 Max", apple, Some(Coop::APPLE)),
        (
            "AMD RX 7900 XTX",
            machine(Profile::Amd, 96, [32, 64], 1024, 32),
            None,
        ),
        ("Intel A770", intel, None),
        ("llvmpipe", software, Some(Coop::LLVMPIPE)),
    ];
    let mut targets = vec![];
    for (name, machine, coop) in devices {
        for tier in [Tier::Subgroup, Tier::Int8] {
            targets.push(Target {
                coop,
                ..Target::new(name, machine, tier)
            });
        }
    }
    let browser = machine(Profile::Other, 8, [4, 128], 256, 16);
    targets.push(Target {
        max_binding: 128 << 20,
        ..Target::new("a browser", browser, Tier::Plain)
    });
    targets
}
