//! Cooperative matrices: which of them a device has.

use wgpu::{Adapter, Backend, Features};

/// Cooperative matrices: square ones of f16, multiplied into sums of f32 by a subgroup each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Coop {
    /// Rows and columns of a matrix: 16 (NVIDIA) or 8 (Metal, llvmpipe).
    pub size: u32,
    /// Lanes of a subgroup, of which the device has no others: 32 or 8.
    pub lanes: u32,
}

impl Coop {
    /// The matrices of NVIDIA's GPUs through Vulkan.
    pub const NVIDIA: Self = Self {
        size: 16,
        lanes: 32,
    };
    /// The matrices of Apple's GPUs.
    pub const APPLE: Self = Self { size: 8, lanes: 32 };
    /// The matrices of llvmpipe, which takes a subgroup's barrier for the workgroup's.
    pub const LLVMPIPE: Self = Self { size: 8, lanes: 8 };

    /// The largest that the adapter has with f16 in and f32 out, subgroups of one size (wgpu cannot ask for one) that can wait
    /// for themselves, and the workgroup memory that the kernels use them with.
    pub(super) fn of(adapter: &Adapter) -> Option<Self> {
        let info = adapter.get_info();
        let lanes = match info.backend {
            // wgpu reports a constant 4..64 there; every GPU with such matrices has 32.
            Backend::Metal => 32,
            _ if info.subgroup_min_size == info.subgroup_max_size => info.subgroup_min_size,
            _ => return None,
        };
        let needed = Features::EXPERIMENTAL_COOPERATIVE_MATRIX
            | Features::SHADER_F16
            | Features::SUBGROUP_BARRIER;
        if ![8, 32].contains(&lanes)
            || !adapter.features().contains(needed)
            || adapter.limits().max_compute_workgroup_storage_size < 32 << 10
        {
            return None;
        }
        let has = |size: u32| {
            adapter.cooperative_matrix_properties().iter().any(|p| {
                [p.m_size, p.n_size, p.k_size] == [size; 3]
                    && p.ab_type == wgpu::CooperativeScalarType::F16
                    && p.cr_type == wgpu::CooperativeScalarType::F32
            })
        };
        let size = [16, 8].into_iter().find(|size| has(*size))?;
        Some(Self { size, lanes })
    }
}
