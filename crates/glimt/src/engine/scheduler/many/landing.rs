//! The results of a step, and the events that they cause.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use web_time::{Duration, Instant};

use super::sequence::Rows;
use super::{Flight, Many};
use crate::engine::backend::BackendError;
use crate::engine::batch::BatchLanding;
use crate::engine::draft::Proposal;
use crate::engine::scheduler::pages::Swap;
use crate::engine::scheduler::request::{Choice, Event, Told};
use crate::engine::{EngineError, StopReason};

/// How long a chooser is waited for before new requests are looked at.
const LISTEN: Duration = Duration::from_millis(2);

/// The outcome of the rows of a sequence in a step: that of its last token, and those of its drafts.
struct Drawn<'a> {
    /// The tokens that the device has chosen.
    ids: &'a [u32],
    /// Whether a logit was infinite or not a number, for each row.
    broken: &'a [bool],
    /// The logits, (rows, vocab), if the host chooses.
    logits: &'a mut [f32],
    /// The tokens of the rows behind the first one.
    drafts: &'a [u32],
}

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
        match landing {
            Some(landing) => {
                let took = self.pace.landed(flight.filled);
                self.take(&flight, took, landing, told);
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
                sequence.drafts = 0;
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
        flight: &Flight,
        took: Duration,
        mut landing: BatchLanding,
        told: &mut Told<'_>,
    ) {
        for (run, end) in &flight.parts {
            if let Some(index) = self.find(*run) {
                let sequence = &mut self.running[index];
                // Behind rows that are missing these are made again.
                if landing.layer_rows && sequence.predicted >= sequence.landed {
                    sequence.predicted = *end;
                }
                self.computed(index, *end, told);
            }
        }
        let decoded = self.decoded(flight, took);
        let vocab = self.engine.model().config().vocab_size;
        let mut predicted = &landing.drafts[..];
        for draw in &flight.draws {
            let drafts = match &draw.drafts {
                Proposal::None => &[],
                Proposal::Ids(ids) => &ids[..],
                Proposal::Predict(count) => {
                    let (own, others) = predicted.split_at(predicted.len().min(*count));
                    predicted = others;
                    own
                }
            };
            let Some(index) = self.find(draw.run) else {
                continue;
            };
            let verified = decoded.as_ref();
            let verified = verified.map(|step| self.verify_of(step, drafts.len()));
            let sequence = &mut self.running[index];
            (sequence.drafts, sequence.verified) = (0, verified);
            let rows = draw.first..draw.first + 1 + drafts.len();
            let logits = match draw.row {
                Some(row) => &mut landing.logits[row * vocab..][..rows.len() * vocab],
                None => &mut [],
            };
            let drawn = Drawn {
                ids: &landing.ids[rows.clone()],
                broken: &landing.broken[rows],
                logits,
                drafts,
            };
            self.drawn(draw.run, drawn, Duration::ZERO, told);
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

    /// Tokens of a sequence were chosen, or are to be: the one behind its last token, and those behind drafts as far as these are accepted. A
    /// chooser that is not ready is waited for so long.
    fn drawn(&mut self, run: u64, drawn: Drawn<'_>, mut wait: Duration, told: &mut Told<'_>) {
        let vocab = self.engine.model().config().vocab_size;
        for (row, is_broken) in drawn.broken.iter().enumerate() {
            let Some(index) = self.find(run) else {
                return;
            };
            if *is_broken {
                return self.broken(index, told);
            }
            let sequence = &mut self.running[index];
            let draft = drawn.drafts.get(row).copied();
            let goes_on = match &mut sequence.answer.choice {
                Choice::Device(..) => {
                    let token = drawn.ids[row];
                    self.chosen(index, token, draft, told).then_some(token)
                }
                Choice::Host(chooser) => {
                    if !chooser.is_ready(std::mem::take(&mut wait)) {
                        // It stays out of the steps until then.
                        sequence.held = Some(Rows {
                            broken: drawn.broken[row..].to_vec(),
                            logits: drawn.logits[row * vocab..].to_vec(),
                            drafts: drawn.drafts[row..].to_vec(),
                        });
                        return;
                    }
                    let logits = &mut drawn.logits[row * vocab..][..vocab];
                    self.chosen_on_host(index, logits, draft, told)
                }
            };
            let Some(token) = goes_on else {
                return;
            };
            if draft != Some(token) {
                break;
            }
            // The row behind the token is there as well.
            let sequence = &mut self.running[index];
            sequence.submitted += 1;
            sequence.drawn += 1;
            let end = sequence.submitted;
            self.computed(index, end, told);
        }
        if let Some(index) = self.find(run)
            && !self.settle(index, told)
        {
            self.remove(index);
        }
    }

    /// Ends a sequence whose logits are no numbers.
    fn broken(&mut self, index: usize, told: &mut Told<'_>) {
        // Rows that other requests would find here may be as wrong.
        self.pages.forget();
        let answer = self.remove(index);
        let error = BackendError::NotFinite {
            position: answer.tokens.len() - 1,
        };
        let _ = told(answer.id, Event::Failed(error.into()));
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
            if let Some(mut rows) = self.running[index].held.take() {
                let drawn = Drawn {
                    ids: &[],
                    broken: &rows.broken,
                    logits: &mut rows.logits,
                    drafts: &rows.drafts,
                };
                self.drawn(run, drawn, std::mem::take(&mut wait), told);
            }
        }
    }

    /// Chooses a token of a sequence, which has a draft or not, by its logits. Returned is the token if the answer goes on.
    fn chosen_on_host(
        &mut self,
        index: usize,
        logits: &mut [f32],
        draft: Option<u32>,
        told: &mut Told<'_>,
    ) -> Option<u32> {
        let sequence = &mut self.running[index];
        let answer = &mut sequence.answer;
        let (seat, id, position) = (sequence.seat, answer.id, answer.tokens.len());
        let Choice::Host(chooser) = &mut answer.choice else {
            return None;
        };
        let token = chooser.choose(logits, &answer.tokens);
        match token.and_then(|token| chooser.accept(token).map(|()| token)) {
            Ok(token) => {
                let goes_on = self.chosen(index, token, draft, told);
                if goes_on {
                    self.batch.write_ids(seat, position, &[token]);
                }
                goes_on.then_some(token)
            }
            Err(error) => {
                self.remove(index);
                let _ = told(id, Event::Failed(EngineError::Chooser(error)));
                None
            }
        }
    }

    /// Goes on with the token that was chosen for a sequence in the place of a draft, if there was one. Returned is whether its answer goes on.
    fn chosen(
        &mut self,
        index: usize,
        token: u32,
        draft: Option<u32>,
        told: &mut Told<'_>,
    ) -> bool {
        let sequence = &mut self.running[index];
        sequence.drawn -= 1;
        if draft == Some(token) {
            self.accepted(index);
        }
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
        let is_heard = self.settle(index, told);
        let answer = self.remove(index);
        if is_heard {
            let _ = told(answer.id, Event::Ended(answer.stats(stop)));
        }
    }
}
