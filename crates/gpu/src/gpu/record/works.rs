//! The work of a replay's dispatches, as far as it decides their time, without a device.

use super::plan::{Plan, turns};
use crate::gpu::call::{State, Taken};
use crate::gpu::{GpuError, Step};
use std::sync::Arc;

/// The work of one dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// The number of the dispatch in the step.
    pub dispatch: usize,
    /// The run of dispatches that do not wait for each other that it belongs to.
    pub level: usize,
    /// The compute pass that it belongs to.
    pub pass: usize,
    /// Bytes of weights and cache rows that it reads at least.
    pub bytes: u64,
    /// Floating-point operations.
    pub flops: u64,
}

/// The dispatches of a replay of `step` for `state`, in order.
///
/// # Errors
/// The errors of [`Step::resolve`].
pub fn works(step: &Step, state: &State) -> Result<Vec<Work>, GpuError> {
    let resolved = step.resolve()?;
    let plans = Plan::all(step, &resolved);
    let all = turns(&plans, state);
    let work = |turn: super::Turn| {
        let about = Arc::new(step.calls[turn.dispatch].about());
        let taken = Taken::new(turn.dispatch, &about, state, turn.block);
        Work {
            dispatch: turn.dispatch,
            level: plans[turn.dispatch].level,
            pass: plans[turn.dispatch].pass,
            bytes: taken.bytes,
            flops: taken.flops,
        }
    };
    Ok(all.into_iter().map(work).collect())
}
