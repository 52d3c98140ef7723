//! The buffers in which chosen tokens come back to the host. They take turns, because no kernel can write a buffer while it is mapped.

use crate::gpu::buffer::{Buffer, Range, Role};
use crate::gpu::{Gpu, GpuError};
use wgpu::{BufferUsages, CommandEncoder, Features};

/// Bytes of a result: id, step, number of the submission and padding.
pub(super) const RESULT: u64 = 16;

pub(super) struct Results {
    /// The buffers that kernels write, by slot.
    pub(super) ring: Vec<Range>,
    /// Copies of it for devices that cannot map storage buffers.
    staging: Option<Vec<wgpu::Buffer>>,
}

impl Results {
    /// Makes `slots` slots, each with room for `count` results.
    pub(super) async fn new(gpu: &Gpu, slots: usize, count: u32) -> Result<Self, GpuError> {
        let buffers = async |usage| {
            let mut buffers = vec![];
            for _ in 0..slots {
                let bytes = RESULT * u64::from(count);
                buffers.push(gpu.buffer("ids", bytes, usage).await?);
            }
            Ok::<_, GpuError>(buffers)
        };
        let mappable = gpu.features.contains(Features::MAPPABLE_PRIMARY_BUFFERS);
        let (read, staging) = match mappable {
            true => (BufferUsages::MAP_READ, None),
            false => {
                let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
                (BufferUsages::COPY_SRC, Some(buffers(usage).await?))
            }
        };
        let made = buffers(BufferUsages::STORAGE | read).await?.into_iter();
        let whole = |made| Range::whole(&Buffer::from_made("ids", made, Role::Words));
        Ok(Self {
            ring: made.map(whole).collect(),
            staging,
        })
    }

    /// Encodes a copy of the first `count` results of a slot to a buffer that the host can map, if it cannot map the slot itself.
    pub(super) fn copy(&self, encoder: &mut CommandEncoder, slot: usize, count: usize) {
        if let Some(staging) = &self.staging {
            let from = self.ring[slot].buffer.made();
            let bytes = RESULT * count as u64;
            encoder.copy_buffer_to_buffer(from, 0, &staging[slot], 0, bytes);
        }
    }

    /// The buffer that the host maps to read a slot.
    pub(super) fn mapped(&self, slot: usize) -> &wgpu::Buffer {
        match &self.staging {
            Some(staging) => &staging[slot],
            None => self.ring[slot].buffer.made(),
        }
    }
}
