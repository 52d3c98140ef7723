//! Many requests at once, in steps of several sequences.
//!
//! Each sequence that decodes has one token in a step. As many tokens of the prompts join it as keep it short (`pace`). While a step runs on a GPU, the next one is
//! submitted: the device writes the tokens it chooses to where that one reads them. So a sequence may be computed past its end. What comes
//! of that is left out, and its pages go to others only when no step in flight names them.
//!
//! The CPU computes one step at a time. The prompt of a request that is alone there has steps as long as the CPU likes them. Such a step is
//! broken off when somebody comes, and for a while none is made then: an interrupted one is computed again, so whoever comes often could keep
//! a long prompt from its end.
//!
//! A sequence may have drafts behind its token (`drafts`). Then nothing else is submitted before the step has landed: the others join the next
//! one, and each weight is read once for all.
//!
//! If there is no page for the next token of a sequence, the youngest one of the peer that holds most pages is taken back. It waits with its
//! tokens so far, and is computed again from them. The draw of a token depends on its position and the seed alone, so its answer goes on as
//! if nothing had been.

mod admission;
mod drafts;
mod landing;
mod pace;
mod plan;
mod sequence;
mod slots;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use web_time::{Duration, Instant};

use super::fair::Rounds;
use super::pages::{Pages, ROWS};
use super::request::{Counts, DraftCounts, Request, RequestId, Told};
use crate::engine::backend::Touch;
use crate::engine::batch::Batch;
use crate::engine::cpu::CpuBatch;
use crate::engine::draft::{DraftOptions, Drafter, Proposal};
use crate::engine::gpu::batch::GpuBatch;
use crate::engine::{Engine, EngineError, StopReason};
use drafts::Costs;
use pace::{Filled, Pace};
use sequence::{Answer, Sequence};

/// The choice of a token in a step, and of those behind its drafts.
struct Draw {
    run: u64,
    /// The index of the token among those of the step after which one is chosen. The drafts follow it.
    first: usize,
    /// The row of the token among the rows of logits of the step, if the host chooses. Those of the drafts follow it.
    row: Option<usize>,
    drafts: Proposal,
}

/// A step on its way.
struct Flight {
    /// The number of steps that were submitted, this one included.
    number: u64,
    /// The choices of its sequences, one for each that decodes or whose prompt it ends.
    draws: Vec<Draw>,
    /// Up to which position it computes each of its sequences.
    parts: Vec<(u64, usize)>,
    filled: Filled,
    /// The run of a prompt that has the step for itself and may be broken off.
    watched: Option<u64>,
}

/// Requests that are answered at once.
pub(super) struct Many {
    engine: Engine,
    batch: Box<dyn Batch>,
    pages: Pages,
    /// Requests that wait, in the order in which they came.
    waiting: VecDeque<Answer>,
    rounds: Rounds,
    /// Requests that are answered, in the order in which they came.
    running: Vec<Sequence>,
    /// Sequences of the batch that nobody uses.
    seats: Vec<u32>,
    /// The tokens of each slot.
    kept: Vec<Vec<u32>>,
    flights: VecDeque<Flight>,
    /// Pages that are let go once this step has landed.
    leaving: Vec<(u64, Vec<u32>)>,
    pace: Pace,
    /// Whether somebody has come while a step is computed.
    pub(super) bell: Arc<AtomicBool>,
    /// When several were there last.
    shared: Option<Instant>,
    /// Steps submitted.
    flown: u64,
    /// Sequences begun, those that were taken up again counted again.
    runs: u64,
    prefix_asked: u64,
    prefix_found: u64,
    costs: Costs,
    /// Drafters of answers that have ended, which have learned what pays.
    drafters: Vec<(DraftOptions, Box<dyn Drafter>)>,
    drafted: DraftCounts,
}

impl Many {
    /// A scheduler without requests.
    pub(super) async fn new(engine: &Engine) -> Result<Self, EngineError> {
        let sizes = engine.sizes_to_serve()?;
        let batch: Box<dyn Batch> = match &engine.0.weights {
            Some(weights) => Box::new(GpuBatch::new(Arc::clone(weights), sizes).await?),
            None => Box::new(CpuBatch::new(
                Arc::clone(&engine.model),
                engine.cpu_products,
                sizes,
            )?),
        };
        Ok(Self::of(engine.clone(), batch))
    }

    /// A scheduler without requests, which answers those for `engine` by the steps of `batch`.
    fn of(engine: Engine, batch: Box<dyn Batch>) -> Self {
        let sizes = batch.sizes();
        Self {
            engine,
            pages: Pages::new(sizes.pages),
            waiting: VecDeque::new(),
            rounds: Rounds::default(),
            running: vec![],
            seats: (0..sizes.sequences).rev().collect(),
            kept: vec![vec![]; sizes.sequences as usize],
            flights: VecDeque::new(),
            leaving: vec![],
            pace: match batch.in_flight() {
                1 => Pace::of_slow(),
                _ => Pace::new(),
            },
            bell: Arc::default(),
            shared: None,
            flown: 0,
            runs: 0,
            prefix_asked: 0,
            prefix_found: 0,
            costs: Costs::default(),
            drafters: vec![],
            drafted: DraftCounts::default(),
            batch,
        }
    }

