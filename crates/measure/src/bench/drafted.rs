//! Generations with drafts: as they come, or accepted as often as somebody says.

use std::sync::Arc;

use super::{BenchError, Test};
use crate::engine::draft::{
    Acceptance, DraftMeans, DraftOptions, DraftSource, Drafter, Drafts, Proposal, Verified,
};
use crate::engine::sampling::uniform;
use crate::engine::{EngineError, ModelSource};
use crate::model::NextnSource;
use crate::models::Model;
use crate::tokenizer::Tokenizer;

/// The drafts that generations take.
#[derive(Debug, Clone)]
pub struct Drafting {
    /// Their source and number.
    pub options: DraftOptions,
    /// The file of the prediction layer, where it is not the model's own.
    pub model: Option<ModelSource>,
    /// The share of steps in which the first, the second, ... draft is accepted, in place of those that are what the model chooses.
    pub accept: Option<Arc<[f64]>>,
    /// The text that generations follow, in place of what the model chooses.
    pub text: Option<Arc<str>>,
}

impl Default for Drafting {
    /// None.
    fn default() -> Self {
        Self {
            options: DraftOptions {
                source: DraftSource::Off,
                most: None,
            },
            model: None,
            accept: None,
            text: None,
        }
    }
}

impl Drafting {
    /// The file that gives the model its prediction layer.
    ///
    /// # Errors
    /// The refusal of a file of the layer alone.
    pub(crate) fn layer(&self) -> Result<NextnSource, BenchError> {
        Ok(match (self.options.source, &self.model) {
            (DraftSource::Off | DraftSource::Ngram, _) => NextnSource::None,
            (_, Some(other)) => NextnSource::Other(Arc::new(other.open()?)),
            (DraftSource::Mtp, None) => NextnSource::Own,
            (DraftSource::Auto, None) => NextnSource::IfAny,
        })
    }

    /// The tokens of the text, if there is one: as many as the longest of `tests` needs, or more.
    ///
    /// # Errors
    /// [`BenchError::ShortText`], or a vocabulary that cannot be read.
    pub(super) fn tokens(
        &self,
        model: &dyn Model,
        tests: &[Test],
    ) -> Result<Option<Vec<u32>>, BenchError> {
        let Some(text) = &self.text else {
            return Ok(None);
        };
        let needed = tests.iter().map(Test::context).max().unwrap_or(0);
        let tokenizer = Tokenizer::from_gguf(model.gguf()).map_err(EngineError::from)?;
        let tokens = tokenizer.encode(text, true).map_err(EngineError::from)?;
        match tokens.len() < needed {
            true => Err(BenchError::ShortText {
                found: tokens.len(),
                needed,
            }),
            false => Ok(Some(tokens)),
        }
    }

    /// The drafter of all repetitions of a test, which learns what pays; `None` where there are no drafts. Generations follow `text`, if there is
    /// one.
    ///
    /// # Errors
    /// [`EngineError::Draft`].
    pub(super) fn drafter(
        &self,
        means: &DraftMeans,
        text: &Option<Vec<u32>>,
    ) -> Result<Option<BenchDrafts>, BenchError> {
        let accept = self.accept.clone();
        let mut options = self.options;
        if let Some(accept) = &accept {
            // Nothing is known of later drafts.
            options.most = Some(options.most.unwrap_or(usize::MAX).min(accept.len()));
        }
        let drafts = Drafts::new(&options, means).map_err(EngineError::from)?;
        Ok(drafts.map(|drafts| BenchDrafts {
            drafts,
            accept,
            text: text.clone(),
            at: 0,
            steps: 0,
            counts: [0; 2],
        }))
    }

    /// The name of the source, with what is forced.
    pub(super) fn name(&self) -> Option<String> {
        if self.options.source == DraftSource::Off {
            return None;
        }
        let forced = match (&self.accept, &self.text) {
            (Some(_), _) => " forced",
            (None, Some(_)) => " text",
            (None, None) => "",
        };
        Some(format!("{}{forced}", self.options.source.name()))
    }
}

/// Drafts of a measurement.
pub(super) struct BenchDrafts {
    drafts: Drafts,
    accept: Option<Arc<[f64]>>,
    /// The tokens that the text has whatever is chosen.
    text: Option<Vec<u32>>,
    /// The tokens that were known at the last step.
    at: usize,
    /// Steps with drafts so far, which number the draws of what is accepted.
    steps: u64,
    /// Drafts, and those that were accepted.
    counts: [usize; 2],
}

impl BenchDrafts {
    /// Begins a repetition: the text that it follows, if any. What was learned is kept.
    pub(super) fn begin(&mut self) -> Option<&[u32]> {
        self.drafts.begin();
        self.text.as_deref()
    }

    /// The drafts that a step with so many accepts by `--accept`, if it is given.
    fn drawn(&mut self, drafts: usize) -> Option<usize> {
        let accept = self.accept.as_ref().filter(|_| drafts > 0)?;
        self.steps += 1;
        let luck = f64::from(uniform(0, self.steps));
        let shares = accept.iter().take(drafts);
        Some(shares.take_while(|share| luck < **share).count())
    }

