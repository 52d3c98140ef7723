//! The number of drafts that pays, by what steps take on the device in hand and by what became of earlier drafts.
//!
//! A step of `n` drafts gives `1 + q1 + q1 q2 + ...` tokens on average, where `q` is the share of drafts accepted if those before were. The number
//! with the most tokens in a second is taken, and none where a step of one token gives as many. Its times are unknown before a step of so many
//! was taken, so they are first estimated from others. Drafts that do not pay are tried again from time to time. What they may lose is limited:
//! a small share of the time of all steps, and what earlier drafts have gained.

use std::collections::{BTreeMap, VecDeque};

use super::Verified;

/// A source of drafts with what says how good they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// The prediction layer.
    Predicted,
    /// The tokens that followed a match of so many tokens.
    Matched(usize),
}

impl Way {
    /// Counts of accepted drafts that it has: the layer's by their place, those of matches by the length of the match.
    fn classes(self) -> usize {
        match self {
            Self::Predicted => 0,
            Self::Matched(matched) => match matched {
                ..4 => 1,
                4..8 => 2,
                8..16 => 3,
                16..32 => 4,
                _ => 5,
            },
        }
    }
}

/// The share of drafts that is assumed to be accepted before any were: of the layer's first, and of matches by their class.
const ASSUMED: [f64; 6] = [0.7, 0.5, 0.6, 0.7, 0.8, 0.9];
/// The number of drafts that this assumption counts as.
const ASSUMED_DRAFTS: f64 = 2.0;
/// The factor of what earlier drafts count, with each further one: about the last 25 count.
const FORGET: f64 = 0.96;
/// The assumed time of a further token in a step, of that of a step of one.
const FURTHER: f64 = 0.2;
/// The factor of the time of a number of drafts that was hardly taken, so that it is, and the steps after which it is known.
const HOPE: f64 = 0.9;
const TRIALS: usize = 3;
/// Steps with drafts of which the last [`TRIALS`] have one more than seems best.
const ONE_MORE: usize = 64;
/// The last times of a kind of step that are kept.
const KEPT: usize = 8;
/// Steps of one token whose times do not count after one with drafts, since the device was waiting for the host.
const SETTLING: usize = 2;
/// Times of a step of one token that have to be known.
const KNOWN: usize = 2;
/// Steps with drafts after which the time of one token is measured again.
const MEASURED_AGAIN: usize = 256;
/// The share of the time of all steps that drafts may lose.
const LOSS: f64 = 0.01;
/// What drafts may lose at the beginning, and at most after they gained more, in steps of one token.
const FIRST_CREDIT: f64 = 1.0;
const MOST_CREDIT: f64 = 16.0;
/// The most steps of one token that drafts are in debt, so that they are tried again in a foreseeable time.
const MOST_DEBT: f64 = 4.0;
/// The multiple of the expected time that a step costs at most which is not usual.
const UNUSUAL: f64 = 1.5;
/// The gain from which drafts are taken: below, it may be an error of the times.
const WORTH: f64 = 1.02;
/// Steps without drafts between two trials of drafts that do not pay: first and at most.
const FIRST_PAUSE: usize = 16;
const LONGEST_PAUSE: usize = 512;

/// The last times of steps of one kind, in seconds.
#[derive(Debug, Default)]
struct Times {
    last: VecDeque<f64>,
    /// Steps of the kind, also those whose times do not count.
    steps: usize,
}

impl Times {
    fn add(&mut self, seconds: f64) {
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back(seconds);
    }

    /// The lower quartile: compiling or another program makes some steps longer, but nothing makes a step shorter.
    fn typical(&self) -> Option<f64> {
        let mut sorted: Vec<f64> = self.last.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 4).copied()
    }
}

/// Drafts that were accepted of those whose turn came.
#[derive(Debug, Default, Clone, Copy)]
struct Share {
    drafts: f64,
    accepted: f64,
}

impl Share {
    fn add(&mut self, accepted: bool) {
        self.drafts = self.drafts * FORGET + 1.0;
        self.accepted = self.accepted * FORGET + f64::from(u8::from(accepted));
    }

    fn estimate(&self, assumed: f64) -> f64 {
        (self.accepted + assumed * ASSUMED_DRAFTS) / (self.drafts + ASSUMED_DRAFTS)
    }
}

