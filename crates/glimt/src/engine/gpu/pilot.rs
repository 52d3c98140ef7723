//! The thread that encodes ahead, for native builds: the host's work of a token does not wait for the one before, nor for the caller.

use super::GpuBackend;
use super::flight::{Encoded, HostTime, IN_FLIGHT, Stretch, Submitted};
use crate::engine::backend::{BackendError, OnToken};
use crate::gpu::GpuError;
use crate::gpu::wait::Wait;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

impl GpuBackend {
    /// Does what [`fly_counted`](Self::fly_counted) does, with a thread that encodes. This blocks.
    pub(super) fn fly_piloted(
        &self,
        stretch: &Stretch<'_>,
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
                    let steps = self.encode_ahead(stretch);
                    self.submit_in_turn(stretch, steps, &turn, &submit)
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

    /// Encodes step after step and submits each when it is its turn, until all are, the stretch is stopped, or nobody listens any more.
    fn submit_in_turn(
        &self,
        stretch: &Stretch<'_>,
        steps: impl Iterator<Item = Encoded>,
        turn: &Receiver<()>,
        submit: &Sender<Submitted>,
    ) -> HostTime {
        let mut host = HostTime::default();
        for encoded in steps {
            if turn.recv().is_err() || stretch.is_stopped() {
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
            let token = self.landed(&first).wait()?;
            // Nobody takes a turn after the last step.
            let _ = turns.send(());
            if on_token(token).is_break() {
                break;
            }
        }
        Ok(())
    }
}
