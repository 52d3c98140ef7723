//! The number of drafts that pays, by what steps take on the device in hand and by what became of earlier drafts.
//!
//! A step of `n` drafts gives `1 + q1 + q1 q2 + ...` tokens on average, where `q` is the share of drafts accepted if those before were. The number
//! with the most tokens in a second is taken, and none where a step of one token gives as many.
//!
//! Steps are in flight while others are chosen. So a choice takes effect some steps later, and the first steps of a kind say nothing of its time:
//! between steps with drafts and without the device waits for the host. Going from one to the other costs about as much as a token, while another
//! number of drafts costs little. So drafts have to promise more to be begun than to go on, and those of the layer are tried for some steps in a
//! row. What such trials may lose is limited: a small share of the time of all steps, and what earlier drafts have gained.

mod measured;

use super::Verified;
use measured::Measured;
use measured::Times;
pub(super) use measured::Way;

/// Steps with drafts of which the last [`EXPLORED`] have one more than seems best, or one less in turn.
const EXPLORING: usize = 64;
const EXPLORED: usize = 5;
/// Steps whose times do not count after those of another kind.
const SETTLING: usize = 2;
/// Times of a step of one token that have to be known.
const KNOWN: usize = 3;
/// Steps with drafts after which the time of one token is measured again.
const MEASURED_AGAIN: usize = 512;
/// The share of the time of all steps that drafts may lose.
const LOSS: f64 = 0.007;
/// What drafts may lose at the beginning, and at most after they gained more, in steps of one token.
const FIRST_CREDIT: f64 = 3.0;
const MOST_CREDIT: f64 = 8.0;
/// The most steps of one token that drafts are in debt, so that they are tried again in a foreseeable time.
const MOST_DEBT: f64 = 3.0;
/// The steps of one token that going from one kind of step to the other is assumed to cost, and the share of that which a measured one replaces.
const SWITCH: f64 = 1.0;
const NEWS: f64 = 0.25;
/// The steps that drafts go on for, from which the costs of beginning and of ending them have to be gained: those of the layer, and of a match.
const LONG_RUN: f64 = 16.0;
const SHORT_RUN: f64 = 4.0;
/// The number of steps without drafts that are still in flight when drafts begin.
const IN_FLIGHT: i32 = 2;
/// The gain from which drafts are begun, and that to which they go on.
const BEGIN: f64 = 1.05;
const GO_ON: f64 = 1.0;
/// The steps of a trial of the layer, and those after which it ends if no draft of it was accepted.
const TRIAL: usize = 6;
const HOPELESS: usize = 3;
/// The credit that a trial needs.
const TRIAL_CREDIT: f64 = 2.0;
/// The most steps of one token that a step counts as beyond what was expected: it may have been compiled.
const UNUSUAL: f64 = 2.0;
/// Steps without drafts between two trials of drafts that do not pay: first and at most.
const FIRST_PAUSE: usize = 64;
const LONGEST_PAUSE: usize = 1024;

/// Chooses the number of drafts.
#[derive(Debug)]
pub(super) struct Policy {
    plain: Times,
    measured: Measured,
    /// What drafts may lose, in steps of one token.
    credit: f64,
    /// The cost of going from steps with drafts to those without, or back, in steps of one token.
    switch: f64,
    /// Whether the drafts that were chosen last are the layer's; `None` if there were none.
    chosen: Option<bool>,
    /// The source of drafts that were chosen and of whose step nothing is heard yet, if steps of one token came before.
    begun: Option<Way>,
    /// The steps of a trial that are still to come, and their drafts.
    trial: (usize, usize),
    /// The steps with drafts that came last in a row, the drafts of these that were accepted, and those of the last one.
    run: usize,
    accepted: usize,
    before: usize,
    /// Steps without drafts since the last one with some, and those that came last in a row in an answer.
    without: usize,
    settled: usize,
    /// Steps with drafts since the time of one without was measured.
    with: usize,
    /// Steps without drafts after which they are tried.
    pause: usize,
}

impl Policy {
    pub(super) fn new() -> Self {
        Self {
            plain: Times::default(),
            measured: Measured::default(),
            credit: FIRST_CREDIT,
            switch: SWITCH,
            chosen: None,
            begun: None,
            trial: (0, 0),
            run: 0,
            accepted: 0,
            before: 0,
            without: 0,
            settled: 0,
            with: 0,
            pause: FIRST_PAUSE,
        }
    }

