//! Drafts of sequences: how many a step has room for, what they cost, and what comes of them.
//!
//! A sequence with drafts computes its last token and the drafts behind it in one step. How far that takes it is known when the step has
//! landed, so nothing is submitted meanwhile. Rows of drafts that were not accepted are computed again by the next step.

use std::collections::BTreeMap;
use web_time::Duration;

use super::sequence::Answer;
use super::{Draw, Flight, Many};
use crate::engine::EngineError;
use crate::engine::draft::{
    DraftMeans, DraftOptions, DraftSource, Drafter, Drafts, Proposal, Verified,
};
use crate::engine::scheduler::request::{Event, MOST_DRAFTS, Told};

/// The share of what is known of a cost that a step replaces.
const NEWS: f64 = 0.25;

/// What drafts of all sequences together may lose in steps without drafts: at the beginning, at most after they gained more, and of each step.
const FIRST_CREDIT: f64 = 3.0;
const MOST_CREDIT: f64 = 16.0;
/// The most that they are in debt, so that they are taken again in a foreseeable time.
const MOST_DEBT: f64 = 4.0;
const LOSS: f64 = 0.005;
/// The cost of a step with drafts behind one without, in steps without drafts, beside its own time. The device waits for the host there, and a
/// sequence waits for its last token.
const BEGINNING: f64 = 1.0;

/// The times of steps in which sequences only decode, without drafts, and what drafts have gained and lost.
#[derive(Debug)]
pub(super) struct Costs {
    alone: BTreeMap<usize, f64>,
    /// What drafts may lose. Each sequence decides on its own drafts, and all trials of several would cost too much.
    credit: f64,
    /// The sequences of the last step, if it had drafts.
    drafted: Option<usize>,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            alone: BTreeMap::new(),
            credit: FIRST_CREDIT,
            drafted: None,
        }
    }
}

impl Costs {
    /// A step of so many sequences took so long.
    fn learn(&mut self, sequences: usize, seconds: f64) {
        let known = self.alone.entry(sequences).or_insert(seconds);
        *known += NEWS * (seconds - *known);
        self.drafted = None;
        self.pay(LOSS);
    }

    /// A step of so many sequences with drafts took so long. `is_flown` is whether steps without drafts wait for no answer.
    fn drafted(&mut self, sequences: usize, seconds: f64, is_flown: bool) {
        let alone = self.alone.get(&sequences).copied().unwrap_or(seconds);
        let beginning = match self.drafted.replace(sequences) {
            None if is_flown => BEGINNING,
            _ => 0.0,
        };
        self.pay(LOSS + 1.0 - seconds / alone - beginning);
    }

    /// A draft of the last step was accepted: a token of one of its sequences that needs no other step.
    fn accepted(&mut self) {
        self.pay(1.0 / self.drafted.unwrap_or(1).max(1) as f64);
    }

    fn pay(&mut self, steps: f64) {
        self.credit = (self.credit + steps).clamp(-MOST_DEBT, MOST_CREDIT);
    }

    /// Whether drafts may be taken: they have not lost more than they may.
    fn allow(&self) -> bool {
        self.credit >= 0.0
    }

    /// The time that a step costs a sequence that had `drafts` of the `drafted` drafts in it: it pays for the time that these cost all
    /// `sequences`. So drafts that pay for one sequence do not cost others more.
    fn share(&self, seconds: f64, sequences: usize, [drafts, drafted]: [usize; 2]) -> f64 {
        let alone = self.alone.get(&sequences).copied().unwrap_or(seconds);
        if drafted == 0 {
            return seconds;
        }
        let more = (seconds - alone).max(0.0);
        seconds.min(alone) + more * (sequences * drafts) as f64 / drafted as f64
    }
}

/// A step without prompts that has landed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Decoded {
    /// The time that it took.
    pub(super) took: Duration,
    /// The sequences in it.
    pub(super) sequences: usize,
    /// Their drafts.
    pub(super) drafted: usize,
}

impl Many {
    /// The means that there are for drafts.
    fn draft_means(&self) -> DraftMeans {
        let most = self.batch.sizes().drafts as usize;
        DraftMeans {
            most: most.min(self.batch.as_one().saturating_sub(1)),
            predicts: self.batch.predicts() > 0,
            // A server has no model whose tokens are computed one by one.
            one_by_one: false,
            brings_experts: self.engine.partly().is_some(),
        }
    }

