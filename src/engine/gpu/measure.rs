//! What `bench` and `profile` ask of the backend: what a step reads, and when its parts ran.

use super::GpuBackend;
use crate::engine::backend::{Backend, BackendError};
use crate::engine::sampling::Sampling;
use crate::gpu::record::{About, Recording};
use crate::gpu::stamps::{Stamping, Stamps};
use crate::gpu::{Gpu, GpuError};
use crate::kernels::sample;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// What the host spent on decoding.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostTime {
    /// Steps that were encoded and submitted.
    pub steps: u32,
    /// The time that took.
    pub time: Duration,
}

/// How the dispatches of a step are told apart in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Separation {
    /// A timestamp between two dispatches of one pass.
    Stamps,
    /// A pass of its own for each dispatch.
    Passes,
}

impl Separation {
    /// The finer one that `gpu` has.
    pub fn best(gpu: &Gpu) -> Self {
        if Stamps::inside_passes(gpu) {
            Self::Stamps
        } else {
            Self::Passes
        }
    }
}

impl GpuBackend {
    /// What the dispatches that decode the token at `pos` are, in order.
    pub fn step(&self, pos: usize) -> Vec<About> {
        let state = self.state(pos, 1);
        self.decode.step(&state).map(|(_, a)| a.clone()).collect()
    }

    /// Bytes of weights and cache that decoding the token at `pos` reads at least.
    pub fn step_bytes(&self, pos: usize) -> u64 {
        let state = self.state(pos, 1);
        self.decode.step(&state).map(|(_, a)| a.bytes(&state)).sum()
    }

    /// What the host spent on decoding since the last call.
    pub fn take_host_time(&mut self) -> HostTime {
        std::mem::take(&mut self.host)
    }

    /// Decodes `steps` tokens after `context` (as [`Backend::decode`] does, greedily) and tells when each began and ended
    /// on the GPU, in nanoseconds.
    ///
    /// # Errors
    /// Those of [`Backend::decode`], and [`GpuError::NoTimestamps`].
    pub fn time_steps(
        &mut self,
        context: &[u32],
        steps: usize,
    ) -> Result<Vec<[f64; 2]>, BackendError> {
        self.stamps = Some(Stamps::new(&self.model.gpu, 2 * steps)?);
        // The first token is only chosen, from logits that are there.
        let decoded = self.decode(context, &Sampling::GREEDY, steps + 1, &mut |_| {
            ControlFlow::Continue(())
        });
        let stamps = self.stamps.take();
        decoded?;
        let Some(stamps) = stamps else {
            return Ok(vec![]);
        };
        let times = stamps.read(&self.model.gpu, 2 * steps)?;
        Ok(times.chunks_exact(2).map(|t| [t[0], t[1]]).collect())
    }

    /// Replays the decoding of one token `runs` times, at positions from `pos` on, and tells when each dispatch began and
    /// ended, per run, in nanoseconds, for the dispatches of [`step`](Self::step) at `pos`. With [`Separation::Stamps`] a
    /// dispatch begins when the one before ended.
    ///
    /// The cache must hold rows up to `pos`; the token there is whatever the history holds.
    ///
    /// # Errors
    /// [`GpuError::NoTimestamps`], [`BackendError::ContextOverflow`], or what the device reports.
    pub fn time_dispatches(
        &mut self,
        pos: usize,
        runs: usize,
        separation: Separation,
    ) -> Result<Vec<Vec<[f64; 2]>>, BackendError> {
        if pos + runs > self.n_ctx {
            return Err(BackendError::ContextOverflow {
                needed: pos + runs,
                n_ctx: self.n_ctx,
            });
        }
        let gpu = Arc::clone(&self.model.gpu);
        let count = match separation {
            Separation::Stamps => self.decode.len() + 1,
            Separation::Passes => 2 * self.decode.len(),
        };
        let all = (0..runs)
            .map(|_| Stamps::new(&gpu, count))
            .collect::<Result<Vec<_>, _>>()?;
        for (run, stamps) in all.iter().enumerate() {
            let mut state = self.state(pos + run, 1);
            state.sampling = sample::words(&Sampling::GREEDY, (pos + run + 1) as u64);
            let stamping = match separation {
                Separation::Stamps => Stamping::Dispatches(stamps),
                Separation::Passes => Stamping::Passes(stamps),
            };
            submit(&gpu, &self.decode, &state, stamping);
        }
        self.next = 0;
        let state = self.state(pos, 1);
        let taken: Vec<_> = self.decode.step(&state).map(|(i, _)| i).collect();
        let runs = all.iter().map(|stamps| {
            let times = stamps.read(&gpu, count)?;
            let span = |&i: &usize| match separation {
                Separation::Stamps => [times[i], times[i + 1]],
                Separation::Passes => [times[2 * i], times[2 * i + 1]],
            };
            Ok(taken.iter().map(span).collect())
        });
        Ok(runs.collect::<Result<_, GpuError>>()?)
    }
}

fn submit(
    gpu: &Gpu,
    recording: &Recording,
    state: &crate::gpu::record::State,
    stamping: Stamping<'_>,
) {
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    recording.encode_stamped(gpu, &mut encoder, state, stamping);
    gpu.queue.submit([encoder.finish()]);
}
