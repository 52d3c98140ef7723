//! The hidden states of the last tokens of each sequence, which the prediction layer takes.

use crate::models::{Part, Reference};

/// The last tokens of a sequence whose states are kept: more than a step has drafts, any of which may be the last that is accepted.
const KEPT: usize = 128;

/// The position of a token and its state.
type Kept = (usize, Vec<f32>);

/// The states of the last tokens of each sequence, after the model's last norm.
pub(super) struct States {
    width: usize,
    /// Of each sequence, by position modulo [`KEPT`].
    kept: Vec<Vec<Option<Kept>>>,
}

impl States {
    /// None of any of so many sequences.
    pub(super) fn new(sequences: usize, width: usize) -> Self {
        let kept = vec![vec![None; KEPT]; sequences];
        Self { width, kept }
    }

    /// The state of the token before a position: zeros at the beginning, and where it is not known. A draft is then a worse one.
    pub(super) fn before(&self, sequence: u32, position: usize) -> Vec<f32> {
        let known = position.checked_sub(1).and_then(|before| {
            let kept = self.kept[sequence as usize][before % KEPT].as_ref();
            kept.filter(|(of, _)| *of == before)
        });
        known.map_or_else(|| vec![0.0; self.width], |(_, state)| state.clone())
    }

    /// Forgets the states that are made of the id at a position of a sequence.
    pub(super) fn forget(&mut self, sequence: u32, position: usize) {
        for kept in &mut self.kept[sequence as usize] {
            if kept.as_ref().is_some_and(|(of, _)| *of >= position) {
                *kept = None;
            }
        }
    }

    /// Keeps the states of tokens behind whose last block are the hidden states `x`, and fills their rows of the layer's cache. All of `sequences`
    /// is told token by token.
    pub(super) fn keep(
        &mut self,
        reference: &mut dyn Reference,
        (tokens, sequences): (&[u32], &[u32]),
        parts: &[Part<'_>],
        x: &[f32],
    ) {
        let states = reference.normed(x);
        let mut before = vec![];
        let mut first = 0;
        for part in parts {
            let (sequence, count) = (sequences[first], part.tokens);
            let own = &states[first * self.width..(first + count) * self.width];
            before.extend(self.before(sequence, part.pos));
            before.extend_from_slice(&own[..(count - 1) * self.width]);
            let all = own.chunks_exact(self.width).enumerate();
            for (i, state) in all.skip(count.saturating_sub(KEPT)) {
                let position = part.pos + i;
                let place = &mut self.kept[sequence as usize][position % KEPT];
                *place = Some((position, state.to_vec()));
            }
            first += count;
        }
        reference.predict_rows(tokens, &before, parts);
    }
}
