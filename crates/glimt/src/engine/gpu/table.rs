//! The tables that tell a step of several tokens where these stand.

use crate::engine::batch::BatchToken;
use crate::gpu::Gpu;
use crate::gpu::buffer::Range;
use crate::gpu::call::State;
use crate::kernels::attention::{Cut, Seen};
use crate::kernels::sequences::{Record, Sequences};
use crate::recipes::Steps;

/// The place of a sequence in the buffers of a batch: where its pages and its ids begin.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// The first page of the sequence in the table of pages.
    pub(super) first_page: u32,
    /// The first id of the sequence in the history.
    pub(super) first_id: u32,
}

impl Place {
    /// The words of a step over `tokens` tokens of the sequence from `pos` on.
    pub(super) fn state(self, recipes: &Steps, gpu: &Gpu, pos: usize, tokens: usize) -> State {
        State {
            first_page: self.first_page,
            first_id: self.first_id,
            ..recipes.state(gpu.machine, pos, tokens)
        }
    }
}

/// Writes words of a buffer, for steps that are submitted from now on.
pub(super) fn write_words(gpu: &Gpu, range: &Range, at: usize, words: &[u32]) {
    let bytes = bytemuck::cast_slice(words);
    let offset = range.offset + 4 * at as u64;
    gpu.queue.write_buffer(range.buffer.made(), offset, bytes);
}

/// Says where the tokens of a step of up to `most` stand, in the tables that it reads, and gives the words of its replay.
pub(super) fn write_table(
    gpu: &Gpu,
    recipes: &Steps,
    most: u32,
    tokens: &[(BatchToken, Place)],
) -> State {
    write_table_of(gpu, recipes, recipes.sequences(), most, tokens)
}

/// The slices of the contexts of such tokens.
fn cut(gpu: &Gpu, recipes: &Steps, most: u32, tokens: impl Iterator<Item = BatchToken>) -> Cut {
    let seen = tokens.map(|token| Seen {
        sequence: token.sequence,
        position: token.position,
    });
    recipes.cut(gpu, most, &seen.collect::<Vec<_>>())
}

/// The records of tokens whose contexts are cut so.
pub(super) fn records(cut: &Cut, tokens: &[(BatchToken, Place)]) -> Vec<u32> {
    let records = tokens.iter().zip(&cut.slices);
    let records = records.flat_map(|((token, place), [first_slice, slices])| {
        let record = Record {
            position: token.position,
            first_page: place.first_page,
            first_id: place.first_id,
            first_slice: *first_slice,
            slices: *slices,
        };
        record.words()
    });
    records.collect()
}

/// The words of a replay of tokens whose contexts are cut so.
pub(super) fn state_of_cut(cut: &Cut, tokens: usize) -> State {
    let count = tokens as u32;
    State {
        // The number of rows chooses among kernels. Positions are in the table.
        pos: cut.rows.max(count) - count,
        tokens: count,
        slices: cut.slices_of.iter().sum::<u32>().max(cut.work.len() as u32),
        kernels: cut.kernels,
        slices_of: cut.slices_of,
        ..State::default()
    }
}

/// The words of a replay of a step of up to `most` tokens, if it has these.
pub(super) fn state_of(gpu: &Gpu, recipes: &Steps, most: u32, tokens: &[BatchToken]) -> State {
    state_of_cut(
        &cut(gpu, recipes, most, tokens.iter().copied()),
        tokens.len(),
    )
}

/// Says so in the tables of these `sequences`.
pub(super) fn write_table_of(
    gpu: &Gpu,
    recipes: &Steps,
    sequences: Option<&Sequences>,
    most: u32,
    tokens: &[(BatchToken, Place)],
) -> State {
    let cut = cut(gpu, recipes, most, tokens.iter().map(|(token, _)| *token));
    let records = records(&cut, tokens);
    if let Some(sequences) = sequences {
        write_words(gpu, &sequences.table, 0, &records);
        write_words(gpu, &sequences.work, 0, cut.work.as_flattened());
    }
    state_of_cut(&cut, tokens.len())
}
