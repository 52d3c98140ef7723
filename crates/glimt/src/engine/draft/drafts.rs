//! The drafts of a session's answers: from whichever source pays, as many as pay.

use std::collections::VecDeque;

use super::expected::Expected;
use super::ngram::Ngrams;
use super::policy::{Policy, Way};
use super::{Acceptance, DraftOptions, DraftSource, Drafter, Proposal, Verified};

/// The most drafts of a step where nobody says how many: the layer's become worse with each, and those of a match do not.
pub(in crate::engine) const MOST_PREDICTED: usize = 3;
const MOST_MATCHED: usize = 64;
/// Proposals that are remembered: those of steps in flight, and one that became none.
const PROPOSALS: usize = 4;

/// The means that a model on a device has for drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DraftMeans {
    /// The most drafts of a step that leaves for each of its tokens what a step of one leaves, to the bit; 0 where there is no such step.
    pub most: usize,
    /// Whether the prediction layer is loaded.
    pub predicts: bool,
    /// Whether steps have room for one token alone, so that `most` is 0.
    pub one_by_one: bool,
    /// Whether experts come from host memory or from the file, where further tokens of a step cost time of the bus.
    pub brings_experts: bool,
}

/// Why a source of drafts cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DraftError {
    /// The model has no prediction layer.
    #[error(
        "--draft mtp needs a layer that predicts the token after next (blk.N.nextn), and the model's file has none; name a file that has one with \
         --draft-model, or use --draft ngram"
    )]
    NoLayer,
    /// A step has no room for several tokens.
    #[error(
        "--draft {source} computes several tokens in a step, and the memory has room for one alone beside the experts; use --draft off, a shorter \
         context (-c), or more of the GPU's memory (--gpu-memory)",
        source = .source_name
    )]
    OneByOne {
        /// The source that was asked for.
        source_name: &'static str,
    },
    /// Steps of several tokens do not leave the same.
    #[error(
        "--draft {source} would change the text: here a step of several tokens does not leave for each of them what a step of one leaves; use \
         --draft off, or another --tier or --device",
        source = .source_name
    )]
    RowsDiffer {
        /// The source that was asked for.
        source_name: &'static str,
    },
}

/// Decides on the drafts of all answers of a session, by which it learns what pays.
#[derive(Debug)]
pub struct Drafts {
    predicts: bool,
    /// Whether drafts are looked for in every text, and not only where one is expected.
    matches: bool,
    ngrams: Ngrams,
    /// The text that the answer is expected to repeat, and whether the last match is of it.
    expected: Expected,
    is_expected: bool,
    /// The most drafts of a step, of the layer and of a match.
    most: [usize; 2],
    policy: Policy,
    /// The sources and the numbers of the last proposals, of which nothing is heard yet.
    ways: VecDeque<(Way, usize)>,
    /// The drafts of the answer, and how many of them were accepted.
    counts: [usize; 2],
}

impl Drafts {
    /// The drafts that `options` ask for, with these means; `None` where there are none.
    ///
    /// # Errors
    /// [`DraftError`] where a source is asked for that cannot be had.
    pub fn new(options: &DraftOptions, means: &DraftMeans) -> Result<Option<Self>, DraftError> {
        let source = options.source;
        if source == DraftSource::Off || options.most == Some(0) {
            return Ok(None);
        }
        let is_auto = source == DraftSource::Auto;
        if is_auto && (means.most == 0 || means.brings_experts) {
            return Ok(None);
        }
        if means.most == 0 {
            let source_name = source.name();
            return Err(match means.one_by_one {
                true => DraftError::OneByOne { source_name },
                false => DraftError::RowsDiffer { source_name },
            });
        }
        if source == DraftSource::Mtp && !means.predicts {
            return Err(DraftError::NoLayer);
        }
        let most = |usual: usize| options.most.unwrap_or(usual).min(means.most);
        Ok(Some(Self {
            predicts: means.predicts && source != DraftSource::Ngram,
            matches: source != DraftSource::Mtp,
            ngrams: Ngrams::default(),
            expected: Expected::default(),
            is_expected: false,
            most: [MOST_PREDICTED, MOST_MATCHED].map(most),
            policy: Policy::new(),
            ways: VecDeque::new(),
            counts: [0; 2],
        }))
    }

