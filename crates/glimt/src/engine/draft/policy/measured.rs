//! Times of steps and shares of accepted drafts, as they were lately.

use std::collections::{BTreeMap, VecDeque};

/// A source of drafts with what says how good they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine::draft) enum Way {
    /// The prediction layer.
    Predicted,
    /// The tokens that followed a match of so many tokens.
    Matched(usize),
}

impl Way {
    /// The class of its drafts in [`ASSUMED`]: the layer's count by their place instead, those of matches by the length of the match.
    fn class(self) -> usize {
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
const ASSUMED: [f64; 6] = [0.7, 0.5, 0.65, 0.8, 0.88, 0.93];
/// The number of drafts that this assumption counts as.
const ASSUMED_DRAFTS: f64 = 2.0;
/// The factor of what earlier drafts count, with each further one: about the last 50 count.
const FORGET: f64 = 0.98;
/// The assumed time of a further token in a step, of that of a step of one.
const FURTHER: f64 = 0.25;
/// The factor of the time of a number of drafts that was hardly taken, so that it is; the times after which it is known, and the steps after which
/// it is taken for known.
const HOPE: f64 = 0.9;
const TRIALS: usize = 3;
const MOST_TRIALS: usize = 16;
/// The last times of a kind of step that are kept.
const KEPT: usize = 16;

/// The last times of steps of one kind, in seconds.
#[derive(Debug, Default)]
pub(super) struct Times {
    last: VecDeque<f64>,
    /// Steps of the kind, also those whose times do not count.
    steps: usize,
}

impl Times {
    pub(super) fn add(&mut self, seconds: f64) {
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back(seconds);
    }

    /// The number of times that are known.
    pub(super) fn known(&self) -> usize {
        self.last.len()
    }

    /// The mean of the middle half: a step that waits for something else counts for nothing, and neither does one that comes early behind it.
    pub(super) fn typical(&self) -> Option<f64> {
        let mut sorted: Vec<f64> = self.last.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let quarter = (sorted.len() + 1) / 4;
        let middle = &sorted[quarter..sorted.len() - quarter];
        (!middle.is_empty()).then(|| middle.iter().sum::<f64>() / middle.len() as f64)
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

/// The measurements of steps with drafts.
#[derive(Debug, Default)]
pub(super) struct Measured {
    /// The times of steps with drafts by their number: those of the layer, and given ones.
    predicted: BTreeMap<usize, Times>,
    given: BTreeMap<usize, Times>,
    /// The accepted drafts of the layer by their place, and of matches by their class.
    by_place: Vec<Share>,
    by_match: [Share; ASSUMED.len()],
}

impl Measured {
    fn times(&self, way: Way) -> &BTreeMap<usize, Times> {
        match way {
            Way::Predicted => &self.predicted,
            Way::Matched(_) => &self.given,
        }
    }

    /// Whether the time of any step with such drafts is known.
    pub(super) fn is_known(&self, way: Way) -> bool {
        self.times(way).values().any(|times| times.known() > 0)
    }

    /// Counts a step with so many drafts, and its time if that `counts`.
    pub(super) fn add_time(&mut self, way: Way, drafts: usize, seconds: f64, counts: bool) {
        let times = match way {
            Way::Predicted => &mut self.predicted,
            Way::Matched(_) => &mut self.given,
        };
        let times = times.entry(drafts).or_default();
        times.steps += 1;
        // A number that never comes twice in a row is known by steps that come singly, but for the first one, which may be compiled.
        if counts || (times.known() == 0 && times.steps >= TRIALS) {
            times.add(seconds);
        }
    }

    /// Counts the drafts of a step of which the first ones were accepted.
    pub(super) fn add_drafts(&mut self, way: Way, drafts: usize, accepted: usize) {
        for place in 0..drafts.min(accepted + 1) {
            let share = match way {
                Way::Predicted => {
                    let length = self.by_place.len().max(place + 1);
                    self.by_place.resize(length, Share::default());
                    &mut self.by_place[place]
                }
                Way::Matched(_) => &mut self.by_match[way.class()],
            };
            share.add(place < accepted);
        }
    }

    /// The share of drafts with this number in their step that is accepted if those before were.
    pub(super) fn share(&self, way: Way, number: usize) -> f64 {
        match way {
            Way::Predicted => {
                // Later drafts stand on earlier ones, so they are hardly better.
                let places = self.by_place.iter().copied();
                let places = places.chain(std::iter::repeat(Share::default()));
                let shares = places.take(number);
                shares.fold(ASSUMED[0], |before, share| share.estimate(before))
            }
            Way::Matched(_) => {
                // Longer matches are hardly worse.
                let classes = 1..=way.class();
                classes.fold(0.0, |shorter: f64, class| {
                    self.by_match[class].estimate(shorter.max(ASSUMED[class]))
                })
            }
        }
    }

    /// The tokens that a step of so many drafts gives on average.
    pub(super) fn tokens(&self, way: Way, drafts: usize) -> f64 {
        let all = (1..=drafts).scan(1.0, |all, number| {
            *all *= self.share(way, number);
            Some(*all)
        });
        1.0 + all.sum::<f64>()
    }

    /// The time of a step with so many drafts: as measured, or on the line through the nearest numbers that were.
    pub(super) fn time(&self, way: Way, plain: f64, drafts: usize) -> f64 {
        let times = self.times(way);
        let known = |(number, times): (&usize, &Times)| Some((*number as f64, times.typical()?));
        let at = drafts as f64;
        let below = times.range(..=drafts).rev().find_map(known);
        let (below, time) = below.unwrap_or((0.0, plain));
        let slope = match times.range(drafts + 1..).find_map(known) {
            Some((above, later)) => (later - time) / (above - below),
            None if below > 0.0 => (time - plain) / below,
            None => FURTHER * plain,
        };
        time + slope.max(0.0) * (at - below)
    }

    /// The time for which such a step is tried: less than it seems to take, where little is known of it.
    pub(super) fn hoped_time(&self, way: Way, plain: f64, drafts: usize) -> f64 {
        let times = self.times(way).get(&drafts);
        let [known, steps] = times.map_or([0; 2], |times| [times.known(), times.steps]);
        let hope = match self.is_known(way) && known < TRIALS && steps < MOST_TRIALS {
            true => HOPE,
            false => 1.0,
        };
        hope * self.time(way, plain, drafts)
    }
}
