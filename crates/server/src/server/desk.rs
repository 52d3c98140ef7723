//! Where requests are handed in, and the thread that has the scheduler answer them.
//!
//! The messages about a request go through a channel that holds as much as the answer may have, so a slow reader keeps nobody waiting. A
//! request whose reader has gone away is cancelled with its next token, and one that waits gives its place back as soon.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::experts::Experts;
use super::metrics::Metrics;
use super::model::Model;
use super::orders::{Answer, Order, Told, request};
use super::peer::Peer;
use super::places::{Place, Places};
use crate::engine::scheduler::{
    Event, Owner, Request, RequestId, Scheduler, SlotAction, SlotDone, SlotError,
};
use crate::engine::{EngineError, KeepWarm, StopReason};
use crate::gpu::wait::Wait;

/// How long an idle device waits for requests that come together at most, how long none has to come, and how often it looks.
const GATHER: [Duration; 3] = [
    Duration::from_millis(5),
    Duration::from_micros(1000),
    Duration::from_micros(50),
];

/// Answers on their way. Dropped, they are cancelled.
pub(super) struct Answering {
    /// The messages, each with the number of its answer. The channel is closed when all answers have ended.
    pub(super) told: UnboundedReceiver<(usize, Told)>,
    stops: Arc<[AtomicBool]>,
}

impl Answering {
    /// Ends one of them, since its text has come to an end.
    pub(super) fn stop(&self, answer: usize) {
        if let Some(stop) = self.stops.get(answer) {
            stop.store(true, Ordering::Relaxed);
        }
    }
}

/// Answers that were asked for together. They enter the scheduler one by one, so that those which wait take no memory.
struct Job {
    orders: Vec<Order>,
    /// The number of answers that have entered, and the number of all.
    entered: usize,
    count: usize,
    told: UnboundedSender<(usize, Told)>,
    /// Flags of the answers whose texts have ended.
    stops: Arc<[AtomicBool]>,
    owner: Owner,
    came: Instant,
    place: Arc<Place>,
}

impl Job {
    fn left(&self) -> usize {
        self.count - self.entered
    }

    /// The next answer, of which there must be one.
    fn enter(&mut self) -> Option<(Request, Entry)> {
        let index = self.entered;
        let each = self.orders.first()?.n.max(1);
        let order = self.orders.get(index / each)?;
        self.entered += 1;
        let entry = Entry {
            index,
            told: self.told.clone(),
            stops: Arc::clone(&self.stops),
            owner: self.owner,
            prompt: order.prompt.len(),
            rows: 0,
            came: self.came,
            begun: false,
            last_token: None,
            place: Some(Arc::clone(&self.place)),
        };
        let answer = Answer {
            index,
            which: (index % each) as u64,
        };
        Some((request(order, &answer, self.owner, &self.told), entry))
    }
}

/// An answer that entered.
struct Entry {
    index: usize,
    told: UnboundedSender<(usize, Told)>,
    /// Flags of the answers whose texts have ended.
    stops: Arc<[AtomicBool]>,
    owner: Owner,
    prompt: usize,
    /// Rows of the cache that it holds, as far as was told.
    rows: usize,
    came: Instant,
    begun: bool,
    last_token: Option<Instant>,
    /// The place of its request, given back when all its answers have ended; `None` once the end of this one is about to be told.
    place: Option<Arc<Place>>,
}

impl Entry {
    fn is_stopped(&self) -> bool {
        self.stops[self.index].load(Ordering::Relaxed)
    }

    fn is_over(&self) -> bool {
        self.is_stopped() || self.told.is_closed()
    }

    /// Tells it. Returned is whether somebody reads.
    fn tell(&self, told: Told) -> bool {
        self.told.send((self.index, told)).is_ok()
    }
}

/// Something to do with a slot. It waits until the slot's answer has ended.
struct Task {
    slot: usize,
    action: SlotAction,
    reply: oneshot::Sender<Result<SlotDone, SlotError>>,
}

enum Message {
    Job(Box<Job>),
    Task(Task),
    End,
}

/// Takes requests.
pub(super) struct Desk {
    messages: UnboundedSender<Message>,
    places: Arc<Places>,
    /// Tells the scheduler that somebody has come.
    bell: Arc<AtomicBool>,
    /// Makes numbers of peers.
    numbers: RandomState,
    /// Requests so far.
    handed_in: AtomicU64,
}

impl Desk {
    /// Requests of a peer that can be answered or wait at the same time, and answers of a request.
    pub(super) fn capacity(&self) -> usize {
        self.places.capacity()
    }

