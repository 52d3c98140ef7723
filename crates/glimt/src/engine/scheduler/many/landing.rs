//! The results of a step, and the events that they cause.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use web_time::{Duration, Instant};

use super::{Draw, Flight, Many};
use crate::engine::backend::BackendError;
use crate::engine::batch::BatchLanding;
use crate::engine::scheduler::pages::Swap;
use crate::engine::scheduler::request::{Choice, Event, Told};
use crate::engine::{EngineError, StopReason};

/// How long a chooser is waited for before new requests are looked at.
const LISTEN: Duration = Duration::from_millis(2);

impl Many {
    /// Waits for the oldest step, and tells what came of it.
    pub(super) async fn land(&mut self, told: &mut Told<'_>) -> Result<(), EngineError> {
        // It stays the oldest one where this future is dropped: the next call waits for it again.
        let Some(flight) = self.flights.front() else {
            return Ok(());
        };
        let index = flight.watched.and_then(|run| self.find(run));
        let mut left = false;
        let may_share = self.slots() > 1;
        let Self {
            batch,
            running,
            bell,
            ..
        } = self;
        let on_prompt = &mut |computed: usize| {
            let Some(sequence) = index.map(|index| &mut running[index]) else {
                return ControlFlow::Continue(());
            };
            let slot = sequence.name();
            let answer = &mut sequence.answer;
            let (done, cached) = (sequence.landed + computed, answer.cached);
            if done > answer.told {
                answer.told = done;
                left = told(answer.id, Event::Prompt { done, cached, slot }).is_break();
            }
            match left || may_share && bell.load(Ordering::Relaxed) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        let landing = batch.land(on_prompt).await;
        let Some(flight) = self.flights.pop_front() else {
            return Ok(());
        };
        let landing = landing?;
        self.let_go(flight.number);
        let Flight { draws, parts, .. } = &flight;
        match landing {
            Some(landing) => {
                self.pace.landed(flight.filled);
                self.take(draws, parts, landing, told);
            }
            None => self.break_off(flight, left),
        }
        Ok(())
    }

    /// Takes back what a step was to compute that was broken off, the only one on its way: somebody has come, or its request has `left`.
    fn break_off(&mut self, flight: Flight, left: bool) {
        self.shared = Some(Instant::now());
        for (run, _) in flight.parts {
            if let Some(index) = self.find(run) {
                let sequence = &mut self.running[index];
                (sequence.submitted, sequence.drawn) = (sequence.landed, 0);
                if left {
                    self.remove(index);
                }
            }
        }
    }

    /// Lets the pages go that only steps up to this one name.
    fn let_go(&mut self, number: u64) {
        let is_gone = |(last, _): &mut (u64, Vec<u32>)| *last <= number;
        for (_, pages) in self.leaving.extract_if(.., is_gone) {
            self.pages.release(pages);
        }
    }

    /// Takes what a step came to for each of its sequences that are still there.
    pub(super) fn take(
        &mut self,
        draws: &[Draw],
        parts: &[(u64, usize)],
        mut landing: BatchLanding,
        told: &mut Told<'_>,
    ) {
        for (run, end) in parts {
            if let Some(index) = self.find(*run) {
                self.computed(index, *end, told);
            }
        }
        for (which, draw) in draws.iter().enumerate() {
            if let Some(index) = self.find(draw.run) {
                self.drawn(index, which, draw, &mut landing, told);
            }
        }
        self.batch.take_back(landing.logits);
    }

    /// The rows of a sequence up to `end` are there.
    fn computed(&mut self, index: usize, end: usize, told: &mut Told<'_>) {
        let sequence = &mut self.running[index];
        sequence.landed = end;
        let slot = sequence.name();
        let answer = &mut sequence.answer;
        let (seat, id, prompt) = (sequence.seat, answer.id, answer.prompt);
        let rows = &answer.tokens[..end.min(answer.tokens.len())];
        let swaps = self.pages.register(&mut sequence.table, rows);
        let (done, cached) = (end.min(prompt), answer.cached);
        let is_news = done > answer.told;
        answer.told = answer.told.max(done);
        for Swap { index, old } in swaps {
            let new = self.running.iter().find(|s| s.seat == seat);
            let new = new.map(|s| s.table.pages[index]);
            self.batch.write_pages(seat, index, new.as_slice());
            self.depart(vec![old]);
        }
        if is_news && told(id, Event::Prompt { done, cached, slot }).is_break() {
            self.remove(index);
        }
    }

    /// A token of a sequence was chosen, or is to be.
    fn drawn(
        &mut self,
        index: usize,
        which: usize,
        draw: &Draw,
        landing: &mut BatchLanding,
        told: &mut Told<'_>,
    ) {
        let sequence = &mut self.running[index];
        let answer = &mut sequence.answer;
        let id = answer.id;
        let position = answer.tokens.len();
        if landing.broken[which] {
            // Rows that other requests would find here may be as wrong.
            self.pages.forget();
            self.remove(index);
            let error = BackendError::NotFinite {
                position: position - 1,
            };
            let _ = told(id, Event::Failed(error.into()));
            return;
        }
        match (&mut answer.choice, draw.row) {
            (Choice::Host(chooser), Some(row)) => {
                let vocab = self.engine.model().config().vocab_size;
                let logits = &mut landing.logits[row * vocab..][..vocab];
                match chooser.is_ready(Duration::ZERO) {
                    true => self.chosen_on_host(index, logits, told),
                    // It stays out of the steps until then.
                    false => sequence.held = Some(logits.to_vec()),
                }
            }
            _ => {
                sequence.drawn -= 1;
                self.chosen(index, landing.ids[which], told);
            }
        }
    }

    /// Goes on with the sequences that waited for their choosers. If there is nothing else to do, one of them is waited for.
    pub(super) fn take_held(&mut self, told: &mut Told<'_>) {
        let mut wait = match self.flights.is_empty() {
            true => LISTEN,
            false => Duration::ZERO,
        };
        let held = self.running.iter().filter(|s| s.held.is_some());
        let held: Vec<u64> = held.map(|s| s.run).collect();
        for run in held {
            let Some(index) = self.find(run) else {
                continue;
            };
            let sequence = &mut self.running[index];
            let Choice::Host(chooser) = &mut sequence.answer.choice else {
                continue;
            };
            if chooser.is_ready(std::mem::take(&mut wait))
                && let Some(mut logits) = sequence.held.take()
            {
                self.chosen_on_host(index, &mut logits, told);
            }
        }
    }

    /// Chooses a token of a sequence by its logits.
    fn chosen_on_host(&mut self, index: usize, logits: &mut [f32], told: &mut Told<'_>) {
        let sequence = &mut self.running[index];
        sequence.drawn -= 1;
        let answer = &mut sequence.answer;
        let (seat, id, position) = (sequence.seat, answer.id, answer.tokens.len());
        let Choice::Host(chooser) = &mut answer.choice else {
            return;
        };
        let token = chooser.choose(logits, &answer.tokens);
        match token.and_then(|token| chooser.accept(token).map(|()| token)) {
            Ok(token) => {
                if self.chosen(index, token, told) {
                    self.batch.write_ids(seat, position, &[token]);
                }
            }
            Err(error) => {
                self.remove(index);
                let _ = told(id, Event::Failed(EngineError::Chooser(error)));
            }
        }
    }

    /// Goes on with the token that was chosen for a sequence. Returned is whether its answer goes on.
    fn chosen(&mut self, index: usize, token: u32, told: &mut Told<'_>) -> bool {
        let answer = &mut self.running[index].answer;
        answer.first.get_or_insert_with(Instant::now);
        answer.delivered += 1;
        let said = &answer.tokens[answer.prompt..];
        if let Some(stop) = self.engine.end_before(token, said, answer.left()) {
            self.end(index, stop, told);
            return false;
        }
        answer.tokens.push(token);
        let (id, generated) = (answer.id, answer.generated());
        let (limit, at_limit) = (answer.limit, answer.at_limit);
        if told(id, Event::Token(token)).is_break() {
            self.remove(index);
            return false;
        }
        if generated == limit {
            self.end(index, at_limit, told);
        }
        generated < limit
    }

    /// Ends an answer, and tells it.
    fn end(&mut self, index: usize, stop: StopReason, told: &mut Told<'_>) {
        let answer = self.remove(index);
        let _ = told(answer.id, Event::Ended(answer.stats(stop)));
    }
}
