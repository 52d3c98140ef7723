//! The resources of a device that a shader takes, known before a driver is asked: some drivers accept too much and never come back.

use naga::proc::Layouter;
use naga::{AddressSpace, Module};
use wgpu::{Limits, naga};

/// The resources of a device that a shader takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Bytes of workgroup memory, as WebGPU counts them.
    pub workgroup_memory: u32,
    /// Threads of a workgroup, along each axis.
    pub threads: [u32; 3],
    /// Storage buffers that it binds.
    pub buffers: u32,
    /// Bytes of its parameters, where they are immediates.
    pub immediates: u32,
}

impl Budget {
    /// The budget of a shader with one entry point.
    ///
    /// # Errors
    /// The name of a type without a size.
    pub fn of(module: &Module) -> Result<Self, String> {
        let mut layouter = Layouter::default();
        let sized = layouter.update(module.to_ctx());
        sized.map_err(|e| format!("layout: {e}"))?;
        let all = || module.global_variables.iter().map(|(_, var)| var);
        let in_space = |space| all().filter(move |var| var.space == space);
        let size = |var: &naga::GlobalVariable| layouter[var.ty].size;
        let threads = module
            .entry_points
            .first()
            .map(|entry| entry.workgroup_size);
        Ok(Self {
            workgroup_memory: in_space(AddressSpace::WorkGroup)
                .map(|var| size(var).next_multiple_of(16))
                .sum(),
            threads: threads.unwrap_or_default(),
            buffers: all()
                .filter(|var| matches!(var.space, AddressSpace::Storage { .. }))
                .count() as u32,
            immediates: in_space(AddressSpace::Immediate).map(size).sum(),
        })
    }

    /// Compares the budget with the limits of a device.
    ///
    /// # Errors
    /// The first resource that the device has too little of, in words.
    pub fn check(&self, limits: &Limits) -> Result<(), String> {
        let [x, y, z] = self.threads;
        let needs = [
            (
                "bytes of workgroup memory",
                self.workgroup_memory,
                limits.max_compute_workgroup_storage_size,
            ),
            (
                "threads in a workgroup",
                x * y * z,
                limits.max_compute_invocations_per_workgroup,
            ),
            ("threads along x", x, limits.max_compute_workgroup_size_x),
            ("threads along y", y, limits.max_compute_workgroup_size_y),
            ("threads along z", z, limits.max_compute_workgroup_size_z),
            (
                "storage buffers",
                self.buffers,
                limits.max_storage_buffers_per_shader_stage,
            ),
            (
                "bytes of immediates",
                self.immediates,
                limits.max_immediate_size,
            ),
        ];
        match needs.into_iter().find(|(_, needs, has)| needs > has) {
            Some((what, needs, has)) => Err(format!("{needs} {what}, the device has {has}")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHADER: &str = "
        @group(0) @binding(0) var<storage, read> a: array<f32>;
        @group(0) @binding(1) var<storage, read_write> b: array<f32>;
        var<immediate> p: vec4<u32>;
        var<workgroup> some: array<f32, 100>;
        var<workgroup> more: array<vec4<f32>, 3>;
        @compute @workgroup_size(64, 2, 1)
        fn main(@builtin(local_invocation_index) t: u32) {
            some[t % 100u] = a[t];
            more[t % 3u] = vec4(a[p.x]);
            workgroupBarrier();
            b[t] = some[t % 100u] + more[0].x;
        }";

    #[test]
    fn what_a_shader_takes_is_held_against_each_limit() {
        let module = naga::front::wgsl::parse_str(SHADER).expect("it is a shader");
        let budget = Budget::of(&module).expect("its types have sizes");
        let expected = Budget {
            workgroup_memory: 400 + 48,
            threads: [64, 2, 1],
            buffers: 2,
            immediates: 16,
        };
        assert_eq!(budget, expected);
        let enough = Limits {
            max_compute_workgroup_storage_size: 448,
            max_compute_invocations_per_workgroup: 128,
            max_storage_buffers_per_shader_stage: 2,
            max_immediate_size: 16,
            max_compute_workgroup_size_x: 64,
            max_compute_workgroup_size_y: 2,
            max_compute_workgroup_size_z: 1,
            ..Limits::default()
        };
        assert_eq!(budget.check(&enough), Ok(()));
        type Less = fn(&mut Limits);
        let less: [(Less, &str); 5] = [
            (
                |l| l.max_compute_workgroup_storage_size -= 16,
                "448 bytes of workgroup memory, the device has 432",
            ),
            (
                |l| l.max_compute_invocations_per_workgroup -= 1,
                "128 threads in a workgroup, the device has 127",
            ),
            (
                |l| l.max_storage_buffers_per_shader_stage = 1,
                "2 storage buffers, the device has 1",
            ),
            (
                |l| l.max_immediate_size = 0,
                "16 bytes of immediates, the device has 0",
            ),
            (
                |l| l.max_compute_workgroup_size_y = 1,
                "2 threads along y, the device has 1",
            ),
        ];
        for (change, expected) in less {
            let mut limits = enough.clone();
            change(&mut limits);
            assert_eq!(budget.check(&limits), Err(expected.to_owned()));
        }
    }
}
