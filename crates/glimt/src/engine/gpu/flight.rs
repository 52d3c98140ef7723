//! Decoding ahead: some steps are in flight while the host reads the id of an older one.
//!
//! [`fly`](GpuBackend::fly) does so as a future. Where a thread waits for it, another one encodes meanwhile (`pilot`), by the same parts.

use super::GpuBackend;
use super::results::RESULT;
use crate::engine::backend::{BackendError, OnToken};
use crate::gpu::call::State;
use crate::gpu::pending::may_block;
use crate::gpu::record::Recording;
use crate::gpu::stamps::Stamping;
use crate::kernels::sample;
use crate::kernels::sampling::Sampling;
use std::collections::VecDeque;
use web_time::{Duration, Instant};
use wgpu::{CommandBuffer, CommandEncoder, SubmissionIndex};

/// Tokens submitted ahead of the one whose id the host has seen: enough that the GPU never waits for the host. One more
/// lies encoded and waits for its turn.
pub(super) const IN_FLIGHT: usize = 2;
/// Buffers that ids come back through: one more than in flight, since a mapped buffer cannot be written.
pub(super) const RING: usize = IN_FLIGHT + 1;

/// The steps of decoding that the host encoded, and the time that they took it.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostTime {
    /// Steps that were encoded and submitted.
    pub steps: u32,
    /// The time that took.
    pub time: Duration,
}

impl HostTime {
    /// Counts what `other` counts, too.
    pub(super) fn add(&mut self, other: Self) {
        self.steps += other.steps;
        self.time += other.time;
    }
}

/// An encoded step.
pub(super) struct Encoded {
    step: usize,
    number: u32,
    commands: CommandBuffer,
    took: HostTime,
}

/// A submitted step: the slot of the ring that its id comes through, and the number that must come with it.
pub(super) struct Submitted {
    slot: usize,
    number: u32,
    submission: SubmissionIndex,
}

impl GpuBackend {
    /// [`Backend::decode`](crate::engine::backend::Backend::decode).
    pub(super) async fn fly(
        &mut self,
        context: &[u32],
        sampling: &Sampling,
        limit: usize,
        on_token: &mut OnToken<'_>,
    ) -> Result<(), BackendError> {
        self.begin_decode(context, limit)?;
        let mut host = HostTime::default();
        let flown = match may_block() {
            _ if self.model().answering.is_some() => {
                self.fly_answered(context.len(), sampling, limit, on_token)
                    .await
            }
            #[cfg(not(target_arch = "wasm32"))]
            true => self.fly_piloted(context.len(), sampling, limit, on_token, &mut host),
            _ => {
                self.fly_counted(context.len(), sampling, limit, on_token, &mut host)
                    .await
            }
        };
        self.host.add(host);
        flown?;
        // Rows computed past the end stay behind: later calls write them again.
        Ok(self.gpu().done().await?)
    }

    /// Does what [`fly`](Self::fly) does, and tells the time that the host spent. Steps may be in flight when it ends.
    async fn fly_counted(
        &self,
        context: usize,
        sampling: &Sampling,
        limit: usize,
        on_token: &mut OnToken<'_>,
        host: &mut HostTime,
    ) -> Result<(), BackendError> {
        let mut steps = self.encode_ahead(context, sampling, limit);
        let mut flying: VecDeque<_> = steps
            .by_ref()
            .take(IN_FLIGHT)
            .map(|encoded| self.submit(encoded, host))
            .collect();
        let mut ready = steps.next();
        while let Some(first) = flying.pop_front() {
            let token = self.landed(&first).await?;
            flying.extend(ready.take().map(|encoded| self.submit(encoded, host)));
            if on_token(token).is_break() {
                break;
            }
            ready = steps.next();
        }
        Ok(())
    }

