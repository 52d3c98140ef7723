//! Facts about a device that kernels, grids and tiers are chosen by: what the device tells, and for what no driver tells a profile of
//! its maker.

pub mod attention;
mod data_sheets;
pub(crate) mod geometries;
pub mod tiles;
mod tunables;
pub(crate) mod workgroups;

pub(super) use data_sheets::cores;
pub use data_sheets::{is_integrated, known, maker, memory_speed};
pub use tunables::{TunableError, Tunables};

use super::coop::Coop;
use serde::Serialize;
use wgpu::{AdapterInfo, Backend, DeviceType, Features, Limits};

/// The most threads of a workgroup, on every device.
pub const MAX_THREADS: u32 = 1024;
/// The fewest lanes of a subgroup that the `subgroup` tier's reductions work with.
pub const MIN_SUBGROUP: u32 = 8;

/// Descriptors of bindings that a device loads together. On GPUs of NVIDIA a descriptor takes 16 bytes of a line of 128.
pub(crate) const DESCRIPTORS_OF_LINE: usize = 8;

/// Seconds for which a dispatch that others wait for leaves the memory idle: until its first loads arrive, and while its last workgroups
/// end. Fitted to measurements on an H200 (docs/expected.md), and assumed to be the same elsewhere.
pub const FILL: f64 = 2.4e-6;
/// Operations of a lane for each weight, by pairs of halves or by packed bytes. Counted in the kernels.
pub const PACKED_STEPS: f64 = 3.0;
/// Operations of a lane for each weight, by halves that are widened to f32. Counted in the kernels.
pub const FLOAT_STEPS: f64 = 7.0;
/// Operations of a lane for each weight in tier `plain`. There each thread loads the activations for itself. Fitted as [`FILL`].
pub const PLAIN_STEPS: f64 = 45.0;

/// The maker of a GPU. It decides the facts that no driver reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// GPUs of Apple's own chips, by Metal, or by Vulkan on Linux.
    Apple,
    /// AMD.
    Amd,
    /// Intel.
    Intel,
    /// NVIDIA.
    Nvidia,
    /// A CPU that plays a GPU, such as lavapipe.
    Software,
    /// Any other maker.
    Other,
}

/// Bytes of workgroup memory of the devices that have such matrices.
pub const fn matrix_memory(coop: Coop) -> u32 {
    match coop.size {
        16 => Machine::H200.workgroup_memory,
        _ => 32 << 10,
    }
}

/// The PCI vendor NVIDIA. Metal tells none.
pub const NVIDIA: u32 = 0x10de;
/// The PCI vendor AMD.
pub const AMD: u32 = 0x1002;
/// The PCI vendor Intel.
pub const INTEL: u32 = 0x8086;

impl Profile {
    /// The profile's name in messages and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Apple => "Apple",
            Self::Amd => "AMD",
            Self::Intel => "Intel",
            Self::Nvidia => "NVIDIA",
            Self::Software => "software",
            Self::Other => "another maker",
        }
    }

    /// The profile of an adapter.
    pub fn of(info: &AdapterInfo) -> Self {
        let name = |part: &str| info.name.contains(part);
        match info.vendor {
            _ if info.device_type == DeviceType::Cpu => Self::Software,
            NVIDIA => Self::Nvidia,
            AMD => Self::Amd,
            INTEL => Self::Intel,
            _ if name("Apple") => Self::Apple,
            // Macs with processors of Intel have GPUs of others.
            _ if info.backend == Backend::Metal && name("AMD") => Self::Amd,
            _ if info.backend == Backend::Metal && name("Intel") => Self::Intel,
            _ => Self::Other,
        }
    }

    /// See [`Machine::packed_bytes`].
    pub const fn packed_bytes(self, backend: Backend) -> bool {
        matches!(self, Self::Nvidia | Self::Amd | Self::Intel)
            && matches!(backend, Backend::Vulkan | Backend::Dx12)
    }

    /// Cores that are assumed of a device of this profile if [`data_sheets`] does not tell them: those of a middle model.
    const fn default_cores(self, kind: DeviceType) -> u32 {
        match (self, kind) {
            (Self::Nvidia, _) => 46,
            (Self::Amd, DeviceType::DiscreteGpu) => 60,
            (Self::Intel, DeviceType::DiscreteGpu) => 20,
            (Self::Apple, _) => 10,
            (Self::Amd | Self::Intel | Self::Software, _) => 8,
            (Self::Other, DeviceType::DiscreteGpu) => 60,
            (Self::Other, _) => 8,
        }
    }

    /// Operations of all lanes of a core in a nanosecond: lanes times clock in GHz. By the makers' data sheets, assumed of other makers.
    pub const fn lane_operations(self) -> f64 {
        match self {
            Self::Nvidia => 128.0 * 1.98,
            Self::Apple => 128.0 * 1.3,
            Self::Amd => 64.0 * 2.0,
            Self::Intel => 128.0 * 2.0,
            Self::Other | Self::Software => 64.0,
        }
    }

    /// Weights that a core multiplies in a nanosecond, and bytes that it loads from the second-level cache in one. The bytes are 64 or 32 a
    /// clock. Data sheets and assumptions, of which only NVIDIA's were compared with measurements.
    const fn core_rates(self) -> [u64; 2] {
        let steps = match self {
            // It is not known to multiply pairs of halves faster.
            Self::Intel => FLOAT_STEPS,
            _ => PACKED_STEPS,
        };
        let bytes = match self {
            Self::Nvidia => 126,
            Self::Apple => 41,
            Self::Amd => 128,
            Self::Intel => 64,
            Self::Other | Self::Software => 32,
        };
        [(self.lane_operations() / steps) as u64, bytes]
    }

    /// See [`Machine::wait_ns`].
    const fn wait_ns(self) -> u32 {
        match self {
            // Measured on an H200 through wgpu: 1.9 to 2.3 us.
            Self::Nvidia => 2200,
            // An assumption, from 2 to 5 us that others report.
            Self::Apple => 3500,
            // Assumed.
            Self::Amd | Self::Intel | Self::Other => 3500,
            // Assumed: threads that are woken.
            Self::Software => 10_000,
        }
    }
}

