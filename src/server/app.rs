//! What all requests share.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use tokio::sync::watch;

use super::desk::{Answering, Desk, Order};
use super::error::ApiError;
use super::kept::Kept;
use super::log::Log;
use super::memory::Tidy;
use super::metrics::Metrics;
use super::model::Model;
use super::reading::Reading;
use super::settings::Settings;

/// What a server is about.
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

/// What all requests share.
pub(super) struct App {
    pub(super) settings: Settings,
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
        Ok(Self {
            reading: Reading::new(settings.max_body)?,
            tidy: Arc::default(),
            settings,
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
            (Phase::Draining, _) => Err(ApiError::unavailable("about to end")),
            (Phase::Loading, _) | (_, None) => Err(ApiError::unavailable("loading its model")),
            (Phase::Ready, Some(served)) => Ok(served),
        }
    }

    /// Hands in requests that came at `came`.
    ///
    /// # Errors
    /// If there is no place for them.
    pub(super) fn hand_in(&self, orders: Vec<Order>, came: Instant) -> Result<Answering, ApiError> {
        let desk = &self.served()?.desk;
        let (count, capacity) = (orders.len(), desk.capacity);
        if count > capacity {
            let message = format!(
                "'n' asks for {count} answers, but this server has {capacity} places (--queue)"
            );
            return Err(ApiError::field("n", message));
        }
        desk.hand_in(orders, came).ok_or_else(|| self.busy())
    }

    /// Counts a request as refused. Returned is the error that says that there is no place for it.
    pub(super) fn busy(&self) -> ApiError {
        self.metrics.figures().refused += 1;
        ApiError::busy()
    }
}

/// A random number, different for each call.
pub(super) fn number() -> u64 {
    RandomState::new().hash_one(0)
}
