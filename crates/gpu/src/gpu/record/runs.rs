//! The dispatches of a replay as data, for tests that run kernels elsewhere.

use super::plan::{Plan, turns};
use crate::gpu::buffer::Range;
use crate::gpu::call::{State, extent, fill};
use crate::gpu::interface::Resolved;
use crate::gpu::pipeline::Spec;
use crate::gpu::tier::MAX_PARAMS;
use crate::gpu::{GpuError, Step};

/// One dispatch of a replay.
pub struct Run {
    /// The pipeline.
    pub spec: Spec,
    /// The buffers, in the order of the shader's bindings.
    pub bindings: Vec<Range>,
    /// The bytes of the parameters.
    pub params: [u8; MAX_PARAMS],
    /// Workgroups, at most.
    pub grid: [u32; 3],
    /// The place of their count instead.
    pub counts: Option<Range>,
}

/// The dispatches of a replay of `step` for `state`, in order.
///
/// # Errors
/// The errors of [`Step::resolve`].
pub fn runs(step: &Step, state: &State) -> Result<Vec<Run>, GpuError> {
    let resolved = step.resolve()?;
    let plans = Plan::all(step, &resolved);
    let all = turns(&plans, state);
    let run = |turn: super::Turn| {
        let plan = &plans[turn.dispatch];
        let Resolved {
            spec,
            mut bindings,
            alternatives,
            ..
        } = resolved[turn.dispatch].clone();
        if let Some((index, ranges)) = alternatives {
            let other = plan.alternative(&turn, state);
            bindings[index] = ranges[other % ranges.len()].clone();
        }
        let block = turn.block.unwrap_or_default();
        let mut params = [0; MAX_PARAMS];
        fill(&plan.params, state, block, &mut params);
        Run {
            spec,
            bindings,
            params,
            grid: plan.grid.map(|e| extent(e, state, block)),
            counts: plan.counts.clone(),
        }
    };
    Ok(all.into_iter().map(run).collect())
}