/// Chooses the number of drafts.
#[derive(Debug)]
pub(super) struct Policy {
    plain: Times,
    /// The times of steps with drafts by their number: those of the layer, and given ones.
    predicted: BTreeMap<usize, Times>,
    given: BTreeMap<usize, Times>,
    /// The accepted drafts of the layer by their place, and of matches by their class.
    by_place: Vec<Share>,
    by_match: [Share; ASSUMED.len()],
    /// What drafts may lose, in steps of one token.
    credit: f64,
    /// Steps without drafts since the last one with some, and steps with drafts since the time of one without was measured.
    without: usize,
    with: usize,
    /// Steps without drafts after which they are tried.
    pause: usize,
    /// The drafts of the step before.
    before: usize,
}

impl Policy {
    pub(super) fn new() -> Self {
        Self {
            plain: Times::default(),
            predicted: BTreeMap::new(),
            given: BTreeMap::new(),
            by_place: vec![],
            by_match: Default::default(),
            credit: FIRST_CREDIT,
            without: 0,
            with: 0,
            pause: FIRST_PAUSE,
            before: 0,
        }
    }

    /// Hears that a new answer begins: its first step comes after something else.
    pub(super) fn begin(&mut self) {
        self.without = 0;
    }

    /// The source and the number of drafts of the next step, of those that each source offers at most.
    pub(super) fn choose(&self, offers: &[(Way, usize)]) -> Option<(Way, usize)> {
        let plain = self.plain_time()?;
        let mut best = None;
        let mut most_tokens = WORTH / plain;
        let mut cheapest = None;
        for &(way, most) in offers {
            let costs = self.costs(way);
            let (mut tokens, mut all) = (1.0, 1.0);
            for drafts in 1..=most {
                all *= self.share(way, drafts);
                tokens += all;
                let mut seconds = time(costs, plain, drafts);
                let is_known = costs.values().any(|times| times.typical().is_some());
                let loss = match is_known {
                    true => seconds / plain - 1.0,
                    false => drafts as f64,
                };
                if loss > self.credit {
                    break;
                }
                cheapest = cheapest.or(Some((way, drafts)));
                let times = costs.get(&drafts).map_or(0, |times| times.steps);
                if is_known && times < TRIALS {
                    seconds *= HOPE;
                }
                if tokens / seconds > most_tokens {
                    most_tokens = tokens / seconds;
                    best = Some((way, drafts));
                }
            }
        }
        // What a further draft of the layer is worth is only known while it is taken.
        if let Some((Way::Predicted, drafts)) = &mut best
            && self.with % ONE_MORE >= ONE_MORE - TRIALS
        {
            let offered = offers.iter().find(|(way, _)| *way == Way::Predicted);
            *drafts = offered.map_or(*drafts, |(_, most)| (*drafts + 1).min(*most));
        }
        best.or_else(|| cheapest.filter(|_| self.without >= self.pause))
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
        if step.drafted == 0 {
            self.before = 0;
            self.without += 1;
            if self.without > SETTLING {
                self.plain.add(seconds);
            }
            if self.without == SETTLING + KNOWN {
                self.with = 0;
            }
            self.pay(LOSS);
            return;
        }
        // A step that differs from the one before is not prepared while that computes, and the first of its kind may be compiled.
        let is_usual = std::mem::replace(&mut self.before, step.drafted) == step.drafted;
        self.measure(way, step.drafted, is_usual.then_some(seconds));
        for place in 0..step.drafted.min(step.accepted + 1) {
            self.count(way, place, place < step.accepted);
        }
        if let Some(plain) = self.plain.typical() {
            // A usual step counts as what such steps give on average, so that a few without luck do not end drafts that pay.
            let (tokens, time) = match is_usual {
                true => (self.tokens(way, step.drafted), seconds),
                false => {
                    let expected = time(self.costs(way), plain, step.drafted);
                    let tokens = (step.accepted + 1) as f64;
                    (tokens, seconds.min(UNUSUAL * expected))
                }
            };
            self.pay(LOSS + tokens - time / plain);
        }
        let was_trial = self.without >= self.pause;
        self.pause = match (step.accepted, was_trial) {
            (0, true) => (2 * self.pause).min(LONGEST_PAUSE),
            (0, false) => self.pause,
            _ => FIRST_PAUSE,
        };
        (self.without, self.with) = (0, self.with + 1);
    }

    /// The tokens that a step of so many drafts gives on average.
    fn tokens(&self, way: Way, drafts: usize) -> f64 {
        let all = (1..=drafts).scan(1.0, |all, number| {
            *all *= self.share(way, number);
            Some(*all)
        });
        1.0 + all.sum::<f64>()
    }

    /// Counts a step with so many drafts, and keeps its time where that is usual.
    fn measure(&mut self, way: Way, drafts: usize, usual: Option<f64>) {
        let costs = match way {
            Way::Predicted => &mut self.predicted,
            Way::Matched(_) => &mut self.given,
        };
        let times = costs.entry(drafts).or_default();
        times.steps += 1;
        if let Some(seconds) = usual {
            times.add(seconds);
        }
    }

