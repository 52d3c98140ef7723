//! Protects the number of drafts on simulated devices: a choice takes effect some steps later, going from steps with drafts to those without
//! drains the device, and some steps take longer for no reason.

use super::*;
use crate::kernels::testing::Rng;
use std::collections::VecDeque;
use web_time::Duration;

/// Milliseconds of a token on the device, of draining and filling it again, and of what some steps take longer.
const TOKEN: f64 = 2.2;
const DRAIN: f64 = 2.0;
const LONGER: f64 = 2.0;

/// A device and a text.
struct Simulated<'a> {
    /// The time of a step with so many drafts of the layer or of a match.
    cost: &'a dyn Fn(usize) -> f64,
    /// The share of steps in which the first, the second, ... draft is accepted.
    accepted: &'a [f64],
    /// The tokens that match before one of the text, and how many drafts follow them; 0 is no match.
    matches: &'a dyn Fn(usize) -> (usize, usize),
    /// The drafts that the layer offers.
    layer: usize,
    /// Steps that are in flight, and after how many one takes longer.
    in_flight: usize,
    noise: usize,
}

/// The state of an answer.
struct Answer<'a, 'b> {
    of: &'a Simulated<'b>,
    policy: &'a mut Policy,
    rng: &'a mut Rng,
    time: f64,
    tokens: usize,
    steps: usize,
    numbers: Vec<usize>,
    before: usize,
    /// Whether nothing is in flight.
    is_drained: bool,
}

impl Answer<'_, '_> {
    fn offers(&self) -> Vec<(Way, usize)> {
        let (matched, drafts) = (self.of.matches)(self.tokens);
        let layer = (self.of.layer > 0).then_some((Way::Predicted, self.of.layer));
        let found = (drafts > 0).then_some((Way::Matched(matched), drafts));
        layer.into_iter().chain(found).collect()
    }

    fn choose(&mut self) -> Option<(Way, usize)> {
        let offers = self.offers();
        let chosen = self.policy.choose(&offers);
        let is_offered =
            |(way, drafts)| offers.iter().any(|(o, most)| *o == way && drafts <= *most);
        assert!(chosen.is_none_or(is_offered), "{chosen:?} of {offers:?}");
        chosen
    }

    fn step(&mut self, way: Way, drafted: usize) {
        self.steps += 1;
        let mut took = (self.of.cost)(drafted);
        let drains = self.before.min(1) != drafted.min(1) || self.is_drained;
        let drains = drains && self.steps > 1;
        self.is_drained = false;
        if drains && self.of.in_flight > 0 {
            took += DRAIN;
        }
        if self.of.noise > 0 && self.steps.is_multiple_of(self.of.noise) {
            took += LONGER;
        }
        self.before = drafted;
        let luck = f64::from(self.rng.uniform());
        let places = self.of.accepted.iter().take(drafted);
        let accepted = match way {
            Way::Predicted => places.take_while(|share| luck < **share).count(),
            // A match goes on as far as the text does.
            Way::Matched(_) if self.of.accepted.len() > 3 => drafted,
            Way::Matched(_) => 0,
        };
        let took_of = Duration::from_secs_f64(took * 1e-3);
        self.policy.hear(
            way,
            &Verified {
                drafted,
                accepted,
                took: took_of,
            },
        );
        self.time += took;
        self.tokens += accepted + 1;
        self.numbers.push(drafted);
    }

    /// Steps of one token until drafts are chosen; those in flight come, too.
    fn plain(&mut self, limit: usize) {
        while self.tokens < limit {
            self.step(Way::Predicted, 0);
            if self.choose().is_some() {
                for _ in 0..self.of.in_flight.min(limit.saturating_sub(self.tokens)) {
                    self.step(Way::Predicted, 0);
                }
                self.is_drained = true;
                return;
            }
        }
    }

    /// Steps with drafts until none are chosen.
    fn drafted(&mut self, limit: usize) {
        let mut flying = VecDeque::new();
        let mut goes_on = true;
        while self.tokens < limit {
            while goes_on && flying.len() <= self.of.in_flight {
                match self.choose() {
                    Some(next) => flying.push_back(next),
                    None => goes_on = false,
                }
                if let Some((Way::Matched(_), _)) = flying.back() {
                    break;
                }
            }
            let Some((way, drafts)) = flying.pop_front() else {
                return;
            };
            self.step(way, drafts);
        }
    }
}

