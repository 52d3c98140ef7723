//! The states of the last positions of each sequence, from which its prediction layer goes on.

use super::sequences::Sequences;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent, Word};
use crate::gpu::machine::workgroups::KEEP_STATES as WG;

/// Positions of a sequence whose states are kept.
pub const KEPT: u32 = 32;

/// Room for the states of the last positions of each sequence.
#[derive(Debug, Clone)]
pub struct States {
    /// The rows, (sequences, [`KEPT`], width) f32: the stream behind the last layer, before its norm. The row of a position is its remainder.
    pub rows: Range,
    /// Ids of a sequence in the history.
    pub of_sequence: u32,
    /// Values of a row, a multiple of 4.
    pub width: u32,
}

impl States {
    /// Room for those of `sequences` sequences of up to `n_ctx` positions.
    pub fn new(sequences: u32, n_ctx: usize, width: u32) -> Self {
        let values = u64::from(sequences) * u64::from(KEPT) * u64::from(width);
        Self {
            rows: Range::floats("states of the last positions", values),
            of_sequence: n_ctx as u32 + 1,
            width,
        }
    }

    /// Binds the rows as `ring.wgsl` names them.
    pub(super) fn bind(&self, sequences: Option<&Sequences>, call: Call) -> Call {
        Sequences::bind_history(sequences, call)
            .number("OF_EACH", KEPT)
            .number("OF_SEQUENCE", self.of_sequence)
            .number("RING_ROWS", (self.rows.size / 4) as u32 / self.width)
            .bind("ring", &self.rows)
    }
}

/// The dispatch that keeps the rows of `x`, (max_tokens, width) f32, of the tokens of a step of up to `most`: of each sequence those of the last
/// [`KEPT`] positions.
pub fn call(sequences: Option<&Sequences>, x: &Range, states: &States, most: u32) -> Call {
    let call = Call::new("keep_states")
        .number("WG", WG)
        .number("VECTORS", states.width / 4)
        .bind("x", x)
        .grid([Extent::Tokens, Extent::N(1), Extent::N(1)]);
    let has_table = sequences.is_some_and(|sequences| !sequences.alone);
    let is_searched = has_table && most > KEPT;
    let tokens = (!has_table || is_searched).then_some(Word::Tokens);
    let call = states.bind(sequences, call.flag("SEARCHED", is_searched));
    call.word_some("tokens", tokens)
}

/// Keeps rows of `x` (tokens, width) of tokens at these sequences and positions.
pub fn keep_states(x: &[f32], places: &[[usize; 2]], kept: &mut [f32]) {
    let width = x.len() / places.len().max(1);
    for (row, [sequence, position]) in x.chunks_exact(width).zip(places) {
        let at = sequence * KEPT as usize + position % KEPT as usize;
        kept[at * width..][..width].copy_from_slice(row);
    }
}

#[cfg(test)]
mod tests {
    use crate::gpu::testing::gpus;
    use crate::kernels::cases::keep_states::cases;
    use crate::kernels::testing::agree_everywhere;

    #[test]
    fn the_gpu_agrees_with_its_twin() {
        agree_everywhere(gpus(), |_| cases());
    }
}
