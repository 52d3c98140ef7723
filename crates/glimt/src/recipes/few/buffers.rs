//! The buffers of a step of few tokens.

use crate::gpu::buffer::Range;
use std::collections::HashMap;

/// The buffers that a recipe asks for in its order.
pub(super) struct Buffers {
    /// The buffers that layers share, by name; nothing where each layer has its own.
    shared: Option<HashMap<&'static str, Range>>,
    /// The buffers of another step, which are given out in its order; nothing where the step has its own.
    others: Option<Vec<Range>>,
    /// The buffers that were given out, those that layers share once.
    made: Vec<Range>,
}

impl Buffers {
    /// New buffers, with or without `own` ones for each layer.
    pub fn new(own: bool) -> Self {
        Self {
            shared: (!own).then(HashMap::new),
            others: None,
            made: vec![],
        }
    }

    /// The buffers that another step has [made](Self::made), of which each layer has its own.
    pub fn of(others: &[Range]) -> Self {
        Self {
            others: Some(others.to_vec()),
            ..Self::new(true)
        }
    }

    /// The buffers that were given out, in order.
    pub fn made(&self) -> &[Range] {
        &self.made
    }

    /// A buffer of this name.
    pub fn of_layer(&mut self, name: &'static str, new: impl FnOnce() -> Range) -> Range {
        let known = self.shared.as_ref().and_then(|shared| shared.get(name));
        if let Some(known) = known {
            return known.clone();
        }
        let range = self.own(new);
        if let Some(shared) = &mut self.shared {
            shared.insert(name, range.clone());
        }
        range
    }

    /// A buffer that no other layer has.
    pub fn own(&mut self, new: impl FnOnce() -> Range) -> Range {
        let others = self.others.as_ref();
        let range = match others.and_then(|others| others.get(self.made.len())) {
            Some(range) => range.clone(),
            None => new(),
        };
        self.made.push(range.clone());
        range
    }
}
