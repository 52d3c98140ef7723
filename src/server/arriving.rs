//! Requests that are being read: parsed, and turned into tokens. When the device has nothing to do, it is worth waiting a moment for them,
//! since requests that come together share steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many requests are being read.
#[derive(Debug, Clone, Default)]
pub(super) struct Arriving(Arc<AtomicUsize>);

impl Arriving {
    /// Counts one more until what is returned is dropped.
    pub(super) fn one(&self) -> Reading {
        self.0.fetch_add(1, Ordering::Relaxed);
        Reading(Arc::clone(&self.0))
    }

    /// Whether there is one.
    pub(super) fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

/// A request that is being read.
#[derive(Debug)]
pub(super) struct Reading(Arc<AtomicUsize>);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
