//! Requests that sessions answer in turns. One at a time is computed, on the CPU for a moment each, so that nobody waits for the whole
//! answer of somebody else. Whoever is alone is not interrupted.

#[cfg(not(target_arch = "wasm32"))]
mod wait;

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use web_time::{Duration, Instant};

use super::fair::{Held, Owner};
use super::request::{Choice, Counts, Request, RequestId};
use crate::engine::backend::BackendError;
use crate::engine::{Engine, EngineError, GenerateStats, Sampling, Session, StopReason};

/// Tokens of the prompts that warm a session up: each takes another step.
const PROMPTS: [usize; 5] = [1, 8, 32, 128, 512];
/// How long one is computed while others wait for their turn, as far as it can be foretold.
pub(super) const TURN: Duration = Duration::from_millis(200);
/// Tokens of the first turn of a prompt beside others, when no time is known.
const FIRST: f64 = 8.0;
/// So long after others were there, prompts are still computed in pieces. An interrupted piece is computed again, so whoever comes often
/// could keep a long one from its end.
const ALERT: Duration = Duration::from_secs(10);

/// A request and its answer so far.
pub(super) struct Running<'a> {
    pub(super) id: RequestId,
    pub(super) owner: Owner,
    pub(super) session: Session<'a>,
    pub(super) choice: Choice,
    /// What is to be computed before the next token is chosen: the rest of the prompt, or the last token.
    pub(super) pending: Vec<u32>,
    /// The answer so far.
    pub(super) said: Vec<u32>,
    /// Tokens of the prompt.
    pub(super) prompt: usize,
    /// How many of them had their rows.
    pub(super) cached: usize,
    /// Tokens of the answer at most, and what it means to reach them.
    pub(super) limit: usize,
    pub(super) at_limit: StopReason,
    /// Whether the answer may end with a sentence, since the context alone limits it.
    pub(super) may_close: bool,
    pub(super) begun: Instant,
    /// When the first token came.
    pub(super) first: Option<Instant>,
    /// Tokens that came, a stop token included.
    pub(super) delivered: usize,
    /// Seconds that it was computed, from where the others of its peer stood when it came.
    pub(super) spent: f64,
}

impl Running<'_> {
    /// What it took.
    pub(super) fn stats(&self, stop: StopReason) -> GenerateStats {
        let end = Instant::now();
        let first = self.first.unwrap_or(end);
        GenerateStats {
            prompt_tokens: self.prompt - self.cached,
            prompt_time: first - self.begun,
            generated: self.said.len(),
            steps: self.delivered.saturating_sub(1),
            generate_time: end - first,
            stop,
        }
    }
}

/// Requests that are answered in turns.
pub(super) struct Turns<'a> {
    pub(super) engine: &'a Engine,
    /// Sessions that nobody uses. One is kept, with the rows of the last answer.
    pub(super) idle: Vec<Session<'a>>,
    /// In the order in which they came.
    pub(super) waiting: VecDeque<(RequestId, Request)>,
    pub(super) running: Vec<Running<'a>>,
    /// How many run at the same time. Twice as many if those who run have more than their share.
    places: usize,
    /// Whether somebody has come during a turn.
    pub(super) bell: Arc<AtomicBool>,
    /// Seconds that each peer was computed for, from where the others stood when it came.
    spent: HashMap<u64, f64>,
    /// Turns so far.
    turns: usize,
    /// Seconds for each token of a prompt.
    per_token: f64,
    /// When several were there last.
    shared: Option<Instant>,
    pub(super) prefix_asked: u64,
    pub(super) prefix_found: u64,
}

impl<'a> Turns<'a> {
    /// Without requests. So many run at the same time.
    pub(super) async fn new(
        engine: &'a Engine,
        places: usize,
        bell: Arc<AtomicBool>,
    ) -> Result<Self, EngineError> {
        Ok(Self {
            engine,
            idle: vec![engine.session_async().await?],
            waiting: VecDeque::new(),
            running: vec![],
            places,
            bell,
            spent: HashMap::new(),
            turns: 0,
            per_token: TURN.as_secs_f64() / FIRST,
            shared: None,
            prefix_asked: 0,
            prefix_found: 0,
        })
    }

