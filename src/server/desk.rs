//! Where requests are handed in, and the thread that has the scheduler answer them.
//!
//! What is told of a request goes through a channel that holds as much as the answer may have, so a slow reader keeps nobody waiting. A
//! request whose reader has gone away is cancelled with its next token, and one that waits gives its place back as soon.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::metrics::Metrics;
use super::model::Model;
use super::sampling::device_biases;
use crate::engine::chooser::{
    Chain, ChainSettings, Chooser, ChooserError, Constrained, Grammar, LogProbs, TokenLogProbs,
};
use crate::engine::scheduler::{Choice, Event, Request, RequestId, Scheduler};
use crate::engine::{EngineError, KeepWarm, StopReason};

/// How long an idle device waits for requests that come together at most, how long none has to come, and how often it looks.
const GATHER: [Duration; 3] = [
    Duration::from_millis(5),
    Duration::from_micros(1000),
    Duration::from_micros(50),
];

/// An answer that is asked for.
pub(super) struct Order {
    pub(super) prompt: Vec<u32>,
    pub(super) chain: ChainSettings,
    pub(super) grammar: Option<Grammar>,
    /// The token behind which the grammar begins, where it does not begin at once.
    pub(super) begins_after: Option<u32>,
    /// How many of the best tokens are told with each.
    pub(super) log_probs: Option<usize>,
    pub(super) limit: usize,
}

/// What is told of an answer.
#[derive(Debug)]
pub(super) enum Told {
    /// By the scheduler.
    Event(Event),
    /// What the model expected of the next token. It comes before the token.
    LogProbs(TokenLogProbs),
    /// Nothing can be computed any more.
    Broken(String),
}

/// Answers on their way. Dropped, they are cancelled.
pub(super) struct Answering {
    /// What comes next, with the number of the answer. It is closed when all have ended.
    pub(super) told: UnboundedReceiver<(usize, Told)>,
    stops: Vec<Arc<AtomicBool>>,
}

impl Answering {
    /// Ends one of them, since its text has come to an end.
    pub(super) fn stop(&self, answer: usize) {
        if let Some(stop) = self.stops.get(answer) {
            stop.store(true, Ordering::Relaxed);
        }
    }
}

/// A chooser that tells of its choices.
struct Telling {
    inner: LogProbs<Constrained<Chain>>,
    index: usize,
    told: UnboundedSender<(usize, Told)>,
}

impl Chooser for Telling {
    fn choose(&mut self, logits: &mut [f32], context: &[u32]) -> Result<u32, ChooserError> {
        let token = self.inner.choose(logits, context)?;
        for kept in self.inner.take() {
            // Who does not read any more is noticed with the token.
            let _ = self.told.send((self.index, Told::LogProbs(kept)));
        }
        Ok(token)
    }

    fn accept(&mut self, token: u32) -> Result<(), ChooserError> {
        self.inner.accept(token)
    }

    fn is_ready(&mut self, most: Duration) -> bool {
        self.inner.is_ready(most)
    }
}

/// A request on its way to the scheduler.
struct Job {
    request: Request,
    entry: Entry,
}

/// A request that was handed in.
struct Entry {
    index: usize,
    told: UnboundedSender<(usize, Told)>,
    /// Whether its text has ended.
    stop: Arc<AtomicBool>,
    prompt: usize,
    /// Rows of the cache that it holds, as far as was told.
    rows: usize,
    came: Instant,
    begun: bool,
    last_token: Option<Instant>,
    /// Its place in the queue, given back when this is dropped.
    _place: OwnedSemaphorePermit,
}

impl Entry {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn is_over(&self) -> bool {
        self.is_stopped() || self.told.is_closed()
    }

    /// Tells it. Returned is whether somebody reads.
    fn tell(&self, told: Told) -> bool {
        self.told.send((self.index, told)).is_ok()
    }
}

enum Message {
    Job(Box<Job>),
    End,
}

/// Takes requests.
pub(super) struct Desk {
    messages: UnboundedSender<Message>,
    places: Arc<Semaphore>,
    /// Requests that can be answered or wait at the same time.
    pub(super) capacity: usize,
}

impl Desk {
    /// Whether one more finds a place now.
    pub(super) fn has_place(&self) -> bool {
        self.places.available_permits() > 0
    }

    /// Waits until all requests have ended.
    pub(super) async fn until_empty(&self) {
        let all = u32::try_from(self.capacity).unwrap_or(u32::MAX);
        drop(self.places.acquire_many(all).await);
    }

