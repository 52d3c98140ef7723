//! Threads for work on what users send, a few for each kind of work, so that no kind waits for another.
//!
//! Whoever has sent much work does not keep others waiting: while a pool has several threads, one sender never has all of them. Work that
//! nobody waits for any more is left out, or ends early if it has begun ([`effort`](crate::effort)).

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::error::ApiError;
use crate::effort::{Effort, apart};

/// Work that waits for a thread at most. Twice as much may wait where its sender has none that waits.
const MOST_WAITING: usize = 256;
/// The step of the scale from 0 to 19 of how seldom a thread of slow work gets a processor, from its beginning on.
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
    /// Work that has begun so far, and when that of each sender with waiting work did last.
    begun: u64,
    last: HashMap<u64, u64>,
    ended: bool,
}

impl State {
    /// The next work: of those senders that have not all threads but one already, the oldest of the one that has fewest, and of equal ones
    /// of the one whose work began longest ago.
    fn next(&mut self, threads: usize) -> Option<Job> {
        let most = threads.saturating_sub(1).max(1);
        let running = |sender: Sender| self.running.iter().filter(|of| **of == sender).count();
        let last = |sender: Sender| sender.and_then(|sender| self.last.get(&sender)).copied();
        let all = self.waiting.iter().enumerate();
        let may = all.filter(|(_, job)| job.sender.is_none() || running(job.sender) < most);
        let next = may.min_by_key(|(place, job)| (running(job.sender), last(job.sender), *place));
        let (place, _) = next?;
        let job = self.waiting.remove(place)?;
        self.begun += 1;
        if let Some(sender) = job.sender {
            self.last.insert(sender, self.begun);
        }
        // Whoever has come anew is known from when its work came.
        let waiting = &self.waiting;
        self.last.retain(|sender, _| {
            job.sender == Some(*sender) || waiting.iter().any(|job| job.sender == Some(*sender))
        });
        Some(job)
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
    fn work(&self, threads: usize, is_slow: bool) {
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
            // Work that nobody waits for is left out.
            if effort.check().is_ok() {
                effort.on(|| match is_slow {
                    true => {
                        let thread = std::thread::Builder::new();
                        let _ = apart(thread, Duration::MAX, || {}, work);
                    }
                    false => work(),
                });
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
    /// A pool of `threads` threads with this name. Slow work leaves the processors to other threads where these want them.
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
                shared.work(threads, is_slow);
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

    /// The result of `work`. If it panics, its request is refused and others go on. When this future is dropped, the work ends early.
    /// `limited` says how far it may go.
    ///
    /// # Errors
    /// An error of `work`, or the refusal if too much waits already.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        sender: Sender,
        limited: impl FnOnce(Effort) -> Effort + Send + 'static,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let (effort, _waiting) = Effort::while_waited();
        let (told, done) = oneshot::channel();
        let work = move || {
            // The work's time begins here, and not while it waits for others.
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
            let most = match own {
                0 => 2 * MOST_WAITING,
                _ => MOST_WAITING,
            };
            if state.waiting.len() >= most || own >= MOST_WAITING / 2 {
                return Err(ApiError::overloaded());
            }
            if let Some(sender) = sender {
                let begun = state.begun;
                state.last.entry(sender).or_insert(begun);
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
    #[test]
    fn senders_of_much_work_have_their_turns_as_others_do() {
        let work = |sender| Job {
            sender: Some(sender),
            effort: Effort::default(),
            work: Box::new(|| ()),
        };
        let mut state = State::default();
        let come = |state: &mut State, sender| {
            let begun = state.begun;
            state.last.entry(sender).or_insert(begun);
            state.waiting.push_back(work(sender));
        };
        (0..10).for_each(|_| come(&mut state, 1));
        (0..10).for_each(|_| come(&mut state, 2));
        let next = |state: &mut State| {
            let sender = state.next(2).expect("there is work").sender;
            state.running.push(sender);
            sender
        };
        let first = [next(&mut state), next(&mut state)];
        assert_eq!(first, [Some(1), Some(2)], "each has one thread");
        assert!(state.next(2).is_none_or(|job| job.sender.is_none()));
        come(&mut state, 3);
        state.done(Some(2));
        let second = next(&mut state);
        state.done(second);
        let third = next(&mut state);
        assert!(
            [second, third].contains(&Some(3)),
            "{second:?} {third:?} before one that came anew"
        );
        assert!(state.last.len() <= 3);
        // Whoever is not there any more is forgotten.
        while let Some(job) = state.next(usize::MAX) {
            state.done(job.sender);
        }
        assert!(state.last.len() <= 1);
    }
}