    /// Answers prompts of tokens that mean nothing, longer and longer ones on a GPU, as far as there is time.
    pub(super) async fn warm_up(
        &mut self,
        most: Duration,
        told: &mut dyn FnMut(usize, usize),
    ) -> Result<(), EngineError> {
        let began = Instant::now();
        let Some(session) = self.idle.last_mut() else {
            return Ok(());
        };
        let lengths = match self.engine.tier() {
            // The CPU compiles nothing. A token brings the weights that it uses into memory.
            None => &PROMPTS[..1],
            Some(_) => &PROMPTS[..],
        };
        for (done, &tokens) in lengths.iter().enumerate() {
            told(done, lengths.len());
            if tokens + 1 >= self.engine.n_ctx() || began.elapsed() >= most {
                break;
            }
            let (prompt, greedy) = (vec![0; tokens], Sampling::GREEDY);
            let on_prompt = &mut |_| ControlFlow::Continue(());
            let on_token = &mut |_| ControlFlow::Continue(());
            let warmed = session.generate_async(&prompt, &greedy, 2, on_prompt, on_token);
            let warmed = warmed.await;
            session.reset();
            match warmed {
                // Requests will tell.
                Ok(_) | Err(EngineError::Backend(BackendError::NotFinite { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        told(lengths.len(), lengths.len());
        Ok(())
    }

    pub(super) fn slots(&self) -> usize {
        self.places
    }

    pub(super) fn cancel(&mut self, id: RequestId) {
        self.waiting.retain(|(waiting, _)| *waiting != id);
        if let Some(index) = self.running.iter().position(|running| running.id == id) {
            let ended = self.running.remove(index);
            self.keep(ended.session);
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    pub(super) fn counts(&self) -> Counts {
        let rows = self
            .running
            .iter()
            .map(|running| running.session.position());
        Counts {
            running: self.running.len(),
            waiting: self.waiting.len(),
            rows: rows.sum(),
            rows_in_all: self.engine.n_ctx() * self.places,
            prefix_asked: self.prefix_asked,
            prefix_found: self.prefix_found,
        }
    }

    /// Keeps a session for the next request. Others give their memory back.
    pub(super) fn keep(&mut self, session: Session<'a>) {
        self.idle.clear();
        self.idle.push(session);
    }

    /// Which request is taken up next, if there is a place for it.
    pub(super) fn next_up(&self) -> Option<usize> {
        let held = Held::new(self.running.iter().map(|running| running.owner));
        let owners = self.waiting.iter().map(|(_, request)| request.owner);
        let (next, wanting) = *held.sorted(owners).first()?;
        let is_less = |running: &Running<'_>| held.of(running.owner).gives_way(&wanting);
        let most = match self.places > 1 && self.running.iter().any(is_less) {
            true => 2 * self.places,
            false => self.places,
        };
        (self.running.len() < most).then_some(next)
    }

    /// Adds a request that begins now. Nobody makes up for the time before it came.
    pub(super) fn add(&mut self, mut running: Running<'a>) {
        let least = |all: &mut dyn Iterator<Item = f64>| all.reduce(f64::min).unwrap_or(0.0);
        let peer = running.owner.peer;
        let own = self.running.iter().filter(|r| r.owner.peer == peer);
        running.spent = least(&mut own.map(|r| r.spent));
        let is_there = |peer: &u64, _: &mut f64| self.running.iter().any(|r| r.owner.peer == *peer);
        self.spent.retain(is_there);
        let others = least(&mut self.spent.values().copied());
        self.spent.entry(peer).or_insert(others);
        self.running.push(running);
    }

    /// Whose turn it is. That is the peer that was computed for the shortest time. Of its requests every second turn goes to the shortest
    /// prompt, so that it does not wait for long ones, and the others to the one that had least.
    pub(super) fn next_turn(&self) -> Option<usize> {
        let spent = |peer: u64| self.spent.get(&peer).copied().unwrap_or(0.0);
        let peers = self.running.iter().map(|running| running.owner.peer);
        let peer = peers.min_by(|a, b| spent(*a).total_cmp(&spent(*b)))?;
        let own = || {
            let all = self.running.iter().enumerate();
            all.filter(|(_, running)| running.owner.peer == peer)
        };
        let prompts = own().filter(|(_, running)| running.first.is_none());
        let shortest = prompts.min_by_key(|(_, running)| running.pending.len());
        let shortest = shortest.filter(|_| self.turns.is_multiple_of(2));
        let least = || own().min_by(|(_, a), (_, b)| a.spent.total_cmp(&b.spent));
        shortest.or_else(least).map(|(index, _)| index)
    }

    /// Tokens of `left` ones that the next turn of a request has, and how long it takes; `None` is until somebody comes.
    pub(super) fn share(&mut self, left: usize) -> (usize, Option<Duration>) {
        if self.places == 1 {
            return (left, None);
        }
        // The request itself is none of those that run while it has its turn.
        if !self.running.is_empty() || !self.waiting.is_empty() {
            self.shared = Some(Instant::now());
        }
        match self.shared.is_some_and(|at| at.elapsed() < ALERT) {
            true => {
                let most = (TURN.as_secs_f64() / self.per_token) as usize;
                (left.min(most.max(1)), Some(TURN))
            }
            false => (left, None),
        }
    }

    /// Whether somebody who comes can be served during a turn.
    pub(super) fn may_share(&self) -> bool {
        self.places > 1
    }

    /// A request had its turn of so many seconds.
    pub(super) fn had(&mut self, running: &mut Running<'a>, seconds: f64) {
        self.turns += 1;
        running.spent += seconds;
        *self.spent.entry(running.owner.peer).or_default() += seconds;
    }

    /// So many tokens of a prompt took so many seconds.
    pub(super) fn took(&mut self, tokens: usize, seconds: f64) {
        if tokens > 0 {
            self.per_token = (seconds / tokens as f64).max(1e-7);
        }
    }
}
