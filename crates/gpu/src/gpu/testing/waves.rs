//! Devices told to have larger subgroups than the adapter's, which the laboratory emulates.

use super::laboratory;
use crate::gpu::machine::Machine;
use crate::gpu::{Gpu, Tier};

/// Most bytes of workgroup memory that the emulation takes, in addition to the kernel's own. Software drivers grant them.
pub const ROOM: u32 = 1024 * (8 + 16) + 256;

/// `gpu` told to have subgroups of 32 to 64 threads, as AMD tells, or of 8 to 32, as Intel does, and with such of `size`; as it is in the `plain`
/// tier, which has none.
pub(super) fn emulating(mut gpu: Gpu, size: u32) -> Gpu {
    let told = match size {
        16 => (8, 32),
        32 | 64 => (32, 64),
        _ => panic!("subgroups of {size}"),
    };
    let software = gpu.info.device_type == wgpu::DeviceType::Cpu;
    assert!(software, "no software: {}", gpu.info.name);
    if gpu.tier != Tier::Plain {
        (gpu.info.subgroup_min_size, gpu.info.subgroup_max_size) = told;
        // Their matrices would be those of the adapter's subgroups.
        gpu.target.coop = None;
        gpu.target.machine = Machine::new(&gpu.info, &gpu.limits, gpu.features);
        gpu.waves = Some(size);
    }
    gpu
}

/// `source` in subgroups of `size` threads.
pub fn emulated(source: &str, size: u32) -> String {
    laboratory::rewritten(&["waves", &size.to_string()], source)
}
