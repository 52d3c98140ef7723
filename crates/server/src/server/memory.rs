//! Gives memory back to the system that large requests have left unused.
//!
//! The allocator of the GNU C library keeps what is freed for later. After a body of 16 MB and the values made of it, that is much, and it
//! is kept in each thread's own heap: twice the size of the largest block that was freed may be left at the end of each heap, which
//! `malloc_trim` does not reach. So the sizes are fixed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::metrics::Metrics;

/// Bytes at the end of a heap that are kept for later, and from which on an allocation is a mapping of its own, which goes back when it is
/// freed. Without these the library raises both by itself, to as much as 64 MB, when a large body is freed: the end of a thread's heap is then
/// never given back, which [`give_back`] cannot do either.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEPT: i32 = 1 << 20;
/// Heaps at most. The library would make eight for each processor.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const HEAPS: i32 = 8;

/// Has the allocator keep little of what is freed from now on.
pub(super) fn keep_little() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it sets numbers of the allocator, under its lock.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
        libc::mallopt(libc::M_MMAP_THRESHOLD, KEPT);
        libc::mallopt(libc::M_ARENA_MAX, HEAPS);
    }
}

/// How often memory is given back, if requests came since then or are answered.
const OFTEN: Duration = Duration::from_secs(5);

/// Whether requests came.
#[derive(Default)]
pub(super) struct Tidy(AtomicBool);

impl Tidy {
    /// A request comes.
    pub(super) fn used(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Gives memory back from time to time, for ever.
    pub(super) async fn keep(&self, metrics: &Metrics) {
        let mut again = false;
        loop {
            tokio::time::sleep(OFTEN).await;
            let came = self.0.swap(false, Ordering::Relaxed);
            let used = came || metrics.figures().running > 0;
            // Memory that a request has used may be freed after its end.
            if used || again {
                let _ = tokio::task::spawn_blocking(give_back).await;
            }
            again = used;
        }
    }
}

/// Gives back what is unused.
pub(super) fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it only touches memory that is free, under the locks of the allocator.
    unsafe {
        libc::malloc_trim(0);
    }
}
