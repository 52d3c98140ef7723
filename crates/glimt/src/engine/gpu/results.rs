//! The buffers in which chosen tokens come back to the host. They take turns, because no kernel can write a buffer while it is mapped.

use crate::gpu::buffer::{Buffer, Range, Role};
use crate::gpu::{Gpu, GpuError};
use wgpu::{BufferUsages, CommandEncoder, Features};

/// Bytes of a result: id, step, number of the submission and padding.
pub(super) const RESULT: u64 = 16;

pub(super) struct Results {
    /// The buffers that kernels write, by slot.
    pub(super) ring: Vec<Range>,
    /// The parts of these for the drafts of a step: by draft, then by slot.
    pub(super) drafts: Vec<Vec<Range>>,
    /// Results between the parts of two drafts, of which each has a part.
    apart: usize,
    /// Copies of it for devices that cannot map storage buffers.
    staging: Option<Vec<wgpu::Buffer>>,
}

impl Results {
    /// Makes `slots` slots, each with room for `count` results, and behind them for as many of each of `drafts` drafts.
    pub(super) async fn new(
        gpu: &Gpu,
        slots: usize,
        count: u32,
        drafts: usize,
    ) -> Result<Self, GpuError> {
        // A part begins where a binding may.
        let alignment = gpu.target.offset_alignment / RESULT;
        let apart = match drafts {
            0 => u64::from(count),
            _ => u64::from(count).next_multiple_of(alignment.max(1)),
        };
        let all = apart * (drafts as u64 + 1);
        let buffers = async |usage| {
            let mut buffers = vec![];
            for _ in 0..slots {
                buffers.push(gpu.buffer("ids", RESULT * all, usage).await?);
            }
            Ok::<_, GpuError>(buffers)
        };
        let mappable = gpu.features.contains(Features::MAPPABLE_PRIMARY_BUFFERS);
        let (read, staging) = match mappable {
            true if drafts > 0 => (BufferUsages::MAP_READ | BufferUsages::COPY_SRC, None),
            true => (BufferUsages::MAP_READ, None),
            false => {
                let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
                (BufferUsages::COPY_SRC, Some(buffers(usage).await?))
            }
        };
        let made = buffers(BufferUsages::STORAGE | read).await?.into_iter();
        let whole = |made| Range::whole(&Buffer::from_made("ids", made, Role::Words));
        let whole: Vec<Range> = made.map(whole).collect();
        let part = |number: usize| {
            let part = |whole: &Range| Range {
                offset: RESULT * apart * number as u64,
                size: RESULT * apart,
                ..whole.clone()
            };
            whole.iter().map(part).collect::<Vec<_>>()
        };
        Ok(Self {
            ring: part(0),
            drafts: (1..=drafts).map(part).collect(),
            apart: apart as usize,
            staging,
        })
    }

    /// The results between the parts of two drafts.
    pub(super) fn apart(&self) -> usize {
        self.apart
    }

    /// The number of results up to the end of the part of the last of so many drafts, and the first of the part of each.
    pub(super) fn parts(&self, drafts: usize) -> (usize, impl Iterator<Item = usize>) {
        let apart = self.apart;
        (apart * (drafts + 1), (1..=drafts).map(move |i| apart * i))
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
