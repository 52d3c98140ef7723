//! Adapters that tests make up.

use wgpu::{AdapterInfo, Backend, DeviceType, Features, Limits};

use crate::gpu::facts::Facts;
use crate::gpu::tier::{MAX_PARAMS, SUBGROUP_BUFFERS};

/// A discrete GPU of this maker with what all tiers need, but for subgroups if it has none.
pub(crate) fn adapter(name: &str, backend: Backend, vendor: u32, subgroups: bool) -> Facts {
    let mut info = AdapterInfo::new(DeviceType::DiscreteGpu, backend);
    name.clone_into(&mut info.name);
    info.vendor = vendor;
    info.device = 1;
    [info.subgroup_min_size, info.subgroup_max_size] = [32; 2];
    let of_subgroups = match subgroups {
        true => Features::SUBGROUP,
        false => Features::empty(),
    };
    Facts {
        info,
        limits: Limits {
            max_immediate_size: MAX_PARAMS as u32,
            max_storage_buffers_per_shader_stage: SUBGROUP_BUFFERS,
            ..Limits::default()
        },
        features: of_subgroups | Features::IMMEDIATES,
    }
}
