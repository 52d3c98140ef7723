//! A conversation with a loaded model: its tokens and its cache.

mod chosen;
mod lineage;
mod rows;

use std::ops::ControlFlow;
use web_time::{Duration, Instant};

use super::backend::{Backend, OnPrompt, OnRow, OnToken, Touch, check_finite};
use super::draft::{DraftOptions, Drafts};
use super::{Engine, EngineError};
use crate::kernels::logit_bias::Biases;
use crate::kernels::sampling::Sampling;
pub(super) use lineage::Lineage;

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// The model ended it with a stop token.
    StopToken,
    /// A sentence ended and the context is nearly full, of a model whose answers are to end so
    /// ([`Recommended::ends_sentences`](super::recommended::Recommended::ends_sentences)).
    SentenceEnd,
    /// The limit asked for was reached.
    Limit,
    /// The callback broke it off.
    Caller,
    /// The context has no room for another token.
    ContextFull,
}

/// The cost of an answer in tokens and time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GenerateStats {
    /// Tokens of the prompt that were evaluated.
    pub prompt_tokens: usize,
    /// The time from the call to the first token of the answer, without the time that compiling for the device took.
    pub prompt_time: Duration,
    /// Tokens handed to the callback.
    pub generated: usize,
    /// Tokens computed in `generate_time`: the first token of an answer falls to the prompt, a stop token counts.
    pub steps: usize,
    /// The time from the first token of the answer to its end.
    pub generate_time: Duration,
    /// The drafts of its steps.
    pub drafted: usize,
    /// The drafts that were accepted. Each saved a step.
    pub accepted: usize,
    /// The reason for the end of the answer.
    pub stop: StopReason,
}

/// One context of a model: what was said so far, with its cache on the device.
pub struct Session {
    engine: Engine,
    backend: Box<dyn Backend>,
    /// All tokens so far, `tokens[i]` at position i.
    tokens: Vec<u32>,
    /// The number of these tokens that have their cache rows: all, or all but the last of an answer.
    cached: usize,
    /// The computations that the rows come from, so that two places can tell what they have in common.
    lineage: Lineage,
    /// The drafts of its answers, if they take some, and what was asked of them.
    drafts: Option<Drafts>,
    draft_options: DraftOptions,
}

impl Session {
    /// An empty session.
    ///
    /// # Errors
    /// [`EngineError::Draft`] where drafts are asked for that cannot be had.
    pub(super) fn new(engine: Engine, backend: Box<dyn Backend>) -> Result<Self, EngineError> {
        let draft_options = engine.draft;
        Ok(Self {
            drafts: Drafts::new(&draft_options, &backend.draft_means())?,
            engine,
            backend,
            tokens: Vec::new(),
            cached: 0,
            lineage: Lineage::new(),
            draft_options,
        })
    }

    /// Sets the drafts that answers take from now on. In the beginning they are those of [`EngineOptions::draft`](super::EngineOptions::draft).
    /// Answers are the same with any.
    ///
    /// # Errors
    /// [`EngineError::Draft`] where these cannot be had; the session goes on as before.
    pub fn set_drafts(&mut self, options: DraftOptions) -> Result<(), EngineError> {
        self.drafts = Drafts::new(&options, &self.backend.draft_means())?;
        self.draft_options = options;
        Ok(())
    }

    /// The engine it runs on.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Tokens so far, of prompts and answers; the next one gets this position. Stop tokens are not among them.
    pub fn position(&self) -> usize {
        self.tokens.len()
    }

    /// A function that touches all that the next token needs on the device, if a device that is not used forgets it.
    pub fn warm(&self) -> Option<Touch> {
        self.backend.warm()
    }

    /// All tokens so far, in order.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Forgets everything said so far.
    pub fn reset(&mut self) {
        self.truncate(0);
    }

    /// Forgets the tokens from position `length` on. What was computed for those before it stays.
    pub fn truncate(&mut self, length: usize) {
        self.tokens.truncate(length);
        if length < self.cached {
            self.cached = length;
            self.lineage.cut(length);
        }
    }

