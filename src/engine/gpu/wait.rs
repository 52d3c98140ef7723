//! Waiting for a model on a GPU, for native builds: what blocks on the futures of this module, and the thread that encodes ahead.

use super::flight::{Encoded, IN_FLIGHT, Submitted};
use super::measure::HostTime;
use super::results::RESULT;
use super::{GpuBackend, GpuModel, PrecomposeChoice, Precomposed};
use crate::engine::backend::{BackendError, OnToken};
use crate::gpu::wait::waits;
use crate::gpu::{Gpu, GpuError};
use crate::kernels::sampling::Sampling;
use crate::models::Model;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

impl GpuModel {
    waits! {
        pub fn load(gpu: Arc<Gpu>, model: Arc<dyn Model>, progress: &mut dyn FnMut(u64, u64)) -> Result<Self, GpuError> =
            Self::load_async(gpu, model, progress);

        pub fn load_for(
            gpu: Arc<Gpu>,
            model: Arc<dyn Model>,
            sequences: u32,
            progress: &mut dyn FnMut(u64, u64),
        ) -> Result<Self, GpuError> =
            Self::load_for_async(gpu, model, sequences, progress);

        pub fn load_precomposed(
            gpu: Arc<Gpu>,
            model: Arc<dyn Model>,
            choice: PrecomposeChoice,
            n_ctx: usize,
            progress: &mut dyn FnMut(u64, u64),
        ) -> Result<(Self, Option<Precomposed>), GpuError> =
            Self::load_precomposed_async(gpu, model, choice, n_ctx, progress);
    }
}

impl GpuBackend {
    /// [`with_chunk`](Self::with_chunk) with the usual chunks.
    pub fn new(model: Arc<GpuModel>, n_ctx: usize) -> Result<Self, GpuError> {
        Self::with_chunk(model, n_ctx, None)
    }

    waits! {
        pub fn with_chunk(model: Arc<GpuModel>, n_ctx: usize, chunk: Option<u32>) -> Result<Self, GpuError> =
            Self::new_async(model, n_ctx, chunk);

        pub(super) fn fill_cache_waiting(&mut self, rows: usize) -> Result<(), GpuError> =
            self.batch.fill_cache(rows);
    }

    /// Decodes as [`fly`](Self::fly) does, and encodes on a thread of its own meanwhile: the host's work of a token does not wait for
    /// the one before, nor for the caller.
    pub(super) fn decode_waiting(
        &mut self,
        context: &[u32],
        sampling: &Sampling,
        limit: usize,
        on_token: &mut OnToken<'_>,
    ) -> Result<(), BackendError> {
        self.begin_decode(context, limit)?;
        let mut host = HostTime::default();
        let landed = self.fly_piloted(context.len(), sampling, limit, on_token, &mut host);
        self.host.add(host);
        landed?;
        // What was computed past the end stays behind: later calls write those rows again.
        Ok(self.gpu().wait(None)?)
    }

    /// As [`fly_counted`](Self::fly_counted), with a thread that encodes.
    fn fly_piloted(
        &self,
        context: usize,
        sampling: &Sampling,
        limit: usize,
        on_token: &mut OnToken<'_>,
        host: &mut HostTime,
    ) -> Result<(), BackendError> {
        let (turns, turn) = channel();
        let (submit, submitted) = channel();
        for _ in 0..IN_FLIGHT {
            // The receiver is there: it is dropped at the end of this function at the earliest.
            let _ = turns.send(());
        }
        thread::scope(|scope| {
            let pilot = thread::Builder::new()
                .name("encode".to_owned())
                .spawn_scoped(scope, move || {
                    let steps = self.encode_ahead(context, sampling, limit);
                    self.submit_in_turn(steps, &turn, &submit)
                })
                .map_err(|e| GpuError::Runtime {
                    what: "starting a thread that encodes".to_owned(),
                    reason: e.to_string(),
                })?;
            // Takes `turns` and `submitted` with it: without them the other thread ends.
            let landed = self.land(turns, submitted, on_token);
            match pilot.join() {
                Ok(spent) => *host = spent,
                Err(panic) => std::panic::resume_unwind(panic),
            }
            landed
        })
    }

    /// Encodes step after step and submits each when it is its turn, until all are or nobody listens any more.
    fn submit_in_turn(
        &self,
        steps: impl Iterator<Item = Encoded>,
        turn: &Receiver<()>,
        submit: &Sender<Submitted>,
    ) -> HostTime {
        let mut host = HostTime::default();
        for encoded in steps {
            if turn.recv().is_err() {
                break;
            }
            if submit.send(self.submit(encoded, &mut host)).is_err() {
                break;
            }
        }
        host
    }

    /// Reads the ids in order, hands them out, and gives the next step its turn.
    fn land(
        &self,
        turns: Sender<()>,
        submitted: Receiver<Submitted>,
        on_token: &mut OnToken<'_>,
    ) -> Result<(), BackendError> {
        for first in submitted {
            let submission = Some(first.submission.clone());
            let words =
                self.gpu()
                    .map_read(self.batch.results.mapped(first.slot), RESULT, submission)?;
            let token = self.token(&first, &words)?;
            // Nobody takes a turn after the last step.
            let _ = turns.send(());
            if on_token(token).is_break() {
                break;
            }
        }
        Ok(())
    }
}
