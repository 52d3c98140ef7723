//! Threads of grammars, for native builds: reading one is recursive, which takes more stack than a thread usually has, and an answer is
//! followed in it beside the device.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use llguidance::{CancellationHandle, Matcher};

use super::ChooserError;
use super::quiet::caught;
use super::state::Found;
use crate::effort::{Standing, apart};

/// Bytes of stack for the rules of a grammar, one within the other.
const STACK: usize = 256 << 20;

/// Runs `read` on a thread with much stack and returns the result; `None` if it panicked.
pub(super) fn with_deep_stack<T: Send>(read: impl FnOnce() -> T + Send) -> io::Result<Option<T>> {
    let builder = thread::Builder::new().stack_size(STACK);
    let done = apart(builder, Duration::MAX, || {}, || caught(read))?;
    Ok(done.unwrap_or_default())
}

/// Runs `work` on a thread of its own and returns the result; `None` if it panicked. After `most`, or when nobody waits, it is cancelled.
pub(super) fn within<T: Send>(
    most: Duration,
    cancellation: Option<&CancellationHandle>,
    work: impl FnOnce() -> T + Send,
) -> io::Result<Option<T>> {
    let cancel = || {
        if let Some(handle) = cancellation {
            handle.cancel();
        }
    };
    let done = apart(thread::Builder::new(), most, cancel, || caught(work))?;
    Ok(done.unwrap_or_default())
}

/// A thread with a matcher. Dropped, it is told to end.
pub(super) struct Worker {
    tokens: Sender<u32>,
    found: Receiver<Found>,
    cancellation: Arc<OnceLock<CancellationHandle>>,
    standing: Standing,
}

impl Worker {
    /// A worker with the matcher that `make` makes on its thread. Each token is handed to `next`.
    pub(super) fn new(
        make: impl FnOnce() -> Option<Matcher> + Send + 'static,
        next: fn(&mut Matcher, u32) -> Found,
    ) -> io::Result<Self> {
        let (tokens, taken) = channel();
        let (told, found) = channel();
        let cancellation = Arc::new(OnceLock::new());
        let cancelled = Arc::clone(&cancellation);
        let standing = Standing::default();
        let entered = standing.clone();
        let thread = thread::Builder::new().name("grammar".to_owned());
        thread.spawn(move || {
            entered.enter();
            let Some(mut matcher) = make() else {
                return;
            };
            if let Some(handle) = matcher.cancellation_handle() {
                cancelled.get_or_init(|| handle);
            }
            for token in taken {
                let found = next(&mut matcher, token);
                if told.send(found).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self {
            tokens,
            found,
            cancellation,
            standing,
        })
    }

    /// Makes the worker leave the processors to others from now on.
    pub(super) fn stand_back(&self) {
        self.standing.back();
    }

    /// Hands a token on.
    pub(super) fn hand_on(&self, token: u32) {
        // A thread that has ended is noticed where its answer is waited for.
        let _ = self.tokens.send(token);
    }

    /// The answer of the thread to a token, if it comes within `most`.
    pub(super) fn found(&self, most: Duration) -> Option<Found> {
        match self.found.recv_timeout(most) {
            Ok(found) => Some(found),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                Some((Err(ChooserError::Panicked), Duration::ZERO))
            }
        }
    }

    /// Makes the worker end what it does.
    pub(super) fn cancel(&self) {
        if let Some(handle) = self.cancellation.get() {
            handle.cancel();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effort::Effort;
    use std::time::Instant;

    #[test]
    fn work_for_nobody_is_cancelled_soon() {
        let (effort, waiting) = Effort::while_waited();
        drop(waiting);
        let handle = CancellationHandle::default();
        let began = Instant::now();
        let done = effort.on(|| {
            within(Duration::from_secs(60), Some(&handle), || {
                while !handle.is_cancelled() && began.elapsed() < Duration::from_secs(20) {
                    thread::sleep(Duration::from_millis(5));
                }
            })
        });
        assert!(done.is_ok_and(|done| done.is_some()));
        assert!(began.elapsed() < Duration::from_secs(10));
    }
}
