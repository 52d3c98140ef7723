//! Threads that share short work: a decoded token is hundreds of products of some microseconds each, between which a pool of tasks would
//! sleep and wake, or take longer to hand out the work than it takes to do it.
//!
//! The helpers of a team look for work without sleeping for a short time after the last, and then sleep until there is more.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use std::{hint, thread};

/// How long a helper looks for work before it sleeps: longer than what a token computes by one thread between two products.
const LOOKS: Duration = Duration::from_micros(200);

/// Threads that share work. Those of [`Team::all`] are as many as rayon's.
pub struct Team {
    shared: Arc<Shared>,
    helpers: usize,
    /// One work at a time.
    turn: Mutex<()>,
}

struct Shared {
    /// The number of the work, which is odd while helpers may join it.
    number: AtomicUsize,
    /// The work while the number is odd, or a helper is busy that saw it odd. It lies on the stack of its owner, who waits for these.
    work: AtomicPtr<Work<'static>>,
    /// Whether each helper may hold `work`.
    busy: Vec<Busy>,
    asleep: AtomicUsize,
    bed: Mutex<()>,
    wake: Condvar,
    ended: AtomicBool,
}

/// A helper's own cache line, which nobody else writes.
#[derive(Default)]
#[repr(align(128))]
struct Busy(AtomicBool);

struct Work<'a> {
    part: &'a (dyn Fn(usize) + Sync),
    next: AtomicUsize,
    parts: usize,
    failed: AtomicBool,
}

impl Work<'_> {
    /// Does parts until all are taken.
    fn share(&self) {
        loop {
            let part = self.next.fetch_add(1, Ordering::Relaxed);
            if part >= self.parts {
                break;
            }
            (self.part)(part);
        }
    }
}

fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Team {
    /// A team of `threads`, of which the caller of [`each`](Self::each) is one. It has fewer where the system gives it none.
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            number: AtomicUsize::new(0),
            work: AtomicPtr::new(ptr::null_mut()),
            busy: (1..threads).map(|_| Busy::default()).collect(),
            asleep: AtomicUsize::new(0),
            bed: Mutex::new(()),
            wake: Condvar::new(),
            ended: AtomicBool::new(false),
        });
        let mut helpers = 0;
        for i in 0..shared.busy.len() {
            let shared = Arc::clone(&shared);
            let helper = thread::Builder::new().name("glimt helper".to_owned());
            if helper.spawn(move || shared.help(i)).is_err() {
                break;
            }
            helpers += 1;
        }
        Self {
            shared,
            helpers,
            turn: Mutex::new(()),
        }
    }

    /// The team of the process, with as many threads as rayon has.
    pub fn all() -> &'static Self {
        static ALL: OnceLock<Team> = OnceLock::new();
        ALL.get_or_init(|| Self::new(rayon::current_num_threads()))
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.helpers + 1
    }

    /// Calls `work` with every item, by all threads of the team, and returns when all are done. A `work` must not call it again.
    pub fn each<T: Send>(&self, items: Vec<T>, work: impl Fn(T) + Sync) {
        if self.helpers == 0 || items.len() < 2 {
            return items.into_iter().for_each(work);
        }
        let items: Vec<Mutex<Option<T>>> = items
            .into_iter()
            .map(|item| Mutex::new(Some(item)))
            .collect();
        let part = |i: usize| {
            let item = items[i]
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            if let Some(item) = item {
                work(item);
            }
        };
        self.parts(items.len(), &part);
    }

    fn parts(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
        let _turn = lock(&self.turn);
        let shared = &*self.shared;
        let work = Work {
            part,
            next: AtomicUsize::new(0),
            parts,
            failed: AtomicBool::new(false),
        };
        shared
            .work
            .store((&raw const work).cast_mut().cast(), Ordering::Relaxed);
        // The number was even: owners take turns.
        shared.number.fetch_add(1, Ordering::SeqCst);
        if shared.asleep.load(Ordering::SeqCst) > 0 {
            drop(lock(&shared.bed));
            shared.wake.notify_all();
        }
        let own = catch_unwind(AssertUnwindSafe(|| work.share()));
        // Nobody joins any more, and all who did are awaited: `work` and what it borrows are used no longer.
        shared.number.fetch_add(1, Ordering::SeqCst);
        let mut looks = 0u32;
        for Busy(busy) in &shared.busy {
            while busy.load(Ordering::SeqCst) {
                looks += 1;
                match looks.is_multiple_of(1 << 12) {
                    true => thread::yield_now(),
                    false => hint::spin_loop(),
                }
            }
        }
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        assert!(
            !work.failed.load(Ordering::Relaxed),
            "a helper's work panicked"
        );
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        drop(lock(&self.shared.bed));
        self.shared.wake.notify_all();
    }
}