    /// Begins an answer.
    pub fn begin(&mut self) {
        self.policy.begin();
        self.counts = [0; 2];
    }

    /// The source of a step with so many drafts. Some proposals become no step, and those of later steps may be made already.
    fn way_of(&mut self, drafted: usize) -> Way {
        let index = self.ways.iter().position(|(_, number)| *number == drafted);
        let found = index.and_then(|index| self.ways.drain(..=index).next_back());
        found.map_or(Way::Predicted, |(way, _)| way)
    }

    /// The drafts of the answer so far.
    pub fn drafted(&self) -> usize {
        self.counts[0]
    }

    /// The drafts of the answer so far that were accepted.
    pub fn accepted(&self) -> usize {
        self.counts[1]
    }
}

impl Drafter for Drafts {
    fn propose(&mut self, text: &[u32], most: usize) -> Proposal {
        let [predicted, matched] = self.most.map(|own| own.min(most));
        let looks = self.matches || self.expected.is_some();
        let text = self.expected.with(text);
        let found = looks.then(|| self.ngrams.find(text, matched)).flatten();
        let place = found.as_ref().map(|found| found.place);
        self.is_expected = place.is_some_and(|place| self.expected.has(place));
        let layer = self.predicts.then_some((Way::Predicted, predicted));
        let place = found
            .as_ref()
            .map(|found| (Way::Matched(found.matched), found.ids.len()));
        let offers: Vec<_> = layer.into_iter().chain(place).collect();
        let Some((way, number)) = self.policy.choose(&offers) else {
            return Proposal::None;
        };
        if self.ways.len() == PROPOSALS {
            self.ways.pop_front();
        }
        self.ways.push_back((way, number));
        match found {
            Some(found) if way != Way::Predicted => Proposal::Ids(found.ids[..number].to_vec()),
            _ => Proposal::Predict(number),
        }
    }

    fn acceptance(&mut self, _drafts: usize) -> Acceptance {
        Acceptance::Chosen
    }

    fn expect(&mut self, prompt: &[u32], text: &[u32]) {
        self.expected = match text {
            [] => Expected::default(),
            _ => Expected::new(prompt, text),
        };
    }

    fn is_expected(&self) -> bool {
        self.is_expected
    }