/// The facts of a device that decide how work is divided on it.
///
/// Facts that the device does not tell come from its [`Profile`] and are assumptions unless a field says that they were measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// The profile of the maker.
    pub profile: Profile,
    /// Most threads that share a row in the kernels of a decoded token: the lanes of the smallest subgroup, at most 32.
    pub lanes: u32,
    /// The fewest and the most lanes of a subgroup, as the device tells; 32 and 32 on Metal, where wgpu tells a constant.
    pub subgroup: [u32; 2],
    /// Most threads of a workgroup: what the device tells, at most [`MAX_THREADS`].
    pub threads: u32,
    /// Bytes of workgroup memory of a workgroup, as the device tells.
    pub workgroup_memory: u32,
    /// Cores (multiprocessors, compute units): each runs workgroups of its own. By the device's name, or assumed for its profile.
    pub cores: u32,
    /// Whether every dispatch of a pass waits for the one before it, also where it reads nothing of it: in Metal's serial encoders,
    /// which wgpu uses.
    pub serial_passes: bool,
    /// The cost of a dispatch that waits for another, in nanoseconds: measured on an H200 (1900 to 2300), assumed for others.
    pub wait_ns: u32,
    /// Whether products of pairs of halves cost less than those of halves that are widened to f32, and the device was opened with f16:
    /// assumed of NVIDIA and AMD, where f16 runs at twice the rate of f32, and of Apple's GPUs, where it runs at the same rate
    /// (metal-benchmarks, M1 and M2) and pairs need fewer steps for a weight (`benches/apple-caps.md`). Of Intel's nothing is known.
    pub packed_halves: bool,
    /// Whether the maker's GPUs multiply packed bytes in one instruction and the backend can say so: NVIDIA, AMD and Intel by Vulkan
    /// or DX12. Of single devices no driver tells it, and whether it is faster is another question.
    pub packed_bytes: bool,
    /// Numbers that were tuned.
    pub tuned: Tunables,
}

/// The additional work of workgroups that repeat work, against dispatches that share it evenly: the share of the core with the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repeated {
    /// Weights that it multiplies more; additions count as many.
    pub weights: u64,
    /// Bytes that it loads more, from the second-level cache.
    pub bytes: u64,
}

impl Machine {
    /// The machine that the kernels were measured on: an NVIDIA H200 through Vulkan.
    pub const H200: Self = Self {
        profile: Profile::Nvidia,
        lanes: 32,
        subgroup: [32; 2],
        threads: MAX_THREADS,
        workgroup_memory: 48 << 10,
        cores: 132,
        serial_passes: false,
        wait_ns: 2200,
        packed_halves: true,
        packed_bytes: true,
        tuned: Tunables::H200,
    };

    /// The machine of a device that tells this and was opened with these limits and features.
    pub fn new(info: &AdapterInfo, limits: &Limits, features: Features) -> Self {
        let profile = Profile::of(info);
        let metal = info.backend == Backend::Metal;
        let subgroup = match metal {
            // wgpu tells a constant 4..64 there. Apple's GPUs have 32.
            true => [32; 2],
            false => [info.subgroup_min_size, info.subgroup_max_size],
        };
        let named = cores(&info.name).filter(|_| profile != Profile::Software);
        Self {
            profile,
            lanes: subgroup[0].clamp(MIN_SUBGROUP, 32),
            subgroup,
            threads: limits
                .max_compute_invocations_per_workgroup
                .min(limits.max_compute_workgroup_size_x)
                .min(MAX_THREADS),
            workgroup_memory: limits.max_compute_workgroup_storage_size,
            cores: named.unwrap_or_else(|| profile.default_cores(info.device_type)),
            serial_passes: metal,
            wait_ns: profile.wait_ns(),
            packed_halves: matches!(profile, Profile::Nvidia | Profile::Amd | Profile::Apple)
                && features.contains(Features::SHADER_F16),
            packed_bytes: profile.packed_bytes(info.backend),
            tuned: Tunables::of(profile),
        }
    }

