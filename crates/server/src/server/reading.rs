//! The reading of bodies, and the bytes of them that may be in memory.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::error::ApiError;
use super::pool::Pool;

/// How long a body waits for others at most.
const PATIENCE: Duration = Duration::from_secs(20);

/// Bytes of a body that is not counted.
pub(super) const SMALL: usize = 64 << 10;
/// Bytes of a body of middle size, and of all that are in memory.
pub(super) const MIDDLE: [usize; 2] = [1 << 20, 16 << 20];
/// Bytes of all large bodies that are in memory, or as many as one may have.
const LARGE: usize = 48 << 20;

/// Threads that read small bodies, large ones, and those that ask for a form.
const THREADS: [usize; 3] = [4, 2, 2];
/// Bytes of bodies that may still be in memory, in units of 1 kB.
struct Budget(Arc<Semaphore>);

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX)
}

impl Budget {
    fn new(bytes: usize) -> Self {
        let most = bytes.div_ceil(1 << 10).min(Semaphore::MAX_PERMITS);
        Self(Arc::new(Semaphore::new(most)))
    }

    async fn take(&self, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let taken = Arc::clone(&self.0).acquire_many_owned(units(bytes));
        match timeout(PATIENCE, taken).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(ApiError::overloaded()),
        }
    }
}

/// The reading of bodies, and how many are read at the same time.
pub(super) struct Reading {
    middle: Budget,
    large: Budget,
    pub(super) small_ones: Pool,
    pub(super) large_ones: Pool,
    pub(super) forms: Pool,
}

impl Reading {
    /// A reading of bodies of at most `max_body` bytes.
    ///
    /// # Errors
    /// If the system gives no threads.
    pub(super) fn new(max_body: usize) -> std::io::Result<Self> {
        let [small, large, forms] = THREADS;
        Ok(Self {
            middle: Budget::new(MIDDLE[1]),
            large: Budget::new(LARGE.max(max_body)),
            small_ones: Pool::new("small", small, false)?,
            large_ones: Pool::new("large", large, true)?,
            forms: Pool::new("forms", forms, true)?,
        })
    }

    /// Ends, and waits for a moment for what is being read.
    pub(super) fn end(&self, most: Duration) {
        for pool in [&self.small_ones, &self.large_ones, &self.forms] {
            pool.end(most);
        }
    }

    /// Takes the bytes for a body, if it is counted.
    pub(super) async fn take(
        &self,
        bytes: usize,
    ) -> Result<Option<OwnedSemaphorePermit>, ApiError> {
        match bytes {
            ..=SMALL => Ok(None),
            _ if bytes <= MIDDLE[0] => self.middle.take(bytes).await.map(Some),
            _ => self.large.take(bytes).await.map(Some),
        }
    }
}
