//! Work on what users send, which ends early if nobody waits for it any more or if its time is over.
//!
//! A thread cannot be stopped from outside. So whoever has a thread do such work says so with [`Effort::on`], and loops that may take
//! long call [`check`] from time to time. Elsewhere [`check`] finds no limit.
//!
//! Work that has taken long already leaves the processors to threads that want them ([`apart`], [`Standing`]). That is so on Linux alone:
//! elsewhere a thread has no priority that another may lower without more rights.

#![cfg_attr(
    target_arch = "wasm32",
    allow(dead_code, reason = "a page serves nobody")
)]

use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use web_time::Instant;

thread_local! {
    /// The effort that the thread makes now.
    static EFFORT: RefCell<Effort> = RefCell::default();
}

/// Why work has ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// Nobody waits for it any more.
    #[error("nobody waits for it any more")]
    Gone,
    /// The time for the work is over.
    #[error("it takes more time than a request may have for it; make it smaller or simpler")]
    Late,
}

/// The factor between a limit of processor time and that of the time by the clock. Other threads may take the processors meanwhile.
const BUSY: u32 = 10;

/// A limit of the time for some work.
#[derive(Debug, Clone, Copy)]
struct Limit {
    /// The processor time that the thread may use.
    most: Duration,
    /// When the work began.
    began: Instant,
    /// The processor time that the thread had used before, where the system tells it.
    used: Option<Duration>,
}

impl Limit {
    /// A limit of this time for the thread's work from now on.
    fn new(most: Duration) -> Self {
        Self {
            most,
            began: Instant::now(),
            used: processor_time(),
        }
    }

    /// Whether the thread has used its processor time, or [`BUSY`] times that has passed by the clock. Processor time counts so that a busy
    /// machine refuses nothing that an idle one takes.
    fn is_over(&self) -> bool {
        let passed = self.began.elapsed();
        if passed < self.most {
            return false;
        }
        let used = processor_time().zip(self.used);
        let used = used.map_or(passed, |(now, before)| now.saturating_sub(before));
        used >= self.most || passed >= self.most.saturating_mul(BUSY)
    }
}

/// The processor time that this thread has used, where the system tells it.
#[cfg(unix)]
fn processor_time() -> Option<Duration> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Some(Duration::new(
        time.tv_sec.try_into().ok()?,
        time.tv_nsec.try_into().ok()?,
    ))
}

#[cfg(not(unix))]
fn processor_time() -> Option<Duration> {
    None
}

/// How far work may go on.
#[derive(Debug, Clone, Default)]
pub struct Effort {
    gone: Option<Arc<AtomicBool>>,
    limit: Option<Limit>,
    /// The tokens that a text may have.
    tokens: Option<usize>,
}

