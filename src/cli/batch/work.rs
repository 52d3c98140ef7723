//! Hands requests in while there is room for them, and writes what comes back.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::input::Requests;
use super::line::Line;
use super::order::Order;
use super::output::{Answer, Output};
use super::progress::Progress;
use crate::cli::error::CliError;
use crate::cli::interrupt;
use crate::server::Batch;

/// How often it looks for Ctrl-C, and tells how far it is.
const TICK: Duration = Duration::from_millis(100);
/// The most requests, for each one that is answered at once, that may have come before the oldest of them if order is kept.
const AHEAD: u64 = 16;

/// A message to the thread that writes.
enum News {
    /// The next request, or that there is none.
    Request(Result<Option<Line>, CliError>),
    /// The answer to the request with this number.
    Answer(u64, Answer),
    /// Nothing can be computed any more.
    Broken,
}

/// How a batch has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// All requests are answered.
    Done,
    /// Ctrl-C came.
    Interrupted,
    /// Nothing can be computed any more.
    Broken,
}

/// The files that answers go to.
pub(super) struct Outputs {
    pub(super) answers: Output,
    /// The file that errors go to, if that is another one.
    pub(super) errors: Option<Output>,
}

impl Outputs {
    pub(super) fn all(&self) -> impl Iterator<Item = &Output> {
        [&self.answers].into_iter().chain(&self.errors)
    }

    fn write(&mut self, answer: &Answer) -> Result<(), CliError> {
        match &mut self.errors {
            Some(errors) if answer.is_error() => errors.write(answer),
            _ => self.answers.write(answer),
        }
    }
}

/// Reads requests in a thread of its own, one whenever it is asked for.
fn read(mut requests: Requests, asked: Receiver<()>, news: Sender<News>) -> Result<(), CliError> {
    let thread = std::thread::Builder::new().name("requests".to_owned());
    let work = move || {
        for () in asked {
            let next = requests.next();
            let last = !matches!(next, Ok(Some(_)));
            if news.send(News::Request(next)).is_err() || last {
                return;
            }
        }
    };
    let begun = thread.spawn(work);
    begun.map_err(CliError::unread("the requests"))?;
    Ok(())
}

/// A batch while it is answered.
pub(super) struct Work<'a> {
    batch: &'a Batch,
    outputs: &'a mut Outputs,
    progress: &'a mut Progress,
    order: Order<Answer>,
    news: (Sender<News>, Receiver<News>),
    /// Asks for the next request; none when there is no other.
    ask: Option<Sender<()>>,
    /// Requests that were asked for and have not come.
    expected: usize,
    /// Requests that are being answered.
    open: usize,
    /// Requests so far.
    number: u64,
    /// Why no other request is read.
    failed: Option<CliError>,
}

impl<'a> Work<'a> {
    pub(super) fn new(
        batch: &'a Batch,
        outputs: &'a mut Outputs,
        progress: &'a mut Progress,
        ordered: bool,
    ) -> Self {
        Self {
            batch,
            outputs,
            progress,
            order: Order::new(ordered),
            news: channel(),
            ask: None,
            expected: 0,
            open: 0,
            number: 0,
            failed: None,
        }
    }

    /// Has all requests answered.
    ///
    /// # Errors
    /// Where requests cannot be read, when those before are answered; where an answer cannot be written, at once.
    pub(super) fn run(mut self, requests: Requests) -> Result<End, CliError> {
        let (ask, asked) = channel();
        self.ask = Some(ask);
        read(requests, asked, self.news.0.clone())?;
        let end = loop {
            self.read_on();
            if self.open == 0 && self.ask.is_none() {
                break End::Done;
            }
            if interrupt::requested() {
                break End::Interrupted;
            }
            let news = match self.news.1.recv_timeout(TICK) {
                Ok(news) => news,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    self.progress.tick(self.batch.generated_tokens());
                    continue;
                }
            };
            if !self.take(news)? {
                break End::Broken;
            }
        };
        // Answers that are complete are kept.
        while let Ok(news) = self.news.1.try_recv() {
            if let News::Answer(number, answer) = news {
                self.write(number, answer)?;
            }
        }
        self.progress.tick(self.batch.generated_tokens());
        match self.failed {
            Some(error) if end == End::Done => Err(error),
            _ => Ok(end),
        }
    }

    /// Asks for as many requests as there is room for.
    fn read_on(&mut self) {
        // As many as are answered wait to take their places.
        let most = 2 * self.batch.slots();
        let ahead = AHEAD * self.batch.slots() as u64;
        while let Some(ask) = &self.ask
            && self.open + self.expected < most
            && self.order.behind(self.number + self.expected as u64) < ahead
        {
            if ask.send(()).is_err() {
                return;
            }
            self.expected += 1;
        }
    }

    /// Takes a message. Returns whether the work can go on after it.
    fn take(&mut self, news: News) -> Result<bool, CliError> {
        match news {
            News::Request(Ok(Some(line))) => {
                self.expected -= 1;
                self.hand_in(line);
            }
            News::Request(last) => {
                self.failed = last.err();
                self.ask = None;
            }
            News::Answer(number, answer) => self.write(number, answer)?,
            News::Broken => return Ok(false),
        }
        Ok(true)
    }

    fn hand_in(&mut self, line: Line) {
        let (number, news) = (self.number, self.news.0.clone());
        self.number += 1;
        self.open += 1;
        let (id, custom_id) = (line.id(), line.custom_id);
        self.batch.ask(line.endpoint, line.body, move |answered| {
            let answer = |answered| Answer {
                id,
                custom_id,
                answered,
            };
            let told = answered.map_or(News::Broken, |answered| {
                News::Answer(number, answer(answered))
            });
            // Where nobody reads any more, the batch has ended.
            let _ = news.send(told);
        });
    }

    fn write(&mut self, number: u64, answer: Answer) -> Result<(), CliError> {
        self.open -= 1;
        let (outputs, progress) = (&mut *self.outputs, &mut *self.progress);
        self.order.take(number, answer, |answer| {
            outputs.write(&answer)?;
            progress.answered(answer.is_error());
            Ok(())
        })
    }
}