    /// Has the thread behind it end, with all that is not answered yet.
    pub(super) fn end(&self) {
        let _ = self.messages.send(Message::End);
    }

    /// Hands in requests that came at `came`; `None` if there are not enough places.
    pub(super) fn hand_in(&self, orders: Vec<Order>, came: Instant) -> Option<Answering> {
        let count = u32::try_from(orders.len()).ok()?;
        let places = Arc::clone(&self.places);
        let mut places = places.try_acquire_many_owned(count).ok()?;
        let (told, read) = unbounded_channel();
        let mut stops = vec![];
        for (index, order) in orders.into_iter().enumerate() {
            let Some(place) = places.split(1) else {
                break;
            };
            let stop = Arc::new(AtomicBool::new(false));
            stops.push(Arc::clone(&stop));
            let entry = Entry {
                index,
                told: told.clone(),
                stop,
                prompt: order.prompt.len(),
                rows: 0,
                came,
                begun: false,
                last_token: None,
                _place: place,
            };
            let request = request(order, index, &told);
            // Where nobody reads, the channel of the answers is closed, which their reader sees.
            let job = Box::new(Job { request, entry });
            let _ = self.messages.send(Message::Job(job));
        }
        Some(Answering { told: read, stops })
    }
}

/// What the scheduler is asked.
fn request(order: Order, index: usize, told: &UnboundedSender<(usize, Told)>) -> Request {
    let on_host = order.grammar.is_some() || order.log_probs.is_some();
    let choice = match device_biases(&order.chain) {
        Some(biases) if !on_host => Choice::Device(order.chain.sampling, biases),
        _ => {
            let chain = Chain::new(order.chain);
            let constrained = Constrained::new(chain, order.grammar, order.begins_after);
            Choice::Host(Box::new(Telling {
                inner: LogProbs::new(constrained, order.log_probs),
                index,
                told: told.clone(),
            }))
        }
    };
    Request {
        prompt: order.prompt,
        choice,
        limit: order.limit,
    }
}

/// What the thread of the scheduler knows of requests.
struct Clerk {
    inbox: UnboundedReceiver<Message>,
    metrics: Arc<Metrics>,
    /// Each request that is being read holds a weak reference.
    arriving: Arc<()>,
    /// Not yet the scheduler's.
    arrived: VecDeque<Job>,
    entries: HashMap<RequestId, Entry>,
    /// Whose readers went away while they waited.
    cancelled: Vec<RequestId>,
    ending: bool,
}

impl Clerk {
    fn take(&mut self, message: Message) {
        match message {
            Message::Job(job) => self.arrived.push_back(*job),
            Message::End => self.ending = true,
        }
    }

    /// Waits a moment for more requests, and for those that are being read, so that the first step has all that came together.
    fn gather(&mut self) {
        let [longest, quiet, pause] = GATHER;
        let began = Instant::now();
        let mut last = began;
        while !self.ending && began.elapsed() < longest {
            let is_read = Arc::weak_count(&self.arriving) > 0;
            match self.inbox.try_recv() {
                Ok(message) => {
                    self.take(message);
                    last = Instant::now();
                }
                Err(_) if !is_read && last.elapsed() >= quiet => return,
                Err(_) => std::thread::sleep(pause),
            }
        }
    }

    /// Takes what has come, and forgets whose readers have gone.
    fn collect(&mut self) {
        while let Ok(message) = self.inbox.try_recv() {
            self.take(message);
        }
        self.forget(|entry| !entry.begun);
        self.count();
    }

    /// Forgets requests that are stopped or that nobody reads any more. Only those go that `may_go` agrees to.
    fn forget(&mut self, may_go: impl Fn(&Entry) -> bool) {
        let is_left = |entry: &Entry| {
            let left = !may_go(entry) || !entry.is_over();
            if !left {
                let reason = if entry.is_stopped() { "stop" } else { "abort" };
                self.metrics.figures().ended(reason, entry.came.elapsed());
            }
            left
        };
        self.arrived.retain(|job| is_left(&job.entry));
        let gone = self.entries.extract_if(|_, entry| !is_left(entry));
        self.cancelled.extend(gone.map(|(id, _)| id));
    }

    fn count(&self) {
        let running = self.entries.values().filter(|entry| entry.begun).count();
        let mut figures = self.metrics.figures();
        figures.running = running;
        figures.waiting = self.entries.len() - running + self.arrived.len();
        // Between two steps the scheduler knows it better. Some may share rows.
        let rows: usize = self.entries.values().map(|entry| entry.rows).sum();
        figures.rows = rows.min(figures.rows_in_all);
    }