    fn pay(&mut self, steps: f64) {
        self.credit = (self.credit + steps).clamp(-MOST_DEBT, MOST_CREDIT);
    }

    /// The time of a step of one token; `None` while it has to be measured.
    fn plain_time(&self) -> Option<f64> {
        let is_measured = self.plain.last.len() >= KNOWN && self.with < MEASURED_AGAIN;
        let time = self.plain.typical().filter(|_| is_measured)?;
        (time > 0.0).then_some(time)
    }

    fn costs(&self, way: Way) -> &BTreeMap<usize, Times> {
        match way {
            Way::Predicted => &self.predicted,
            Way::Matched(_) => &self.given,
        }
    }

    fn count(&mut self, way: Way, place: usize, accepted: bool) {
        let share = match way {
            Way::Predicted => {
                let length = self.by_place.len().max(place + 1);
                self.by_place.resize(length, Share::default());
                &mut self.by_place[place]
            }
            Way::Matched(_) => &mut self.by_match[way.classes()],
        };
        share.add(accepted);
    }

    /// The share of drafts with this number in their step that is accepted if those before were.
    fn share(&self, way: Way, number: usize) -> f64 {
        let assumed = ASSUMED[way.classes()];
        match way {
            Way::Predicted => {
                // Later drafts stand on earlier ones, so they are hardly better.
                let places = self.by_place.iter().copied();
                let places = places.chain(std::iter::repeat(Share::default()));
                let shares = places.take(number);
                shares.fold(assumed, |before, share| share.estimate(before))
            }
            Way::Matched(_) => self.by_match[way.classes()].estimate(assumed),
        }
    }
}