    fn verified(&mut self, step: &Verified) {
        let way = self.way_of(step.drafted);
        self.policy.hear(way, step);
        self.counts[0] += step.drafted;
        self.counts[1] += step.accepted;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use web_time::Duration;

    const CPU: DraftMeans = DraftMeans {
        most: 64,
        predicts: false,
        one_by_one: false,
        brings_experts: false,
    };

    fn options(source: DraftSource) -> DraftOptions {
        DraftOptions { source, most: None }
    }

    #[test]
    fn drafts_that_cannot_be_had_are_refused_or_left_off() {
        let none = DraftMeans::default();
        let alone = DraftMeans {
            one_by_one: true,
            brings_experts: true,
            ..none
        };
        let brings = DraftMeans {
            predicts: true,
            brings_experts: true,
            ..CPU
        };
        let made = |source, means: &DraftMeans| {
            Drafts::new(&options(source), means).map(|drafts| drafts.is_some())
        };
        for (source, means, expected) in [
            (DraftSource::Auto, &none, Ok(false)),
            (DraftSource::Auto, &brings, Ok(false)),
            (DraftSource::Auto, &alone, Ok(false)),
            (
                DraftSource::Ngram,
                &alone,
                Err(DraftError::OneByOne {
                    source_name: "ngram",
                }),
            ),
            (DraftSource::Auto, &CPU, Ok(true)),
            (DraftSource::Off, &CPU, Ok(false)),
            (DraftSource::Ngram, &CPU, Ok(true)),
            (DraftSource::Mtp, &CPU, Err(DraftError::NoLayer)),
            (DraftSource::Mtp, &brings, Ok(true)),
            (
                DraftSource::Mtp,
                &none,
                Err(DraftError::RowsDiffer { source_name: "mtp" }),
            ),
            (
                DraftSource::Ngram,
                &none,
                Err(DraftError::RowsDiffer {
                    source_name: "ngram",
                }),
            ),
        ] {
            assert_eq!(made(source, means), expected, "{source:?} {means:?}");
        }
        let most = Some(0);
        let options = DraftOptions {
            most,
            ..options(DraftSource::Ngram)
        };
        assert!(matches!(Drafts::new(&options, &CPU), Ok(None)));
    }

    #[test]
    fn a_text_that_repeats_itself_is_proposed_and_counted() {
        let most = Some(5);
        let options = DraftOptions {
            most,
            ..options(DraftSource::Auto)
        };
        let drafts = Drafts::new(&options, &CPU).expect("n-grams need nothing");
        let mut drafts = drafts.expect("they are on");
        let mut text: Vec<u32> = (0..30).collect();
        let step = |drafted, accepted| Verified {
            drafted,
            accepted,
            took: Duration::from_millis(10 + drafted as u64),
        };
        drafts.begin();
        for token in 0..12 {
            let proposal = drafts.propose(&text, 64);
            if token < 5 {
                // The time of a step of one token is measured first.
                assert_eq!(proposal, Proposal::None);
            }
            match proposal {
                Proposal::Ids(ids) => {
                    assert!(ids.len() <= 5, "{ids:?}");
                    assert_eq!(ids[0], token);
                    drafts.verified(&step(ids.len(), 0));
                }
                _ => drafts.verified(&step(0, 0)),
            }
            text.push(token);
        }
        assert!(drafts.drafted() > 0);
        assert_eq!(drafts.accepted(), 0);
        assert_eq!(drafts.propose(&text, 0), Proposal::None);
        drafts.begin();
        assert_eq!(drafts.drafted(), 0);
    }

    #[test]
    fn an_expected_text_is_proposed_from_its_beginning() {
        for source in [DraftSource::Auto, DraftSource::Ngram, DraftSource::Mtp] {
            let means = DraftMeans {
                predicts: true,
                ..CPU
            };
            let drafts = Drafts::new(&options(source), &means).expect("it is there");
            let mut drafts = drafts.expect("they are on");
            drafts.predicts = false;
            let prompt: Vec<u32> = (100..130).collect();
            // The prompt has the same text, too.
            let text: Vec<u32> = (0..60).collect();
            let prompt = [&text[..], &prompt].concat();
            drafts.expect(&prompt, &text);
            let (mut answer, mut taken) = (prompt.clone(), 0);
            while answer.len() < prompt.len() + 60 {
                let next = answer.len() - prompt.len();
                let proposal = drafts.propose(&answer, 7.min(text.len() - next - 1));
                if let Proposal::Ids(ids) = &proposal {
                    assert!(drafts.is_expected(), "{source:?}");
                    assert_eq!(ids[..], text[next..][..ids.len()]);
                }
                let drafted = proposal.count();
                taken += drafted;
                drafts.verified(&Verified {
                    drafted,
                    accepted: drafted,
                    took: Duration::from_millis(10),
                });
                answer.extend_from_slice(&text[next..=next + drafted]);
            }
            assert!(taken > 20, "{source:?}: {taken}");
            // The next answer expects nothing.
            drafts.expect(&prompt, &[]);
            let found = drafts.propose(&answer[..prompt.len() + 30], 7);
            assert!(!drafts.is_expected() || found == Proposal::None);
            if source == DraftSource::Mtp {
                assert_eq!(found, Proposal::None);
            }
        }
    }

    #[test]
    fn the_drafts_accepted_are_those_that_were_chosen() {
        struct Any;
        impl Drafter for Any {
            fn propose(&mut self, _: &[u32], _: usize) -> Proposal {
                Proposal::None
            }
            fn verified(&mut self, _: &Verified) {}
        }
        for (drafts, chosen, expected) in [
            (&[][..], &[7][..], 0),
            (&[7, 8], &[7, 8, 9], 2),
            (&[7, 8], &[7, 9, 9], 1),
            (&[7, 8], &[6, 8, 9], 0),
        ] {
            assert_eq!(Any.accepted(drafts, chosen), expected);
        }
    }
}