impl Shared {
    /// The life of helper `i`.
    fn help(&self, i: usize) {
        let Busy(busy) = &self.busy[i];
        let mut seen = 0;
        while let Some(number) = self.next(seen) {
            busy.store(true, Ordering::SeqCst);
            // Either this is still odd, or the owner of the work has made it even and may not see that this helper is busy.
            seen = self.number.load(Ordering::SeqCst);
            if is_open(seen) {
                // SAFETY: the number was odd after this helper was busy. So the pointer was stored before, and its owner returns only
                // after it made the number even and then saw that no helper was busy, which this one is until the end of the work.
                let work = unsafe { &*self.work.load(Ordering::Relaxed) };
                if catch_unwind(AssertUnwindSafe(|| work.share())).is_err() {
                    work.failed.store(true, Ordering::Relaxed);
                }
            } else {
                seen = number;
            }
            busy.store(false, Ordering::SeqCst);
        }
    }

    /// Waits for open work of another number than `seen`, and returns it; nothing at the end of the team.
    fn next(&self, seen: usize) -> Option<usize> {
        let found = || {
            let number = self.number.load(Ordering::SeqCst);
            (is_open(number) && number != seen).then_some(number)
        };
        let ended = || self.ended.load(Ordering::SeqCst);
        let began = Instant::now();
        while began.elapsed() < LOOKS && !ended() {
            for _ in 0..64 {
                if let Some(number) = found() {
                    return Some(number);
                }
                hint::spin_loop();
            }
        }
        let mut bed = lock(&self.bed);
        // Whoever counts a helper asleep wakes it, and whoever does not has set the number before.
        self.asleep.fetch_add(1, Ordering::SeqCst);
        let number = loop {
            match found() {
                Some(number) => break Some(number),
                None if ended() => break None,
                None => bed = self.wake.wait(bed).unwrap_or_else(PoisonError::into_inner),
            }
        };
        self.asleep.fetch_sub(1, Ordering::SeqCst);
        number
    }
}

/// Whether helpers may join the work of this number.
const fn is_open(number: usize) -> bool {
    number % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_done_once_by_any_team() {
        for threads in [1, 2, 5] {
            let team = Team::new(threads);
            assert_eq!(team.threads(), threads);
            let mut counts = vec![0u32; 300];
            for round in 1..=50 {
                if round == 25 {
                    // Helpers sleep by now.
                    thread::sleep(2 * LOOKS);
                }
                team.each(counts.iter_mut().collect(), |count| *count += 1);
                assert!(counts.iter().all(|count| *count == round), "{threads}");
            }
        }
    }

    #[test]
    fn several_callers_take_turns() {
        let team = Team::new(3);
        let sum = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        team.each((0..10).collect(), |i: usize| {
                            sum.fetch_add(i, Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(sum.load(Ordering::Relaxed), 4 * 20 * 45);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_goes_on() {
        let team = Team::new(2);
        let failing = || team.each((0..64).collect(), |i: usize| assert_ne!(i, 40, "it fails"));
        assert!(catch_unwind(AssertUnwindSafe(failing)).is_err());
        let done = AtomicUsize::new(0);
        team.each(vec![(); 64], |()| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.load(Ordering::Relaxed), 64);
    }
}
