//! Keeping a session ready while nothing is asked of it, for native builds: a thread of its own touches what the session needs.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use web_time::{Duration, Instant};

use super::backend::Touch;

/// An idle session is touched so often: Metal forgets after about a second (llama.cpp, issue 10119).
const TOUCHED_EVERY: Duration = Duration::from_millis(500);
/// A session that is idle for longer is left alone: who has gone away should not pay for it in power.
const IDLE: Duration = Duration::from_secs(180);

/// Keeps what a session needs in the memory of its device, from a thread of its own, until it is dropped or some minutes are over.
pub struct KeepWarm {
    /// Ends the thread when it is dropped.
    on: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl KeepWarm {
    /// Begins with it.
    ///
    /// # Errors
    /// The error of the system where it gives no thread.
    pub fn new(touch: Touch) -> io::Result<Self> {
        Self::lasting(touch, TOUCHED_EVERY, IDLE)
    }

    fn lasting(touch: Touch, every: Duration, idle: Duration) -> io::Result<Self> {
        let (on, off) = channel();
        let thread = thread::Builder::new()
            .name("keep warm".to_owned())
            .spawn(move || {
                let began = Instant::now();
                while began.elapsed() < idle
                    && off.recv_timeout(every) == Err(RecvTimeoutError::Timeout)
                {
                    touch();
                }
            })?;
        Ok(Self {
            on: Some(on),
            thread: Some(thread),
        })
    }
}

impl Drop for KeepWarm {
    /// Waits for the thread: it may be the last to hold the device, and a process must not end while that is taken down.
    fn drop(&mut self) {
        self.on = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_session_is_kept_warm_until_it_is_used_or_long_idle() {
        let touched = Arc::new(AtomicUsize::new(0));
        let count = || touched.load(Ordering::SeqCst);
        let touch = || {
            let touched = Arc::clone(&touched);
            Box::new(move || {
                touched.fetch_add(1, Ordering::SeqCst);
            })
        };
        let every = Duration::from_millis(1);
        let warm = KeepWarm::lasting(touch(), every, Duration::from_secs(600));
        let warm = warm.expect("there are threads");
        while count() < 3 {
            thread::sleep(every);
        }
        drop(warm);
        // The thread has ended, and holds the closure no more.
        assert_eq!(Arc::strong_count(&touched), 1);
        let before = count();
        let warm = KeepWarm::lasting(touch(), every, Duration::from_millis(20));
        while Arc::strong_count(&touched) > 1 {
            thread::sleep(every);
        }
        assert!(count() > before);
        drop(warm);
    }
}
