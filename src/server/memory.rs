//! Gives memory back to the system that large requests have left unused.
//!
//! The allocator of the GNU C library keeps what is freed for later. After a body of 16 MB and the values made of it, that is much, and it
//! is kept in each thread's own heap: twice the size of the largest block that was freed may be left at the end of each heap, which
//! `malloc_trim` does not reach. So the sizes are fixed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::metrics::Metrics;

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
        fix_sizes();
        let mut again = false;
        loop {
            tokio::time::sleep(OFTEN).await;
            let came = self.0.swap(false, Ordering::Relaxed);
            let used = came || metrics.figures().running > 0;
            // What a request has used may be freed after its end.
            if used || again {
                let _ = tokio::task::spawn_blocking(give_back).await;
            }
            again = used;
        }
    }
}

/// Has large blocks given back as soon as they are freed, whatever was freed before.
fn fix_sizes() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it sets two numbers of the allocator, under its lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 4 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 20);
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
