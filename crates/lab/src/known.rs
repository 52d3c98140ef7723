//! GPUs that people have, as data: what their drivers tell, by the reports of others, and what their makers write of their memory.
//!
//! Nobody needs to own them to plan for them. What a driver tells can change with its version.

use wgpu::{AdapterInfo, Backend, DeviceType, Features, Limits};

use glimt::gpu::facts::Facts;
use glimt::gpu::machine::{AMD, INTEL, Machine, NVIDIA};
use glimt::gpu::tier::MAX_PARAMS;
use glimt::gpu::{Coop, Target, Tier};

/// A GPU by one backend.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// The name of the GPU.
    pub name: &'static str,
    backend: Backend,
    kind: DeviceType,
    vendor: u32,
    /// GiB that it can use: of a Mac what Metal recommends at most.
    pub memory_gib: f64,
    /// GB of memory that it can read in a second, as its maker writes.
    pub gb_per_s: f64,
    /// Lanes of its smallest and its largest subgroups; none where shaders cannot use them.
    subgroup: Option<[u32; 2]>,
    workgroup_kib: u32,
    threads: u32,
    /// Storage buffers of a shader.
    buffers: u32,
    /// MiB of a binding.
    binding_mib: u64,
    /// Whether shaders can use halves, and immediates.
    halves: bool,
    immediates: bool,
    matrices: Option<Coop>,
}

const MAC: Known = Known {
    name: "",
    backend: Backend::Metal,
    kind: DeviceType::IntegratedGpu,
    vendor: 0,
    memory_gib: 0.0,
    gb_per_s: 0.0,
    subgroup: Some([4, 64]),
    workgroup_kib: 32,
    threads: 1024,
    buffers: 29,
    binding_mib: 4095,
    halves: true,
    immediates: true,
    matrices: Some(Coop::APPLE),
};

const BY_VULKAN: Known = Known {
    backend: Backend::Vulkan,
    kind: DeviceType::DiscreteGpu,
    buffers: 64,
    binding_mib: 2047,
    matrices: None,
    ..MAC
};

/// An H200, of which the formula is measured, and those of others.
pub const KNOWN: [Known; 21] = [
    Known {
        name: "NVIDIA H200",
        vendor: NVIDIA,
        memory_gib: 139.0,
        // The rate of a plain read through wgpu (benches/machines.json).
        gb_per_s: 4550.0,
        subgroup: Some([32; 2]),
        workgroup_kib: 48,
        matrices: Some(Coop::NVIDIA),
        ..BY_VULKAN
    },
    Known {
        name: "Apple M1",
        memory_gib: 10.7,
        gb_per_s: 68.0,
        ..MAC
    },
    Known {
        name: "Apple M2",
        memory_gib: 10.7,
        gb_per_s: 100.0,
        ..MAC
    },
    Known {
        name: "Apple M2 Pro",
        memory_gib: 10.7,
        gb_per_s: 200.0,
        ..MAC
    },
    Known {
        name: "Apple M3 Max",
        memory_gib: 48.0,
        gb_per_s: 400.0,
        ..MAC
    },
    Known {
        name: "Apple M4 Pro",
        memory_gib: 16.0,
        gb_per_s: 273.0,
        ..MAC
    },
    Known {
        name: "Apple M5 Max",
        memory_gib: 96.0,
        gb_per_s: 614.0,
        ..MAC
    },
    Known {
        name: "AMD Radeon RX 7900 XTX (RADV)",
        subgroup: Some([32, 64]),
        ..RDNA3
    },
    Known {
        name: "AMD Radeon RX 7900 XTX, waves of 32",
        subgroup: Some([32; 2]),
        ..RDNA3
    },
    Known {
        name: "AMD Radeon RX 7900 XTX, waves of 64",
        subgroup: Some([64; 2]),
        ..RDNA3
    },
    Known {
        name: "AMD Radeon RX 9070 XT (RADV)",
        subgroup: Some([32, 64]),
        ..RDNA4
    },
    Known {
        name: "AMD Radeon RX 9070 XT, waves of 32",
        subgroup: Some([32; 2]),
        ..RDNA4
    },
    Known {
        name: "AMD Radeon RX 9070 XT, waves of 64",
        subgroup: Some([64; 2]),
        ..RDNA4
    },
    Known {
        name: "AMD Radeon 8060S (RADV STRIX_HALO)",
        vendor: AMD,
        kind: DeviceType::IntegratedGpu,
        memory_gib: 96.0,
        gb_per_s: 256.0,
        subgroup: Some([32, 64]),
        workgroup_kib: 64,
        ..BY_VULKAN
    },
    Known {
        name: "Intel(R) Arc(TM) A770 Graphics",
        vendor: INTEL,
        memory_gib: 16.0,
        gb_per_s: 560.0,
        subgroup: Some([8, 32]),
        ..BY_VULKAN
    },
    Known {
        name: "Qualcomm Adreno X1-85",
        vendor: 0x5143,
        kind: DeviceType::IntegratedGpu,
        memory_gib: 16.0,
        gb_per_s: 135.0,
        subgroup: Some([64, 128]),
        threads: 1024,
        buffers: 24,
        binding_mib: 1023,
        ..BY_VULKAN
    },
    Known {
        name: "NVIDIA GeForce RTX 4090",
        vendor: NVIDIA,
        memory_gib: 24.0,
        gb_per_s: 1008.0,
        subgroup: Some([32; 2]),
        workgroup_kib: 48,
        matrices: Some(Coop::NVIDIA),
        ..BY_VULKAN
    },
    Known {
        name: "NVIDIA GeForce RTX 4070",
        vendor: NVIDIA,
        memory_gib: 12.0,
        gb_per_s: 504.0,
        subgroup: Some([32; 2]),
        workgroup_kib: 48,
        matrices: Some(Coop::NVIDIA),
        ..BY_VULKAN
    },
    Known {
        name: "NVIDIA GeForce RTX 3060",
        vendor: NVIDIA,
        memory_gib: 12.0,
        gb_per_s: 360.0,
        subgroup: Some([32; 2]),
        workgroup_kib: 48,
        matrices: Some(Coop::NVIDIA),
        ..BY_VULKAN
    },
    Known {
        name: "NVIDIA GeForce RTX 4090, DX12 without dxcompiler.dll",
        vendor: NVIDIA,
        backend: Backend::Dx12,
        memory_gib: 24.0,
        gb_per_s: 1008.0,
        subgroup: None,
        halves: false,
        ..BY_VULKAN
    },
    Known {
        name: "a browser on an Apple M3 Max",
        backend: Backend::BrowserWebGpu,
        memory_gib: 48.0,
        gb_per_s: 400.0,
        subgroup: None,
        workgroup_kib: 16,
        threads: 256,
        buffers: 8,
        binding_mib: 128,
        immediates: false,
        matrices: None,
        ..MAC
    },
];

