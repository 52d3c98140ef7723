//! The places of tokens: in a sequence alone, or in one of several, whose pages lie anywhere in the cache.

use half::f16;

use super::lab::{Lab, state};
use crate::gpu::call::{Call, State};
use crate::gpu::{GpuError, Most};
use crate::kernels::sequences::{Record, SLICE, Sequences};

/// Sequences whose pages lie in random places among those of others, and the tokens of a step.
pub(crate) struct Pages {
    /// The position of each token. The last token of each sequence stands before all others.
    pub positions: Vec<u32>,
    /// The sequence of each.
    pub of: Vec<usize>,
    page: usize,
    pages: Vec<u32>,
    per_sequence: usize,
    /// Rows of the cache.
    pub rows: usize,
    pub n_ctx: usize,
}

impl Pages {
    /// One token for each of `lengths`, rows that its sequence has with its own; some tokens precede another of the same sequence.
    pub fn new(lab: &Lab<'_>, page: usize, lengths: &[usize]) -> Self {
        let n_ctx = lengths.iter().max().map_or(0, |most| most + 2);
        let per_sequence = n_ctx.div_ceil(page);
        let count = lengths.len() * per_sequence + 3;
        let mut pages: Vec<u32> = (0..count as u32).collect();
        lab.shuffle(&mut pages);
        // The first page of the first sequence is the last one of the cache, of which kernels are told a number that is too large.
        if let Some(last) = pages.iter().position(|page| *page == count as u32 - 1) {
            pages.swap(0, last);
        }
        pages.truncate(lengths.len() * per_sequence);
        let mut positions: Vec<u32> = lengths.iter().map(|n| *n as u32 - 1).collect();
        let mut of: Vec<usize> = (0..lengths.len()).collect();
        // Some tokens before the last of two sequences, too. They follow each other.
        for sequence in [0, 2] {
            let last = positions.get(sequence).copied().unwrap_or(0);
            let before = last.saturating_sub(6)..last;
            of.extend(before.clone().map(|_| sequence));
            positions.extend(before);
        }
        Self {
            positions,
            of,
            page,
            pages,
            per_sequence,
            rows: count * page,
            n_ctx,
        }
    }

    pub fn tokens(&self) -> usize {
        self.of.len()
    }

    /// Ids of the history of all sequences.
    pub fn ids(&self) -> usize {
        self.sequences() * (self.n_ctx + 1)
    }

    fn sequences(&self) -> usize {
        self.pages.len() / self.per_sequence
    }

    /// The entry of the history with the id of token `t`.
    pub fn id(&self, t: usize) -> usize {
        self.of[t] * (self.n_ctx + 1) + self.positions[t] as usize
    }

    /// The cache row of a position.
    pub fn row(&self, sequence: usize, position: usize) -> usize {
        let page = self.pages[sequence * self.per_sequence + position / self.page];
        page as usize * self.page + position % self.page
    }

    /// A cache with these rows of each sequence, of `width` values. All others are no numbers.
    pub fn cache(&self, of_sequences: &[Vec<f16>], width: usize) -> Vec<f16> {
        let mut all = vec![f16::NAN; self.rows * width];
        for (sequence, rows) in of_sequences.iter().enumerate() {
            for (position, values) in rows.chunks_exact(width).enumerate() {
                let at = self.row(sequence, position) * width;
                all[at..at + width].copy_from_slice(values);
            }
        }
        all
    }

    /// The sequences on the device, with the first slice of each token and how many it has, and the records of all slices.
    pub fn given(&self, lab: &Lab<'_>, slices: &[[u32; 2]], work: &[[u32; SLICE]]) -> Sequences {
        let record = |t: usize| Record {
            position: self.positions[t],
            first_page: (self.of[t] * self.per_sequence) as u32,
            first_id: (self.of[t] * (self.n_ctx + 1)) as u32,
            first_slice: slices[t][0],
            slices: slices[t][1],
        };
        let table = (0..self.tokens()).flat_map(|t| record(t).words());
        let mut pages = self.pages.clone();
        pages[0] = u32::MAX;
        Sequences {
            table: lab.given(&table.collect::<Vec<u32>>()),
            pages: Some(lab.given(&pages)),
            work: lab.given(work.as_flattened()),
            page: self.page as u32,
            rows: self.rows as u32,
            alone: false,
            ids: self.ids() as u32,
        }
    }