/// Ends work when it is dropped.
#[derive(Debug)]
pub struct Waiting(Arc<AtomicBool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Gives a thread its earlier effort back.
struct Earlier(Effort);

impl Drop for Earlier {
    fn drop(&mut self) {
        EFFORT.replace(std::mem::take(&mut self.0));
    }
}

impl Effort {
    /// Work that goes on while somebody waits.
    pub fn while_waited() -> (Self, Waiting) {
        let gone = Arc::new(AtomicBool::new(false));
        let effort = Self {
            gone: Some(Arc::clone(&gone)),
            ..Self::default()
        };
        (effort, Waiting(gone))
    }

    /// The effort of this thread.
    pub fn current() -> Self {
        EFFORT.with_borrow(Self::clone)
    }

    /// The effort with a limit of `time` from now on. It is processor time of the thread, and ten times as much by the clock.
    pub fn within(self, time: Duration) -> Self {
        let limit = Some(Limit::new(time));
        Self { limit, ..self }
    }

    /// The effort with a limit of `most` tokens for a text.
    pub fn of_tokens(self, most: usize) -> Self {
        let tokens = Some(most);
        Self { tokens, ..self }
    }

    /// The tokens that a text may have.
    pub fn tokens(&self) -> usize {
        self.tokens.unwrap_or(usize::MAX)
    }

    /// Does `work` on this thread with this effort.
    pub fn on<T>(&self, work: impl FnOnce() -> T) -> T {
        // Another thread has used another processor time.
        let used = processor_time();
        let limit = self.limit.map(|limit| Limit { used, ..limit });
        let own = Self {
            limit,
            ..self.clone()
        };
        let _earlier = Earlier(EFFORT.replace(own));
        work()
    }

    /// Checks that the work may go on.
    ///
    /// # Errors
    /// Why it may not.
    pub fn check(&self) -> Result<(), Stopped> {
        if let Some(gone) = &self.gone
            && gone.load(Ordering::Relaxed)
        {
            return Err(Stopped::Gone);
        }
        match &self.limit {
            Some(limit) if limit.is_over() => Err(Stopped::Late),
            _ => Ok(()),
        }
    }
}

/// Whether the work of this thread may go on.
///
/// # Errors
/// Why it may not.
pub fn check() -> Result<(), Stopped> {
    EFFORT.with_borrow(Effort::check)
}

/// Time between two looks whether somebody waits for what is done.
const LOOK: Duration = Duration::from_millis(100);
/// How long work goes on before it leaves the processors to others.
const AT_ONCE: Duration = Duration::from_millis(50);
/// The last step of the scale from 0 to 19 of how seldom a thread gets a processor.
#[cfg(target_os = "linux")]
const LAST: i32 = 19;

/// The id by which other threads know a thread whose work may take long.
#[derive(Debug, Clone, Default)]
pub struct Standing(Arc<OnceLock<i32>>);

impl Standing {
    /// The thread itself calls this.
    pub fn enter(&self) {
        #[cfg(target_os = "linux")]
        // SAFETY: it reads a number of the thread.
        self.0.get_or_init(|| unsafe { libc::gettid() });
    }

    /// From now on the thread, which must not have ended, gets a processor only where few others want one.
    pub fn back(&self) {
        #[cfg(target_os = "linux")]
        if let Some(thread) = self
            .0
            .get()
            .and_then(|&id| rustix::process::Pid::from_raw(id))
        {
            // A system that does not allow it lets the thread run on as others.
            let _ = rustix::process::setpriority_process(Some(thread), LAST);
        }
    }
}

/// Runs `work` on a thread of its own, which stands back when it has taken long, and waits for the result. Calls `late` where `most` is
/// over, or when nobody waits for the work.
///
/// # Errors
/// If the system gives no thread.
pub fn apart<T: Send>(
    builder: thread::Builder,
    most: Duration,
    late: impl FnOnce(),
    work: impl FnOnce() -> T + Send,
) -> io::Result<thread::Result<T>> {
    let effort = Effort::current();
    thread::scope(|scope| {
        let (done, over) = channel::<()>();
        let standing = Standing::default();
        let (entered, own) = (standing.clone(), effort.clone());
        let worker = builder.spawn_scoped(scope, move || {
            entered.enter();
            let result = own.on(work);
            drop(done);
            result
        })?;
        let goes_on = |time| over.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
        let end = Instant::now().checked_add(most);
        let left = || end.map_or(LOOK, |end| end.saturating_duration_since(Instant::now()));
        let mut look = AT_ONCE;
        while goes_on(left().min(look)) {
            // The thread has not been joined, so its number is no other's yet.
            standing.back();
            if left().is_zero() || effort.check().is_err() {
                late();
                break;
            }
            look = LOOK;
        }
        Ok(worker.join())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn work_that_takes_long_stands_back_and_its_end_is_waited_for() {
        let nice = || rustix::process::getpriority_process(None).expect("it has one");
        let (before, mut late) = (nice(), false);
        let of = |time: Duration| {
            move || {
                thread::sleep(time);
                rustix::process::getpriority_process(None).expect("it has one")
            }
        };
        let most = Duration::from_millis(80);
        let short = apart(
            thread::Builder::new(),
            most,
            || late = true,
            of(Duration::ZERO),
        );
        assert_eq!(short.expect("a thread").expect("no panic"), before);
        assert!(!late);
        let long = of(Duration::from_millis(200));
        let long = apart(thread::Builder::new(), most, || late = true, long);
        assert_eq!(long.expect("a thread").expect("no panic"), LAST);
        assert!(late);
        assert_eq!(nice(), before, "this thread is as it was");
    }

    #[test]
    #[cfg(unix)]
    fn processor_time_counts_and_ten_times_the_limit_by_the_clock() {
        let most = Duration::from_millis(60);
        Effort::default().within(most).on(|| {
            let own = EFFORT.with_borrow(|effort| effort.limit.expect("it has one"));
            // A machine that is busy for so long ends it.
            let lasts = || own.began.elapsed() >= BUSY * most;
            thread::sleep(2 * most);
            assert!(check().is_ok() || lasts(), "it used no processor");
            while check().is_ok() {}
            let used = processor_time().zip(own.used);
            let used = used.map(|(now, before)| now - before);
            assert!(used.expect("it is told") >= most || lasts());
        });
        Effort::default().within(most).on(|| {
            thread::sleep(BUSY * most);
            assert_eq!(check(), Err(Stopped::Late));
        });
    }

    #[test]
    fn work_ends_when_nobody_waits_or_its_time_is_over() {
        assert_eq!(check(), Ok(()));
        let (effort, waiting) = Effort::while_waited();
        effort.on(|| {
            assert_eq!(check(), Ok(()));
            let late = Effort::current().within(Duration::ZERO);
            assert_eq!(late.on(check), Err(Stopped::Late));
            assert_eq!(check(), Ok(()), "the earlier effort is back");
            drop(waiting);
            assert_eq!(check(), Err(Stopped::Gone));
        });
        assert_eq!(check(), Ok(()));
    }
}
