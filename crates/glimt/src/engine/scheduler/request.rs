//! Requests of users, and the events that they are told.

use std::ops::ControlFlow;

use super::fair::Owner;
use crate::engine::chooser::Chooser;
use crate::engine::draft::DraftOptions;
use crate::engine::{Biases, EngineError, GenerateStats, Sampling};

/// The request of one user.
pub struct Request {
    /// The tokens to continue, at least one.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub choice: Choice,
    /// The most tokens of the answer. The end of the context is a limit in any case.
    pub limit: usize,
    /// The owner of the request.
    pub owner: Owner,
    /// The slot that the sequence is [kept](super::SlotAction) in; `None` is any.
    pub slot: Option<usize>,
    /// The drafts that the answer may take.
    pub drafts: DraftOptions,
    /// A text that the answer is expected to repeat, in which drafts are looked for; empty if there is none.
    pub expected: Vec<u32>,
}

/// How the tokens of an answer are chosen.
pub enum Choice {
    /// The device chooses, after biases were added to the logits.
    Device(Sampling, Biases),
    /// The host chooses from the row of logits. A chooser that panics ends its own request alone.
    Host(Box<dyn Chooser>),
}

/// Names a request. No two requests of a scheduler have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub(super) u64);

/// An event of a request.
#[derive(Debug)]
pub enum Event {
    /// The number of tokens of the prompt that are as good as computed. The first such event comes before anything is computed.
    Prompt {
        /// Tokens that have their cache rows.
        done: usize,
        /// The number of these tokens that were there already.
        cached: usize,
        /// The slot that the sequence is [kept](super::SlotAction) in.
        slot: usize,
    },
    /// A step had drafts. It comes behind the tokens of the step, and is not told where one of these ends the answer by a break.
    Drafted {
        /// The drafts of the step.
        drafted: usize,
        /// The number of drafts that were accepted.
        accepted: usize,
        /// Tells whether the drafts are of the text that the answer is [expected](Request::expected) to repeat.
        is_expected: bool,
    },
    /// The next token of the answer. Stop tokens are not told.
    Token(u32),
    /// The answer ended, which [`GenerateStats::stop`] gives the reason of. Nothing follows.
    Ended(GenerateStats),
    /// The request failed. Nothing follows; other requests go on.
    Failed(EngineError),
}

/// The most drafts of a sequence in a step.
pub const MOST_DRAFTS: usize = 31;

/// The work that a scheduler has to do and has done, in counts.
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
    /// The number of these tokens that had their rows already.
    pub prefix_found: u64,
    /// The drafts of all answers so far.
    pub drafts: DraftCounts,
}

/// The drafts of answers, and what became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DraftCounts {
    /// The times that a sequence had drafts in a step.
    pub steps: u64,
    /// The number of drafts.
    pub drafted: u64,
    /// The number of those that were accepted, by their places among the drafts of their steps.
    pub accepted: [u64; MOST_DRAFTS],
}

/// The listener to events.
pub type Told<'t> = dyn FnMut(RequestId, Event) -> ControlFlow<()> + Send + 't;