    /// Whether steps are so slow that they are computed one at a time and can be broken off.
    fn is_slow(&self) -> bool {
        self.batch.in_flight() == 1
    }

    /// Compiles all steps, so that no answer waits for that.
    pub(super) async fn prepare(&mut self) -> Result<(), EngineError> {
        Ok(self.batch.prepare_all().await?)
    }

    /// Runs all steps once, as far as there is time.
    pub(super) async fn warm_up(
        &mut self,
        most: Duration,
        told: &mut (dyn FnMut(usize, usize) + Send),
    ) -> Result<(), EngineError> {
        Ok(self.batch.warm_up(most, told).await?)
    }

    pub(super) fn slots(&self) -> usize {
        self.batch.sizes().sequences as usize
    }

    fn rows_in_all(&self) -> usize {
        self.pages.count() * ROWS
    }

    /// Takes a request.
    ///
    /// # Errors
    /// [`EngineError::CacheTooSmall`] or [`EngineError::Draft`].
    pub(super) fn submit(&mut self, id: RequestId, request: Request) -> Result<(), EngineError> {
        let Request {
            prompt,
            choice,
            limit,
            owner,
            slot,
            drafts,
            expected,
        } = request;
        self.engine.check_cache(prompt.len())?;
        self.check_drafts(&drafts)?;
        self.rounds.came(owner);
        let room = self.engine.n_ctx().min(self.rows_in_all()) - prompt.len();
        self.waiting.push_back(Answer {
            id,
            owner,
            prompt: prompt.len(),
            tokens: prompt,
            choice,
            drafts,
            expected,
            is_expected: false,
            drafter: None,
            slot,
            limit: limit.min(room),
            at_limit: match limit <= room {
                true => StopReason::Limit,
                false => StopReason::ContextFull,
            },
            begun: None,
            cached: 0,
            told: 0,
            first: None,
            delivered: 0,
            drafted: [0; 2],
        });
        Ok(())
    }

    pub(super) fn cancel(&mut self, id: RequestId) {
        self.waiting.retain(|answer| answer.id != id);
        if let Some(index) = self.running.iter().position(|s| s.answer.id == id) {
            self.remove(index);
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        // Steps in flight hold pages.
        self.waiting.is_empty() && self.running.is_empty() && self.flights.is_empty()
    }

    pub(super) fn counts(&self) -> Counts {
        Counts {
            running: self.running.len(),
            waiting: self.waiting.len(),
            rows: self.pages.held() * ROWS,
            rows_in_all: self.rows_in_all(),
            prefix_asked: self.prefix_asked,
            prefix_found: self.prefix_found,
            drafts: self.drafted,
        }
    }

    pub(super) fn warm(&self) -> Option<Touch> {
        self.batch.warm()
    }

    /// Submits steps, and tells what came of the oldest one.
    pub(super) async fn step(&mut self, told: &mut Told<'_>) -> Result<(), EngineError> {
        self.admit(told);
        if self.running.len() + self.waiting.len() > 1 {
            self.shared = Some(Instant::now());
        }
        self.take_held(told);
        while self.may_fly() && self.fly().await? {}
        self.land(told).await
    }

    /// Whether another step may be submitted now. Behind drafts none is: their sequence would miss it.
    fn may_fly(&self) -> bool {
        self.flights.len() < self.batch.in_flight() && self.running.iter().all(|s| s.drafts == 0)
    }

    /// The index of a sequence, which may have been removed.
    fn find(&self, run: u64) -> Option<usize> {
        self.running.iter().position(|s| s.run == run)
    }

    /// Ends a sequence. Its rows are kept for others.
    fn remove(&mut self, index: usize) -> Answer {
        let mut sequence = self.running.remove(index);
        self.keep_drafter(&mut sequence.answer);
        let tokens = &sequence.answer.tokens;
        let rows = &tokens[..sequence.landed.min(tokens.len())];
        self.pages.register_rest(&sequence.table, rows);
        if let Some(kept) = self.kept.get_mut(sequence.name()) {
            kept.clone_from(tokens);
        }
        self.seats.push(sequence.seat);
        self.depart(sequence.table.pages);
        sequence.answer
    }

    /// Lets pages go when no step names them any more.
    fn depart(&mut self, pages: Vec<u32>) {
        match self.flights.is_empty() {
            true => self.pages.release(pages),
            false => self.leaving.push((self.flown, pages)),
        }
    }
}

#[cfg(test)]
mod tests;
