//! Several sequences in one step: what tells a kernel where each token stands, and where the rows of its sequence lie in the cache.

use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Word};

/// Rows of a page: a multiple of the tiles of every attention, a power of two.
pub const PAGE: u32 = 64;
/// Words of a record of the table.
pub const RECORD: usize = 8;
/// Words of a record of a slice of the attention.
pub const SLICE: usize = 8;
/// Words of a record of the choices, as [`sample::words`](super::sample::words) lays them out.
pub const CHOICE: usize = 12;

/// The buffers that the kernels of a step bind if there are several sequences.
#[derive(Debug, Clone)]
pub struct Sequences {
    /// The place of each token, (max_tokens, [`RECORD`]) words: [`Record`].
    pub table: Range,
    /// The pages of each sequence in the order of its positions, numbers of pages of the cache. Without them, the row of a token is its
    /// position.
    pub pages: Option<Range>,
    /// The record of each slice of the attention, (slices, [`SLICE`]) words, as `own_slice.wgsl` names them.
    pub work: Range,
    /// Rows of a page, a power of two.
    pub page: u32,
    /// Rows of the cache: whole pages.
    pub rows: u32,
    /// Words of the history of all sequences.
    pub ids: u32,
    /// Whether all tokens of a step belong to one sequence and follow each other. Where they stand is in the words of its replays
    /// ([`State`](crate::gpu::call::State)), so that no kernel waits for the table.
    pub alone: bool,
}

/// The place of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Record {
    /// The token's position in its sequence.
    pub position: u32,
    /// The entry of the pages with the first page of its sequence.
    pub first_page: u32,
    /// The word of the history with the first id of its sequence.
    pub first_id: u32,
    /// The first slice of the token among those of all tokens.
    pub first_slice: u32,
    /// The number of the token's slices.
    pub slices: u32,
}

impl Record {
    /// The words of the record in the table.
    pub fn words(self) -> [u32; RECORD] {
        let Self {
            position,
            first_page,
            first_id,
            first_slice,
            slices,
        } = self;
        [position, first_page, first_id, first_slice, slices, 0, 0, 0]
    }
}

impl Sequences {
    /// The sequences for steps of up to `most` tokens.
    pub fn of_steps(&self, most: u32) -> Self {
        Self {
            alone: most == 1,
            ..self.clone()
        }
    }

    /// The table, where steps read it.
    pub(super) fn table(&self) -> Option<&Range> {
        (!self.alone).then_some(&self.table)
    }

    /// Binds what `history.wgsl` names, for kernels that read or write the history. Without `sequences` the history has a single sequence.
    pub(super) fn bind_history(sequences: Option<&Self>, call: Call) -> Call {
        let Some(sequences) = sequences else {
            return call.word("pos", Word::Pos);
        };
        let call = call.number("HISTORY_IDS", sequences.ids - 1);
        match sequences.table() {
            Some(table) => call.bind("table", table),
            None => call.word("pos", Word::Pos).word("first_id", Word::FirstId),
        }
    }

    /// Binds what tells where tokens stand and where rows of the cache lie, as `sequences.wgsl` names it. Without `sequences` the row of a
    /// token in the cache is its position.
    pub(super) fn bind_pages(sequences: Option<&Self>, call: Call) -> Call {
        let Some(sequences) = sequences else {
            return call.word("pos", Word::Pos);
        };
        let call = sequences.bind_pool(call);
        match sequences.table() {
            Some(table) => call.bind("table", table),
            None => call
                .word("pos", Word::Pos)
                .word("first_page", Word::FirstPage),
        }
    }

    /// Binds where rows of the cache lie, as `own_pages.wgsl` names it, for kernels whose tokens all belong to one sequence. Without
    /// `sequences` the row of a token in the cache is its position.
    ///
    /// # Panics
    /// If the tokens may belong to several sequences.
    pub(super) fn bind_own_pages(sequences: Option<&Self>, call: Call) -> Call {
        let Some(sequences) = sequences else {
            return call;
        };
        assert!(sequences.alone, "{}: tokens of one sequence", call.kernel);
        let call = sequences.bind_pool(call);
        call.word("first_page", Word::FirstPage)
    }

    /// Binds the list of pages, with the sizes of the cache.
    fn bind_pool(&self, call: Call) -> Call {
        let Some(pages) = &self.pages else {
            return call;
        };
        call.number("PAGE", self.page)
            .number("POOL_ROWS", self.rows)
            .number("PAGE_ENTRIES", (pages.size / 4) as u32)
            .word("last_page", (self.rows / self.page).max(1) - 1)
            .bind("pages", pages)
    }

    /// Binds what tells a workgroup its slice of a context, as `own_slice.wgsl` names it.
    pub(super) fn bind_slices(sequences: Option<&Self>, call: Call) -> Call {
        let call = Self::bind_pages(sequences, call);
        match sequences.filter(|sequences| !sequences.alone) {
            Some(sequences) => call.bind("work", &sequences.work),
            None => call
                .word("slices", Word::Slices)
                .word("slice_rows", Word::SliceRows),
        }
    }
}