    /// Checks that answers can have such drafts.
    ///
    /// # Errors
    /// [`EngineError::Draft`].
    pub(in crate::engine::scheduler) fn check_drafts(
        &self,
        options: &DraftOptions,
    ) -> Result<(), EngineError> {
        Drafts::new(options, &self.draft_means())?;
        Ok(())
    }

    /// Something that proposes such drafts: what has learned from an earlier answer, if there is one.
    pub(super) fn drafter(&mut self, options: &DraftOptions) -> Option<Box<dyn Drafter>> {
        let known = self.drafters.iter().position(|(known, _)| known == options);
        if let Some(index) = known {
            return Some(self.drafters.swap_remove(index).1);
        }
        // They were checked when the request came.
        let drafts = Drafts::new(options, &self.draft_means());
        drafts.ok().flatten().map(|drafts| Box::new(drafts) as _)
    }

    /// Keeps what proposed drafts for an answer, for the next one.
    pub(super) fn keep_drafter(&mut self, answer: &mut Answer) {
        if answer.drafts.source != DraftSource::Off
            && let Some(drafter) = answer.drafter.take()
        {
            self.drafters.push((answer.drafts, drafter));
            let most = self.slots();
            let surplus = self.drafters.len().saturating_sub(most);
            self.drafters.drain(..surplus);
        }
    }

    /// The drafts that a step of `decoding` sequences has room for: as many as leave each row what it is in a step of its own, to the bit.
    fn room_for_drafts(&self, decoding: usize) -> usize {
        // The prompts of others would make the step longer than that.
        if self.running.iter().any(|s| s.is_ready() && s.left() > 1) || !self.costs.allow() {
            return 0;
        }
        let rows = self.batch.sizes().most_drawn() as usize;
        rows.min(self.batch.as_one()).saturating_sub(decoding)
    }

    /// The drafts of each of the sequences that decode in the next step. Those go that have to wait until their last token is known here.
    pub(super) fn drafts(&mut self, decoding: Vec<u64>) -> Vec<(u64, Proposal)> {
        let mut room = self.room_for_drafts(decoding.len());
        let mut left = decoding.len();
        let mut found = vec![];
        for run in decoding {
            let most = room.div_ceil(left.max(1));
            left -= 1;
            let drafts = self.propose(run, most);
            let is_known = self.find(run).is_some_and(|i| self.running[i].drawn == 0);
            if is_known || drafts == Proposal::None {
                room -= drafts.count();
                found.push((run, drafts));
            }
        }
        found
    }

    /// Up to `most` drafts behind the last known token of a sequence. Nobody is taken back for them.
    fn propose(&mut self, run: u64, most: usize) -> Proposal {
        let most = most.min(self.draft_means().most);
        let Some(index) = self.find(run) else {
            return Proposal::None;
        };
        let sequence = &mut self.running[index];
        let answer = &mut sequence.answer;
        let left = (answer.limit - answer.generated()).saturating_sub(1);
        let most = most.min(left).min(MOST_DRAFTS);
        let Some(drafter) = answer.drafter.as_mut().filter(|_| most > 0) else {
            return Proposal::None;
        };
        let vocab = self.engine.model().config().vocab_size;
        let drafts = match drafter.propose(&answer.tokens, most) {
            Proposal::Ids(ids) => {
                answer.is_expected = drafter.is_expected();
                let known = ids.into_iter().take(most);
                Proposal::Ids(known.take_while(|id| (*id as usize) < vocab).collect())
            }
            Proposal::Predict(count) => {
                answer.is_expected = false;
                Proposal::Predict(count.min(most).min(self.batch.predicts()))
            }
            Proposal::None => Proposal::None,
        };
        if drafts.count() == 0 {
            return Proposal::None;
        }
        let rows = answer.tokens.len() + drafts.count();
        let before = sequence.table.pages.len();
        match self.pages.grow(&mut sequence.table, rows) {
            true => {
                let new = &sequence.table.pages[before..];
                self.batch.write_pages(sequence.seat, before, new);
                drafts
            }
            false => Proposal::None,
        }
    }

