//! Questions of a step to the host, as data: where the step is cut, what it tells, and where the answer goes.
//!
//! A step with questions is submitted part by part. One part ends behind the dispatches that leave the told words. The part that needs the
//! answer begins once the host has given it.

use super::buffer::Range;
use super::memory::GpuWeight;
use crate::model::Mlp;

/// A place where a step needs an answer of the host.
#[derive(Debug, Clone)]
pub struct Question {
    /// The layer of the step.
    pub layer: usize,
    /// The number of the step's dispatches that come before the question: they leave what is told.
    pub asked: usize,
    /// The number of its dispatches that do not need the answer, at least as many. Those between both run while the host answers.
    pub due: usize,
    /// The words that the host reads.
    pub tells: Vec<Range>,
    /// Slots that keep some of the layer's experts, where a list that is told names any.
    pub kept: Option<Mlp<GpuWeight>>,
    /// The places of experts that the dispatches behind the question read.
    pub to: Mlp<GpuWeight>,
}

impl Question {
    /// This question of a step whose dispatches follow `before` others.
    pub fn behind(self, before: usize) -> Self {
        Self {
            asked: self.asked + before,
            due: self.due + before,
            ..self
        }
    }
}
