//! Sends the requests, each from a thread of its own, at the times of the plan.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

use super::client::{Client, Timed};
use crate::cli::bars::Bar;

/// Bytes of a thread's stack.
const STACK: usize = 512 << 10;
/// Tokens after which an answer counts as being decoded.
const DECODING: usize = 4;

/// What is sent.
pub(super) struct Load<'a> {
    pub(super) client: &'a Client,
    /// The bodies of requests, with the time when each is sent at the earliest.
    pub(super) requests: Vec<(Duration, String)>,
    /// How many are open at the same time at most.
    pub(super) concurrency: usize,
    /// The body of a request that is sent when the others are being decoded.
    pub(super) join: Option<String>,
}

/// What came back.
pub(super) struct Came {
    pub(super) began: Instant,
    pub(super) answers: Vec<Result<Timed, String>>,
    pub(super) join: Option<Result<Timed, String>>,
}

type Jobs<'a> = Mutex<Receiver<&'a str>>;

impl Load<'_> {
    /// Sends all, and waits for their answers.
    ///
    /// # Errors
    /// If the system gives no threads.
    pub(super) fn run(&self, bar: &Bar) -> std::io::Result<Came> {
        let (jobs, next) = channel::<&str>();
        let next = Mutex::new(next);
        let decoding = AtomicUsize::new(0);
        let ended = AtomicUsize::new(0);
        let (told, answers) = channel();
        std::thread::scope(|scope| {
            for _ in 0..self.concurrency.min(self.requests.len()) {
                let told = told.clone();
                let (next, decoding, ended) = (&next, &decoding, &ended);
                let work = move || self.work(next, &told, decoding, ended, bar);
                Builder::new().stack_size(STACK).spawn_scoped(scope, work)?;
            }
            drop(told);
            let join = self.join.as_deref().map(|body| {
                let all = self.concurrency.min(self.requests.len());
                let (decoding, ended) = (&decoding, &ended);
                let work = move || {
                    while decoding.load(Ordering::Relaxed) < all
                        && ended.load(Ordering::Relaxed) == 0
                    {
                        sleep(Duration::from_millis(1));
                    }
                    self.client.stream(body, &mut || ())
                };
                Builder::new().stack_size(STACK).spawn_scoped(scope, work)
            });
            let join = join.transpose()?;
            let began = Instant::now();
            for (at, body) in &self.requests {
                sleep(at.saturating_sub(began.elapsed()));
                // All threads have ended only if one has panicked, which the scope passes on.
                let _ = jobs.send(body);
            }
            drop(jobs);
            let answers = answers.iter().collect();
            let panicked = |_| Err("its thread has ended by a bug".to_owned());
            let join = join.map(|thread| thread.join().unwrap_or_else(panicked));
            Ok(Came {
                began,
                answers,
                join,
            })
        })
    }

    /// Sends one request after the other.
    fn work(
        &self,
        next: &Jobs<'_>,
        told: &Sender<Result<Timed, String>>,
        decoding: &AtomicUsize,
        ended: &AtomicUsize,
        bar: &Bar,
    ) {
        loop {
            let job = next.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(body) = job else {
                return;
            };
            let mut events = 0;
            let answer = self.client.stream(body, &mut || {
                events += 1;
                if events == DECODING {
                    decoding.fetch_add(1, Ordering::Relaxed);
                }
            });
            ended.fetch_add(1, Ordering::Relaxed);
            bar.step();
            if told.send(answer).is_err() {
                return;
            }
        }
    }
}
