//! Work on a thread of its own, for a future that must not hold up whoever polls it.

use std::future::poll_fn;
use std::io;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::thread;

/// Hears what the work tells, and whether it is to go on.
pub(super) type Heard<'a, N> = dyn FnMut(N) -> ControlFlow<()> + Send + 'a;

/// The state of some work that its thread and its future share.
struct Shared<N, T> {
    /// News that the future has not heard yet. The thread sleeps meanwhile.
    news: Option<N>,
    /// The future's answer to the last news.
    flow: Option<ControlFlow<()>>,
    result: Option<thread::Result<T>>,
    /// Whether the future was dropped.
    is_left: bool,
    waker: Option<Waker>,
}

struct Line<N, T> {
    shared: Mutex<Shared<N, T>>,
    answered: Condvar,
}

impl<N, T> Line<N, T> {
    fn lock(&self) -> MutexGuard<'_, Shared<N, T>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(mut shared: MutexGuard<'_, Shared<N, T>>) {
        let waker = shared.waker.take();
        drop(shared);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Tells the future some news, and waits for what it says. A future that was dropped says break.
    fn tell(&self, news: N) -> ControlFlow<()> {
        let mut shared = self.lock();
        shared.news = Some(news);
        Self::wake(shared);
        let unanswered = |shared: &mut Shared<N, T>| shared.flow.is_none() && !shared.is_left;
        let waited = self.answered.wait_while(self.lock(), unanswered);
        let mut shared = waited.unwrap_or_else(PoisonError::into_inner);
        shared.flow.take().unwrap_or(ControlFlow::Break(()))
    }
}

/// The end of a line at which the future stands.
struct Listener<N, T>(Arc<Line<N, T>>);

impl<N, T> Drop for Listener<N, T> {
    fn drop(&mut self) {
        self.0.lock().is_left = true;
        self.0.answered.notify_one();
    }
}

/// The result of `work`, which runs on a thread of its own. It gives its news to its argument, `heard` hears them while the future is
/// polled, and the work goes on with the answer. Once the future is dropped the answer to all news is break.
///
/// # Errors
/// The system's, where it gives no thread.
pub(super) async fn apart<N: Send + 'static, T: Send + 'static>(
    work: impl FnOnce(&mut Heard<'_, N>) -> T + Send + 'static,
    heard: &mut Heard<'_, N>,
) -> io::Result<T> {
    let line = Arc::new(Line {
        shared: Mutex::new(Shared {
            news: None,
            flow: None,
            result: None,
            is_left: false,
            waker: None,
        }),
        answered: Condvar::new(),
    });
    let listener = Listener(Arc::clone(&line));
    thread::Builder::new().spawn(move || {
        let work = || work(&mut |news| line.tell(news));
        let result = catch_unwind(AssertUnwindSafe(work));
        let mut shared = line.lock();
        shared.result = Some(result);
        Line::wake(shared);
    })?;
    let result = poll_fn(|context| {
        let mut shared = listener.0.lock();
        if let Some(news) = shared.news.take() {
            drop(shared);
            let flow = heard(news);
            shared = listener.0.lock();
            shared.flow = Some(flow);
            listener.0.answered.notify_one();
        }
        match shared.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                shared.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    });
    Ok(result.await.unwrap_or_else(|panic| resume_unwind(panic)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::wait::Wait;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Context;

    #[test]
    fn news_are_heard_where_the_future_is_polled_and_answered() {
        let here = thread::current().id();
        let mut all = vec![];
        let work = |tell: &mut Heard<'_, usize>| {
            let told = (0..).take_while(|news| tell(*news).is_continue());
            (thread::current().id(), told.count())
        };
        let heard = &mut |news| {
            assert_eq!(thread::current().id(), here);
            all.push(news);
            match news < 3 {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        };
        let (there, told) = apart(work, heard).wait().expect("there are threads");
        assert_ne!(there, here);
        assert_eq!((told, all), (3, vec![0, 1, 2, 3]));
    }

    #[test]
    fn work_ends_with_its_next_news_once_its_future_is_dropped() {
        static TOLD: AtomicUsize = AtomicUsize::new(0);
        let (ended, end) = std::sync::mpsc::channel();
        let work = move |tell: &mut Heard<'_, ()>| {
            while tell(()).is_continue() {
                TOLD.fetch_add(1, Ordering::SeqCst);
            }
            let _ = ended.send(());
        };
        {
            let heard = &mut |()| ControlFlow::Continue(());
            let mut future = pin!(apart(work, heard));
            let mut context = Context::from_waker(Waker::noop());
            while TOLD.load(Ordering::SeqCst) < 3 {
                assert!(future.as_mut().poll(&mut context).is_pending());
            }
        }
        end.recv().expect("it ends");
    }

    #[test]
    #[should_panic(expected = "of the work")]
    fn a_panic_of_the_work_is_one_of_the_future() {
        let work = |_: &mut Heard<'_, ()>| panic!("of the work");
        let _ = apart(work, &mut |()| ControlFlow::Continue(())).wait();
    }
}
