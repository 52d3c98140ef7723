//! Threads for work on what users send, a few for each kind of work, so that no kind waits for another.
//!
//! Whoever has sent much work does not keep others waiting: while a pool has several threads, one sender never has all of them. Work that
//! nobody waits for any more is left out, or ends early if it has begun ([`effort`](crate::effort)).

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::error::ApiError;
use crate::effort::Effort;

/// Work that waits for a thread at most.
const MOST_WAITING: usize = 256;
/// How much less often a thread of slow work gets a processor: a step of the scale from 0 to 19.
#[cfg(target_os = "linux")]
const NICE: i32 = 5;

/// Tells whose work it is. All work without one is of nobody, and may take all threads.
pub(super) type Sender = Option<u64>;

struct Job {
    sender: Sender,
    effort: Effort,
    work: Box<dyn FnOnce() + Send>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    /// The sender whose work each thread does now.
    running: Vec<Sender>,
    ended: bool,
}

impl State {
    /// The next work: the oldest whose sender has not all threads but one already.
    fn next(&mut self, threads: usize) -> Option<Job> {
        let most = threads.saturating_sub(1).max(1);
        let may = |job: &Job| {
            let of_sender = |running: &&Sender| **running == job.sender;
            job.sender.is_none() || self.running.iter().filter(of_sender).count() < most
        };
        let place = self.waiting.iter().position(may)?;
        self.waiting.remove(place)
    }

    fn done(&mut self, sender: Sender) {
        if let Some(place) = self.running.iter().position(|running| *running == sender) {
            self.running.swap_remove(place);
        }
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does work until the pool has ended.
    fn work(&self, threads: usize) {
        loop {
            let mut state = self.state();
            let job = loop {
                if state.ended {
                    return;
                }
                match state.next(threads) {
                    Some(job) => break job,
                    None => {
                        let woken = self.changed.wait(state);
                        state = woken.unwrap_or_else(PoisonError::into_inner);
                    }
                }
            };
            let Job {
                sender,
                effort,
                work,
            } = job;
            state.running.push(sender);
            drop(state);
            // What nobody waits for is left out.
            if effort.check().is_ok() {
                effort.on(work);
            }
            self.state().done(sender);
            self.changed.notify_all();
        }
    }
}

/// Threads for one kind of work.
pub(super) struct Pool(Arc<Shared>);

impl Drop for Pool {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

impl Pool {
    /// A pool of so many threads with this name. Slow work leaves the processors to other threads where these want them.
    ///
    /// # Errors
    /// If the system gives no threads.
    pub(super) fn new(name: &str, threads: usize, is_slow: bool) -> std::io::Result<Self> {
        let pool = Self(Arc::default());
        for _ in 0..threads {
            let shared = Arc::clone(&pool.0);
            let thread = std::thread::Builder::new().name(name.to_owned());
            thread.spawn(move || {
                if is_slow {
                    stand_back();
                }
                shared.work(threads);
            })?;
        }
        Ok(pool)
    }

    /// Ends, and waits for so long for work that has begun. Nobody waits for its result any more.
    pub(super) fn end(&self, most: Duration) {
        let mut state = self.0.state();
        state.ended = true;
        state.waiting.clear();
        self.0.changed.notify_all();
        let is_running = |state: &mut State| !state.running.is_empty();
        let waited = self.0.changed.wait_timeout_while(state, most, is_running);
        drop(waited);
    }

    /// What `work` returns. If it panics, its request is refused and others go on. When this future is dropped, the work ends early.
    /// `limited` says how far it may go.
    ///
    /// # Errors
    /// Those of `work`, or if too much waits already.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        sender: Sender,
        limited: impl FnOnce(Effort) -> Effort + Send + 'static,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let (effort, _waiting) = Effort::while_waited();
        let (told, done) = oneshot::channel();
        let work = move || {
            // Its time begins here, and not while it waits for others.
            let effort = limited(Effort::current());
            let found = catch_unwind(AssertUnwindSafe(|| effort.on(work)));
            let _ = told.send(found.unwrap_or_else(|_| Err(panicked())));
        };
        let job = Job {
            sender,
            effort,
            work: Box::new(work),
        };
        {
            let mut state = self.0.state();
            let of_sender = |job: &&Job| sender.is_some() && job.sender == sender;
            let own = state.waiting.iter().filter(of_sender).count();
            if state.waiting.len() >= MOST_WAITING || own >= MOST_WAITING / 2 {
                return Err(ApiError::overloaded());
            }
            state.waiting.push_back(job);
        }
        self.0.changed.notify_one();
        done.await.unwrap_or_else(|_| Err(panicked()))
    }
}

fn panicked() -> ApiError {
    let message = "this request met a bug of the program; others are still served";
    ApiError::internal(message).for_good()
}

/// Gives this thread less of the processors, where others want them.
fn stand_back() {
    // On Linux it is the thread alone.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, NICE);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use super::*;
    use crate::effort;

    fn runtime() -> tokio::runtime::Runtime {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        runtime.expect("the system gives a runtime")
    }

    #[test]
    fn a_panic_refuses_its_request_alone() {
        let (runtime, pool) = (runtime(), Pool::new("test", 1, false).expect("threads"));
        let run = |work: fn() -> Result<i32, ApiError>| {
            runtime.block_on(pool.run(None, |effort| effort, work))
        };
        let error = run(|| panic!("as a test wants it")).expect_err("it panicked");
        assert_eq!(error.status.as_u16(), 500);
        assert_eq!(error.json()["error"]["type"], "server_error");
        assert_eq!(run(|| Ok(7)), Ok(7));
    }

    #[test]
    fn work_ends_when_nobody_waits_and_when_its_time_is_over() {
        let (runtime, pool) = (runtime(), Pool::new("test", 1, true).expect("threads"));
        let (ended, told) = channel();
        let endless = move || {
            while effort::check().is_ok() {}
            let _ = ended.send(effort::check());
            Ok(())
        };
        runtime.block_on(async {
            let work = pool.run(None, |effort| effort, endless.clone());
            assert!(
                tokio::time::timeout(Duration::from_millis(20), work)
                    .await
                    .is_err()
            );
        });
        let next = || told.recv_timeout(Duration::from_secs(5)).expect("it ends");
        assert_eq!(next(), Err(effort::Stopped::Gone));
        let short = |effort: Effort| effort.within(Duration::from_millis(20));
        assert_eq!(runtime.block_on(pool.run(None, short, endless)), Ok(()));
        assert_eq!(next(), Err(effort::Stopped::Late));
    }

    #[test]
    fn a_sender_of_much_work_leaves_a_thread_to_others() {
        let (runtime, pool) = (runtime(), Pool::new("test", 2, false).expect("threads"));
        let running = Arc::new(AtomicUsize::new(0));
        runtime.block_on(async {
            let slow = || {
                let running = Arc::clone(&running);
                pool.run(
                    Some(1),
                    |effort| effort,
                    move || {
                        running.fetch_add(1, Ordering::Relaxed);
                        std::thread::sleep(Duration::from_millis(300));
                        Ok(running.fetch_sub(1, Ordering::Relaxed))
                    },
                )
            };
            let began = Instant::now();
            let other = async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                let found = pool.run(Some(2), |effort| effort, || Ok(0)).await;
                assert_eq!(found, Ok(0));
                assert!(began.elapsed() < Duration::from_millis(250));
            };
            let (first, second, ()) = tokio::join!(slow(), slow(), other);
            assert_eq!((first, second), (Ok(1), Ok(1)), "one after the other");
        });
    }
}
