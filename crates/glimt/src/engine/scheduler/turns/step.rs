//! A turn of a request.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use web_time::{Duration, Instant};

use super::super::pages::common;
use super::super::request::{Choice, Event, Request, RequestId, Told};
use super::{Running, Turns};
use crate::engine::backend::BackendError;
use crate::engine::chooser::{Chooser, ChooserError};
use crate::engine::{Biases, EngineError, Sampling, Session, StopReason};

/// How long a chooser is waited for before somebody else is computed, or new requests are looked at.
const LISTEN: Duration = Duration::from_millis(2);
/// Rows that are worth copying from the session of somebody else.
const WORTH_COPYING: usize = 8;

/// The outcome of a turn.
enum Turn {
    /// The answer goes on.
    GoesOn,
    /// The request has ended.
    Ended(StopReason),
    /// Nobody wants the request any more.
    Cancelled,
}

/// A chooser that tells whether it has to be waited for before the next token, so that somebody else can be computed.
struct Watched<'c> {
    inner: &'c mut dyn Chooser,
    may_share: bool,
    waits: &'c AtomicBool,
}

impl Chooser for Watched<'_> {
    fn choose(&mut self, logits: &mut [f32], context: &[u32]) -> Result<u32, ChooserError> {
        self.inner.choose(logits, context)
    }

    fn accept(&mut self, token: u32) -> Result<(), ChooserError> {
        self.inner.accept(token)?;
        let waits = self.may_share && !self.inner.is_ready(LISTEN);
        self.waits.store(waits, Ordering::Relaxed);
        Ok(())
    }
}

/// The outcome of a session's computing in a turn.
struct Came {
    stop: StopReason,
    /// Why the answer ends before the next token.
    closed: Option<StopReason>,
    cancelled: bool,
    /// Whether the answer had no token before.
    is_first: bool,
    /// Tokens that were pending and are computed.
    evaluated: usize,
    /// The time that these took.
    time: Duration,
}

impl Turns {
    /// Takes requests up, and has one of those that run computed for a while.
    pub(in crate::engine::scheduler) async fn step(
        &mut self,
        told: &mut Told<'_>,
    ) -> Result<(), EngineError> {
        while let Some(next) = self.next_up()
            && let Some((id, request)) = self.waiting.remove(next)
        {
            if let Some(waits) = self.take_up(id, request, told).await? {
                self.waiting.insert(next.min(self.waiting.len()), waits);
                break;
            }
        }
        let Some(index) = self.next_ready() else {
            return Ok(());
        };
        let mut running = self.running.remove(index);
        let began = Instant::now();
        let turn = self.turn(&mut running, told).await;
        self.had(&mut running, began.elapsed().as_secs_f64());
        let (id, stop) = match turn {
            Ok(Turn::GoesOn) => {
                self.running.insert(index, running);
                return Ok(());
            }
            Ok(Turn::Cancelled) => {
                self.keep(running.session);
                return Ok(());
            }
            Ok(Turn::Ended(stop)) => (running.id, Ok(stop)),
            Err(error) if is_fatal(&error) => return Err(error),
            Err(error) => (running.id, Err(error)),
        };
        let last = match stop {
            Ok(stop) => Event::Ended(running.stats(stop)),
            Err(error) => Event::Failed(error),
        };
        self.keep(running.session);
        let (ControlFlow::Continue(()) | ControlFlow::Break(())) = told(id, last);
        Ok(())
    }

    /// The request whose turn it is. Requests whose choosers are not ready have none. If no chooser is ready, this waits for one of them.
    fn next_ready(&mut self) -> Option<usize> {
        let is_ready = |running: &mut Running, most| match &mut running.choice {
            Choice::Device(..) => true,
            Choice::Host(chooser) => chooser.is_ready(most),
        };
        let ready: Vec<bool> = self
            .running
            .iter_mut()
            .map(|r| is_ready(r, Duration::ZERO))
            .collect();
        let next = self.next_turn(&ready);
        if next.is_none()
            && let Some(first) = self.running.first_mut()
        {
            is_ready(first, LISTEN);
        }
        next
    }

    /// Begins with a request; returns it where there is no memory for it now.
    async fn take_up(
        &mut self,
        id: RequestId,
        request: Request,
        told: &mut Told<'_>,
    ) -> Result<Option<(RequestId, Request)>, EngineError> {
        let mut session = match self.session(&request.prompt).await {
            Ok(session) => session,
            Err(EngineError::Backend(BackendError::OutOfMemory { .. }))
                if !self.running.is_empty() =>
            {
                return Ok(Some((id, request)));
            }
            Err(error) => return Err(error),
        };
        let Request {
            prompt,
            choice,
            limit,
            owner,
        } = request;
        let cached = session.keep_common(&prompt);
        self.prefix_asked += prompt.len() as u64;
        self.prefix_found += cached as u64;
        let done = cached;
        if told(id, Event::Prompt { done, cached }).is_break() {
            self.keep(session);
            return Ok(None);
        }
        let room = self.engine.n_ctx() - prompt.len();
        session.set_biases(match &choice {
            Choice::Device(_, biases) => biases.clone(),
            Choice::Host(_) => Biases::default(),
        });
        self.add(Running {
            id,
            owner,
            session,
            may_close: limit > room && matches!(choice, Choice::Device(..)),
            choice,
            pending: prompt[cached..].to_vec(),
            said: vec![],
            prompt: prompt.len(),
            cached,
            limit: limit.min(room),
            at_limit: match limit <= room {
                true => StopReason::Limit,
                false => StopReason::ContextFull,
            },
            begun: Instant::now(),
            first: None,
            delivered: 0,
            turns: 0,
        });
        Ok(None)
    }

