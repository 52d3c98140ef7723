//! A step as a value: its dispatches in order and the largest replay that it is for. It needs no device, so it can be recorded, checked
//! and counted anywhere. [`Recording`](super::record::Recording) makes it real.

#![expect(
    clippy::mutable_key_type,
    reason = "buffers are equal and hash by identity, whatever happens to them"
)]

use super::GpuError;
use super::buffer::Buffer;
use super::call::{Call, Most};
use super::interface::{Resolved, resolve};
use super::question::Question;
use std::collections::HashSet;

/// The dispatches of one token, or of one chunk of a prompt.
#[derive(Debug, Clone)]
pub struct Step {
    /// The largest replay.
    pub most: Most,
    /// The dispatches, in order.
    pub calls: Vec<Call>,
    /// The questions to the host, in order. Each is answered before the next one is asked.
    pub questions: Vec<Question>,
}

impl Step {
    /// A step of `calls`.
    pub fn of(most: Most, calls: impl IntoIterator<Item = Call>) -> Self {
        Self {
            most,
            calls: calls.into_iter().collect(),
            questions: vec![],
        }
    }

    /// This step with `questions` to the host.
    pub fn asking(self, questions: Vec<Question>) -> Self {
        Self { questions, ..self }
    }

    /// This step and then `calls`.
    pub fn then(&self, calls: &[Call]) -> Self {
        Self {
            most: self.most,
            calls: [&self.calls, calls].concat(),
            questions: self.questions.clone(),
        }
    }

    /// The calls, held against what their kernels declare.
    ///
    /// # Errors
    /// [`GpuError::Interface`] for the first that does not fit, [`GpuError::Shader`].
    pub fn resolve(&self) -> Result<Vec<Resolved>, GpuError> {
        let calls = self.calls.iter();
        calls.map(|call| resolve(call, self.most)).collect()
    }

    /// Every buffer that it uses, once, in order of first use.
    pub fn buffers(&self) -> Vec<&Buffer> {
        let ranges = self.calls.iter().flat_map(Call::ranges);
        let mut seen = HashSet::new();
        let buffers = ranges.map(|range| &range.buffer);
        buffers.filter(|buffer| seen.insert(*buffer)).collect()
    }
}