    /// Counts a step that has landed, and tells what it was where sequences only decoded.
    pub(super) fn decoded(&mut self, flight: &Flight, took: Duration) -> Option<Decoded> {
        let sequences = flight.draws.len();
        let mut drafted = 0;
        for Draw { drafts, .. } in &flight.draws {
            let count = drafts.count();
            drafted += count;
            self.drafted.steps += u64::from(count > 0);
            self.drafted.drafted += count as u64;
        }
        if flight.filled.prompts > 0 {
            return None;
        }
        match drafted {
            0 => self.costs.learn(sequences, took.as_secs_f64()),
            _ => {
                let is_flown = !self.is_slow();
                self.costs.drafted(sequences, took.as_secs_f64(), is_flown);
            }
        }
        Some(Decoded {
            took,
            sequences,
            drafted,
        })
    }

    /// Counts a draft of a sequence that was accepted.
    pub(super) fn accepted(&mut self, index: usize) {
        if let Some(step) = &mut self.running[index].verified {
            if let Some(count) = self.drafted.accepted.get_mut(step.accepted) {
                *count += 1;
            }
            step.accepted += 1;
            self.costs.accepted();
        }
    }

    /// Tells of the step of a sequence if it had drafts, and has them judged. Returned is whether the answer goes on.
    pub(super) fn settle(&mut self, index: usize, told: &mut Told<'_>) -> bool {
        let sequence = &mut self.running[index];
        let Some(step) = sequence.verified.take() else {
            return true;
        };
        if let Some(drafter) = &mut sequence.answer.drafter {
            drafter.verified(&step);
        }
        let Verified {
            drafted, accepted, ..
        } = step;
        sequence.answer.drafted[0] += drafted;
        sequence.answer.drafted[1] += accepted;
        let event = Event::Drafted {
            drafted,
            accepted,
            is_expected: sequence.answer.is_expected,
        };
        drafted == 0 || told(sequence.answer.id, event).is_continue()
    }

    /// The part that a sequence with so many drafts had in a step, of which none is accepted yet.
    pub(super) fn verify_of(&self, step: &Decoded, drafts: usize) -> Verified {
        let seconds = step.took.as_secs_f64();
        let drafted = [drafts, step.drafted];
        let share = self.costs.share(seconds, step.sequences, drafted);
        Verified {
            drafted: drafts,
            accepted: 0,
            took: Duration::from_secs_f64(share),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_of_all_together_lose_little_and_go_on_where_they_gain() {
        // Each of two has one draft, of which so many of ten are accepted.
        for (accepted, drafts) in [(0, 0..=40), (8, 1990..=2000)] {
            let mut costs = Costs::default();
            costs.learn(2, 1.0);
            let (mut time, mut tokens, mut with) = (0.0, 0, 0);
            for step in 0..2000 {
                let is_drafted = costs.allow();
                let seconds = if is_drafted { 1.5 } else { 1.0 };
                time += seconds;
                tokens += 2;
                match is_drafted {
                    false => costs.learn(2, seconds),
                    true => {
                        with += 1;
                        costs.drafted(2, seconds, true);
                        for own in 0..2 {
                            if (step * 7 + own * 3) % 10 < accepted {
                                tokens += 1;
                                costs.accepted();
                            }
                        }
                    }
                }
            }
            assert!(drafts.contains(&with), "{with} steps with drafts");
            assert!(
                time <= 1.02 * f64::from(tokens) / 2.0,
                "{time} for {tokens} tokens"
            );
        }
    }

    #[test]
    fn drafts_of_one_pay_for_the_time_of_all() {
        let mut costs = Costs::default();
        // Nothing is known of steps without drafts yet.
        assert_eq!(costs.share(0.5, 4, [2, 2]), 0.5);
        costs.learn(4, 2.0);
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} instead of {b}");
        near(costs.share(2.0, 4, [0, 0]), 2.0);
        // Its drafts take half a second from each of four.
        near(costs.share(2.5, 4, [3, 3]), 4.0);
        // All have as many.
        near(costs.share(3.0, 4, [2, 8]), 3.0);
        // Who has none does not pay for others.
        near(costs.share(3.0, 4, [0, 3]), 2.0);
        near(costs.share(1.5, 4, [3, 3]), 1.5);
        costs.learn(4, 4.0);
        near(costs.share(4.0, 4, [1, 1]), 2.5 + 4.0 * 1.5);
    }
}
