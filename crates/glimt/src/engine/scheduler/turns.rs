//! Requests that sessions answer in turns. One at a time is computed, on the CPU for a moment each, so that nobody waits for the whole
//! answer of somebody else. Whoever is alone is not interrupted.

mod step;

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use web_time::{Duration, Instant};

use super::fair::{Held, MUCH_MORE, Owner, Rounds};
use super::request::{Choice, Counts, Request, RequestId};
use crate::engine::backend::BackendError;
use crate::engine::{Engine, EngineError, GenerateStats, Sampling, Session, StopReason};

/// Tokens of the prompts that warm a session up: each takes another step.
const PROMPTS: [usize; 5] = [1, 8, 32, 128, 512];
/// How long one is computed while others of its peer wait for their turn, and while other peers do, as far as it can be foretold.
const TURNS: [Duration; 2] = [Duration::from_millis(200), Duration::from_millis(50)];
/// Tokens of the first turn of a prompt beside others, when no time is known. A shorter piece is worth it only if this many would take longer
/// than the longest turn: most of what a piece takes is the same for a few tokens.
const FIRST: usize = 8;
/// The time for which prompts are still computed in pieces after others left. An interrupted piece is computed again, so whoever comes often
/// could keep a long one from its end.
const ALERT: Duration = Duration::from_secs(10);

/// A request and its answer so far.
pub(super) struct Running {
    pub(super) id: RequestId,
    pub(super) owner: Owner,
    pub(super) session: Session,
    pub(super) choice: Choice,
    /// The tokens to be computed before the next one is chosen: the rest of the prompt, or the last token.
    pub(super) pending: Vec<u32>,
    /// The answer so far.
    pub(super) said: Vec<u32>,
    /// Tokens of the prompt.
    pub(super) prompt: usize,
    /// The number of these tokens that had their rows.
    pub(super) cached: usize,
    /// The most tokens of the answer, and what it means to reach them.
    pub(super) limit: usize,
    pub(super) at_limit: StopReason,
    /// Whether the answer may end with a sentence, since the context alone limits it.
    pub(super) may_close: bool,
    pub(super) begun: Instant,
    /// When the first token came.
    pub(super) first: Option<Instant>,
    /// Tokens that came, a stop token included.
    pub(super) delivered: usize,
    /// The number of turns that it had.
    pub(super) turns: usize,
}

impl Running {
    /// The statistics of the answer, if it ends now.
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

/// The time and the turns that a peer has had.
#[derive(Debug, Clone, Copy, Default)]
struct Spent {
    /// Seconds that it was computed for, from where the others stood when it came.
    seconds: f64,
    turns: usize,
    /// Seconds that each of its orders should have had so far.
    level: f64,
}

/// Requests that are answered in turns.
pub(super) struct Turns {
    pub(super) engine: Engine,
    /// Sessions that nobody uses. One is kept, with the rows of the last answer.
    pub(super) idle: Vec<Session>,
    /// Requests that wait, in the order in which they came.
    pub(super) waiting: VecDeque<(RequestId, Request)>,
    pub(super) running: Vec<Running>,
    /// The number of requests that run at the same time. Half as many more if those who run have much longer prompts, and twice as many if
    /// they have more than their share: a peer's short prompts leave others their places.
    places: usize,
    /// Whether somebody has come during a turn.
    pub(super) bell: Arc<AtomicBool>,
    rounds: Rounds,
    of_peers: HashMap<u64, Spent>,
    /// Seconds that each peer should have had so far: those of each turn, divided by the peers that were there. Whoever comes begins with so
    /// many. If it began with the least that another one has had, those who come one after the other would hand that on for ever, and
    /// whoever has had more would wait for all of them.
    level: f64,
    /// Seconds that each order was computed for, from where the others of its peer stood when it came.
    of_orders: HashMap<Owner, f64>,
    /// Seconds for each token of a prompt.
    per_token: f64,
    /// When several were there last.
    shared: Option<Instant>,
    pub(super) prefix_asked: u64,
    pub(super) prefix_found: u64,
}

impl Turns {
    /// A scheduler without requests, which answers up to `places` requests at the same time.
    pub(super) async fn new(
        engine: &Engine,
        places: usize,
        bell: Arc<AtomicBool>,
    ) -> Result<Self, EngineError> {
        Ok(Self {
            engine: engine.clone(),
            idle: vec![engine.session().await?],
            waiting: VecDeque::new(),
            running: vec![],
            places,
            bell,
            rounds: Rounds::default(),
            of_peers: HashMap::new(),
            level: 0.0,
            of_orders: HashMap::new(),
            per_token: TURNS[0].as_secs_f64() / FIRST as f64,
            shared: None,
            prefix_asked: 0,
            prefix_found: 0,
        })
    }