impl Simulated<'_> {
    /// The time of an answer of so many tokens in milliseconds, and the numbers of drafts of its steps.
    fn answer(&self, policy: &mut Policy, rng: &mut Rng, tokens: usize) -> (f64, Vec<usize>) {
        policy.begin();
        let mut answer = Answer {
            of: self,
            policy,
            rng,
            time: 0.0,
            tokens: 0,
            steps: 0,
            numbers: vec![],
            before: 0,
            is_drained: false,
        };
        while answer.tokens < tokens {
            answer.plain(tokens);
            answer.drafted(tokens);
        }
        (answer.time, answer.numbers)
    }

    /// The mean time of a step with so many drafts.
    fn mean(&self, drafts: usize) -> f64 {
        let longer = match self.noise {
            0 => 0.0,
            noise => LONGER / noise as f64,
        };
        (self.cost)(drafts) + longer
    }

    /// The time of so many tokens without drafts.
    fn without(&self, tokens: usize) -> f64 {
        self.mean(0) * tokens as f64
    }

    /// The time of so many tokens with the number of the layer's drafts that is best, and that number.
    fn ideal(&self, tokens: usize) -> (f64, usize) {
        let time = |drafts: usize| {
            let accepted: f64 = self.accepted.iter().take(drafts).sum();
            (self.mean(drafts) * tokens as f64 / (1.0 + accepted), drafts)
        };
        let times = (0..=self.layer).map(time);
        times
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .expect("0 is a number")
    }
}

/// The layer on a device with two steps in flight.
fn layer<'a>(cost: &'a dyn Fn(usize) -> f64, accepted: &'a [f64]) -> Simulated<'a> {
    Simulated {
        cost,
        accepted,
        matches: &|_| (0, 0),
        layer: 3,
        in_flight: 2,
        noise: 15,
    }
}