    /// Whether repeating the work `more` costs less than the dispatch that it saves. Multiplying and loading are assumed to overlap,
    /// and a dispatch saved to give back nothing but what waiting for it costs. Software never repeats: it was measured, and a token
    /// of the built-in model took 6% longer.
    pub fn repeats(&self, more: Repeated) -> bool {
        if self.profile == Profile::Software {
            return false;
        }
        let [weights, bytes] = self.profile.core_rates();
        let ns = (more.weights / weights).max(more.bytes / bytes);
        ns < u64::from(self.wait_ns)
    }

    /// A machine of this profile with `cores` cores, where none is at hand.
    pub fn with_cores(profile: Profile, cores: u32) -> Self {
        Self {
            profile,
            cores,
            lanes: if profile == Profile::Software { 8 } else { 32 },
            wait_ns: profile.wait_ns(),
            tuned: Tunables::of(profile),
            ..Self::H200
        }
    }

    /// Workgroups that keep all cores busy: a power of two, at most as many as there are cores, as the kernels were measured with.
    pub const fn spread(&self) -> u32 {
        match self.cores.checked_ilog2() {
            Some(power) => 1 << power,
            None => 1,
        }
    }

    /// Whether `workgroups` equal workgroups, one at a time on each core, leave at least a tenth of the cores idle in the last round. Then
    /// work that runs beside them is almost free. Else it costs a round. Measured on an H200.
    pub const fn leaves_gaps(&self, workgroups: u32) -> bool {
        let cores = if self.cores == 0 { 1 } else { self.cores };
        let last = workgroups % cores;
        last > 0 && last * 10 < cores * 9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(name: &str, kind: DeviceType, backend: Backend, vendor: u32) -> Machine {
        let mut info = AdapterInfo::new(kind, backend);
        (info.name, info.vendor) = (name.to_owned(), vendor);
        (info.subgroup_min_size, info.subgroup_max_size) = (32, 64);
        Machine::new(&info, &Limits::default(), Features::SHADER_F16)
    }

    #[test]
    fn devices_have_the_facts_of_their_makers() {
        use Backend::{Dx12, Metal, Vulkan};
        use DeviceType::{Cpu, DiscreteGpu, IntegratedGpu};
        // Name, kind, backend, vendor -> profile, cores, serial passes, packed halves, packed bytes.
        for (name, kind, backend, vendor, expected) in [
            (
                "NVIDIA H200",
                DiscreteGpu,
                Vulkan,
                NVIDIA,
                (Profile::Nvidia, 132, false, true, true),
            ),
            (
                "NVIDIA GeForce GTX 1660",
                DiscreteGpu,
                Dx12,
                NVIDIA,
                (Profile::Nvidia, 46, false, true, true),
            ),
            (
                "AMD Radeon RX 7900 XTX (RADV NAVI31)",
                DiscreteGpu,
                Vulkan,
                AMD,
                (Profile::Amd, 96, false, true, true),
            ),
            (
                "AMD Radeon Pro 5500M",
                DiscreteGpu,
                Metal,
                0,
                (Profile::Amd, 60, true, true, false),
            ),
            (
                "Intel(R) UHD Graphics",
                IntegratedGpu,
                Vulkan,
                INTEL,
                (Profile::Intel, 8, false, false, true),
            ),
            (
                "Apple M1 Max",
                IntegratedGpu,
                Metal,
                0,
                (Profile::Apple, 32, true, true, false),
            ),
            (
                "Apple M4",
                IntegratedGpu,
                Metal,
                0,
                (Profile::Apple, 10, true, true, false),
            ),
            (
                "llvmpipe (LLVM 19.1.7, 256 bits)",
                Cpu,
                Vulkan,
                0x10005,
                (Profile::Software, 8, false, false, false),
            ),
        ] {
            let m = machine(name, kind, backend, vendor);
            let found = (
                m.profile,
                m.cores,
                m.serial_passes,
                m.packed_halves,
                m.packed_bytes,
            );
            assert_eq!(found, expected, "{name}");
            let subgroup = if backend == Metal { [32; 2] } else { [32, 64] };
            assert_eq!((m.lanes, m.subgroup), (32, subgroup), "{name}");
        }
        let info = AdapterInfo::new(DiscreteGpu, Vulkan);
        let without = Machine::new(&info, &Limits::default(), Features::empty());
        assert!(!without.packed_halves && without.lanes >= MIN_SUBGROUP);
    }

    #[test]
    fn workgroups_follow_the_cores() {
        let machines = [1, 8, 10, 40, 76].map(|n| Machine::with_cores(Profile::Apple, n));
        assert_eq!(machines.map(|m| m.spread()), [1, 8, 8, 32, 64]);
        assert_eq!(Machine::H200.spread(), 128);
        // A round and a little; nine tenths of a second one; all of it.
        for (cores, gaps, none) in [(132, 118, 119), (40, 35, 36), (10, 8, 9), (8, 7, 8)] {
            let machine = Machine::with_cores(Profile::Nvidia, cores);
            assert!(machine.leaves_gaps(cores + 1) && machine.leaves_gaps(cores + gaps));
            assert!(!machine.leaves_gaps(cores + none) && !machine.leaves_gaps(2 * cores));
        }
    }
}
