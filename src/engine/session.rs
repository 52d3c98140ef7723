//! A conversation with a loaded model: its tokens and its cache.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::backend::{Backend, OnPrompt, OnRow, OnToken};
use super::{Engine, EngineError};
use crate::kernels::sampling::Sampling;

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// The model ended it with a stop token.
    StopToken,
    /// The limit asked for was reached.
    Limit,
    /// The callback broke it off.
    Caller,
    /// The context has no room for another token.
    ContextFull,
}

/// What an answer took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GenerateStats {
    /// Tokens of the prompt that were evaluated.
    pub prompt_tokens: usize,
    /// From the call to the first token of the answer.
    pub prompt_time: Duration,
    /// Tokens handed to the callback.
    pub generated: usize,
    /// Tokens computed in `generate_time`: the first token of an answer falls to the prompt, a stop token counts.
    pub steps: usize,
    /// From the first token of the answer to its end.
    pub generate_time: Duration,
    /// Why it ended.
    pub stop: StopReason,
}

/// One context of a model: what was said so far, with its cache on the device.
pub struct Session<'a> {
    engine: &'a Engine,
    backend: Box<dyn Backend + 'a>,
    /// All tokens so far, `tokens[i]` at position i.
    tokens: Vec<u32>,
    /// How many of them have their cache rows: all, or all but the last of an answer.
    cached: usize,
}

impl<'a> Session<'a> {
    pub(super) fn new(engine: &'a Engine, backend: Box<dyn Backend + 'a>) -> Self {
        Self {
            engine,
            backend,
            tokens: Vec::new(),
            cached: 0,
        }
    }

