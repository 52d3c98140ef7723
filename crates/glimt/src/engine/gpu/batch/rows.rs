//! Rows of logits on their way to the host. Their buffers and their memory on the host are used again, so that no step allocates any.

use super::{BATCHES_IN_FLIGHT, GpuBatch};
use crate::gpu::{Gpu, GpuError};
use wgpu::{BufferUsages, SubmissionIndex};

/// The buffers and the memory through which rows come back.
#[derive(Default)]
pub(super) struct Rows {
    /// The buffers that rows are copied to, one for each step in flight, by turns. They are mapped only while a step lands.
    pub(super) staging: [Option<wgpu::Buffer>; BATCHES_IN_FLIGHT],
    next: usize,
    /// Memory of rows that nobody needs any more.
    pub(super) spare: Vec<f32>,
}

/// The rows of a step in flight.
#[derive(Clone)]
pub(super) struct FlyingRows {
    pub(super) staging: wgpu::Buffer,
    bytes: u64,
}

impl Rows {
    /// A buffer for `bytes` bytes of rows, as large as the most that were asked for so far; `None` for none.
    pub(super) async fn staged(
        &mut self,
        gpu: &Gpu,
        bytes: u64,
    ) -> Result<Option<FlyingRows>, GpuError> {
        if bytes == 0 {
            return Ok(None);
        }
        let kept = &mut self.staging[self.next];
        let fitting = kept.take_if(|kept| kept.size() < bytes);
        if let Some(small) = &fitting {
            gpu.release_made(small);
        }
        let staging = match kept {
            Some(staging) => staging.clone(),
            None => {
                let grown = fitting.map_or(0, |small| 2 * small.size());
                let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
                let made = gpu.buffer("logits", bytes.max(grown), usage).await?;
                kept.insert(made).clone()
            }
        };
        self.next = (self.next + 1) % BATCHES_IN_FLIGHT;
        Ok(Some(FlyingRows { staging, bytes }))
    }

    /// The rows of a step, once it is done.
    pub(super) async fn land(
        &mut self,
        gpu: &Gpu,
        rows: &FlyingRows,
        submission: SubmissionIndex,
    ) -> Result<Vec<f32>, GpuError> {
        let FlyingRows { staging, bytes } = rows;
        gpu.map_read_into(staging, *bytes, Some(submission), &mut self.spare)
            .await?;
        Ok(std::mem::take(&mut self.spare))
    }
}

impl GpuBatch {
    /// Takes rows of a landing back whose values nobody needs any more. The next ones get their memory.
    pub fn take_back(&mut self, logits: Vec<f32>) {
        if logits.capacity() > self.rows.spare.capacity() {
            self.rows.spare = logits;
        }
    }
}