    /// Hears that a new answer begins: its first step comes after something else.
    pub(super) fn begin(&mut self) {
        self.end_run();
        (self.settled, self.chosen, self.begun) = (0, None, None);
        self.without = self.without.max(1);
    }

    /// The source and the number of drafts of the next step, of those that each source offers at most.
    pub(super) fn choose(&mut self, offers: &[(Way, usize)]) -> Option<(Way, usize)> {
        let plain = self.plain_time();
        let choice = plain.and_then(|plain| {
            self.of_trial(offers)
                .or_else(|| self.best(plain, offers, false))
                .or_else(|| self.begin_trial(plain, offers))
        });
        self.chosen = choice.map(|(way, _)| way == Way::Predicted);
        if self.run == 0 {
            let begun = choice.map(|(way, _)| way);
            if let (Some(way), None) = (std::mem::replace(&mut self.begun, begun), begun) {
                self.vanished(way);
            }
        }
        choice
    }

    /// Hears that drafts which were chosen are not there any more: steps that were in flight have brought other tokens than the match. The device
    /// has waited in vain.
    fn vanished(&mut self, way: Way) {
        self.pay(-2.0 * self.switch);
        self.measured.add_drafts(way, 1, 0);
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        (self.without, self.settled) = (1, 0);
    }

    /// The next step of a trial that has begun.
    fn of_trial(&self, offers: &[(Way, usize)]) -> Option<(Way, usize)> {
        let (left, drafts) = self.trial;
        let offered = offers.iter().find(|(way, _)| *way == Way::Predicted);
        let &(way, most) = offered.filter(|(_, most)| left > 0 && *most > 0)?;
        Some((way, drafts.min(most)))
    }

    /// The drafts that give the most tokens in a second, if these are more than without. In a trial they need not be.
    fn best(&self, plain: f64, offers: &[(Way, usize)], in_trial: bool) -> Option<(Way, usize)> {
        let (mut best, mut most_gained) = (None, 0.0);
        for &(way, most) in offers {
            let is_known = self.measured.is_known(way);
            // The layer is known by a trial.
            if way == Way::Predicted && !is_known {
                continue;
            }
            let goes_on = self.chosen == Some(way == Way::Predicted);
            let (switches, least, may_lose) = match goes_on {
                true => (0.0, GO_ON, self.credit + MOST_DEBT),
                false => (2.0 * self.switch, BEGIN, self.credit),
            };
            let run = match way {
                Way::Predicted => LONG_RUN,
                Way::Matched(_) => SHORT_RUN,
            };
            // A match has to go on while the steps in flight come.
            let lasts = match way {
                Way::Matched(_) if !goes_on => self.measured.share(way, 1).powi(IN_FLIGHT),
                _ => 1.0,
            };
            for drafts in numbers(way, most) {
                let seconds = self.measured.hoped_time(way, plain, drafts);
                let lost = match is_known {
                    true => seconds / plain - 1.0,
                    false => drafts as f64,
                };
                let wrong = 1.0 - self.measured.share(way, 1);
                if wrong * (lost + switches) > may_lose {
                    break;
                }
                let steps = seconds / plain + switches / (run * lasts);
                let gained = self.measured.tokens(way, drafts) / steps;
                if gained > most_gained && (in_trial || gained > least) {
                    (best, most_gained) = (Some((way, drafts)), gained);
                }
            }
        }
        // The worth of other numbers is only known while steps have so many drafts.
        if let Some((Way::Predicted, drafts)) = &mut best
            && self.with % EXPLORING >= EXPLORING - EXPLORED
        {
            let offered = offers.iter().find(|(way, _)| *way == Way::Predicted);
            let other = match self.with / EXPLORING % 2 {
                0 => *drafts + 1,
                _ => (*drafts - 1).max(1),
            };
            *drafts = offered.map_or(*drafts, |(_, most)| other.min(*most));
        }
        best
    }

    /// The first step of a trial, where it is time for one: of drafts that do not seem to pay, or of the layer, of which nothing is known.
    fn begin_trial(&mut self, plain: f64, offers: &[(Way, usize)]) -> Option<(Way, usize)> {
        if self.credit < TRIAL_CREDIT || self.chosen.is_some() {
            return None;
        }
        let layer = offers.iter().find(|(way, _)| *way == Way::Predicted);
        let unknown = layer.filter(|(way, most)| *most > 0 && !self.measured.is_known(*way));
        let tried = match unknown {
            Some((way, _)) => Some((*way, 1)),
            None if self.without < self.pause => None,
            None => self.best(plain, offers, true),
        };
        if let Some((Way::Predicted, drafts)) = tried {
            self.trial = (TRIAL, drafts);
        }
        tried
    }