    /// Passes on what the scheduler tells.
    fn told(&mut self, id: RequestId, event: Event) -> ControlFlow<()> {
        self.collect();
        let Some(entry) = self.entries.get_mut(&id) else {
            return ControlFlow::Break(());
        };
        let mut reason = None;
        match &event {
            Event::Prompt { done, cached } => {
                entry.rows = *done;
                if !std::mem::replace(&mut entry.begun, true) {
                    let queued = entry.came.elapsed();
                    self.metrics.figures().begun(queued, entry.prompt, *cached);
                }
            }
            Event::Token(_) => {
                entry.rows += 1;
                let now = Instant::now();
                let last = entry.last_token.replace(now);
                let since = last.unwrap_or(entry.came);
                self.metrics.figures().token(last.is_none(), now - since);
            }
            Event::Ended(stats) => {
                reason = Some(match stats.stop {
                    StopReason::StopToken | StopReason::SentenceEnd => "stop",
                    StopReason::Limit | StopReason::ContextFull => "length",
                    StopReason::Caller => "abort",
                });
            }
            Event::Failed(_) => reason = Some("error"),
        }
        let is_read = entry.tell(Told::Event(event));
        let reason = reason
            .or(entry.is_stopped().then_some("stop"))
            .or((!is_read || self.ending).then_some("abort"));
        if let Some(reason) = reason {
            self.metrics.figures().ended(reason, entry.came.elapsed());
            self.entries.remove(&id);
        }
        self.count();
        match reason {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    }

    /// Has the scheduler take what has arrived, and end what nobody reads any more.
    fn submit(&mut self, scheduler: &mut Scheduler<'_>) {
        self.forget(|_| true);
        for Job { request, entry } in self.arrived.drain(..) {
            match scheduler.submit(request) {
                Ok(id) => drop(self.entries.insert(id, entry)),
                Err(error) => {
                    entry.tell(Told::Event(Event::Failed(error)));
                }
            }
        }
        for id in self.cancelled.drain(..) {
            scheduler.cancel(id);
        }
        self.count();
    }

    /// Tells everybody that nothing can be computed any more.
    fn broken(&mut self, error: &EngineError) {
        let arrived = self.arrived.drain(..).map(|job| job.entry);
        let entries = self.entries.drain().map(|(_, entry)| entry);
        for entry in arrived.chain(entries) {
            entry.tell(Told::Broken(error.to_string()));
        }
        self.count();
    }
}

/// Answers what is handed in at the desk that `ready` gets, until that tells it to end. So many requests may wait.
///
/// # Errors
/// What the device reports where it can compute nothing any more.
pub(super) fn work(
    model: &Model,
    queue: usize,
    metrics: Arc<Metrics>,
    arriving: Arc<()>,
    warmed: Option<&mut dyn FnMut(usize, usize)>,
    ready: impl FnOnce(Desk),
) -> Result<(), EngineError> {
    let mut scheduler = Scheduler::new(&model.engine)?;
    if let Some(warmed) = warmed {
        scheduler.warm_up(warmed)?;
    }
    let (messages, inbox) = unbounded_channel();
    let capacity = scheduler.slots().saturating_add(queue);
    let mut clerk = Clerk {
        inbox,
        metrics,
        arriving,
        arrived: VecDeque::new(),
        entries: HashMap::new(),
        cancelled: vec![],
        ending: false,
    };
    clerk.metrics.figures().rows_in_all = scheduler.counts().rows_in_all;
    ready(Desk {
        messages,
        places: Arc::new(Semaphore::new(capacity)),
        capacity,
    });
    while !clerk.ending {
        clerk.collect();
        clerk.submit(&mut scheduler);
        if clerk.ending {
            break;
        }
        if scheduler.is_idle() {
            // Without it a device may be slow to begin.
            let _warm = scheduler.warm().and_then(|touch| KeepWarm::new(touch).ok());
            match clerk.inbox.blocking_recv() {
                Some(message) => {
                    clerk.take(message);
                    clerk.gather();
                }
                None => break,
            }
            continue;
        }
        let done = scheduler.step(&mut |id, event| clerk.told(id, event));
        if let Err(error) = done {
            clerk.broken(&error);
            return Err(error);
        }
        let counts = scheduler.counts();
        let mut figures = clerk.metrics.figures();
        figures.rows = counts.rows;
        if counts.running > 0 {
            // Some that have begun may wait for memory.
            figures.running = counts.running;
            figures.waiting = counts.waiting + clerk.arrived.len();
        }
    }
    Ok(())
}