/// The time of a step with so many drafts: as measured, or on the line through the nearest numbers that were.
fn time(costs: &BTreeMap<usize, Times>, plain: f64, drafts: usize) -> f64 {
    let known = |(number, times): (&usize, &Times)| Some((*number as f64, times.typical()?));
    let at = drafts as f64;
    let (below, time) = costs
        .range(..=drafts)
        .rev()
        .find_map(known)
        .unwrap_or((0.0, plain));
    let slope = match costs.range(drafts + 1..).find_map(known) {
        Some((above, later)) => (later - time) / (above - below),
        None if below > 0.0 => (time - plain) / below,
        None => FURTHER * plain,
    };
    time + slope.max(0.0) * (at - below)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::Rng;
    use web_time::Duration;

    /// A device and a text: the time of a step with so many drafts, and the share of steps in which the first, second, ... is accepted.
    struct Simulated<'a> {
        cost: &'a dyn Fn(usize) -> f64,
        accepted: &'a [f64],
        /// The drafts that are offered, in turn; 0 is no match.
        offers: &'a [(Way, usize)],
    }

    impl Simulated<'_> {
        /// The time of an answer of so many tokens, in steps of one, and the numbers of drafts of its steps.
        fn answer(&self, policy: &mut Policy, rng: &mut Rng, tokens: usize) -> (f64, Vec<usize>) {
            let (mut time, mut done, mut numbers) = (0.0, 0, vec![]);
            policy.begin();
            while done < tokens {
                let offer = self.offers[done % self.offers.len()];
                let chosen = policy.choose(&[offer]);
                let (way, drafted) = chosen.unwrap_or((offer.0, 0));
                assert!(drafted <= offer.1);
                let luck = f64::from(rng.uniform());
                let places = self.accepted.iter().take(drafted);
                let accepted = places.take_while(|share| luck < **share).count();
                let took = (self.cost)(drafted);
                policy.hear(
                    way,
                    &Verified {
                        drafted,
                        accepted,
                        took: Duration::from_secs_f64(took * 1e-3),
                    },
                );
                time += took;
                done += accepted + 1;
                numbers.push(drafted);
            }
            (time, numbers)
        }
    }

    /// The number that most steps had.
    fn usual(numbers: &[usize]) -> usize {
        let count = |number: &usize| numbers.iter().filter(|n| *n == number).count();
        (0..=64).max_by_key(count).expect("there are steps")
    }

    #[test]
    fn it_takes_the_number_that_gives_the_most_tokens_in_a_second() {
        let mut rng = Rng::fresh();
        let layer = [(Way::Predicted, 8)];
        for (costs, accepted, expected) in [
            ([1.0, 1.3, 1.9, 2.5, 3.1], [0.83, 0.65, 0.49, 0.3], 1),
            ([1.0, 1.25, 1.35, 1.8, 2.4], [0.83, 0.65, 0.49, 0.3], 2),
            ([1.0, 1.15, 1.25, 1.35, 1.9], [0.83, 0.65, 0.49, 0.3], 3),
            ([1.0, 1.9, 2.8, 3.7, 4.6], [0.83, 0.65, 0.49, 0.3], 0),
            ([1.0, 1.3, 1.6, 1.9, 2.2], [0.2, 0.05, 0.01, 0.0], 0),
        ] {
            let cost = |drafts: usize| match costs.get(drafts) {
                Some(cost) => *cost,
                None => costs[4] + 0.8 * (drafts - 4) as f64,
            };
            let simulated = Simulated {
                cost: &cost,
                accepted: &accepted,
                offers: &layer,
            };
            let mut policy = Policy::new();
            simulated.answer(&mut policy, &mut rng, 600);
            let (_, numbers) = simulated.answer(&mut policy, &mut rng, 2000);
            assert_eq!(usual(&numbers), expected, "{costs:?}: {numbers:?}");
        }
    }

    #[test]
    fn drafts_that_are_never_accepted_cost_two_percent_at_most() {
        let mut rng = Rng::fresh();
        for further in [0.1, 0.3, 0.9] {
            let cost = |drafts: usize| 1.0 + further * drafts as f64;
            for offers in [
                &[(Way::Predicted, 8)][..],
                &[
                    (Way::Matched(3), 4),
                    (Way::Matched(9), 16),
                    (Way::Matched(40), 64),
                ],
            ] {
                let simulated = Simulated {
                    cost: &cost,
                    accepted: &[],
                    offers,
                };
                let mut policy = Policy::new();
                for tokens in [128, 2000] {
                    let (time, numbers) = simulated.answer(&mut policy, &mut rng, tokens);
                    assert!(time <= 1.02 * tokens as f64, "{further} {time} {numbers:?}");
                }
            }
        }
    }

    #[test]
    fn a_text_that_repeats_itself_gets_long_drafts_and_one_that_stops_doing_so_gets_few() {
        let mut rng = Rng::fresh();
        let cost = |drafts: usize| 1.0 + 0.15 * drafts as f64;
        let all = [1.0; 64];
        let matched = [(Way::Matched(64), 64)];
        let mut simulated = Simulated {
            cost: &cost,
            accepted: &all,
            offers: &matched,
        };
        let mut policy = Policy::new();
        let (time, numbers) = simulated.answer(&mut policy, &mut rng, 512);
        assert!(time < 512.0 / 3.0, "{time} {numbers:?}");
        simulated.accepted = &[];
        let (time, numbers) = simulated.answer(&mut policy, &mut rng, 2000);
        assert!(time < 2000.0 * 1.02 + MOST_CREDIT, "{time}");
        let drafted = numbers[1000..].iter().filter(|n| **n > 0).count();
        assert!(drafted < 20, "{numbers:?}");
    }

    #[test]
    fn drafts_that_begin_to_be_accepted_are_taken_again() {
        let mut rng = Rng::fresh();
        let cost = |drafts: usize| 1.0 + 0.3 * drafts as f64;
        let offers = [(Way::Predicted, 1)];
        let mut policy = Policy::new();
        let bad = Simulated {
            cost: &cost,
            accepted: &[],
            offers: &offers,
        };
        bad.answer(&mut policy, &mut rng, 1000);
        let good = Simulated {
            accepted: &[0.9],
            ..bad
        };
        let (time, numbers) = good.answer(&mut policy, &mut rng, 3000);
        assert_eq!(usual(&numbers[1000..]), 1, "{time} {numbers:?}");
    }

    #[test]
    fn the_first_step_of_a_number_may_have_been_compiled() {
        let mut policy = Policy::new();
        let step = |drafted, accepted, ms: f64| Verified {
            drafted,
            accepted,
            took: Duration::from_secs_f64(ms / 1e3),
        };
        for _ in 0..SETTLING + KNOWN {
            assert_eq!(policy.choose(&[(Way::Predicted, 1)]), None);
            policy.hear(Way::Predicted, &step(0, 0, 1.0));
        }
        let one = Some((Way::Predicted, 1));
        assert_eq!(policy.choose(&[(Way::Predicted, 1)]), one);
        policy.hear(Way::Predicted, &step(1, 1, 900.0));
        assert_eq!(policy.choose(&[(Way::Predicted, 1)]), one);
        // If it takes as long again, that is its time.
        policy.hear(Way::Predicted, &step(1, 1, 900.0));
        assert_eq!(policy.choose(&[(Way::Predicted, 1)]), None);
    }
}