    /// Does what [`fly`](Self::fly) does for a model whose steps the host answers: each begins when the one before is done.
    async fn fly_answered(
        &self,
        context: usize,
        sampling: &Sampling,
        limit: usize,
        on_token: &mut OnToken<'_>,
    ) -> Result<(), BackendError> {
        let numbers = self.gpu().reserve_numbers(limit);
        for step in 0..limit {
            let number = numbers.number(step);
            let (recording, state) = self.replay_of(context, sampling, step, number);
            let replay = recording.replay(self.gpu(), &state);
            let copy =
                |encoder: &mut CommandEncoder| self.batch.results.copy(encoder, state.slot, 1);
            let submission = self.model().run(&[&replay], number, copy).await?;
            let submitted = Submitted {
                slot: state.slot,
                number,
                submission,
            };
            if on_token(self.landed(&submitted).await?).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// The steps that yield up to `limit` tokens after a context of `context` tokens, each encoded when it is asked for.
    pub(super) fn encode_ahead<'a>(
        &'a self,
        context: usize,
        sampling: &'a Sampling,
        limit: usize,
    ) -> impl Iterator<Item = Encoded> + use<'a> {
        let numbers = self.gpu().reserve_numbers(limit);
        (0..limit).map(move |step| {
            let began = Instant::now();
            let number = numbers.number(step);
            let commands = self.encode_step(context, sampling, step, number);
            Encoded {
                step,
                number,
                commands,
                took: HostTime {
                    // The first step only chooses a token.
                    steps: u32::from(step > 0),
                    time: began.elapsed(),
                },
            }
        })
    }

    /// Submits a step, and counts what it took to encode and to submit.
    pub(super) fn submit(&self, encoded: Encoded, host: &mut HostTime) -> Submitted {
        let began = Instant::now();
        let submission = self.gpu().submit_numbered(encoded.commands, encoded.number);
        if encoded.step > 0 {
            host.add(encoded.took);
            host.time += began.elapsed();
        }
        Submitted {
            slot: encoded.step % RING,
            number: encoded.number,
            submission,
        }
    }

    /// The recording of the step that yields token `step` of the answer, and its words. The first token is only chosen, from logits that are
    /// there.
    fn replay_of(
        &self,
        context: usize,
        sampling: &Sampling,
        step: usize,
        number: u32,
    ) -> (&Recording, State) {
        // It is chosen from the logits of the position before it.
        let last = context + step - 1;
        let mut state = self.state(last, 1);
        state.slot = step % RING;
        state.biased = self.biased;
        state.sampling = sample::words(sampling, (last + 1) as u64);
        state.sampling[sample::NUMBER] = number;
        let token = &self.batch.token;
        let recording = if step == 0 {
            &token.sample
        } else {
            &token.decode
        };
        (recording, state)
    }

    /// The commands of the step that yields token `step` of the answer.
    fn encode_step(
        &self,
        context: usize,
        sampling: &Sampling,
        step: usize,
        number: u32,
    ) -> CommandBuffer {
        let (recording, state) = self.replay_of(context, sampling, step, number);
        let stamping = match (step.checked_sub(1), &self.stamps) {
            (Some(step), Some(stamps)) => Stamping::Ends(stamps, 2 * step),
            _ => Stamping::None,
        };
        let gpu = self.gpu();
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        recording.encode_stamped(gpu, &mut encoder, &state, stamping);
        self.batch.results.copy(&mut encoder, state.slot, 1);
        encoder.finish()
    }

    /// The token of a step, once it is there.
    pub(super) async fn landed(&self, submitted: &Submitted) -> Result<u32, BackendError> {
        let mapped = self.batch.results.mapped(submitted.slot);
        let submission = Some(submitted.submission.clone());
        let words = self.gpu().map_read(mapped, RESULT, submission).await?;
        self.token(submitted, &words)
    }

    /// The token that a step came back with.
    ///
    /// # Errors
    /// [`WorkLost`](crate::gpu::GpuError::WorkLost): the slot holds an earlier result where the step did not run, and what follows it
    /// is computed from a wrong token. [`BackendError::NotFinite`].
    fn token(&self, submitted: &Submitted, words: &[u32]) -> Result<u32, BackendError> {
        let number = submitted.number;
        if words[2] != number {
            let what = "the number of a token's step".to_owned();
            return Err(self.gpu().work_lost(what, number, words[2]).into());
        }
        if words[3] != 0 {
            let position = words[1] as usize - 1;
            return Err(BackendError::NotFinite { position });
        }
        Ok(words[0])
    }
}
