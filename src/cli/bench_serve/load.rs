//! Sends the requests, each from a thread of its own, at the times of the plan.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

use super::client::{Client, Timed};
use super::plan::Random;
use crate::cli::bars::Bar;

/// Bytes of a thread's stack.
const STACK: usize = 512 << 10;
/// Tokens after which an answer counts as being decoded.
const DECODING: usize = 4;

/// Long prompts are sent for so long before the others come.
const BEFORE: Duration = Duration::from_millis(500);
/// Whoever was refused with a long prompt waits for so long.
const PAUSE: Duration = Duration::from_millis(100);

/// The users who send long prompts without a pause beside the others.
pub(super) struct Beside {
    /// The number of users.
    pub(super) users: usize,
    /// Tokens of each prompt, and of its answer.
    pub(super) prompt: usize,
    pub(super) generate: usize,
    /// Tokens that the model knows, of which prompts are drawn.
    pub(super) vocabulary: u32,
    pub(super) seed: u64,
}

/// The requests of a measurement.
pub(super) struct Load<'a> {
    pub(super) client: &'a Client,
    /// The bodies of requests, with the time when each is sent at the earliest.
    pub(super) requests: Vec<(Duration, String)>,
    /// The most requests that are open at the same time.
    pub(super) concurrency: usize,
    /// The body of a request that is sent when the others are being decoded.
    pub(super) join: Option<String>,
    pub(super) beside: Beside,
}

/// The answers to a load, with their times.
pub(super) struct Came {
    pub(super) began: Instant,
    pub(super) answers: Vec<Result<Timed, String>>,
    pub(super) join: Option<Result<Timed, String>>,
    /// The answers to long prompts beside the others.
    pub(super) beside: Vec<Result<Timed, String>>,
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
        let is_over = AtomicBool::new(false);
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
            let is_over = &is_over;
            let mut beside = vec![];
            for user in 0..self.beside.users {
                let work = move || self.send_beside(user, is_over);
                beside.push(Builder::new().stack_size(STACK).spawn_scoped(scope, work)?);
            }
            if self.beside.users > 0 {
                sleep(BEFORE);
            }
            let began = Instant::now();
            for (at, body) in &self.requests {
                sleep(at.saturating_sub(began.elapsed()));
                // All threads have ended only if one has panicked, which the scope passes on.
                let _ = jobs.send(body);
            }
            drop(jobs);
            let answers = answers.iter().collect();
            is_over.store(true, Ordering::Relaxed);
            let beside = beside
                .into_iter()
                .map(|thread| thread.join().unwrap_or_default());
            let beside = beside.flatten().collect();
            let panicked = |_| Err("its thread has ended by a bug".to_owned());
            let join = join.map(|thread| thread.join().unwrap_or_else(panicked));
            Ok(Came {
                began,
                answers,
                join,
                beside,
            })
        })
    }

    /// Sends long prompts until the others have ended, each of other tokens, so that the server knows none of them.
    fn send_beside(&self, user: usize, is_over: &AtomicBool) -> Vec<Result<Timed, String>> {
        let Beside {
            prompt,
            generate,
            vocabulary,
            seed,
            ..
        } = self.beside;
        let mut random = Random::new(seed ^ (user as u64 + 1).rotate_left(32));
        let mut answers = vec![];
        while !is_over.load(Ordering::Relaxed) {
            let tokens = random.tokens(prompt, vocabulary);
            let answer = self
                .client
                .stream(&self.client.body(&tokens, generate), &mut || ());
            if answer.is_err() {
                sleep(PAUSE);
            }
            answers.push(answer);
        }
        answers
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