    /// Drafts so far, and those that were accepted.
    pub(super) fn counts(&self) -> [usize; 2] {
        self.counts
    }
}

impl Drafter for BenchDrafts {
    fn propose(&mut self, text: &[u32], most: usize) -> Proposal {
        self.at = text.len();
        let known = self
            .text
            .as_ref()
            .and_then(|forced| forced.get(..text.len()));
        self.drafts.propose(known.unwrap_or(text), most)
    }

    fn accepted(&mut self, drafts: &[u32], chosen: &[u32]) -> usize {
        if let Some(accepted) = self.drawn(drafts.len()) {
            return accepted;
        }
        let forced = self.text.as_ref().and_then(|text| text.get(self.at..));
        Drafter::accepted(&mut self.drafts, drafts, forced.unwrap_or(chosen))
    }

    fn acceptance(&mut self, drafts: usize) -> Acceptance {
        match (self.drawn(drafts), &self.text) {
            (Some(accepted), _) => Acceptance::Fixed(accepted),
            (None, Some(_)) => Acceptance::Told,
            (None, None) => Acceptance::Chosen,
        }
    }

    fn verified(&mut self, step: &Verified) {
        self.counts[0] += step.drafted;
        self.counts[1] += step.accepted;
        self.drafts.verified(step);
    }
}

/// Reads the shares of `--accept`: numbers from 0 to 1, none above the one before.
///
/// # Errors
/// A sentence saying what is expected.
pub fn shares(text: &str) -> Result<Arc<[f64]>, String> {
    let numbers: Option<Vec<f64>> = text.split(',').map(|part| part.parse().ok()).collect();
    let falls = |shares: &Vec<f64>| shares.is_sorted_by(|a, b| a >= b);
    let is_share = |shares: &Vec<f64>| shares.iter().all(|share| (0.0..=1.0).contains(share));
    match numbers.filter(|shares| falls(shares) && is_share(shares)) {
        Some(shares) => Ok(shares.into()),
        None => Err(format!(
            "'{text}' is not the share of steps that accept a first, a second, ... draft, such as 0.83,0.65,0.49"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const MEANS: DraftMeans = DraftMeans {
        most: 16,
        predicts: true,
        one_by_one: false,
        brings_experts: false,
    };

    #[test]
    fn shares_fall_from_one() {
        assert_eq!(shares("0.83,0.65,0.49").unwrap()[..], [0.83, 0.65, 0.49]);
        assert_eq!(shares("0").unwrap()[..], [0.0]);
        for wrong in ["", "a", "0.5,0.6", "1.1", "-0.1", "0.5,"] {
            assert!(shares(wrong).unwrap_err().contains("0.83"), "{wrong}");
        }
    }

    #[test]
    fn forced_shares_are_accepted_that_often_whatever_is_chosen() {
        let drafting = Drafting {
            options: DraftOptions {
                source: DraftSource::Mtp,
                most: None,
            },
            accept: Some(shares("0.8,0.5").unwrap()),
            ..Drafting::default()
        };
        let mut measured = drafting.drafter(&MEANS, &None).unwrap().unwrap();
        let mut counts = [0.0f64; 3];
        for _ in 0..4000 {
            counts[measured.accepted(&[1, 2, 3], &[4, 4, 4, 4])] += 1.0 / 4000.0;
        }
        for (found, expected) in counts.iter().zip([0.2, 0.3, 0.5]) {
            assert!((found - expected).abs() < 0.04, "{counts:?}");
        }
        assert_eq!(drafting.name().as_deref(), Some("mtp forced"));
    }

    #[test]
    fn a_forced_text_is_what_drafts_are_compared_with() {
        let drafting = Drafting {
            options: DraftOptions {
                source: DraftSource::Ngram,
                most: None,
            },
            ..Drafting::default()
        };
        let text: Vec<u32> = [5, 6, 7, 8, 9].repeat(40);
        let forced = Some(text.clone());
        let mut measured = drafting.drafter(&MEANS, &forced).unwrap().unwrap();
        assert_eq!(measured.begin(), Some(&text[..]));
        let (mut at, mut steps) = (5, 0);
        while at < 150 {
            // What the model chooses is something else.
            let proposal = measured.propose(&vec![0; at], 64.min(150 - at));
            let drafts = match proposal {
                Proposal::Ids(ids) => ids,
                _ => vec![],
            };
            assert!(text[at..].starts_with(&drafts));
            let accepted = measured.accepted(&drafts, &[0]);
            assert_eq!(accepted, drafts.len());
            let drafted = drafts.len();
            let took = Duration::from_micros(1000 + 50 * drafted as u64);
            measured.verified(&Verified {
                drafted,
                accepted,
                took,
            });
            at += accepted + 1;
            steps += 1;
        }
        assert!(steps < 40, "{steps}");
        assert_eq!(measured.counts()[0], measured.counts()[1]);
    }
}
