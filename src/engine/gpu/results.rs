//! What comes back of chosen tokens: buffers by turns, since one that is mapped cannot be written.

use crate::gpu::buffer::{Buffer, Range, Role};
use crate::gpu::{Gpu, GpuError};
use wgpu::{BufferUsages, CommandEncoder, Features};

/// Bytes of a result: id, step, number of the submission and padding.
pub(super) const RESULT: u64 = 16;

pub(super) struct Results {
    /// What kernels write, by slot.
    pub(super) ring: Vec<Range>,
    /// Copies of it for devices that cannot map storage buffers.
    staging: Option<Vec<wgpu::Buffer>>,
}

impl Results {
    /// So many slots, each with room for `count` results.
    pub(super) async fn new_async(gpu: &Gpu, slots: usize, count: u32) -> Result<Self, GpuError> {
        let buffers = async |usage| {
            let mut buffers = vec![];
            for _ in 0..slots {
                let bytes = RESULT * u64::from(count);
                buffers.push(gpu.buffer_async("ids", bytes, usage).await?);
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

    /// Has the first `count` results of a slot copied to where the host can map them, if that is elsewhere.
    pub(super) fn copy(&self, encoder: &mut CommandEncoder, slot: usize, count: usize) {
        if let Some(staging) = &self.staging {
            let from = self.ring[slot].buffer.made();
            let bytes = RESULT * count as u64;
            encoder.copy_buffer_to_buffer(from, 0, &staging[slot], 0, bytes);
        }
    }

    /// What the host maps of a slot.
    pub(super) fn mapped(&self, slot: usize) -> &wgpu::Buffer {
        match &self.staging {
            Some(staging) => &staging[slot],
            None => self.ring[slot].buffer.made(),
        }
    }
}
