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
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// A stretch of an answer whose tokens are computed one by one.
pub(super) struct Stretch<'a> {
    /// Tokens of the context before the answer.
    context: usize,
    sampling: &'a Sampling,
    /// The tokens of the answer. Number 0 is only chosen, from logits that are there.
    tokens: Range<usize>,
    /// Whether no more steps are to be submitted.
    enough: AtomicBool,
}

impl<'a> Stretch<'a> {
    /// These `tokens` of an answer behind `context` tokens.
    pub(super) fn new(context: usize, sampling: &'a Sampling, tokens: Range<usize>) -> Self {
        Self {
            context,
            sampling,
            tokens,
            enough: AtomicBool::new(false),
        }
    }

    /// Has the stretch end with the steps that are on their way.
    pub(super) fn stop(&self) {
        self.enough.store(true, Ordering::Relaxed);
    }

    /// Whether it was stopped.
    pub(super) fn is_stopped(&self) -> bool {
        self.enough.load(Ordering::Relaxed)
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
        let stretch = Stretch::new(context.len(), sampling, 0..limit);
        self.fly_over(&stretch, on_token).await?;
        // Rows computed past the end stay behind: later calls write them again.
        Ok(self.gpu().done().await?)
    }

    /// Computes the tokens of a stretch. Steps may be in flight when it ends because `on_token` broke.
    pub(super) async fn fly_over(
        &mut self,
        stretch: &Stretch<'_>,
        on_token: &mut OnToken<'_>,
    ) -> Result<(), BackendError> {
        let mut host = HostTime::default();
        let flown = match may_block() {
            _ if self.model().answering.is_some() => self.fly_answered(stretch, on_token).await,
            #[cfg(not(target_arch = "wasm32"))]
            true => self.fly_piloted(stretch, on_token, &mut host),
            _ => self.fly_counted(stretch, on_token, &mut host).await,
        };
        self.host.add(host);
        flown
    }

    /// Does what [`fly_over`](Self::fly_over) does, and tells the time that the host spent.
    async fn fly_counted(
        &self,
        stretch: &Stretch<'_>,
        on_token: &mut OnToken<'_>,
        host: &mut HostTime,
    ) -> Result<(), BackendError> {
        let mut steps = self.encode_ahead(stretch);
        let mut flying: VecDeque<_> = steps
            .by_ref()
            .take(IN_FLIGHT)
            .map(|encoded| self.submit(encoded, host))
            .collect();
        let mut ready = steps.next();
        while let Some(first) = flying.pop_front() {
            let token = self.landed(&first).await?;
            let next = ready.take_if(|_| !stretch.is_stopped());
            flying.extend(next.map(|encoded| self.submit(encoded, host)));
            if on_token(token).is_break() {
                break;
            }
            ready = steps.next();
        }
        Ok(())
    }

    /// Does what [`fly_over`](Self::fly_over) does for a model whose steps the host answers: each begins when the one before is done.
    async fn fly_answered(
        &self,
        stretch: &Stretch<'_>,
        on_token: &mut OnToken<'_>,
    ) -> Result<(), BackendError> {
        let tokens = stretch.tokens.clone();
        let numbers = self.gpu().reserve_numbers(tokens.len());
        for (i, step) in tokens.enumerate() {
            let number = numbers.number(i);
            let (recording, state) = self.replay_of(stretch, step, number);
            let replay = recording.replay(self.gpu(), &state);
            let copy =
                |encoder: &mut CommandEncoder| self.batch.results.copy(encoder, state.slot, 1);
            let submission = self.model().run(&[&replay], number, copy).await?;
            let submitted = Submitted {
                slot: state.slot,
                number,
                submission,
            };
            if on_token(self.landed(&submitted).await?).is_break() || stretch.is_stopped() {
                break;
            }
        }
        Ok(())
    }

    /// The steps that yield the tokens of a stretch, each encoded when it is asked for, until it is stopped.
    pub(super) fn encode_ahead<'a>(
        &'a self,
        stretch: &'a Stretch<'_>,
    ) -> impl Iterator<Item = Encoded> + use<'a> {
        let tokens = stretch.tokens.clone();
        let numbers = self.gpu().reserve_numbers(tokens.len());
        let steps = tokens.enumerate();
        let steps = steps.take_while(|_| !stretch.is_stopped());
        steps.map(move |(i, step)| {
            let began = Instant::now();
            let number = numbers.number(i);
            let commands = self.encode_step(stretch, step, number);
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
    fn replay_of(&self, stretch: &Stretch<'_>, step: usize, number: u32) -> (&Recording, State) {
        // It is chosen from the logits of the position before it.
        let last = stretch.context + step - 1;
        let mut state = self.state(last, 1);
        state.slot = step % RING;
        state.biased = !self.biases.is_empty();
        state.sampling = sample::words(stretch.sampling, (last + 1) as u64);
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
    fn encode_step(&self, stretch: &Stretch<'_>, step: usize, number: u32) -> CommandBuffer {
        let (recording, state) = self.replay_of(stretch, step, number);
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
