//! The state of a request while it is answered.

use web_time::Instant;

use crate::engine::draft::{DraftOptions, Drafter, Verified};
use crate::engine::scheduler::fair::Owner;
use crate::engine::scheduler::pages::Table;
use crate::engine::scheduler::request::{Choice, RequestId};
use crate::engine::{GenerateStats, StopReason};

/// A request and its answer so far. It has no place in the cache.
pub(super) struct Answer {
    pub(super) id: RequestId,
    pub(super) owner: Owner,
    /// The prompt, then the answer.
    pub(super) tokens: Vec<u32>,
    /// Tokens of the prompt.
    pub(super) prompt: usize,
    pub(super) choice: Choice,
    /// The drafts that it may have.
    pub(super) drafts: DraftOptions,
    /// A text that it is expected to repeat, and whether its last drafts are of that.
    pub(super) expected: Vec<u32>,
    pub(super) is_expected: bool,
    /// Proposes them while it is answered.
    pub(super) drafter: Option<Box<dyn Drafter>>,
    /// The slot that it is kept in, if the request names one or it has begun.
    pub(super) slot: Option<usize>,
    /// The most tokens of the answer, and what it means to reach them.
    pub(super) limit: usize,
    pub(super) at_limit: StopReason,
    /// The time from which on it is answered.
    pub(super) begun: Option<Instant>,
    /// Rows of the prompt that were there already.
    pub(super) cached: usize,
    /// Rows of the prompt that were told to be there.
    pub(super) told: usize,
    /// When the first token came.
    pub(super) first: Option<Instant>,
    /// Tokens that came, a stop token included.
    pub(super) delivered: usize,
    /// Its drafts, and those of them that were accepted.
    pub(super) drafted: [usize; 2],
}

impl Answer {
    /// Tokens of the answer.
    pub(super) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    /// The number of tokens that the context still has room for, if that alone limits the answer and no chooser of the host has a say.
    pub(super) fn left(&self) -> Option<usize> {
        let alone = self.at_limit == StopReason::ContextFull;
        let on_device = matches!(self.choice, Choice::Device(..));
        (alone && on_device).then(|| self.limit - self.generated())
    }

    /// The statistics of the answer, if it ends now.
    pub(super) fn stats(&self, stop: StopReason) -> GenerateStats {
        let end = Instant::now();
        let first = self.first.unwrap_or(end);
        GenerateStats {
            prompt_tokens: self.prompt - self.cached,
            prompt_time: first - self.begun.unwrap_or(end),
            generated: self.generated(),
            steps: self.delivered.saturating_sub(1),
            generate_time: end - first,
            drafted: self.drafted[0],
            accepted: self.drafted[1],
            stop,
        }
    }
}

/// An answer with its place in the cache.
pub(super) struct Sequence {
    pub(super) answer: Answer,
    /// No two sequences have the same, so what comes back of one that was ended is known.
    pub(super) run: u64,
    /// The number of the sequence in the batch.
    pub(super) seat: u32,
    pub(super) table: Table,
    /// Positions that submitted steps compute.
    pub(super) submitted: usize,
    /// Positions whose rows are there.
    pub(super) landed: usize,
    /// Tokens that steps in flight choose, or that are chosen from what is held.
    pub(super) drawn: usize,
    /// The drafts of its step in flight. How far that takes the sequence is known when it lands, so there is no other.
    pub(super) drafts: usize,
    /// Rows of the prediction layer's cache that are right.
    pub(super) predicted: usize,
    /// The step with or without drafts whose rows are being looked at.
    pub(super) verified: Option<Verified>,
    /// The rows for a chooser that is not ready.
    pub(super) held: Option<Rows>,
}

/// Rows of a sequence in a step for a chooser, those of its last token and of its drafts, or the last of these.
pub(super) struct Rows {
    /// Whether a logit was infinite or not a number, for each row.
    pub(super) broken: Vec<bool>,
    /// The logits, (rows, vocab).
    pub(super) logits: Vec<f32>,
    /// The tokens of the rows behind the first one.
    pub(super) drafts: Vec<u32>,
}

impl Sequence {
    /// The slot that it is kept in.
    pub(super) fn name(&self) -> usize {
        self.answer.slot.unwrap_or(self.seat as usize)
    }

    /// Positions that can be computed: their tokens are known, here or on the device.
    pub(super) fn left(&self) -> usize {
        self.answer.tokens.len() + self.drawn - self.submitted
    }

    /// Whether another token is wanted of it now.
    pub(super) fn is_ready(&self) -> bool {
        let chosen = match self.answer.choice {
            Choice::Device(..) => true,
            Choice::Host(_) => self.drawn == 0,
        };
        chosen
            && self.drafts == 0
            && self.left() > 0
            && self.answer.generated() + self.drawn < self.answer.limit
    }
}
