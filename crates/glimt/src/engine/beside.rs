//! Work on a second thread while the first waits for a device, for native builds.

use std::thread;

use crate::gpu::wait::Wait;

/// The result of `work`, on a thread of its own, and that of `future`, which this thread waits for.
pub(super) fn beside<T: Send, U>(
    work: impl FnOnce() -> T + Send,
    future: impl Future<Output = U>,
) -> (T, U) {
    thread::scope(|scope| {
        let worker = scope.spawn(work);
        let awaited = future.wait();
        match worker.join() {
            Ok(done) => (done, awaited),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