    /// Whether one more request of a peer finds a place now.
    pub(super) fn has_place(&self, peer: Peer) -> bool {
        self.places.has_place(peer)
    }

    /// The time after which it is worth asking again.
    pub(super) fn retry_after(&self) -> Duration {
        self.places.retry_after()
    }

    /// Waits until all requests have ended.
    pub(super) async fn until_empty(&self) {
        self.places.until_empty().await;
    }

    /// Has the thread behind it end, with all that is not answered yet.
    pub(super) fn end(&self) {
        self.send(Message::End);
    }

    fn send(&self, message: Message) {
        // Where nobody reads, the channel of the answers is closed, which their reader sees.
        let _ = self.messages.send(message);
        self.bell.store(true, Ordering::Relaxed);
    }

    /// Has something done with a slot. Nothing comes back where the thread behind it ends first.
    pub(super) fn act(
        &self,
        slot: usize,
        action: SlotAction,
    ) -> oneshot::Receiver<Result<SlotDone, SlotError>> {
        let (reply, done) = oneshot::channel();
        self.send(Message::Task(Task {
            slot,
            action,
            reply,
        }));
        done
    }

    /// Hands in a request of `peer` that came at `came`; `None` if there is no place.
    pub(super) fn hand_in(
        &self,
        orders: Vec<Order>,
        peer: Peer,
        came: Instant,
    ) -> Option<Answering> {
        let place = Arc::new(self.places.take(peer)?);
        let count = orders.iter().map(|order| order.n).sum();
        let (told, read) = unbounded_channel();
        let stops: Arc<[AtomicBool]> = (0..count).map(|_| AtomicBool::new(false)).collect();
        let owner = Owner {
            peer: self.numbers.hash_one(peer),
            order: match peer {
                Peer::File => 0,
                _ => self.handed_in.fetch_add(1, Ordering::Relaxed),
            },
        };
        self.send(Message::Job(Box::new(Job {
            orders,
            entered: 0,
            count,
            told,
            stops: Arc::clone(&stops),
            owner,
            came,
            place,
        })));
        Some(Answering { told: read, stops })
    }
}

/// The requests as the thread of the scheduler knows them.
struct Clerk {
    inbox: UnboundedReceiver<Message>,
    metrics: Arc<Metrics>,
    experts: Experts,
    /// Each request that is being read holds a weak reference.
    arriving: Arc<()>,
    /// Jobs with answers that are not the scheduler's yet, in the order in which they came.
    jobs: Vec<Job>,
    /// Work on slots that is not done yet.
    tasks: Vec<Task>,
    entries: HashMap<RequestId, Entry>,
    /// Requests whose readers went away while they waited.
    cancelled: Vec<RequestId>,
    ending: bool,
}

