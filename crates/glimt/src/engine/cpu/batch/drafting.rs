//! The drafts that the prediction layer makes at the beginning of a step.

use std::ops::Range;

use super::{Step, Work};
use crate::engine::batch::{BatchToken, Prediction};
use crate::models::Part;

impl Work {
    /// Makes the drafts of all predictions of a step and keeps their ids: round by round, each for all sequences that want so many. The first round
    /// also makes the rows that are missing. Without a prediction layer there are none.
    pub(super) fn predict(&mut self, step: &Step) -> Vec<u32> {
        let Some(states) = &self.states else {
            return vec![];
        };
        let mut all: Vec<Growing> = step.predictions.iter().map(Growing::new).collect();
        for of in &mut all {
            for position in of.rows.clone() {
                of.hidden.extend(states.before(of.sequence, position));
            }
        }
        while all.iter().any(Growing::grows) {
            self.round(step, &mut all);
        }
        all.into_iter().flat_map(|of| of.drafts).collect()
    }

    /// A draft for each sequence that wants one more.
    fn round(&mut self, step: &Step, all: &mut [Growing]) {
        let mut all: Vec<&mut Growing> = all.iter_mut().filter(|of| of.grows()).collect();
        let (mut ids, mut hidden, mut parts) = (vec![], vec![], vec![]);
        for of in &all {
            ids.extend_from_slice(&self.ids[of.sequence as usize][of.rows.clone()]);
            hidden.extend_from_slice(&of.hidden);
            parts.push(Part {
                tokens: of.rows.len(),
                pos: of.rows.start,
                pages: &self.pages[of.sequence as usize],
            });
        }
        let states = self.reference.predict(&ids, &hidden, &parts);
        let width = states.len() / ids.len().max(1);
        let mut rows = states.chunks_exact(width.max(1));
        for of in &mut all {
            // The last row of its part.
            let last = rows.nth(of.rows.len() - 1);
            of.hidden = last.map_or_else(Vec::new, <[f32]>::to_vec);
        }
        let states: Vec<f32> = all.iter().flat_map(|of| &of.hidden).copied().collect();
        let mut logits = self.reference.predicted_head(&states);
        let vocab = logits.len() / all.len().max(1);
        for (of, row) in all.into_iter().zip(logits.chunks_exact_mut(vocab.max(1))) {
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
            of.rows = of.rows.end..of.rows.end + 1;
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
    /// The positions of the rows of the next round.
    rows: Range<usize>,
    /// What these rows take beside their embeddings.
    hidden: Vec<f32>,
    /// The number of the last choice.
    choice: Option<usize>,
}

impl Growing {
    fn new(of: &Prediction) -> Self {
        let end = of.position as usize + 1;
        Self {
            sequence: of.sequence,
            wanted: of.drafts as usize,
            drafts: vec![],
            // The row of the last token is computed in any case: its state makes the first draft.
            rows: end.saturating_sub(of.behind.max(1) as usize)..end,
            hidden: vec![],
            choice: None,
        }
    }

    fn grows(&self) -> bool {
        self.drafts.len() < self.wanted
    }

    /// The token of the last row.
    fn last(&self) -> BatchToken {
        BatchToken {
            sequence: self.sequence,
            position: self.rows.end as u32 - 1,
        }
    }
}
