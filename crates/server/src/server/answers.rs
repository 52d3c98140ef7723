//! The answers to a request while they come.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;

use super::desk::Answering;
use super::error::ApiError;
use super::log::Record;
use super::orders::Told;
use super::reader::Reader;
use super::tools::Delta;
use crate::engine::chooser::{ChooserError, TokenLogProbs};
use crate::engine::scheduler::Event;
use crate::engine::{EngineError, StopReason};

/// The next part of an answer.
pub(super) struct Step {
    /// The number of the answer.
    pub(super) choice: usize,
    /// The slot that its sequence is kept in.
    pub(super) slot: usize,
    /// The token, unless it is the one that ends the answer.
    pub(super) token: Option<u32>,
    pub(super) deltas: Vec<Delta>,
    /// The probabilities that the model gave for the token, if a request asks for them.
    pub(super) log_probs: Option<TokenLogProbs>,
    /// Why the answer has ended, if it has.
    pub(super) reason: Option<&'static str>,
    /// The stop text that has ended it.
    pub(super) stopped_by: Option<String>,
}

/// The tokens and the time that answers took so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// Tokens of the prompts.
    pub(super) prompt: usize,
    /// The number of these tokens that had been computed before.
    pub(super) cached: usize,
    /// Tokens of the answers, thoughts included.
    pub(super) generated: usize,
    /// Tokens of the thoughts.
    pub(super) thoughts: usize,
    /// Drafts of the answers, and those that were accepted.
    pub(super) drafts: [usize; 2],
    /// Drafts of the text that the answers were expected to repeat, and those of them that were accepted.
    pub(super) expected: [usize; 2],
    /// Time since the request came.
    pub(super) whole: Duration,
    /// Time from the beginning of the first prompt to the first token.
    pub(super) of_prompt: Duration,
    /// Time since the first token.
    pub(super) of_answer: Duration,
}

struct Choice<'a> {
    reader: Reader<'a>,
    log_probs: Option<TokenLogProbs>,
    generated: usize,
    slot: usize,
    begun: bool,
    over: bool,
}

/// Why an answer failed: by what the request asks for, or not.
fn failed(error: &EngineError) -> ApiError {
    match error {
        EngineError::Chooser(
            ChooserError::NothingLeft | ChooserError::Grammar { .. } | ChooserError::Gbnf(_),
        ) => ApiError::bad(error.to_string()),
        EngineError::Chooser(ChooserError::GrammarTooSlow { .. }) => {
            ApiError::bad(error.to_string()).with_code("grammar_too_slow")
        }
        _ => ApiError::internal(error.to_string()).for_good(),
    }
}

/// The answers to a request while they come.
pub(super) struct Answers<'a> {
    answering: Answering,
    choices: Vec<Choice<'a>>,
    left: usize,
    record: Arc<Record>,
    /// Tokens of the prompts.
    prompt: usize,
    /// Answers to each prompt.
    each: usize,
    cached: usize,
    /// Drafts of the answers, and those that were accepted.
    drafts: [usize; 2],
    /// The drafts of the text that the answers are expected to repeat.
    expected: [usize; 2],
    timeout: Option<Duration>,
    until: Option<Instant>,
    /// When the computation of the first prompt began.
    begun: Option<Instant>,
    /// When the first token came.
    first: Option<Instant>,
}

impl<'a> Answers<'a> {
    /// The answers that `answering` tells of, one for each reader, to prompts of `prompt` tokens, `each` of which has as many answers. They
    /// have to be there within `timeout` of the request.
    pub(super) fn new(
        answering: Answering,
        readers: Vec<Reader<'a>>,
        (prompt, each): (usize, usize),
        record: Arc<Record>,
        timeout: Option<Duration>,
    ) -> Self {
        let choice = |reader| Choice {
            reader,
            log_probs: None,
            generated: 0,
            slot: 0,
            begun: false,
            over: false,
        };
        record.asked(prompt);
        Self {
            answering,
            left: readers.len(),
            choices: readers.into_iter().map(choice).collect(),
            prompt,
            each,
            cached: 0,
            drafts: [0; 2],
            expected: [0; 2],
            begun: None,
            first: None,
            timeout,
            until: timeout.and_then(|timeout| record.began.checked_add(timeout)),
            record,
        }
    }