    /// The engine it runs on.
    pub fn engine(&self) -> &'a Engine {
        self.engine
    }

    /// Tokens so far, of prompts and answers; the next one gets this position. Stop tokens are not among them.
    pub fn position(&self) -> usize {
        self.tokens.len()
    }

    /// Forgets everything said so far.
    pub fn reset(&mut self) {
        self.tokens.clear();
        self.cached = 0;
    }

    /// Continues with `prompt` and generates up to `limit` tokens. Each is handed to `on_token`, which ends the answer
    /// by breaking; stop tokens end it too, but are neither handed out nor kept.
    ///
    /// # Errors
    /// [`EngineError::NoTokens`], [`EngineError::UnknownToken`] or [`EngineError::PromptTooLong`] for the prompt,
    /// which then leaves the session as it was; or what the device reports.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        sampling: &Sampling,
        limit: usize,
        on_token: &mut OnToken<'_>,
    ) -> Result<GenerateStats, EngineError> {
        let unwatched = &mut |_| ControlFlow::Continue(());
        self.generate_watched(prompt, sampling, limit, unwatched, on_token)
    }

    /// As [`generate`](Self::generate), and tells `on_prompt` while a prompt is computed how many of its tokens are as good as
    /// evaluated. A break there ends it without an answer ([`StopReason::Caller`]); the session then goes on after the tokens
    /// that were evaluated as a whole, which may be fewer.
    ///
    /// # Errors
    /// As for [`generate`](Self::generate).
    pub fn generate_watched(
        &mut self,
        prompt: &[u32],
        sampling: &Sampling,
        limit: usize,
        on_prompt: &mut OnPrompt<'_>,
        on_token: &mut OnToken<'_>,
    ) -> Result<GenerateStats, EngineError> {
        let start = Instant::now();
        self.engine.check_tokens(prompt, self.tokens.len())?;
        let end = self.tokens.len() + prompt.len();
        self.append(prompt, 0, None, on_prompt)?;
        if self.tokens.len() < end {
            return Ok(GenerateStats {
                prompt_tokens: prompt.len() - (end - self.tokens.len()),
                prompt_time: start.elapsed(),
                generated: 0,
                steps: 0,
                generate_time: Duration::ZERO,
                stop: StopReason::Caller,
            });
        }
        let room = self.engine.n_ctx() - self.tokens.len();
        let tokenizer = self.engine.tokenizer();
        let mut answer = Vec::new();
        let mut ended = None;
        let mut first = None;
        let mut delivered = 0usize;
        self.backend
            .decode(&self.tokens, sampling, limit.min(room), &mut |token| {
                first.get_or_insert_with(Instant::now);
                delivered += 1;
                if tokenizer.is_stop(token) {
                    ended = Some(StopReason::StopToken);
                    return ControlFlow::Break(());
                }
                answer.push(token);
                let flow = on_token(token);
                if flow.is_break() {
                    ended = Some(StopReason::Caller);
                }
                flow
            })?;
        let end = Instant::now();
        let first = first.unwrap_or(end);
        self.tokens.extend(&answer);
        // The backend leaves out the row of the last token it delivered, which may be the stop token.
        self.cached += delivered.saturating_sub(1);
        let at_limit = if limit <= room {
            StopReason::Limit
        } else {
            StopReason::ContextFull
        };
        Ok(GenerateStats {
            prompt_tokens: prompt.len(),
            prompt_time: first - start,
            generated: answer.len(),
            steps: delivered.saturating_sub(1),
            generate_time: end - first,
            stop: ended.unwrap_or(at_limit),
        })
    }

    /// Continues with `tokens` and hands the logits (vocab) of each from index `from` on to `on_row`, with the index
    /// into `tokens`, in order. A break ends it; the session then goes on after that token.
    ///
    /// # Errors
    /// As for [`generate`](Self::generate).
    pub fn logits(
        &mut self,
        tokens: &[u32],
        from: usize,
        on_row: &mut OnRow<'_>,
    ) -> Result<(), EngineError> {
        let unwatched = &mut |_| ControlFlow::Continue(());
        self.logits_watched(tokens, from, unwatched, on_row)
            .map(drop)
    }

    /// As [`logits`](Self::logits), and tells `on_prompt` meanwhile how many of `tokens` are as good as evaluated. A break there ends
    /// it. Returned is how many of them the session goes on after: those evaluated as a whole, and where their logits were asked for
    /// those whose logits were handed out.
    ///
    /// # Errors
    /// As for [`generate`](Self::generate).
    pub fn logits_watched(
        &mut self,
        tokens: &[u32],
        from: usize,
        on_prompt: &mut OnPrompt<'_>,
        on_row: &mut OnRow<'_>,
    ) -> Result<usize, EngineError> {
        let said = self.tokens.len();
        self.engine.check_tokens(tokens, said)?;
        self.append(tokens, from, Some(on_row), on_prompt)?;
        Ok(self.tokens.len() - said)
    }

    /// Evaluates `tokens` after what was said, the last token of an answer included where its row is still missing.
    /// Rows of logits go to `on_row` from index `from` on.
    fn append(
        &mut self,
        tokens: &[u32],
        from: usize,
        on_row: Option<&mut OnRow<'_>>,
        on_prompt: &mut OnPrompt<'_>,
    ) -> Result<(), EngineError> {
        let said = self.tokens.len();
        self.tokens.extend(tokens);
        // Up to here without logits; with no one to hand them to, to the end.
        let quiet = if on_row.is_some() {
            said + from.min(tokens.len())
        } else {
            self.tokens.len()
        };
        let result = self.evaluate(said, quiet, on_row, on_prompt);
        match result {
            Ok(end) => {
                // An interrupted prompt may end before the row of an answer's last token, which was said all the same.
                self.tokens.truncate(end.max(said));
                self.cached = end;
                Ok(())
            }
            Err(error) => {
                // Rows before `cached` are untouched, so the session is as it was.
                self.tokens.truncate(said);
                Err(error)
            }
        }
    }

    /// Evaluates `self.tokens` from `cached` on; returns one past the last position that was.
    fn evaluate(
        &mut self,
        said: usize,
        quiet: usize,
        on_row: Option<&mut OnRow<'_>>,
        on_prompt: &mut OnPrompt<'_>,
    ) -> Result<usize, EngineError> {
        if quiet > self.cached {
            // The last token of an answer may be among those to evaluate: it is none of the prompt.
            let (first, before) = (self.cached, said - self.cached);
            let tokens = &self.tokens[first..quiet];
            let told = &mut |done: usize| on_prompt(done.saturating_sub(before));
            let done = self.backend.prefill_watched(tokens, first, told)?;
            if first + done < quiet {
                return Ok(first + done);
            }
        }
        let mut end = quiet;
        if let Some(on_row) = on_row
            && quiet < self.tokens.len()
        {
            let told = &mut |done: usize| on_prompt(quiet - said + done);
            let tokens = &self.tokens[quiet..];
            self.backend
                .logits_watched(tokens, quiet, told, &mut |row, logits| {
                    end = quiet + row + 1;
                    on_row(end - 1 - said, logits)
                })?;
        }
        Ok(end)
    }
}
