//! How far a connection is: what its client is waited for with, how long that has taken, and whether the client has left.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// How often it is looked whether a client has left, whose request is being answered.
const LOOK: Duration = Duration::from_millis(250);
/// Bytes that a client has to send or take in a second. One that moves single bytes makes no more progress than one that moves none.
const RATE: f64 = 1024.0;

/// The thing that a client is waited for with. Clients of the first kinds are given up first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Missing {
    /// Any byte of a request.
    Request,
    /// The end of a head.
    Head,
    /// The end of a body.
    Body,
    /// The taking of the answer.
    Reader,
}

/// How long a client has let a connection wait. What it moves in bytes shortens that.
#[derive(Default)]
struct Wait {
    before: Duration,
    since: Option<Instant>,
}

impl Wait {
    fn begun() -> Self {
        Self {
            before: Duration::ZERO,
            since: Some(Instant::now()),
        }
    }

    fn time(&self) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn begin(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    fn pause(&mut self) {
        self.before = self.time();
        self.since = None;
    }

    fn moved(&mut self, bytes: usize) {
        let earned = Duration::from_secs_f64(bytes as f64 / RATE);
        self.before = self.time().saturating_sub(earned);
        self.since = self.since.map(|_| Instant::now());
    }
}

struct State {
    /// The next thing to come from the client. A request whose body is there is answered.
    next: Missing,
    reading: Wait,
    writing: Wait,
}

/// How far a connection is.
pub(super) struct Line {
    state: Mutex<State>,
    ended: Notify,
}

impl Line {
    pub(super) fn new() -> Self {
        let state = State {
            next: Missing::Request,
            reading: Wait::begun(),
            writing: Wait::default(),
        };
        Self {
            state: Mutex::new(state),
            ended: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes have come.
    pub(super) fn has_sent(&self, bytes: usize) {
        let mut state = self.state();
        match state.next {
            Missing::Request => {
                state.next = Missing::Head;
                state.reading = Wait::begun();
            }
            _ => state.reading.moved(bytes),
        }
    }

    /// A request is answered on it from now on.
    pub(super) fn answers(&self) {
        let mut state = self.state();
        state.next = Missing::Body;
        state.reading = Wait::default();
    }

    /// Notes that the connection waits for more of a body, or does not any more.
    pub(super) fn wants_body(&self, wants: bool) {
        let mut state = self.state();
        match (state.next, wants) {
            (Missing::Body, true) => state.reading.begin(),
            (Missing::Body, false) => state.reading.pause(),
            _ => {}
        }
    }

    /// Notes that the connection waits for a request from now on.
    pub(super) fn waits(&self) {
        let mut state = self.state();
        state.next = Missing::Request;
        state.reading = Wait::begun();
    }

    /// Nothing can be written, since the client takes nothing. Returns how long that has been so.
    pub(super) fn is_unread(&self) -> Duration {
        let mut state = self.state();
        state.writing.begin();
        state.writing.time()
    }

    /// The client has taken bytes.
    pub(super) fn has_taken(&self, bytes: usize) {
        let mut state = self.state();
        state.writing.moved(bytes);
        state.writing.pause();
    }

    /// The thing that the client is waited for with, and how long that has taken. `None` while the client waits for the server.
    pub(super) fn missing(&self) -> Option<(Missing, Duration)> {
        let state = self.state();
        if state.writing.since.is_some() {
            return Some((Missing::Reader, state.writing.time()));
        }
        let reading = &state.reading;
        reading.since.map(|_| (state.next, reading.time()))
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
            let is_answered = self.state().next == Missing::Body;
            left = is_answered && is_left(stream).await;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(line: &Line) -> Option<Missing> {
        line.missing().map(|(missing, _)| missing)
    }

    #[test]
    fn a_client_is_waited_for_with_what_is_missing_of_its_request_and_while_it_does_not_read() {
        let line = Line::new();
        assert_eq!(missing(&line), Some(Missing::Request));
        line.has_sent(1);
        assert_eq!(missing(&line), Some(Missing::Head));
        line.answers();
        assert_eq!(missing(&line), None);
        line.wants_body(true);
        assert_eq!(missing(&line), Some(Missing::Body));
        line.wants_body(false);
        assert_eq!(missing(&line), None, "it is computed");
        line.is_unread();
        assert_eq!(missing(&line), Some(Missing::Reader));
        line.has_taken(1);
        assert_eq!(missing(&line), None);
        line.waits();
        line.wants_body(true);
        assert_eq!(missing(&line), Some(Missing::Request));
    }

    #[test]
    fn single_bytes_are_no_progress_and_the_time_of_the_server_is_not_counted() {
        let of = |line: &Line| line.missing().map(|(_, time)| time).unwrap_or_default();
        let line = Line::new();
        line.answers();
        line.wants_body(true);
        std::thread::sleep(Duration::from_millis(40));
        line.has_sent(1);
        line.wants_body(false);
        std::thread::sleep(Duration::from_millis(40));
        line.wants_body(true);
        let waited = of(&line);
        assert!(waited > Duration::from_millis(30), "{waited:?}");
        assert!(waited < Duration::from_millis(75), "{waited:?}");
        line.has_sent(1000);
        assert!(of(&line) < Duration::from_millis(30));
    }
}