    /// Answers prompts of tokens that mean nothing, longer and longer ones on a GPU, as far as there is time.
    pub(super) async fn warm_up(
        &mut self,
        most: Duration,
        told: &mut (dyn FnMut(usize, usize) + Send),
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
            let warmed = session.generate_watched(&prompt, &greedy, 2, on_prompt, on_token);
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

    /// Takes a request.
    pub(super) fn submit(&mut self, id: RequestId, request: Request) {
        self.rounds.came(request.owner);
        self.waiting.push_back((id, request));
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
    pub(super) fn keep(&mut self, session: Session) {
        self.idle.clear();
        self.idle.push(session);
    }

    /// The index of the waiting request that is taken up next, if there is a place for it.
    pub(super) fn next_up(&self) -> Option<usize> {
        let held = Held::new(self.running.iter().map(|running| running.owner));
        let owners = self.waiting.iter().map(|(_, request)| request.owner);
        let (next, wanting) = *held.sorted(owners, &self.rounds).first()?;
        let is_less = |running: &Running| held.of(running.owner).gives_way(&wanting);
        let running = self.running.len();
        if running < self.places {
            return Some(next);
        }
        if self.places == 1 || running >= 2 * self.places {
            return None;
        }
        // A short prompt does not wait for long ones either.
        let prompts = self.running.iter().filter(|r| r.first.is_none());
        let longest = prompts.map(|r| r.pending.len()).max().unwrap_or(0);
        let waiting = self.waiting.iter().enumerate();
        let shortest = waiting.min_by_key(|(_, (_, request))| request.prompt.len());
        let shortest = shortest.filter(|(_, (_, r))| {
            running < self.places + self.places / 2 && longest >= MUCH_MORE * r.prompt.len()
        });
        match self.running.iter().any(is_less) {
            true => Some(next),
            false => shortest.map(|(index, _)| index),
        }
    }

    /// Adds a request that begins now. Nobody makes up for the time before it came.
    pub(super) fn add(&mut self, running: Running) {
        let owner = running.owner;
        self.rounds.took(owner);
        self.running.push(running);
        let all = || self.running.iter().map(|running| running.owner);
        self.of_peers
            .retain(|peer, _| all().any(|o| o.peer == *peer));
        self.of_orders.retain(|order, _| all().any(|o| o == *order));
        let peers = self.of_peers.values().map(|spent| spent.seconds);
        let new = Spent {
            seconds: peers.reduce(f64::min).unwrap_or(0.0).max(self.level),
            ..Spent::default()
        };
        let level = self.of_peers.entry(owner.peer).or_insert(new).level;
        let own = self.of_orders.iter().filter(|(o, _)| o.peer == owner.peer);
        let orders = own.map(|(_, spent)| *spent).reduce(f64::min);
        let new = orders.unwrap_or(0.0).max(level);
        self.of_orders.entry(owner).or_insert(new);
    }

    /// The request that has the next turn, of those that `may` allows. It is one of the peer that was computed for
    /// the shortest time. Every second turn of that peer goes to the order that has the fewest tokens of prompts left, so that a short
    /// prompt does not wait for long ones or for many. The others go to the order that was computed for the shortest time.
    pub(super) fn next_turn(&self, may: &[bool]) -> Option<usize> {
        let of_peer = |peer: u64| self.of_peers.get(&peer).copied().unwrap_or_default();
        let may_run = || {
            let all = self.running.iter().enumerate();
            all.filter(|(index, _)| may.get(*index) == Some(&true))
        };
        let peers = may_run().map(|(_, running)| running.owner.peer);
        let peer = peers.min_by(|a, b| of_peer(*a).seconds.total_cmp(&of_peer(*b).seconds))?;
        let own = || may_run().filter(|(_, running)| running.owner.peer == peer);
        let prompts = || own().filter(|(_, running)| running.first.is_none());
        let left = |owner: Owner| -> usize {
            let all = prompts().filter(|(_, running)| running.owner == owner);
            all.map(|(_, running)| running.pending.len()).sum()
        };
        let shortest = prompts().min_by_key(|(_, running)| left(running.owner));
        let shortest = shortest.filter(|_| of_peer(peer).turns.is_multiple_of(2));
        let of_order = |running: &Running| {
            let spent = self.of_orders.get(&running.owner);
            spent.copied().unwrap_or(0.0)
        };
        let least = || {
            own().min_by(|(_, a), (_, b)| {
                // Whoever comes begins with the least that another order has had. So the older one is first, or it would wait for
                // all who come.
                let spent = of_order(a).total_cmp(&of_order(b));
                let older = a.owner.order.cmp(&b.owner.order);
                spent.then(older).then(a.turns.cmp(&b.turns))
            })
        };
        shortest.or_else(least).map(|(index, _)| index)
    }

    /// Tokens of `left` ones that the next turn of a request of `peer` has, and how long it takes; `None` is until somebody comes.
    pub(super) fn share(&mut self, left: usize, peer: u64) -> (usize, Option<Duration>) {
        if self.places == 1 {
            return (left, None);
        }
        // The request itself is none of those that run while it has its turn.
        if !self.running.is_empty() || !self.waiting.is_empty() {
            self.shared = Some(Instant::now());
        }
        if self.shared.is_none_or(|at| at.elapsed() >= ALERT) {
            return (left, None);
        }
        let running = self.running.iter().map(|running| running.owner.peer);
        let waiting = self.waiting.iter().map(|(_, request)| request.owner.peer);
        let [longest, beside_others] = TURNS;
        let time = match running.chain(waiting).any(|other| other != peer) {
            true => beside_others,
            false => longest,
        };
        let tokens = |time: Duration| (time.as_secs_f64() / self.per_token) as usize;
        let most = tokens(time).max(tokens(longest).min(FIRST));
        (left.min(most.max(1)), Some(time))
    }

    /// Whether a request that comes during a turn can be served then.
    pub(super) fn may_share(&self) -> bool {
        self.places > 1
    }

    /// Notes that a request had its turn of `seconds` seconds.
    pub(super) fn had(&mut self, running: &mut Running, seconds: f64) {
        running.turns += 1;
        let owner = running.owner;
        let all = || {
            self.running
                .iter()
                .map(|running| running.owner)
                .chain([owner])
        };
        let peers: HashSet<u64> = all().map(|owner| owner.peer).collect();
        let orders: HashSet<Owner> = all().filter(|o| o.peer == owner.peer).collect();
        self.level += seconds / peers.len() as f64;
        let peer = self.of_peers.entry(owner.peer).or_default();
        peer.seconds += seconds;
        peer.level += seconds / orders.len() as f64;
        peer.turns += 1;
        *self.of_orders.entry(running.owner).or_default() += seconds;
    }

    /// Notes that `tokens` tokens of a prompt took `seconds` seconds.
    pub(super) fn took(&mut self, tokens: usize, seconds: f64) {
        if tokens > 0 {
            self.per_token = (seconds / tokens as f64).max(1e-7);
        }
    }
}
