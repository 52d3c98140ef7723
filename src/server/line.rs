//! The state of a connection, for others to look at: whether it waits for a request, and whether its client has left.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// How often it is looked whether a client has left, whose request is being answered.
const LOOK: Duration = Duration::from_millis(250);

/// The state of a connection, for others to look at.
pub(super) struct Line {
    began: Instant,
    /// When it began to wait for a request, in milliseconds since it began, plus 1. 0 while a request is answered.
    waits_since: AtomicU64,
    ended: Notify,
}

impl Line {
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            waits_since: AtomicU64::new(1),
            ended: Notify::new(),
        }
    }

    /// A request is answered on it from now on.
    pub(super) fn answers(&self) {
        self.waits_since.store(0, Ordering::Relaxed);
    }

    /// It waits for a request from now on.
    pub(super) fn waits(&self) {
        let since = self.began.elapsed().as_millis() as u64;
        self.waits_since.store(since + 1, Ordering::Relaxed);
    }

    /// When it began to wait, if it does.
    pub(super) fn waiting(&self) -> Option<Instant> {
        match self.waits_since.load(Ordering::Relaxed) {
            0 => None,
            since => Some(self.began + Duration::from_millis(since - 1)),
        }
    }

    /// Gives its place to another.
    pub(super) fn end(&self) {
        self.ended.notify_one();
    }

    /// Waits until its place is given to another, or until its client has left while its request is answered.
    ///
    /// hyper sees that a client has left only if that has sent nothing behind its request.
    pub(super) async fn over(&self, stream: &TcpStream) {
        let mut left = false;
        loop {
            tokio::select! {
                () = self.ended.notified() => return,
                () = tokio::time::sleep(LOOK) => {}
            }
            let before = left;
            left = self.waiting().is_none() && is_left(stream).await;
            if before && left {
                return;
            }
        }
    }
}

/// Whether the client has closed its side of a connection.
async fn is_left(stream: &TcpStream) -> bool {
    let ready = tokio::time::timeout(Duration::ZERO, stream.ready(Interest::READABLE)).await;
    matches!(ready, Ok(Ok(ready)) if ready.is_read_closed())
}
