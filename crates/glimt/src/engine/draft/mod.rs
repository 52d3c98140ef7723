//! Drafts: tokens that are proposed for the next positions, and computed in one step with the token before them. A draft is accepted if it is
//! the token that the model chooses at its position. So the text is what it is without drafts.

mod drafts;
mod expected;
mod ngram;
mod policy;

use std::str::FromStr;

use web_time::Duration;

pub(super) use drafts::MOST_PREDICTED;
pub use drafts::{DraftError, DraftMeans, Drafts};

/// The source of drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DraftSource {
    /// Whatever pays: the prediction layer if the model has one, n-grams where the text repeats itself, or none.
    Auto,
    /// None.
    #[default]
    Off,
    /// The layer that predicts the token after next (multi-token prediction, `blk.N.nextn.*`).
    Mtp,
    /// N-grams: the tokens that followed the last ones where these stand earlier in the text.
    Ngram,
}

impl DraftSource {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Off, Self::Mtp, Self::Ngram];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Off => "off",
            Self::Mtp => "mtp",
            Self::Ngram => "ngram",
        }
    }
}

impl FromStr for DraftSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|source| source.name() == text);
        named.ok_or_else(|| format!("expected auto, off, mtp or ngram, found {text:?}"))
    }
}

/// The drafts that an answer may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DraftOptions {
    /// Their source.
    pub source: DraftSource,
    /// The most drafts of a step, where the user says so.
    pub most: Option<usize>,
}

impl DraftOptions {
    /// No drafts.
    pub const OFF: Self = Self {
        source: DraftSource::Off,
        most: Some(0),
    };

    /// The most drafts of a step for which room is worth having, where experts may have to be brought to the device.
    pub fn most(&self, brings_experts: bool) -> u32 {
        match self.source {
            DraftSource::Off => 0,
            DraftSource::Auto if brings_experts => 0,
            _ => self
                .most
                .map_or(u32::MAX, |most| u32::try_from(most).unwrap_or(u32::MAX)),
        }
    }
}

/// The drafts of the next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proposal {
    /// The step has none.
    None,
    /// The step takes these ids for the positions behind the last token.
    Ids(Vec<u32>),
    /// The prediction layer is to propose so many.
    Predict(usize),
}

impl Proposal {
    /// The number of drafts.
    pub fn count(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Ids(ids) => ids.len(),
            Self::Predict(count) => *count,
        }
    }
}

/// What became of a step with or without drafts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Verified {
    /// The drafts that the step had.
    pub drafted: usize,
    /// How many of them were what the model chose, from the first one on.
    pub accepted: usize,
    /// The time from the step before to this one.
    pub took: Duration,
}

/// Which drafts of a step are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acceptance {
    /// The drafts that are what was chosen, from the first one on.
    Chosen,
    /// So many, whatever was chosen: a measurement says so.
    Fixed(usize),
    /// Those that [`Drafter::accepted`] tells once the step is there.
    Told,
}

/// Decides on the drafts of an answer, step by step.
pub trait Drafter: Send {
    /// The drafts, at most `most`, of the step that computes the last token of `text`.
    fn propose(&mut self, text: &[u32], most: usize) -> Proposal;

    /// The number of drafts of a step that are accepted, from the first one on, where these tokens were chosen before each of them and behind the
    /// last: those that are what was chosen. A measurement may say otherwise.
    fn accepted(&mut self, drafts: &[u32], chosen: &[u32]) -> usize {
        let pairs = drafts.iter().zip(chosen);
        pairs.take_while(|(draft, chosen)| draft == chosen).count()
    }

    /// Which drafts of a further step with so many will be accepted. It is asked once for each step. Only where it does not have to be
    /// [told](Acceptance::Told) may the next step be on its way before this one is there.
    fn acceptance(&mut self, _drafts: usize) -> Acceptance {
        Acceptance::Told
    }

    /// Takes a text that the answer to `prompt` is expected to repeat, in which drafts are looked for as well. An empty one is none.
    fn expect(&mut self, _prompt: &[u32], _text: &[u32]) {}

    /// Whether the last ids that were proposed are of the text that is expected.
    fn is_expected(&self) -> bool {
        false
    }

    /// Hears what became of a step, in order. Steps that were proposed for meanwhile may still be on their way.
    fn verified(&mut self, step: &Verified);
}
