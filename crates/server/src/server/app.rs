//! The state that all requests share.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::desk::{Answering, Desk};
use super::error::{ApiError, TooMany};
use super::kept::Kept;
use super::log::Log;
use super::memory::{self, Tidy};
use super::metrics::Metrics;
use super::model::Model;
use super::order::Order;
use super::peer::Peer;
use super::reading::Reading;
use super::settings::Settings;

/// Whoever asks while the model is loaded is told to wait for so long at most.
const LONGEST_LOAD: Duration = Duration::from_secs(60);

/// The phase of a server's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Loading,
    Ready,
    Draining,
}

/// The model with the desk that answers for it.
pub(super) struct Served {
    pub(super) model: Arc<Model>,
    pub(super) desk: Desk,
}

/// The state that all requests share.
pub(super) struct App {
    pub(super) settings: Settings,
    /// When loading began.
    began: Instant,
    pub(super) metrics: Arc<Metrics>,
    /// Counts the requests that are being read, until they are tokens: each of them holds a weak reference.
    pub(super) arriving: Arc<()>,
    pub(super) log: Arc<Log>,
    pub(super) reading: Reading,
    pub(super) tidy: Arc<Tidy>,
    pub(super) phase: watch::Sender<Phase>,
    pub(super) served: OnceLock<Served>,
    /// Answers that later requests can go on from.
    pub(super) kept: Arc<Kept>,
}

impl App {
    pub(super) fn new(settings: Settings) -> std::io::Result<Self> {
        memory::keep_little();
        Ok(Self {
            reading: Reading::new(settings.max_body)?,
            tidy: Arc::default(),
            settings,
            began: Instant::now(),
            metrics: Arc::new(Metrics::new()),
            arriving: Arc::default(),
            log: Arc::new(Log::new()?),
            phase: watch::Sender::new(Phase::Loading),
            served: OnceLock::new(),
            kept: Arc::default(),
        })
    }

    /// The model, where requests are taken.
    ///
    /// # Errors
    /// Why they are not.
    pub(super) fn served(&self) -> Result<&Served, ApiError> {
        let phase = *self.phase.borrow();
        match (phase, self.served.get()) {
            (Phase::Draining, _) => {
                Err(ApiError::unavailable("about to end").after(self.settings.drain))
            }
            (Phase::Loading, _) | (_, None) => {
                // As long again as it has taken so far.
                let after = self.began.elapsed().min(LONGEST_LOAD);
                Err(ApiError::unavailable("loading its model").after(after))
            }
            (Phase::Ready, Some(served)) => Ok(served),
        }
    }

    /// Hands in a request of `peer` that came at `came`.
    ///
    /// # Errors
    /// If it asks for more answers than there are places, or there is no place for it.
    pub(super) fn hand_in(
        &self,
        orders: Vec<Order>,
        peer: Peer,
        came: Instant,
    ) -> Result<Answering, ApiError> {
        let desk = &self.served()?.desk;
        let answers = orders.iter().map(|order| order.n).sum();
        let places = desk.capacity();
        if answers > places {
            return Err(TooMany::Places { answers, places }.refused());
        }
        desk.hand_in(orders, peer, came).ok_or_else(|| self.busy())
    }

    /// Counts a request as refused. Returned is the error that says that there is no place for it.
    pub(super) fn busy(&self) -> ApiError {
        self.metrics.figures().refused += 1;
        let desk = self.served.get().map(|served| &served.desk);
        ApiError::busy(desk.map(Desk::retry_after).unwrap_or_default())
    }
}

/// A random number, different for each call.
pub(super) fn number() -> u64 {
    RandomState::new().hash_one(0)
}
