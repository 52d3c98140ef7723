//! Something that several futures use in turn, each for as long as it likes. Whoever waits for it is woken, and no thread is blocked.

use std::future::poll_fn;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard};
use std::task::{Poll, Waker};

/// The thing, and those who wait for it.
pub(super) struct Turns<T>(Mutex<Waiting<T>>);

struct Waiting<T> {
    /// The thing; nothing while somebody has it.
    free: Option<T>,
    wakers: Vec<Waker>,
}

impl<T> Turns<T> {
    pub(super) fn new(thing: T) -> Self {
        Self(Mutex::new(Waiting {
            free: Some(thing),
            wakers: vec![],
        }))
    }

    /// The thing, once nobody else has it.
    pub(super) async fn take(&self) -> Turn<'_, T> {
        let thing = poll_fn(|context| {
            let mut waiting = self.waiting();
            match waiting.free.take() {
                Some(thing) => Poll::Ready(thing),
                None => {
                    waiting.wakers.push(context.waker().clone());
                    Poll::Pending
                }
            }
        });
        Turn {
            thing: Some(thing.await),
            turns: self,
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting<T>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// The thing while somebody has it.
pub(super) struct Turn<'a, T> {
    /// It is there until this is dropped.
    thing: Option<T>,
    turns: &'a Turns<T>,
}

const HAD: &str = "it is given back by dropping the turn alone";

impl<T> Deref for Turn<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.thing.as_ref().expect(HAD)
    }
}

impl<T> DerefMut for Turn<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.thing.as_mut().expect(HAD)
    }
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        let mut waiting = self.turns.waiting();
        waiting.free = self.thing.take();
        let wakers = std::mem::take(&mut waiting.wakers);
        drop(waiting);
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::wait::Wait;
    use std::thread;

    #[test]
    fn one_has_it_after_the_other_and_nobody_is_forgotten() {
        let turns = Turns::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let mut turn = turns.take().wait();
                        let before = *turn;
                        thread::yield_now();
                        *turn = before + 1;
                    }
                });
            }
        });
        assert_eq!(*turns.take().wait(), 200);
    }
}