    /// A session for a prompt: the idle one, or one that begins with the rows of somebody who has more of them.
    async fn session(&mut self, prompt: &[u32]) -> Result<Session, EngineError> {
        let same = |session: &Session| common(session.tokens(), prompt);
        let of_idle = self.idle.last().map(same);
        let trunks = self.running.iter().map(|running| &running.session);
        let trunk = trunks.max_by_key(|session| same(session));
        match trunk {
            Some(trunk) if same(trunk) >= of_idle.unwrap_or(0) + WORTH_COPYING => {
                trunk.branch().await
            }
            _ => match self.idle.pop() {
                Some(session) => Ok(session),
                None => self.engine.session().await,
            },
        }
    }

    /// Has a request computed for a while.
    async fn turn(
        &mut self,
        running: &mut Running,
        told: &mut Told<'_>,
    ) -> Result<Turn, EngineError> {
        let (count, time) = self.share(running.pending.len(), running.owner.peer);
        let came = self.compute(running, (count, time), told).await?;
        if came.cancelled {
            return Ok(Turn::Cancelled);
        }
        let is_whole = count == running.pending.len();
        if came.is_first {
            self.took(came.evaluated, came.time.as_secs_f64());
        }
        if !is_whole || came.evaluated < count {
            running.pending.drain(..came.evaluated);
            let (done, cached) = (running.prompt - running.pending.len(), running.cached);
            return Ok(match told(running.id, Event::Prompt { done, cached }) {
                ControlFlow::Continue(()) => Turn::GoesOn,
                ControlFlow::Break(()) => Turn::Cancelled,
            });
        }
        if came.stop == StopReason::StopToken && came.closed.is_none() {
            running.first.get_or_insert_with(Instant::now);
            running.delivered += 1;
            return Ok(Turn::Ended(StopReason::StopToken));
        }
        match (came.closed, running.said.last()) {
            (Some(stop), _) => Ok(Turn::Ended(stop)),
            (None, Some(&last)) if running.said.len() < running.limit => {
                // The last token has no row yet, so it is computed next.
                let rows = running.session.position() - 1;
                running.session.truncate(rows);
                running.pending = vec![last];
                Ok(Turn::GoesOn)
            }
            _ => Ok(Turn::Ended(running.at_limit)),
        }
    }

    /// Computes `count` pending tokens of a request. If these are all, it then computes tokens of its answer for `time`.
    async fn compute(
        &mut self,
        running: &mut Running,
        (count, time): (usize, Option<Duration>),
        told: &mut Told<'_>,
    ) -> Result<Came, EngineError> {
        let (began, before) = (Instant::now(), running.session.position());
        let (id, cached, is_first) = (running.id, running.cached, running.delivered == 0);
        let (engine, bell, may_share) = (&self.engine, &self.bell, self.may_share());
        let is_over = || match time {
            Some(time) => began.elapsed() >= time,
            None => may_share && bell.load(Ordering::Relaxed),
        };
        let goes_on = |is_over| match is_over {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        let told = Mutex::new(told);
        let (cancelled, waits) = (AtomicBool::new(false), AtomicBool::new(false));
        let tell = |event| {
            let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
            let flow = told(id, event);
            cancelled.store(flow.is_break(), Ordering::Relaxed);
            flow
        };
        let base = running.prompt.saturating_sub(running.pending.len());
        let on_prompt = &mut |done: usize| {
            let done = base + done;
            if is_first {
                tell(Event::Prompt { done, cached })?;
            }
            // A piece for a turn has its length already.
            goes_on(time.is_none() && is_over())
        };
        let (said, delivered) = (&mut running.said, &mut running.delivered);
        let (limit, most, may_close) =
            (running.limit - said.len(), running.limit, running.may_close);
        let (mut closed, mut prompt_time) = (None, None);
        let on_token = &mut |token: u32| {
            prompt_time.get_or_insert_with(|| began.elapsed());
            running.first.get_or_insert_with(Instant::now);
            *delivered += 1;
            closed = engine.end_before(token, said, may_close.then(|| most - said.len()));
            if closed.is_some() {
                return ControlFlow::Break(());
            }
            said.push(token);
            tell(Event::Token(token))?;
            goes_on(waits.load(Ordering::Relaxed) || is_over())
        };
        let (session, rest) = (&mut running.session, &running.pending[..count]);
        let is_whole = count == running.pending.len();
        let done = match &mut running.choice {
            Choice::Host(chooser) if is_whole => {
                let mut own = Watched {
                    inner: chooser.as_mut(),
                    may_share: self.places > 1,
                    waits: &waits,
                };
                let chosen = session.generate_chosen(rest, &mut own, limit, on_prompt, on_token);
                chosen.await
            }
            choice => {
                let (sampling, limit) = match choice {
                    Choice::Device(sampling, _) if is_whole => (*sampling, limit),
                    _ => (Sampling::GREEDY, 0),
                };
                let drawn = session.generate_watched(rest, &sampling, limit, on_prompt, on_token);
                drawn.await
            }
        };
        Ok(Came {
            stop: done?.stop,
            closed,
            cancelled: cancelled.into_inner(),
            is_first,
            evaluated: (running.session.position() - before).min(count),
            time: prompt_time.unwrap_or_else(|| began.elapsed()),
        })
    }
}

/// Whether no other request can be answered either.
fn is_fatal(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::Gpu(_) | EngineError::Backend(BackendError::Gpu(_))
    )
}
