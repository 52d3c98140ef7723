//! Waiting for a device, for native builds: the one place that blocks on it.
//!
//! All operations of a device are futures, which only ask whether something is there (`pending`). Whoever may block says so where it
//! calls one, by [`Wait::wait`]. A browser, where nothing may block, goes without this file.

use super::pending;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use wgpu::{PollError, PollType, SubmissionIndex};

/// Wakes a thread that sleeps.
struct Sleeper(Thread);

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks until `future` is there: wherever it stops at a submission, that is waited for.
pub fn complete<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Sleeper(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match pending::noting(|| future.as_mut().poll(&mut context)) {
            (Poll::Ready(result), _) => return result,
            (Poll::Pending, Some(stop)) => stop.passed_by(wait_for),
            (Poll::Pending, None) => thread::park(),
        }
    }
}

/// Waits until `submission`, or everything submitted, is done.
fn wait_for(device: &wgpu::Device, submission: Option<SubmissionIndex>) -> Result<(), PollError> {
    let waited = device.poll(PollType::Wait {
        submission_index: submission,
        timeout: None,
    });
    waited.map(drop)
}

/// Waiting for a future of a device: `gpu.read(...).wait()?` where `gpu.read(...).await?` would let others run meanwhile.
///
/// An answer that is waited for is decoded with a second thread, and its future is not polled between two tokens. So whoever wants to look at
/// other futures meanwhile polls it without this.
pub trait Wait: IntoFuture {
    /// Blocks until it is there, as [`complete`] does.
    fn wait(self) -> Self::Output;
}

impl<F: IntoFuture> Wait for F {
    fn wait(self) -> Self::Output {
        complete(self.into_future())
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[test]
    fn a_future_may_block_only_the_thread_that_waits_for_it() {
        let asked = || async { pending::may_block() };
        assert!(asked().wait());
        let mut part = pin!(asked());
        let of_whole = poll_fn(|context| pending::giving_way(|| part.as_mut().poll(context)));
        assert!(!of_whole.wait());
        assert!(!pending::may_block());
        let mut context = Context::from_waker(Waker::noop());
        let polled = pin!(asked()).poll(&mut context);
        assert_eq!(polled, Poll::Ready(false));
    }
}