    /// The sequences on the device, for kernels that know no slices.
    pub fn without_slices(&self, lab: &Lab<'_>) -> Sequences {
        self.given(lab, &vec![[0, 1]; self.tokens()], &[[0; SLICE]])
    }

    /// The sequences on the device, for a step of token `t` alone, with its attention in slices of `slice_rows` rows.
    pub fn alone(&self, lab: &Lab<'_>, t: usize, slice_rows: u32) -> (Sequences, State) {
        let sequences = Sequences {
            // Not what tells where the token stands.
            table: lab.words(8 * self.tokens()),
            alone: true,
            ..self.without_slices(lab)
        };
        let (sequence, pos) = (self.of[t], self.positions[t]);
        let state = State {
            slices: (pos + 1).div_ceil(slice_rows),
            slice_rows,
            first_page: (sequence * self.per_sequence) as u32,
            first_id: (sequence * (self.n_ctx + 1)) as u32,
            ..state(1, pos as usize)
        };
        (sequences, state)
    }
}

/// The place of a token, as a kernel is told it.
pub(crate) struct Place {
    pub sequences: Option<Sequences>,
    pub state: State,
    /// The row of the cache that belongs to it.
    pub row: usize,
}

/// A token at position `pos` of a cache of its own, and of one of several sequences with pages; and the rows of the cache.
pub(crate) fn places(lab: &Lab<'_>, pos: usize) -> ([Place; 2], usize) {
    let by_itself = Place {
        sequences: None,
        state: state(1, pos),
        row: pos,
    };
    let pages = Pages::new(lab, 32, &[3, pos + 1, 40]);
    let (sequences, state) = pages.alone(lab, 1, 16);
    let in_pages = Place {
        sequences: Some(sequences),
        state,
        row: pages.row(1, pos),
    };
    ([by_itself, in_pages], pages.rows)
}

/// Tokens at `positions`, with `slices` slices each, for kernels that read nothing else of sequences. Other slices precede them.
pub(crate) fn standing(
    lab: &Lab<'_>,
    positions: &[u32],
    slices: &[u32],
    preceding: u32,
) -> Sequences {
    let mut first_slice = preceding;
    let record = |(position, slices): (&u32, &u32)| {
        let record = Record {
            position: *position,
            first_slice,
            slices: *slices,
            // No kernel in question reads these.
            first_page: u32::MAX,
            first_id: u32::MAX,
        };
        first_slice += slices;
        record.words()
    };
    let table: Vec<u32> = positions.iter().zip(slices).flat_map(record).collect();
    Sequences {
        table: lab.given(&table),
        pages: Some(lab.words(4)),
        work: lab.words(4),
        page: 64,
        rows: 64,
        ids: 64,
        alone: false,
    }
}

/// Tokens of a step, and the most that it is recorded for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Several {
    pub here: usize,
    /// The number of tokens that the calls are for, more than `here`.
    pub most: usize,
}

impl Several {
    /// 2 to 8 tokens, of up to 9.
    pub fn new(lab: &Lab<'_>) -> Self {
        let here = 2 + lab.below(7);
        let most = here + 1 + lab.below(9 - here);
        Self { here, most }
    }

    /// Such tokens, or one.
    pub fn or_one(lab: &Lab<'_>) -> Self {
        match lab.below(3) {
            0 => Self { here: 1, most: 1 },
            _ => Self::new(lab),
        }
    }

    /// Runs `calls` once, after up to `context` rows of the cache, and waits.
    pub fn run(self, lab: &Lab<'_>, calls: Vec<Call>, context: usize) -> Result<(), GpuError> {
        self.run_from(lab, calls, context, 0)
    }

    /// The same from position `pos` on, at which a token alone stands.
    pub fn run_from(
        self,
        lab: &Lab<'_>,
        calls: Vec<Call>,
        context: usize,
        pos: u32,
    ) -> Result<(), GpuError> {
        let most = Most {
            tokens: self.most as u32,
            context: context as u32,
        };
        lab.run_of(calls, most, state(self.here, pos as usize))
    }

    /// Experts of each token, `used` different ones of `count`. Two tokens share one.
    pub fn experts(self, lab: &Lab<'_>, [count, used]: [usize; 2]) -> Vec<u32> {
        let mut ids: Vec<u32> = vec![];
        for token in 0..self.here {
            let begin = ids.len();
            if token == 1 {
                ids.push(ids[used - 1]);
            }
            while ids.len() < begin + used {
                let id = lab.below(count) as u32;
                if !ids[begin..].contains(&id) {
                    ids.push(id);
                }
            }
        }
        ids
    }
}
