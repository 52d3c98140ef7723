//! The drafts that the prediction layer makes at the beginning of a step.

use super::{Step, Work};
use crate::engine::batch::{BatchToken, Prediction};
use crate::models::Part;

impl Work {
    /// Makes the drafts of all predictions of a step and keeps their ids: round by round, each for all sequences that want so many. Of the rows of
    /// the layer that of the last token alone is missing, whatever a prediction says, since a step here makes those of its tokens. Without a
    /// prediction layer there are no drafts.
    pub(super) fn predict(&mut self, step: &Step) -> Vec<u32> {
        let Some(states) = &self.states else {
            return vec![];
        };
        let mut all: Vec<Growing> = step.predictions.iter().map(Growing::new).collect();
        for of in &mut all {
            of.hidden = states.before(of.sequence, of.position);
        }
        while all.iter().any(Growing::grows) {
            self.round(step, &mut all);
        }
        all.into_iter().flat_map(|of| of.drafts).collect()
    }

    /// A draft for each sequence that wants one more.
    fn round(&mut self, step: &Step, all: &mut [Growing]) {
        let all: Vec<&mut Growing> = all.iter_mut().filter(|of| of.grows()).collect();
        let (mut ids, mut hidden, mut parts) = (vec![], vec![], vec![]);
        for of in &all {
            ids.push(self.ids[of.sequence as usize][of.position]);
            hidden.extend_from_slice(&of.hidden);
            parts.push(Part {
                tokens: 1,
                pos: of.position,
                pages: &self.pages[of.sequence as usize],
            });
        }
        let states = self.reference.predict(&ids, &hidden, &parts);
        let mut logits = self.reference.predicted_head(&states);
        let count = ids.len().max(1);
        let (width, vocab) = (states.len() / count, logits.len() / count);
        let states = states.chunks_exact(width.max(1));
        let rows = logits.chunks_exact_mut(vocab.max(1));
        for ((of, state), row) in all.into_iter().zip(states).zip(rows) {
            of.hidden = state.to_vec();
            let token = of.last();
            // A draft is chosen as its position's token will be.
            let index = step.choice_behind(token).or(of.choice);
            let Some(choice) = index else {
                // Nobody chooses behind its last token, so nobody asks for drafts.
                of.wanted = 0;
                continue;
            };
            of.choice = index;
            of.drafts.push(self.draw(step, choice, token, row));
            of.position += 1;
        }
    }
}

impl Step {
    /// The number of the choice behind a token, if one is chosen there.
    fn choice_behind(&self, token: BatchToken) -> Option<usize> {
        let mut chosen = self.tokens[..self.choices.len()].iter();
        chosen.position(|of| *of == token)
    }
}

/// The drafts of a sequence as they are made.
struct Growing {
    sequence: u32,
    wanted: usize,
    drafts: Vec<u32>,
    /// The position of the row of the next round.
    position: usize,
    /// The input of this row beside the embedding.
    hidden: Vec<f32>,
    /// The number of the last choice.
    choice: Option<usize>,
}

impl Growing {
    fn new(of: &Prediction) -> Self {
        Self {
            sequence: of.sequence,
            wanted: of.drafts as usize,
            drafts: vec![],
            position: of.position as usize,
            hidden: vec![],
            choice: None,
        }
    }

    fn grows(&self) -> bool {
        self.drafts.len() < self.wanted
    }

    /// The token of the row.
    fn last(&self) -> BatchToken {
        BatchToken {
            sequence: self.sequence,
            position: self.position as u32,
        }
    }
}