const RDNA3: Known = Known {
    vendor: AMD,
    memory_gib: 24.0,
    gb_per_s: 960.0,
    workgroup_kib: 64,
    ..BY_VULKAN
};

const RDNA4: Known = Known {
    vendor: AMD,
    memory_gib: 16.0,
    gb_per_s: 640.0,
    workgroup_kib: 64,
    ..BY_VULKAN
};

impl Known {
    /// Bytes that it can use.
    pub fn memory(&self) -> u64 {
        (self.memory_gib * f64::from(1 << 30)) as u64
    }

    /// Bytes of the machine's memory: 32 GiB, or what a GPU has that shares it is two thirds of.
    pub fn host(&self) -> u64 {
        match self.kind {
            DeviceType::IntegratedGpu => self.memory() / 2 * 3,
            _ => 32 << 30,
        }
    }

    /// The facts that its adapter tells.
    pub fn facts(&self) -> Facts {
        let mut info = AdapterInfo::new(self.kind, self.backend);
        self.name.clone_into(&mut info.name);
        info.vendor = self.vendor;
        [info.subgroup_min_size, info.subgroup_max_size] = self.subgroup.unwrap_or([4, 128]);
        let mut features = Features::empty();
        features.set(Features::SUBGROUP, self.subgroup.is_some());
        features.set(Features::SHADER_F16, self.halves);
        features.set(Features::IMMEDIATES, self.immediates);
        Facts {
            info,
            limits: Limits {
                max_compute_workgroup_storage_size: self.workgroup_kib << 10,
                max_compute_invocations_per_workgroup: self.threads,
                max_compute_workgroup_size_x: self.threads,
                max_compute_workgroup_size_y: self.threads,
                max_storage_buffers_per_shader_stage: self.buffers,
                max_storage_buffer_binding_size: self.binding_mib << 20,
                max_buffer_size: 4 << 30,
                max_immediate_size: if self.immediates {
                    MAX_PARAMS as u32
                } else {
                    0
                },
                ..Limits::default()
            },
            features,
        }
    }

    /// The device in `tier`, as recipes know it.
    pub fn target(&self, tier: Tier) -> Target {
        let Facts {
            info,
            limits,
            features,
        } = self.facts();
        let machine = Machine::new(&info, &limits, features);
        Target {
            max_binding: limits.max_storage_buffer_binding_size,
            max_buffer: limits.max_buffer_size,
            coop: self.matrices.filter(|_| tier != Tier::Plain),
            ..Target::new(self.name, machine, tier)
        }
    }

    /// The tiers that it runs, the one that it is opened in first.
    pub fn tiers(&self) -> Vec<Tier> {
        let facts = self.facts();
        let best = Tier::best(&facts);
        let all = [Tier::Int8, Tier::Subgroup, Tier::Plain].into_iter();
        let others = all.filter(|tier| *tier != best && tier.missing(&facts).is_empty());
        std::iter::once(best).chain(others).collect()
    }
}