    /// Hears what became of a step, whose drafts came from `way`.
    pub(super) fn hear(&mut self, way: Way, step: &Verified) {
        let seconds = step.took.as_secs_f64();
        log::debug!(
            "{} of {} drafts accepted in {:.2} ms ({way:?}); credit {:.2}",
            step.accepted,
            step.drafted,
            seconds * 1e3,
            self.credit
        );
        self.pay(LOSS);
        match step.drafted {
            0 => self.hear_plain(seconds),
            _ => self.hear_drafted(way, step, seconds),
        }
    }

    fn hear_plain(&mut self, seconds: f64) {
        let ended = self.run > 0;
        if ended {
            self.end_run();
        }
        self.without += 1;
        self.settled += 1;
        // The first ones after drafts pay for the way back, those of an answer for nothing.
        if let Some(plain) = self.plain.typical()
            && self.without == self.settled
            && self.settled <= SETTLING
        {
            let more = (seconds / plain - 1.0).clamp(-1.0, UNUSUAL);
            self.pay(-more);
            if ended {
                self.learn_switch(more);
            }
        }
        if self.settled > SETTLING {
            self.plain.add(seconds);
        }
        if self.settled == SETTLING + KNOWN {
            self.with = 0;
        }
    }

    fn hear_drafted(&mut self, way: Way, step: &Verified, seconds: f64) {
        let Verified {
            drafted, accepted, ..
        } = *step;
        self.run += 1;
        self.begun = None;
        self.accepted += accepted;
        let is_same = std::mem::replace(&mut self.before, drafted) == drafted;
        if let Some(plain) = self.plain.typical() {
            let expected = self.measured.time(way, plain, drafted) / plain;
            let taken = seconds / plain;
            if self.run == 1 && self.measured.is_known(way) {
                self.learn_switch((taken - expected).clamp(0.0, UNUSUAL));
            }
            self.pay((accepted + 1) as f64 - taken.min(expected + UNUSUAL));
        }
        let settling = match way {
            Way::Predicted => SETTLING,
            // The host waits for each of these steps.
            Way::Matched(_) => 1,
        };
        let counts = is_same && self.run > settling;
        self.measured.add_time(way, drafted, seconds, counts);
        self.measured.add_drafts(way, drafted, accepted);
        if way == Way::Predicted {
            self.trial.0 = match self.run >= HOPELESS && self.accepted == 0 {
                true => 0,
                false => self.trial.0.saturating_sub(1),
            };
        }
        (self.without, self.settled) = (0, 0);
        self.with += 1;
    }

    /// Ends steps with drafts in a row.
    fn end_run(&mut self) {
        if self.run > 0 {
            self.pause = match self.accepted {
                0 => (2 * self.pause).min(LONGEST_PAUSE),
                _ => FIRST_PAUSE,
            };
        }
        (self.run, self.accepted, self.before) = (0, 0, 0);
    }

    fn learn_switch(&mut self, cost: f64) {
        self.switch += NEWS * (cost.max(0.0) - self.switch);
    }

    fn pay(&mut self, steps: f64) {
        self.credit = (self.credit + steps).clamp(-MOST_DEBT, MOST_CREDIT);
    }

    /// The time of a step of one token; `None` while it has to be measured.
    fn plain_time(&self) -> Option<f64> {
        let is_measured = self.plain.known() >= KNOWN && self.with < MEASURED_AGAIN;
        let time = self.plain.typical().filter(|_| is_measured)?;
        (time > 0.0).then_some(time)
    }
}

/// The numbers of drafts that steps may have: any of the layer's, and of a match those with which the rows of a step are a power of 2. So most
/// steps have as many rows as the one before, and are prepared while that computes.
fn numbers(way: Way, most: usize) -> impl Iterator<Item = usize> {
    let takes = move |drafts: &usize| match way {
        Way::Predicted => true,
        Way::Matched(_) => (drafts + 1).is_power_of_two(),
    };
    (1..=most).filter(takes)
}

#[cfg(test)]
mod tests;
