//! Work on what users send, which ends early if nobody waits for it any more or if its time is over.
//!
//! A thread cannot be stopped from outside. So whoever has a thread do such work says so with [`Effort::on`], and loops that may take
//! long call [`check`] from time to time. Elsewhere [`check`] finds no limit.

#![cfg_attr(
    target_arch = "wasm32",
    allow(dead_code, reason = "a page serves nobody")
)]

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use web_time::Instant;

thread_local! {
    /// The effort that the thread makes now.
    static EFFORT: RefCell<Effort> = RefCell::default();
}

/// Why work has ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// Nobody waits for it any more.
    #[error("nobody waits for it any more")]
    Gone,
    /// Its time is over.
    #[error("it takes more time than a request may have for it; make it smaller or simpler")]
    Late,
}

/// How far work may go on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Effort {
    gone: Option<Arc<AtomicBool>>,
    until: Option<Instant>,
    /// The tokens that a text may have.
    tokens: Option<usize>,
}

/// Ends work when it is dropped.
#[derive(Debug)]
pub(crate) struct Waiting(Arc<AtomicBool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Gives a thread its earlier effort back.
struct Earlier(Effort);

impl Drop for Earlier {
    fn drop(&mut self) {
        EFFORT.replace(std::mem::take(&mut self.0));
    }
}

impl Effort {
    /// Work that goes on while somebody waits.
    pub(crate) fn while_waited() -> (Self, Waiting) {
        let gone = Arc::new(AtomicBool::new(false));
        let effort = Self {
            gone: Some(Arc::clone(&gone)),
            ..Self::default()
        };
        (effort, Waiting(gone))
    }

    /// The effort of this thread.
    pub(crate) fn current() -> Self {
        EFFORT.with_borrow(Self::clone)
    }

    /// The same effort, for so long from now on.
    pub(crate) fn within(self, time: Duration) -> Self {
        let until = Some(Instant::now() + time);
        Self { until, ..self }
    }

    /// The same effort, for texts of so many tokens at most.
    pub(crate) fn of_tokens(self, most: usize) -> Self {
        let tokens = Some(most);
        Self { tokens, ..self }
    }

    /// The tokens that a text may have.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens.unwrap_or(usize::MAX)
    }

    /// Does `work` on this thread with this effort.
    pub(crate) fn on<T>(&self, work: impl FnOnce() -> T) -> T {
        let _earlier = Earlier(EFFORT.replace(self.clone()));
        work()
    }

    /// Whether it may go on.
    ///
    /// # Errors
    /// Why it may not.
    pub(crate) fn check(&self) -> Result<(), Stopped> {
        if let Some(gone) = &self.gone
            && gone.load(Ordering::Relaxed)
        {
            return Err(Stopped::Gone);
        }
        match self.until {
            Some(until) if Instant::now() >= until => Err(Stopped::Late),
            _ => Ok(()),
        }
    }
}

/// Whether the work of this thread may go on.
///
/// # Errors
/// Why it may not.
pub(crate) fn check() -> Result<(), Stopped> {
    EFFORT.with_borrow(Effort::check)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_ends_when_nobody_waits_or_its_time_is_over() {
        assert_eq!(check(), Ok(()));
        let (effort, waiting) = Effort::while_waited();
        effort.on(|| {
            assert_eq!(check(), Ok(()));
            let late = Effort::current().within(Duration::ZERO);
            assert_eq!(late.on(check), Err(Stopped::Late));
            assert_eq!(check(), Ok(()), "the earlier effort is back");
            drop(waiting);
            assert_eq!(check(), Err(Stopped::Gone));
        });
        assert_eq!(check(), Ok(()));
    }
}