impl Clerk {
    fn take(&mut self, message: Message) {
        match message {
            Message::Job(job) => self.jobs.push(*job),
            Message::Task(task) => self.tasks.push(task),
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
        self.jobs.retain(|job| {
            let left = !job.told.is_closed();
            if !left {
                let mut figures = self.metrics.figures();
                (0..job.left()).for_each(|_| figures.ended("abort", job.came.elapsed()));
            }
            left
        });
        let gone = self.entries.extract_if(|_, entry| !is_left(entry));
        self.cancelled.extend(gone.map(|(id, _)| id));
    }

    /// Answers that are not the scheduler's yet.
    fn left(&self) -> usize {
        self.jobs.iter().map(Job::left).sum()
    }

    fn count(&self) {
        let running = self.entries.values().filter(|entry| entry.begun).count();
        let mut figures = self.metrics.figures();
        figures.running = running;
        figures.waiting = self.entries.len() - running + self.left();
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
            Event::Prompt { done, cached, .. } => {
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
            Event::Drafted { .. } => {}
            Event::Ended(stats) => {
                reason = Some(match stats.stop {
                    StopReason::StopToken | StopReason::SentenceEnd => "stop",
                    StopReason::Limit | StopReason::ContextFull => "length",
                    StopReason::Caller => "abort",
                });
            }
            Event::Failed(_) => reason = Some("error"),
        }
        if reason.is_some() {
            // Whoever hears of the end may ask for the next answer at once.
            entry.place = None;
            if let Some(traffic) = self.experts.ended() {
                entry.tell(Told::Experts(traffic));
            }
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

    /// Has the scheduler end what nobody reads any more, and take what has arrived: of each request one answer, and more as far as they
    /// can be answered at once.
    fn submit(&mut self, scheduler: &mut Scheduler) {
        self.forget(|_| true);
        for id in self.cancelled.drain(..) {
            scheduler.cancel(id);
        }
        let mut failed = vec![];
        while let Some((request, entry)) = self.next(scheduler.slots()) {
            match scheduler.submit(request) {
                Ok(id) => drop(self.entries.insert(id, entry)),
                Err(error) => failed.push((entry, error)),
            }
        }
        self.jobs.retain(|job| job.left() > 0);
        for (mut entry, error) in failed {
            entry.place = None;
            entry.tell(Told::Event(Event::Failed(error)));
        }
        self.count();
    }

    /// Has the scheduler do what it can with slots, in the order in which it was asked for.
    fn act(&mut self, scheduler: &mut Scheduler) {
        for task in std::mem::take(&mut self.tasks) {
            if task.reply.is_closed() {
                continue;
            }
            match scheduler.act(task.slot, &task.action).wait() {
                Err(SlotError::Busy { .. }) => self.tasks.push(task),
                // Nobody may wait for it any more.
                done => drop(task.reply.send(done)),
            }
        }
    }

    /// The next answer to enter, of the peer and the request that have the fewest, if `slots` can be answered at once.
    fn next(&mut self, slots: usize) -> Option<(Request, Entry)> {
        if self.jobs.iter().all(|job| job.left() == 0) {
            return None;
        }
        let owners = self.entries.values().map(|entry| entry.owner);
        let (mut peers, mut orders) = (HashMap::new(), HashMap::new());
        for Owner { peer, order } in owners {
            *peers.entry(peer).or_insert(0usize) += 1;
            *orders.entry(order).or_insert(0usize) += 1;
        }
        let have = |owner: Owner| {
            let peer = peers.get(&owner.peer).copied().unwrap_or(0);
            let order = orders.get(&owner.order).copied().unwrap_or(0);
            (peer, order)
        };
        // Some that are taken wait for the beginning of a prompt that others compute.
        let is_full = self.entries.len() >= 2 * slots;
        let waiting = self.jobs.iter_mut().filter(|job| job.left() > 0);
        let waiting = waiting.filter(|job| !is_full || have(job.owner).1 == 0);
        waiting.min_by_key(|job| have(job.owner))?.enter()
    }

    /// Tells everybody that nothing can be computed any more.
    fn broken(&mut self, error: &EngineError) {
        for job in self.jobs.drain(..) {
            let _ = job
                .told
                .send((job.entered, Told::Broken(error.to_string())));
        }
        for (_, entry) in self.entries.drain() {
            entry.tell(Told::Broken(error.to_string()));
        }
        self.count();
    }
}

/// Answers what is handed in at the desk that `ready` gets, until that tells it to end. So many requests may wait.
///
/// # Errors
/// The error of the device where it can compute nothing any more.
pub(super) fn work(
    model: &Model,
    queue: usize,
    metrics: Arc<Metrics>,
    arriving: Arc<()>,
    warmed: Option<&mut (dyn FnMut(usize, usize) + Send)>,
    ready: impl FnOnce(Desk),
) -> Result<(), EngineError> {
    let mut scheduler = Scheduler::new(&model.engine).wait()?;
    scheduler.check_drafts(&model.drafts)?;
    if let Some(warmed) = warmed {
        scheduler.warm_up(warmed).wait()?;
    }
    let (messages, inbox) = unbounded_channel();
    let capacity = scheduler.slots().saturating_add(queue);
    let mut clerk = Clerk {
        inbox,
        experts: Experts::new(&model.engine, Arc::clone(&metrics)),
        metrics,
        arriving,
        jobs: vec![],
        tasks: vec![],
        entries: HashMap::new(),
        cancelled: vec![],
        ending: false,
    };
    let bell = scheduler.bell();
    clerk.metrics.figures().rows_in_all = scheduler.counts().rows_in_all;
    ready(Desk {
        messages,
        places: Arc::new(Places::new(capacity)),
        bell: Arc::clone(&bell),
        numbers: RandomState::new(),
        handed_in: AtomicU64::new(0),
    });
    while !clerk.ending {
        bell.store(false, Ordering::Relaxed);
        clerk.collect();
        clerk.act(&mut scheduler);
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
        let done = scheduler
            .step(&mut |id, event| clerk.told(id, event))
            .wait();
        if let Err(error) = done {
            clerk.broken(&error);
            return Err(error);
        }
        clerk.experts.refresh();
        let counts = scheduler.counts();
        let mut figures = clerk.metrics.figures();
        figures.rows = counts.rows;
        figures.drafts = counts.drafts;
        if counts.running > 0 {
            // Some that have begun may wait for memory.
            figures.running = counts.running;
            figures.waiting = counts.waiting + clerk.left();
        }
    }
    Ok(())
}
