//! Decoding ahead: one thread encodes and submits steps, the caller's reads the ids as they come back.

use super::{GpuBackend, RESULT};
use crate::engine::backend::OnToken;
use crate::gpu::GpuError;
use crate::gpu::stamps::Stamping;
use crate::kernels::sample;
use crate::kernels::sampling::Sampling;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;
use wgpu::{CommandBuffer, SubmissionIndex};

use super::measure::HostTime;

/// Tokens submitted ahead of the one whose id the host has seen: enough that the GPU never waits for the host. One more
/// lies encoded and waits for its turn.
const IN_FLIGHT: usize = 2;
/// Buffers that ids come back through: one more than in flight, since a mapped buffer cannot be written.
pub(super) const RING: usize = IN_FLIGHT + 1;

/// A submitted step: the slot of the ring that its id comes through, and the number that must come with it.
struct Submitted {
    slot: usize,
    number: u32,
    submission: SubmissionIndex,
}

impl GpuBackend {
    /// Chooses up to `limit` tokens after a context of `context` tokens and hands each to `on_token`, until that breaks.
    /// Steps may be in flight when it returns.
    ///
    /// # Errors
    /// [`GpuError::WorkLost`], what the device reports, or [`GpuError::Runtime`] where there is no thread to encode on.
    pub(super) fn fly(
        &mut self,
        context: usize,
        sampling: &Sampling,
        limit: usize,
        on_token: &mut OnToken<'_>,
    ) -> Result<(), GpuError> {
        let this = &*self;
        let (turns, turn) = channel();
        let (submit, submitted) = channel();
        for _ in 0..IN_FLIGHT {
            // The receiver is there: it is dropped at the end of this function at the earliest.
            let _ = turns.send(());
        }
        let (landed, host) = thread::scope(|scope| {
            let pilot = thread::Builder::new()
                .name("encode".to_owned())
                .spawn_scoped(scope, move || {
                    this.encode_ahead(context, sampling, limit, &turn, &submit)
                })
                .map_err(|e| GpuError::Runtime {
                    what: "starting a thread that encodes".to_owned(),
                    reason: e.to_string(),
                })?;
            // Takes `turns` and `submitted` with it: without them the other thread ends.
            let landed = this.land(turns, submitted, on_token);
            match pilot.join() {
                Ok(host) => Ok((landed, host)),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })?;
        self.host.steps += host.steps;
        self.host.time += host.time;
        landed
    }

    /// Encodes step after step and submits each when it is its turn, until all are or nobody listens any more.
    fn encode_ahead(
        &self,
        context: usize,
        sampling: &Sampling,
        limit: usize,
        turn: &Receiver<()>,
        submit: &Sender<Submitted>,
    ) -> HostTime {
        let mut host = HostTime::default();
        let numbers = self.gpu().reserve_numbers(limit);
        for step in 0..limit {
            let began = Instant::now();
            let (slot, number) = (step % RING, numbers.number(step));
            let commands = self.encode_step(context, sampling, step, (slot, number));
            let encoded = began.elapsed();
            if turn.recv().is_err() {
                break;
            }
            let began = Instant::now();
            let submission = self.gpu().submit_numbered(commands, number);
            // The first step only chooses a token.
            if step > 0 {
                host.steps += 1;
                host.time += encoded + began.elapsed();
            }
            let submitted = Submitted {
                slot,
                number,
                submission,
            };
            if submit.send(submitted).is_err() {
                break;
            }
        }
        host
    }

    /// The commands of the step that yields token `step` of the answer: the first is only chosen, from logits that are there.
    fn encode_step(
        &self,
        context: usize,
        sampling: &Sampling,
        step: usize,
        (slot, number): (usize, u32),
    ) -> CommandBuffer {
        // It is chosen from the logits of the position before it.
        let last = context + step - 1;
        let mut state = self.state(last, 1);
        state.slot = slot;
        state.sampling = sample::words(sampling, (last + 1) as u64);
        state.sampling[sample::NUMBER] = number;
        let (recording, stamping) = match (step.checked_sub(1), &self.stamps) {
            (None, _) => (&self.sample, Stamping::None),
            (Some(step), Some(stamps)) => (&self.decode, Stamping::Ends(stamps, 2 * step)),
            (Some(_), None) => (&self.decode, Stamping::None),
        };
        let gpu = self.gpu();
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        recording.encode_stamped(gpu, &mut encoder, &state, stamping);
        if let Some(staging) = &self.staging {
            encoder.copy_buffer_to_buffer(&self.ring[slot], 0, &staging[slot], 0, RESULT);
        }
        encoder.finish()
    }

    /// Reads the ids in order, hands them out, and gives the next step its turn.
    fn land(
        &self,
        turns: Sender<()>,
        submitted: Receiver<Submitted>,
        on_token: &mut OnToken<'_>,
    ) -> Result<(), GpuError> {
        let result = self.staging.as_ref().unwrap_or(&self.ring);
        for Submitted {
            slot,
            number,
            submission,
        } in submitted
        {
            let words: Vec<u32> = self
                .gpu()
                .map_read(&result[slot], RESULT, Some(submission))?;
            // The slot holds an earlier result where the step did not run; what follows it is computed from a wrong token.
            if words[2] != number {
                let what = "the number of a token's step".to_owned();
                return Err(self.gpu().work_lost(what, number, words[2]));
            }
            // Nobody takes a turn after the last step.
            let _ = turns.send(());
            if on_token(words[0]).is_break() {
                break;
            }
        }
        Ok(())
    }
}