    /// Takes all tokens of a sequence, and reuses what it has of them: the tokens from the first one on that differs are forgotten. Returned
    /// is the rest, which is the next prompt. At least the last token is among it, since an answer needs its logits.
    pub fn sync<'t>(&mut self, tokens: &'t [u32]) -> &'t [u32] {
        let pairs = self.tokens.iter().zip(tokens);
        let common = pairs.take_while(|(said, wanted)| said == wanted).count();
        let kept = common.min(tokens.len().saturating_sub(1));
        self.truncate(kept);
        &tokens[kept..]
    }

    /// Sets the biases that are added to the logits of all tokens from now on that the device chooses.
    pub fn set_biases(&mut self, biases: Biases) {
        self.backend.set_biases(biases);
    }

    /// Continues with `prompt` and generates up to `limit` tokens. Each is handed to `on_token`, which ends the answer
    /// by breaking; stop tokens end it too, but are neither handed out nor kept. So does the first token of a new sentence, if
    /// [`StopReason::SentenceEnd`] is the reason. While the prompt is computed `on_prompt` is told how
    /// many of its tokens are as good as evaluated. A break there ends it without an answer ([`StopReason::Caller`]); the session then
    /// goes on after the tokens that were evaluated as a whole, which may be fewer.
    ///
    /// It never blocks: it goes on whenever it is polled. Dropped before its end it leaves the session as it was before the prompt, or
    /// before the answer where that has begun.
    ///
    /// # Errors
    /// [`EngineError::NoTokens`], [`EngineError::UnknownToken`] or [`EngineError::PromptTooLong`] for the prompt,
    /// which then leaves the session as it was; or what the device reports.
    pub async fn generate_watched(
        &mut self,
        prompt: &[u32],
        sampling: &Sampling,
        limit: usize,
        on_prompt: &mut OnPrompt<'_>,
        on_token: &mut OnToken<'_>,
    ) -> Result<GenerateStats, EngineError> {
        let mut answer = match self.begin(prompt, limit, None, on_prompt).await? {
            ControlFlow::Continue(answer) => answer,
            ControlFlow::Break(stats) => return Ok(stats),
        };
        let limit = answer.limit;
        let told = &mut |token| answer.take(token, on_token);
        let (backend, tokens) = (&mut self.backend, &self.tokens);
        match &mut self.drafts {
            Some(drafts) => backend.decode_drafted(tokens, sampling, limit, drafts, told),
            None => backend.decode(tokens, sampling, limit, told),
        }
        .await?;
        Ok(self.end(answer))
    }

    /// Generates as [`generate_watched`](Self::generate_watched) does, without telling how far the prompt is.
    ///
    /// # Errors
    /// The errors of [`generate_watched`](Self::generate_watched).
    pub async fn generate(
        &mut self,
        prompt: &[u32],
        sampling: &Sampling,
        limit: usize,
        on_token: &mut OnToken<'_>,
    ) -> Result<GenerateStats, EngineError> {
        let unwatched = &mut |_| ControlFlow::Continue(());
        self.generate_watched(prompt, sampling, limit, unwatched, on_token)
            .await
    }

    /// Evaluates a prompt: the answer to begin now, or what was done where `on_prompt` broke. The logits of its last token go to
    /// `on_row`, where there is one.
    async fn begin(
        &mut self,
        prompt: &[u32],
        limit: usize,
        on_row: Option<&mut OnRow<'_>>,
        on_prompt: &mut OnPrompt<'_>,
    ) -> Result<ControlFlow<GenerateStats, Answer>, EngineError> {
        let (start, compiled) = (Instant::now(), self.backend.compile_time());
        let on_host = on_row.is_some();
        self.drafts.iter_mut().for_each(Drafts::begin);
        self.engine.check_tokens(prompt, self.tokens.len())?;
        let end = self.tokens.len() + prompt.len();
        self.append(prompt, prompt.len() - 1, on_row, on_prompt)
            .await?;
        let compiling = self.backend.compile_time().saturating_sub(compiled);
        if self.tokens.len() < end {
            return Ok(ControlFlow::Break(GenerateStats {
                prompt_tokens: prompt.len() - (end - self.tokens.len()),
                prompt_time: start.elapsed().saturating_sub(compiling),
                generated: 0,
                steps: 0,
                generate_time: Duration::ZERO,
                drafted: 0,
                accepted: 0,
                stop: StopReason::Caller,
            }));
        }
        let room = self.engine.n_ctx() - self.tokens.len();
        Ok(ControlFlow::Continue(Answer {
            engine: self.engine.clone(),
            prompt: prompt.len(),
            limit: limit.min(room),
            may_close: limit > room && !on_host,
            at_limit: if limit <= room {
                StopReason::Limit
            } else {
                StopReason::ContextFull
            },
            tokens: Vec::new(),
            delivered: 0,
            start,
            compiling,
            first: None,
            ended: None,
        }))
    }

    /// Keeps the answer, all of which was handed out.
    fn end(&mut self, answer: Answer) -> GenerateStats {
        let end = Instant::now();
        let first = answer.first.unwrap_or(end);
        self.tokens.extend(&answer.tokens);
        // The backend leaves out the row of the last token it delivered, which may be the stop token.
        let steps = answer.delivered.saturating_sub(1);
        self.cached += steps;
        let drafts = self.drafts.as_ref();
        GenerateStats {
            prompt_tokens: answer.prompt,
            prompt_time: (first - answer.start).saturating_sub(answer.compiling),
            generated: answer.tokens.len(),
            steps,
            generate_time: end - first,
            drafted: drafts.map_or(0, Drafts::drafted),
            accepted: drafts.map_or(0, Drafts::accepted),
            stop: answer.ended.unwrap_or(answer.at_limit),
        }
    }

    /// Continues with `tokens` and hands the logits (vocab) of each from index `from` on to `on_row`, with the index into `tokens`, in
    /// order. A break ends it; the session then goes on after that token. Meanwhile `on_prompt` is told how many of `tokens` are as good
    /// as evaluated. A break there ends it, too. Returned is how many of them the session goes on after: those evaluated as a whole, and
    /// where their logits were asked for those whose logits were handed out.
    ///
    /// It never blocks: it goes on whenever it is polled. Dropped before its end it leaves the session as it was.
    pub async fn logits_watched(
        &mut self,
        tokens: &[u32],
        from: usize,
        on_prompt: &mut OnPrompt<'_>,
        on_row: &mut OnRow<'_>,
    ) -> Result<usize, EngineError> {
        let said = self.tokens.len();
        self.engine.check_tokens(tokens, said)?;
        self.append(tokens, from, Some(on_row), on_prompt).await?;
        Ok(self.tokens.len() - said)
    }

    /// Hands out logits as [`logits_watched`](Self::logits_watched) does, without telling how many tokens are evaluated.
    ///
    /// # Errors
    /// The errors of [`logits_watched`](Self::logits_watched).
    pub async fn logits(
        &mut self,
        tokens: &[u32],
        from: usize,
        on_row: &mut OnRow<'_>,
    ) -> Result<(), EngineError> {
        let unwatched = &mut |_| ControlFlow::Continue(());
        self.logits_watched(tokens, from, unwatched, on_row)
            .await
            .map(drop)
    }

    /// Evaluates `tokens` after what was said, the last token of an answer included where its row is still missing.
    /// Rows of logits go to `on_row` from index `from` on.
    async fn append(
        &mut self,
        tokens: &[u32],
        from: usize,
        on_row: Option<&mut OnRow<'_>>,
        on_prompt: &mut OnPrompt<'_>,
    ) -> Result<(), EngineError> {
        let said = self.tokens.len();
        // Up to here without logits; with no one to hand them to, to the end.
        let quiet = match on_row {
            Some(_) => said + from.min(tokens.len()),
            None => said + tokens.len(),
        };
        // Rows before `cached` are left alone and nothing is kept before the end, so until then the session is as it was.
        let missing = [&self.tokens[self.cached..], tokens].concat();
        let end = self.evaluate(&missing, quiet, on_row, on_prompt).await?;
        // An interrupted prompt may end before the row of an answer's last token, which was said all the same.
        self.tokens.extend(&tokens[..end.saturating_sub(said)]);
        self.cached = end;
        Ok(())
    }

    /// Evaluates `missing`, the tokens from position `cached` on; returns one past the last position that was.
    async fn evaluate(
        &mut self,
        missing: &[u32],
        quiet: usize,
        on_row: Option<&mut OnRow<'_>>,
        on_prompt: &mut OnPrompt<'_>,
    ) -> Result<usize, EngineError> {
        let (first, said) = (self.cached, self.tokens.len());
        if quiet > first {
            // The last token of an answer may be among those to evaluate: it is none of the prompt.
            let told = &mut |done: usize| on_prompt(done.saturating_sub(said - first));
            let tokens = &missing[..quiet - first];
            let done = self.backend.prefill_watched(tokens, first, told).await?;
            if first + done < quiet {
                return Ok(first + done);
            }
        }
        let mut end = quiet;
        let rest = &missing[quiet - first..];
        if let Some(on_row) = on_row
            && !rest.is_empty()
        {
            let told = &mut |done: usize| on_prompt(quiet - said + done);
            let mut checked = Ok(());
            let on_row = &mut |row: usize, logits: &[f32]| {
                checked = check_finite(logits, quiet + row);
                if checked.is_err() {
                    return ControlFlow::Break(());
                }
                end = quiet + row + 1;
                on_row(end - 1 - said, logits)
            };
            self.backend
                .logits_watched(rest, quiet, told, on_row)
                .await?;
            checked?;
        }
        Ok(end)
    }
}