    /// The next step; `None` when all answers have ended. Nothing is lost if the future is dropped while it waits.
    ///
    /// # Errors
    /// The error that ended the answers. Nothing comes then.
    pub(super) async fn next(&mut self) -> Result<Option<Step>, ApiError> {
        while self.left > 0 {
            let told = match self.until {
                None => self.answering.told.recv().await,
                Some(until) => tokio::time::timeout_at(until.into(), self.answering.told.recv())
                    .await
                    .map_err(|_| self.out_of_time())?,
            };
            let Some((choice, told)) = told else {
                return Err(ApiError::unavailable("about to end"));
            };
            if let Some(step) = self.told(choice, told)? {
                return Ok(Some(step));
            }
        }
        Ok(None)
    }

    fn out_of_time(&self) -> ApiError {
        let seconds = self.timeout.unwrap_or_default().as_secs();
        let message = format!("the answer was not ready within {seconds} seconds (--timeout)");
        let error = ApiError::new(StatusCode::GATEWAY_TIMEOUT, message);
        error.with_code("timeout").for_good()
    }

    fn told(&mut self, choice: usize, told: Told) -> Result<Option<Step>, ApiError> {
        let Some(state) = self.choices.get_mut(choice).filter(|state| !state.over) else {
            return Ok(None);
        };
        match told {
            Told::LogProbs(log_probs) => state.log_probs = Some(log_probs),
            Told::Experts(traffic) => self.record.experts(traffic),
            Told::Event(Event::Prompt { cached, slot, .. }) => {
                state.slot = slot;
                self.begun.get_or_insert_with(Instant::now);
                let first = !std::mem::replace(&mut state.begun, true);
                // The other answers to a prompt find its rows.
                if first && choice.is_multiple_of(self.each) {
                    self.cached += cached;
                    self.record.begun(cached);
                }
            }
            Told::Event(Event::Drafted {
                drafted,
                accepted,
                is_expected,
            }) => {
                let kinds = [
                    Some(&mut self.drafts),
                    is_expected.then_some(&mut self.expected),
                ];
                for counts in kinds.into_iter().flatten() {
                    counts[0] += drafted;
                    counts[1] += accepted;
                }
            }
            Told::Event(Event::Token(token)) => return Ok(Some(self.token(choice, token))),
            Told::Event(Event::Ended(stats)) => return Ok(Some(self.ended(choice, stats.stop))),
            Told::Event(Event::Failed(error)) => return Err(failed(&error)),
            Told::Broken(error) => return Err(ApiError::device(&error)),
        }
        Ok(None)
    }

    fn token(&mut self, choice: usize, token: u32) -> Step {
        let state = &mut self.choices[choice];
        state.generated += 1;
        self.first.get_or_insert_with(Instant::now);
        self.record.token();
        let mut deltas = vec![];
        let over = state.reader.push(token, &mut deltas);
        if over {
            self.answering.stop(choice);
            state.reader.finish(true, true, &mut deltas);
        }
        Step {
            choice,
            slot: state.slot,
            token: Some(token),
            deltas,
            log_probs: state.log_probs.take(),
            stopped_by: state.reader.stopped_by().map(str::to_owned),
            reason: over.then(|| self.end(choice, "stop")),
        }
    }

    fn ended(&mut self, choice: usize, stop: StopReason) -> Step {
        let (whole, reason) = match stop {
            StopReason::StopToken | StopReason::SentenceEnd | StopReason::Caller => (true, "stop"),
            StopReason::Limit | StopReason::ContextFull => (false, "length"),
        };
        let mut deltas = vec![];
        let Choice { reader, slot, .. } = &mut self.choices[choice];
        reader.finish(whole, false, &mut deltas);
        Step {
            choice,
            slot: *slot,
            token: None,
            deltas,
            log_probs: None,
            stopped_by: reader.stopped_by().map(str::to_owned),
            reason: Some(self.end(choice, reason)),
        }
    }

    /// Counts an answer as ended; what is said of why.
    fn end(&mut self, choice: usize, reason: &'static str) -> &'static str {
        let state = &mut self.choices[choice];
        state.over = true;
        let reason = match state.reader.has_calls() {
            true => "tool_calls",
            false => reason,
        };
        self.left -= 1;
        self.record.finish(reason);
        reason
    }

    /// The tokens and the time that the answers took so far.
    pub(super) fn usage(&self) -> Usage {
        let now = Instant::now();
        let first = self.first.unwrap_or(now);
        let thoughts = self.choices.iter().map(|c| c.reader.thought_tokens);
        Usage {
            prompt: self.prompt,
            cached: self.cached,
            generated: self.choices.iter().map(|choice| choice.generated).sum(),
            thoughts: thoughts.sum(),
            drafts: self.drafts,
            expected: self.expected,
            whole: now - self.record.began,
            of_prompt: first - self.begun.unwrap_or(first),
            of_answer: now - first,
        }
    }
}
