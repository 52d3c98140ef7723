//! Proof that the submissions of a prompt ran: each leaves its number and how many passes ended, and the host compares.
//!
//! wgpu makes a Metal command buffer of every pass, and each may fail alone. So every pass ends with a dispatch that counts it.
//! The number is written from the host before each submission, which proves such writes, too: token ids and parameters.
//! Values that are copied at the end, such as logits, stand in one command buffer with the copy of the number.

use crate::gpu::buffer::{Range, Role};
use crate::gpu::call::State;
use crate::gpu::pending::Arrival;
use crate::gpu::record::Recording;
use crate::gpu::{Gpu, GpuError};
use crate::gpu::{Most, Step};
use crate::kernels::mark;
use wgpu::{BufferUsages, CommandEncoder, MapMode, PollType, SubmissionIndex};

/// The most submissions under way, and one more: a mapped buffer cannot be written.
const SLOTS: usize = 3;
/// Bytes that come back: passes that ended since the call began, and the number of the submission.
const TOLD: u64 = 8;

/// The means to leave the proof and to read it.
pub(super) struct Proof {
    /// The dispatch that counts a pass.
    mark: Recording,
    told: Range,
    /// The buffers that the proof comes back in, and whether a mapping of each was asked for.
    slots: Vec<(wgpu::Buffer, bool)>,
    next_slot: usize,
    /// Passes encoded since the call began; none where nothing was submitted yet.
    passes: Option<u32>,
}

/// The numbers that a submission must leave behind.
pub(super) struct Receipt {
    slot: usize,
    number: u32,
    passes: u32,
    arrival: Arrival,
    submission: SubmissionIndex,
}

impl Receipt {
    /// The submission.
    pub(super) fn submission(&self) -> SubmissionIndex {
        self.submission.clone()
    }
}

impl Proof {
    /// Makes its buffers and its pipeline.
    pub(super) async fn new(gpu: &Gpu) -> Result<Self, GpuError> {
        let told = gpu.storage("proof", TOLD, Role::Words).await?;
        let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
        let mut slots = vec![];
        for _ in 0..SLOTS {
            let slot = gpu.buffer("proof read back", TOLD, usage).await?;
            slots.push((slot, false));
        }
        let mark = Step::of(Most::token(1), [mark::call(&Range::whole(&told))]);
        Ok(Self {
            mark: Recording::new(gpu, &mark).await?,
            told: Range::whole(&told),
            slots,
            next_slot: 0,
            passes: None,
        })
    }

    /// Begins a call. What an earlier one left under way after an error is forgotten.
    pub(super) fn begin(&mut self) {
        for (slot, mapped) in &mut self.slots {
            if std::mem::take(mapped) {
                slot.unmap();
            }
        }
        self.passes = None;
    }

    /// Submits what `encode` encodes, whose passes must end with the recording it is given, and how many passes that are; then
    /// what `copy` copies.
    pub(super) fn submit(
        &mut self,
        gpu: &Gpu,
        encode: impl FnOnce(&mut CommandEncoder, &Recording) -> u32,
        copy: impl FnOnce(&mut CommandEncoder),
    ) -> Receipt {
        let number = gpu.reserve_numbers(1).number(0);
        let words = [0, number];
        let from = usize::from(self.passes.is_some());
        let bytes = bytemuck::cast_slice(&words[from..]);
        gpu.queue
            .write_buffer(self.told.buffer.made(), 4 * from as u64, bytes);
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let passes = self
            .passes
            .unwrap_or(0)
            .wrapping_add(encode(&mut encoder, &self.mark));
        self.passes = Some(passes);
        copy(&mut encoder);
        let slot = self.next_slot;
        self.next_slot = (slot + 1) % SLOTS;
        let (buffer, mapped) = &mut self.slots[slot];
        encoder.copy_buffer_to_buffer(self.told.buffer.made(), 0, buffer, 0, TOLD);
        let submission = gpu.submit_numbered(encoder.finish(), number);
        *mapped = true;
        let arrival = Arrival::of_mapping(buffer, MapMode::Read, TOLD);
        Receipt {
            slot,
            number,
            passes,
            arrival,
            submission,
        }
    }

    /// Submits the copies that `copy` encodes, after all that the host wrote before. Returns once the proof came back that both are done.
    pub(super) async fn prove(
        &mut self,
        gpu: &Gpu,
        copy: impl FnOnce(&mut CommandEncoder),
    ) -> Result<(), GpuError> {
        let encode = |encoder: &mut CommandEncoder, mark: &Recording| {
            mark.encode(gpu, encoder, &State::default());
            1
        };
        let receipt = self.submit(gpu, encode, copy);
        self.check(gpu, receipt).await.map(drop)
    }

    /// Compares what a submission left, once it is done; tells whether it was done before.
    pub(super) async fn check(&mut self, gpu: &Gpu, receipt: Receipt) -> Result<bool, GpuError> {
        // A failure is what comes next reports.
        let _ = gpu.device.poll(PollType::Poll);
        let late = receipt.arrival.is_here();
        gpu.pending(Some(receipt.submission), &receipt.arrival)
            .await?;
        let (buffer, mapped) = &mut self.slots[receipt.slot];
        let view = buffer
            .slice(..TOLD)
            .get_mapped_range()
            .map_err(|e| GpuError::Runtime {
                what: "reading back the proof of a submission".to_owned(),
                reason: e.to_string(),
            })?;
        let told: Vec<u32> = bytemuck::pod_collect_to_vec(&view);
        drop(view);
        buffer.unmap();
        *mapped = false;
        if told[1] != receipt.number {
            let what = "the number of a submission".to_owned();
            return Err(gpu.work_lost(what, receipt.number, told[1]));
        }
        if told[0] != receipt.passes {
            let number = receipt.number;
            let what = format!("the count of passes up to submission {number}");
            return Err(gpu.work_lost(what, receipt.passes, told[0]));
        }
        Ok(late)
    }
}
