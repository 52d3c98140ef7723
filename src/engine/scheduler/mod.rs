//! Answers the requests of many users on one engine.
//!
//! [`Scheduler::submit`] takes requests at any time. [`Scheduler::step`] does the next piece of work and tells what came of it. Now a step
//! is a whole answer, since a session holds one sequence; the next request waits for it. The rows that a request has in common with the
//! one before are not computed again.

mod guarded;
#[cfg(test)]
mod pages;
#[cfg(test)]
mod tests;
mod wait;

use std::collections::VecDeque;
use std::ops::ControlFlow;

use super::backend::{BackendError, Touch};
use super::chooser::Chooser;
use super::{Engine, EngineError, GenerateStats, Sampling, Session};

/// What one user asks for.
pub struct Request {
    /// The tokens to continue, at least one.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub choice: Choice,
    /// Tokens of the answer at most. The end of the context is a limit in any case.
    pub limit: usize,
}

/// How the tokens of an answer are chosen.
pub enum Choice {
    /// On the device.
    Device(Sampling),
    /// On the host, from the row of logits. A chooser that panics ends its own request alone.
    Host(Box<dyn Chooser + Send>),
}

/// Names a request. No two requests of a scheduler have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(u64);

/// What became of a request.
#[derive(Debug)]
pub enum Event {
    /// So many tokens of the prompt are as good as computed. The first such event comes before anything is computed.
    Prompt {
        /// Tokens that have their cache rows.
        done: usize,
        /// How many of them were there already.
        cached: usize,
    },
    /// The next token of the answer. Stop tokens are not told.
    Token(u32),
    /// The answer ended, which [`GenerateStats::stop`] gives the reason of. Nothing follows.
    Ended(GenerateStats),
    /// The request failed. Nothing follows; other requests go on.
    Failed(EngineError),
}

/// What a scheduler has to do, and what it has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that are answered.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Rows of the cache that requests hold. Those kept for later requests are free to be taken, and do not count.
    pub rows: usize,
    /// Rows of the cache in all.
    pub rows_in_all: usize,
    /// Tokens of all prompts so far.
    pub prefix_asked: u64,
    /// How many of them had their rows already.
    pub prefix_found: u64,
}

/// Requests and the sessions that answer them.
pub struct Scheduler<'a> {
    engine: &'a Engine,
    session: Session<'a>,
    waiting: VecDeque<(RequestId, Request)>,
    submitted: u64,
    prefix_asked: u64,
    prefix_found: u64,
}

/// Is told of events.
pub type Told<'t> = dyn FnMut(RequestId, Event) -> ControlFlow<()> + 't;

impl<'a> Scheduler<'a> {
    /// A scheduler without requests, which answers in `session`.
    fn in_session(engine: &'a Engine, session: Session<'a>) -> Self {
        Self {
            engine,
            session,
            waiting: VecDeque::new(),
            submitted: 0,
            prefix_asked: 0,
            prefix_found: 0,
        }
    }

    /// Requests that are answered at the same time, at most.
    pub fn slots(&self) -> usize {
        1
    }

    /// Takes a request. It never blocks, and nothing is computed before the next [`step`](Self::step).
    ///
    /// # Errors
    /// [`EngineError::NoTokens`], [`EngineError::UnknownToken`] or [`EngineError::PromptTooLong`].
    pub fn submit(&mut self, request: Request) -> Result<RequestId, EngineError> {
        self.engine.check_tokens(&request.prompt, 0)?;
        let id = RequestId(self.submitted);
        self.submitted += 1;
        self.waiting.push_back((id, request));
        Ok(id)
    }

    /// Forgets a request. Nothing more is told of it. One that has ended is none.
    pub fn cancel(&mut self, id: RequestId) {
        self.waiting.retain(|(waiting, _)| *waiting != id);
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// What there is to do.
    pub fn counts(&self) -> Counts {
        Counts {
            running: 0,
            waiting: self.waiting.len(),
            // Between two steps no request is answered.
            rows: 0,
            rows_in_all: self.engine.n_ctx(),
            prefix_asked: self.prefix_asked,
            prefix_found: self.prefix_found,
        }
    }

    /// What keeps the device ready while nothing is asked for, where it needs that.
    pub fn warm(&self) -> Option<Touch> {
        self.session.warm()
    }
}

/// Whether no other request can be answered either.
fn is_fatal(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::Gpu(_) | EngineError::Backend(BackendError::Gpu(_))
    )
}