/// An answer while it is decoded.
struct Answer {
    engine: Engine,
    /// Tokens of the prompt.
    prompt: usize,
    /// The most tokens to decode, and what it means to reach them.
    limit: usize,
    at_limit: StopReason,
    /// Whether the answer may end with a sentence: the context alone limits it, and no grammar or other chooser of the host has a say.
    may_close: bool,
    /// The tokens handed out.
    tokens: Vec<u32>,
    /// Tokens that came back, a stop token included.
    delivered: usize,
    start: Instant,
    /// The time since then that was spent compiling.
    compiling: Duration,
    first: Option<Instant>,
    ended: Option<StopReason>,
}

impl Answer {
    /// Takes the next token, and hands it out unless it ends the answer.
    fn take(&mut self, token: u32, on_token: &mut OnToken<'_>) -> ControlFlow<()> {
        self.first.get_or_insert_with(Instant::now);
        self.delivered += 1;
        let left = self.may_close.then(|| self.limit - self.tokens.len());
        self.ended = self.engine.end_before(token, &self.tokens, left);
        if self.ended.is_some() {
            return ControlFlow::Break(());
        }
        self.tokens.push(token);
        let flow = on_token(token);
        if flow.is_break() {
            self.ended = Some(StopReason::Caller);
        }
        flow
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::Chat;
    use crate::engine::scheduler::Scheduler;

    /// Compiles only where the futures are `Send` and the values belong to nobody else.
    #[test]
    fn sessions_and_their_futures_may_go_to_other_threads() {
        fn is_free<T: Send + 'static>() {}
        fn goes<T: Send>(_: T) {}
        is_free::<Engine>();
        is_free::<Session>();
        is_free::<Scheduler>();
        is_free::<Chat>();
        let _ = |session: &mut Session, chat: &mut Chat, scheduler: &mut Scheduler| {
            let on_token = &mut |_| ControlFlow::Continue(());
            goes(session.generate(&[], &Sampling::GREEDY, 1, on_token));
            goes(session.branch());
            goes(session.engine().session());
            goes(chat.say(""));
            goes(scheduler.step(&mut |_, _| ControlFlow::Continue(())));
        };
    }
}
