//! The facts that drafts rest on: each row of a step of several tokens is what the token leaves alone, to the bit, and the prediction layer computes what
//! its twin does.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::rows::{Difference, logits, logits_in};
use crate::bench::BenchError;
use crate::engine::Products;
use crate::engine::backend::{Backend, BackendError};
use crate::engine::gpu::{GpuBackend, GpuModel};
use crate::gpu::wait::Wait;
use crate::models::{Model, OutOfMemory, Part};

/// Tokens of a step, in turn.
const STEPS: [usize; 5] = [2, 4, 3, 8, 16];

/// Drafts that are chained.
const CHAINED: usize = 3;

/// The shares of a text behind which drafts are made, in parts of 9.
const ENDS: [usize; 4] = [1, 3, 6, 9];

/// The difference of the rows of steps of several tokens from those of steps of one, 0 where all bits are the same; `None` where the device has
/// no such steps.
pub(super) fn of_rows(
    model: &Arc<GpuModel>,
    tokens: &[u32],
) -> Result<Option<Difference>, BenchError> {
    let backend = GpuBackend::with_drafts(Arc::clone(model), tokens.len(), None, u32::MAX);
    let mut backend = backend.wait()?;
    let most = backend.draft_means().most + 1;
    if most == 1 {
        return Ok(None);
    }
    let alone = logits(&mut backend, tokens, 1)?;
    let steps = STEPS.map(|step| step.min(most));
    let together = logits_in(&mut backend, tokens, &steps)?;
    Ok(Some(Difference::of(&together, &alone).at_worst()))
}

/// The difference of the prediction layer's logits from its twin's, for drafts behind the first tokens of a text; `None` where there is no layer, or the
/// device takes no drafts.
pub(super) fn of_layer(
    model: &Arc<GpuModel>,
    tokens: &[u32],
) -> Result<Option<Difference>, BenchError> {
    let n_ctx = tokens.len() + CHAINED;
    let backend = GpuBackend::with_drafts(Arc::clone(model), n_ctx, None, CHAINED as u32);
    let mut backend = backend.wait()?;
    if !backend.draft_means().predicts {
        return Ok(None);
    }
    let (mut found, mut exact) = (vec![], vec![]);
    for end in ENDS {
        let known = &tokens[..tokens.len() * end / ENDS[ENDS.len() - 1]];
        let (drafts, logits) = backend.predicted(known, CHAINED)?;
        exact.extend(twin(&model.model, known, &drafts)?);
        found.extend(logits);
    }
    Ok(Some(Difference::of(&found, &exact)))
}

/// The logits that should choose each of `drafts` behind `tokens`.
fn twin(
    model: &Arc<dyn Model>,
    tokens: &[u32],
    drafts: &[u32],
) -> Result<Vec<Vec<f32>>, BackendError> {
    let n_ctx = tokens.len() + drafts.len();
    let reference = Arc::clone(model).reference(Products::Exact, n_ctx, n_ctx);
    let reference =
        reference.map_err(|OutOfMemory { bytes }| BackendError::OutOfMemory { n_ctx, bytes });
    let mut reference = reference?;
    let width = model.config().embedding_length;
    let part = |tokens, pos| Part {
        tokens,
        pos,
        pages: &[],
    };
    let go_on = &mut |_| ControlFlow::Continue(());
    let own = [part(tokens.len(), 0)];
    let hidden = reference.forward(tokens, &own, go_on).unwrap_or_default();
    let mut before = vec![0.0; width];
    before.extend(reference.normed(&hidden));
    let states = reference.predict(tokens, &before[..tokens.len() * width], &own);
    let mut state = states[(tokens.len() - 1) * width..].to_vec();
    let mut rows = vec![];
    for (i, draft) in drafts.iter().enumerate() {
        rows.push(reference.predicted_head(&state));
        if i + 1 < drafts.len() {
            state = reference.predict(&[*draft], &state, &[part(1, tokens.len() + i)]);
        }
    }
    Ok(rows)
}
