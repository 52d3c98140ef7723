//! A chooser whose panic is an error: grammars come from users, and what follows them is a large program of others.

use web_time::Duration;

use crate::engine::chooser::quiet::caught;
use crate::engine::chooser::{Chooser, ChooserError};

/// A chooser that is not asked again once it has panicked.
pub(super) struct Guarded(Option<Box<dyn Chooser>>);

impl Guarded {
    pub(super) fn new(inner: Box<dyn Chooser>) -> Self {
        Self(Some(inner))
    }

    fn ask<T>(&mut self, question: impl FnOnce(&mut dyn Chooser) -> T) -> Result<T, ChooserError> {
        let mut inner = self.0.take().ok_or(ChooserError::Panicked)?;
        let answered = caught(|| {
            let answer = question(&mut *inner);
            (inner, answer)
        });
        let (inner, answer) = answered.ok_or(ChooserError::Panicked)?;
        self.0 = Some(inner);
        Ok(answer)
    }
}

impl Chooser for Guarded {
    fn choose(&mut self, logits: &mut [f32], context: &[u32]) -> Result<u32, ChooserError> {
        self.ask(|inner| inner.choose(logits, context))?
    }

    fn accept(&mut self, token: u32) -> Result<(), ChooserError> {
        self.ask(|inner| inner.accept(token))?
    }

    fn is_ready(&mut self, most: Duration) -> bool {
        // The next choice tells of a panic.
        self.ask(|inner| inner.is_ready(most)).unwrap_or(true)
    }
}
