//! Answers the requests of many users on one engine.
//!
//! [`Scheduler::submit`] takes requests at any time. [`Scheduler::step`] computes the next step of the device (`many`) and tells what came of
//! it. Rows that a request has in common with earlier ones are not computed again, and whoever asks for much leaves others their share
//! (`fair`).

mod fair;
mod guarded;
mod many;
mod pages;
mod request;
mod slots;
#[cfg(test)]
mod tests;

pub use fair::Owner;
pub use request::{Choice, Counts, DraftCounts, Event, MOST_DRAFTS, Request, RequestId, Told};
pub use slots::{SlotAction, SlotDone, SlotError};

use super::backend::Touch;
use super::draft::DraftOptions;
use super::{Engine, EngineError};
use guarded::Guarded;
use many::Many;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use web_time::Duration;

/// Time that warming up may take, and the step that is under way then.
const WARM_UP: Duration = Duration::from_secs(60);

/// Requests, and what answers them.
pub struct Scheduler {
    engine: Engine,
    many: Many,
    submitted: u64,
}

impl Scheduler {
    /// A scheduler without requests, with its cache on the device of `engine`. It answers as many requests at once as
    /// [`EngineOptions::serving`](super::EngineOptions::serving) asks for, else one; the steps that decode are compiled then.
    ///
    /// # Errors
    /// The error that the cache does not fit.
    pub async fn new(engine: &Engine) -> Result<Self, EngineError> {
        let mut many = Many::new(engine).await?;
        many.prepare().await?;
        Ok(Self {
            engine: engine.clone(),
            many,
            submitted: 0,
        })
    }

    /// A flag that is to be set when a request has come that is not [submitted](Self::submit) yet, and to be unset before such requests are
    /// looked for. A step of a request that is alone then ends early.
    pub fn bell(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.many.bell)
    }

    /// Computes with every step once before there are requests, so that the first request is answered as fast as the second: drivers may
    /// finish compiling only then, and weights come into memory. `told` hears how many steps ran, and of how many. A device that is too
    /// slow for all of them does without the longest.
    ///
    /// # Errors
    /// The error that the device reports.
    pub async fn warm_up(
        &mut self,
        told: &mut (dyn FnMut(usize, usize) + Send),
    ) -> Result<(), EngineError> {
        self.many.warm_up(WARM_UP, told).await
    }

    /// Checks that answers can have the drafts that `options` ask for.
    ///
    /// # Errors
    /// [`EngineError::Draft`].
    pub fn check_drafts(&self, options: &DraftOptions) -> Result<(), EngineError> {
        self.many.check_drafts(options)
    }

    /// The most requests that are answered at the same time.
    pub fn slots(&self) -> usize {
        self.many.slots()
    }

    /// Takes a request. It never blocks, and nothing is computed before the next [`step`](Self::step).
    ///
    /// # Errors
    /// [`EngineError::NoTokens`], [`EngineError::UnknownToken`], [`EngineError::PromptTooLong`], [`EngineError::CacheTooSmall`] or
    /// [`EngineError::Draft`].
    pub fn submit(&mut self, mut request: Request) -> Result<RequestId, EngineError> {
        self.engine.check_tokens(&request.prompt, 0)?;
        if let Choice::Host(chooser) = request.choice {
            request.choice = Choice::Host(Box::new(Guarded::new(chooser)));
        }
        let id = RequestId(self.submitted);
        self.many.submit(id, request)?;
        self.submitted += 1;
        Ok(id)
    }

    /// Does the next piece of work, if there are requests, and tells its outcome. A break for a request cancels it: nothing more
    /// is told of it. If its future is dropped, the next call goes on with the step that was on its way: the CPU computes it again. On a GPU
    /// a future is to be driven to its end all the same, since a request whose step is dropped while it is handed to the device is lost.
    ///
    /// # Errors
    /// The error that the device reports where it can compute nothing any more. No request is answered then, and none was told.
    pub async fn step(&mut self, told: &mut Told<'_>) -> Result<(), EngineError> {
        self.many.step(told).await
    }

    /// Forgets a request. Nothing more is told of it. One that has ended is none.
    pub fn cancel(&mut self, id: RequestId) {
        self.many.cancel(id);
    }

    /// Does something with the sequence of a slot below [`slots`](Self::slots).
    ///
    /// # Errors
    /// [`SlotError`]. The slot is then as it was.
    pub async fn act(&mut self, slot: usize, action: &SlotAction) -> Result<SlotDone, SlotError> {
        self.many.act(slot, action).await
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.many.is_idle()
    }

    /// The counts of requests, rows and tokens.
    pub fn counts(&self) -> Counts {
        self.many.counts()
    }

    /// A function that keeps the device ready while nothing is asked for, where the device needs that.
    pub fn warm(&self) -> Option<Touch> {
        self.many.warm()
    }
}