/// Steps on a GPU: in flight those of the layer's drafts, and longer ones of matches.
fn on_gpu(drafts: usize) -> f64 {
    match drafts {
        0..=3 => TOKEN + 0.8 * drafts as f64,
        _ => 4.6 + 0.55 * (drafts - 3) as f64,
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
    for (costs, accepted, expected) in [
        ([1.0, 1.3, 1.9, 2.5], [0.83, 0.65, 0.49], 1),
        ([1.0, 1.25, 1.35, 1.8], [0.83, 0.65, 0.49], 2),
        ([1.0, 1.15, 1.25, 1.35], [0.83, 0.65, 0.49], 3),
        ([1.0, 1.9, 2.8, 3.7], [0.83, 0.65, 0.49], 0),
        ([1.0, 1.3, 1.6, 1.9], [0.2, 0.05, 0.01], 0),
    ] {
        for (in_flight, noise) in [(0, 0), (2, 15), (2, 10)] {
            let cost = |drafts: usize| TOKEN * costs[drafts];
            let simulated = Simulated {
                in_flight,
                noise,
                ..layer(&cost, &accepted)
            };
            let mut policy = Policy::new();
            simulated.answer(&mut policy, &mut rng, 600);
            let (time, numbers) = simulated.answer(&mut policy, &mut rng, 2000);
            assert_eq!(usual(&numbers), expected, "{costs:?}: {numbers:?}");
            let (ideal, _) = simulated.ideal(2000);
            assert!(time < 1.08 * ideal, "{time} of {ideal}: {numbers:?}");
        }
    }
}

#[test]
fn drafts_that_pay_are_taken_in_the_first_answer_whatever_single_steps_take() {
    let mut rng = Rng::fresh();
    let accepted = [0.83, 0.65, 0.49];
    for most in [1, 2, 3] {
        for noise in [0, 10, 15, 20] {
            let simulated = Simulated {
                layer: most,
                noise,
                ..layer(&on_gpu, &accepted)
            };
            let (mut times, tokens) = (0.0, 512);
            for _ in 0..20 {
                let (time, _) = simulated.answer(&mut Policy::new(), &mut rng, tokens);
                times += time / 20.0;
            }
            let (ideal, _) = simulated.ideal(tokens);
            assert!(times < 1.1 * ideal, "{most} {noise}: {times} of {ideal}");
        }
    }
}

#[test]
fn drafts_that_are_never_accepted_cost_two_percent_at_most() {
    let mut rng = Rng::fresh();
    for noise in [0, 10, 20] {
        for further in [0.2, 0.8, 2.0] {
            let cost = |drafts: usize| TOKEN + further * drafts as f64;
            let bad = Simulated {
                noise,
                ..layer(&cost, &[])
            };
            let matches = |token: usize| [(3, 5), (0, 0), (9, 16), (40, 63)][token % 4];
            let mixed = Simulated {
                matches: &matches,
                ..bad
            };
            let by_match = Simulated { layer: 0, ..mixed };
            for simulated in [bad, mixed, by_match] {
                let mut policy = Policy::new();
                let (time, numbers) = simulated.answer(&mut policy, &mut rng, 512);
                let plain = simulated.without(512);
                assert!(time <= 1.02 * plain, "{further} {time} {plain} {numbers:?}");
                let (mut all, answers) = (0.0, 30);
                for _ in 0..answers {
                    all += simulated.answer(&mut policy, &mut rng, 100).0;
                }
                let plain = simulated.without(100 * answers);
                assert!(all <= 1.02 * plain, "{further}: {all} of {plain}");
            }
        }
    }
}

#[test]
fn matches_that_end_before_a_step_can_have_their_drafts_cost_two_percent_at_most() {
    let mut rng = Rng::fresh();
    for matched in [3, 5, 9, 20, 64] {
        let matches = |token: usize| match token % 9 {
            0 => (matched, 15),
            _ => (0, 0),
        };
        let simulated = Simulated {
            layer: 0,
            matches: &matches,
            ..layer(&on_gpu, &[])
        };
        let mut policy = Policy::new();
        for tokens in [512, 3000] {
            let (time, numbers) = simulated.answer(&mut policy, &mut rng, tokens);
            let plain = simulated.without(tokens);
            assert!(
                time <= 1.02 * plain,
                "{matched}: {time} {plain} {numbers:?}"
            );
        }
    }
}

#[test]
fn whatever_a_device_takes_drafts_are_hardly_slower_than_none() {
    let mut rng = Rng::fresh();
    let mut all = [0.0; 2];
    for _ in 0..40 {
        let further = f64::from(rng.uniform()) * 1.5 * TOKEN;
        let first = f64::from(rng.uniform());
        // A draft behind an accepted one is accepted less often.
        let falls = 0.8 * f64::from(rng.uniform());
        let accepted = [first, first * falls, first * falls * falls];
        let cost = |drafts: usize| TOKEN + further * drafts as f64;
        let simulated = Simulated {
            in_flight: rng.below(3),
            noise: 10 + rng.below(10),
            ..layer(&cost, &accepted)
        };
        let (time, numbers) = simulated.answer(&mut Policy::new(), &mut rng, 3000);
        let told = format!("{further} {accepted:?} {numbers:?}");
        let plain = simulated.without(3000);
        assert!(time <= 1.025 * plain, "{time} of {plain} without: {told}");
        all[0] += time;
        all[1] += simulated.ideal(3000).0;
    }
    let [time, ideal] = all;
    assert!(time <= 1.08 * ideal, "{time} of {ideal}");
}

#[test]
fn a_text_that_repeats_itself_gets_long_drafts_and_one_that_stops_doing_so_gets_few() {
    let mut rng = Rng::fresh();
    let repeats = |token: usize| match token.saturating_sub(80) {
        0..3 => (0, 0),
        matched => (matched.min(64), (2 * matched - 1).min(15)),
    };
    let all = [1.0; 64];
    let mut simulated = Simulated {
        layer: 0,
        matches: &repeats,
        ..layer(&on_gpu, &all)
    };
    let mut policy = Policy::new();
    simulated.answer(&mut policy, &mut rng, 512);
    let (time, numbers) = simulated.answer(&mut policy, &mut rng, 512);
    // The first 80 tokens repeat nothing.
    let repeated = time - simulated.without(84);
    assert!(
        repeated < simulated.without(428) / 2.7,
        "{repeated} {numbers:?}"
    );
    simulated.accepted = &[];
    let (time, numbers) = simulated.answer(&mut policy, &mut rng, 2000);
    let most = simulated.without(2000) * 1.02 + 2.0 * MOST_CREDIT * TOKEN;
    assert!(time < most, "{time} {numbers:?}");
    let drafted = numbers[1000..].iter().filter(|n| **n > 0).count();
    assert!(drafted < 20, "{numbers:?}");
}

#[test]
fn matches_that_come_and_go_are_taken_where_they_pay() {
    let mut rng = Rng::fresh();
    // Of each 100 tokens 40 repeat something.
    let matches = |token: usize| match token % 100 {
        begun @ 63.. => (begun - 60, (2 * (begun - 60) - 1).min(15).min(100 - begun)),
        _ => (0, 0),
    };
    let all = [1.0; 64];
    let simulated = Simulated {
        layer: 0,
        matches: &matches,
        ..layer(&on_gpu, &all)
    };
    let mut policy = Policy::new();
    simulated.answer(&mut policy, &mut rng, 500);
    let (time, numbers) = simulated.answer(&mut policy, &mut rng, 2000);
    let plain = simulated.without(2000);
    assert!(time < 0.85 * plain, "{time} of {plain}: {numbers:?}");
}

#[test]
fn drafts_that_begin_to_be_accepted_are_taken_again() {
    let mut rng = Rng::fresh();
    let mut policy = Policy::new();
    let bad = layer(&on_gpu, &[]);
    bad.answer(&mut policy, &mut rng, 1000);
    let good = Simulated {
        accepted: &[0.9, 0.1, 0.0],
        ..bad
    };
    let (time, numbers) = good.answer(&mut policy, &mut rng, 4000);
    let late = &numbers[numbers.len() / 2..];
    assert_eq!(usual(late), 1, "{time} {numbers:?}");
}

#[test]
fn a_step_that_was_compiled_ends_nothing() {
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
    for took in [900.0, 1.3, 1.3, 300.0, 1.3, 1.3, 1.3, 1.3, 1.3] {
        assert_eq!(policy.choose(&[(Way::Predicted, 1)]), one);
        policy.hear(Way::Predicted, &step(1, 1, took));
    }
}
