//! Rows of logits, and how much they differ.

use std::ops::ControlFlow;

use crate::engine::backend::{Backend, BackendError};
use crate::gpu::wait::Wait;

/// The logits (tokens, vocab) of a text from its beginning, `at_once` tokens in a call.
pub(super) fn logits(
    backend: &mut dyn Backend,
    tokens: &[u32],
    at_once: usize,
) -> Result<Vec<Vec<f32>>, BackendError> {
    logits_in(backend, tokens, &[at_once])
}

/// The logits (tokens, vocab) of a text from its beginning, in calls of so many tokens in turn.
pub(super) fn logits_in(
    backend: &mut dyn Backend,
    tokens: &[u32],
    calls: &[usize],
) -> Result<Vec<Vec<f32>>, BackendError> {
    let mut rows: Vec<Vec<f32>> = vec![];
    let mut calls = calls.iter().cycle();
    while rows.len() < tokens.len() {
        let pos = rows.len();
        let left = &tokens[pos..];
        let at_once = calls.next().map_or(1, |call| *call);
        let piece = &left[..at_once.clamp(1, left.len())];
        let on_row = &mut |_: usize, row: &[f32]| {
            rows.push(row.to_vec());
            ControlFlow::Continue(())
        };
        backend.logits(piece, pos, on_row).wait()?;
        if rows.len() == pos {
            break;
        }
    }
    Ok(rows)
}

/// The difference of rows from exact ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Difference {
    pub(super) median: f64,
    pub(super) worst: f64,
}

impl Difference {
    /// The difference of rows of logits.
    pub(super) fn of(found: &[Vec<f32>], exact: &[Vec<f32>]) -> Self {
        if found.len() != exact.len() {
            return Self::of_errors(vec![]);
        }
        let pairs = found.iter().zip(exact);
        Self::of_errors(pairs.map(|(found, exact)| nmse(found, exact)).collect())
    }

    /// The difference that counts where every position has to be right: the worst one is that of all.
    pub(super) fn at_worst(self) -> Self {
        Self {
            median: self.worst,
            ..self
        }
    }

    /// The difference that the errors of positions make. One that is no number counts as infinite.
    pub(super) fn of_errors(mut errors: Vec<f64>) -> Self {
        for error in &mut errors {
            if error.is_nan() {
                *error = f64::INFINITY;
            }
        }
        errors.sort_by(f64::total_cmp);
        let at = |index: usize| errors.get(index).copied().unwrap_or(f64::INFINITY);
        Self {
            median: at(errors.len() / 2),
            worst: at(errors.len().saturating_sub(1)),
        }
    }
}

/// The squares of the differences over those of the exact values around their mean.
fn nmse(found: &[f32], exact: &[f32]) -> f64 {
    let mean = exact.iter().map(|v| f64::from(*v)).sum::<f64>() / exact.len() as f64;
    let pairs = found.iter().zip(exact);
    let errors: f64 = pairs
        .map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2))
        .sum();
    let values: f64 = exact.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum();
    errors / values
}
