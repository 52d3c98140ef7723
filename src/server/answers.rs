//! The answers to a request while they come.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::desk::{Answering, Told};
use super::error::ApiError;
use super::log::Record;
use super::reader::Reader;
use super::tools::Delta;
use crate::engine::chooser::{ChooserError, TokenLogProbs};
use crate::engine::scheduler::Event;
use crate::engine::{EngineError, StopReason};

/// What has come next.
pub(super) struct Step {
    /// Of which answer.
    pub(super) choice: usize,
    pub(super) deltas: Vec<Delta>,
    /// What the model expected of the token, if that is asked for.
    pub(super) log_probs: Option<TokenLogProbs>,
    /// Why the answer has ended, if it has.
    pub(super) reason: Option<&'static str>,
}

struct Choice<'a> {
    reader: Reader<'a>,
    log_probs: Option<TokenLogProbs>,
    generated: usize,
    begun: bool,
    over: bool,
}

/// Why an answer failed: by what the request asks for, or not.
fn failed(error: &EngineError) -> ApiError {
    match error {
        EngineError::Chooser(
            ChooserError::NothingLeft | ChooserError::Grammar { .. } | ChooserError::Gbnf(_),
        ) => ApiError::bad(error.to_string()),
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
    timeout: Option<Duration>,
    until: Option<Instant>,
}

impl<'a> Answers<'a> {
    /// Those that come of `answering`, one for each reader, to prompts of so many tokens, `each` of which has as many answers.
    /// They have to be there within `timeout` of the request.
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
            timeout,
            until: timeout.and_then(|timeout| record.began.checked_add(timeout)),
            record,
        }
    }

    /// What comes next; `None` when all answers have ended. Nothing is lost if it is dropped while it waits.
    ///
    /// # Errors
    /// What went wrong. Nothing comes then.
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
            Told::Event(Event::Prompt { cached, .. }) => {
                let first = !std::mem::replace(&mut state.begun, true);
                // The other answers to a prompt find its rows.
                if first && choice.is_multiple_of(self.each) {
                    self.cached += cached;
                    self.record.begun(cached);
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
        self.record.token();
        let mut deltas = vec![];
        let over = state.reader.push(token, &mut deltas);
        if over {
            self.answering.stop(choice);
            state.reader.finish(true, true, &mut deltas);
        }
        Step {
            choice,
            deltas,
            log_probs: state.log_probs.take(),
            reason: over.then(|| self.end(choice, "stop")),
        }
    }

    fn ended(&mut self, choice: usize, stop: StopReason) -> Step {
        let (whole, reason) = match stop {
            StopReason::StopToken | StopReason::SentenceEnd | StopReason::Caller => (true, "stop"),
            StopReason::Limit | StopReason::ContextFull => (false, "length"),
        };
        let mut deltas = vec![];
        let reader = &mut self.choices[choice].reader;
        reader.finish(whole, false, &mut deltas);
        Step {
            choice,
            deltas,
            log_probs: None,
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

    /// What the answers took, in the form of OpenAI's API.
    pub(super) fn usage(&self) -> Value {
        let generated: usize = self.choices.iter().map(|choice| choice.generated).sum();
        let thoughts = self.choices.iter().map(|c| c.reader.thought_tokens);
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": generated,
            "total_tokens": self.prompt + generated,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": thoughts.sum::<usize>()},
        })
    }
}
