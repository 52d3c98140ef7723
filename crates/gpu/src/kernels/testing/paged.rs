//! A cache in pages of several sequences: what tests of kernels share that follow the pages of one of them.

use super::Rng;
use crate::gpu::Gpu;
use crate::gpu::buffer::Range;
use crate::gpu::testing::upload;
use crate::kernels::sequences::{PAGE, Sequences};
use half::f16;

/// Sequences whose pages lie in random places of a cache that is larger than all of them. One is not the first, and its rows are asked for.
pub struct Paged {
    pages: Vec<u32>,
    /// Pages of a sequence.
    per_sequence: usize,
    /// The sequence.
    own: usize,
    /// Pages of the cache.
    pub count: u32,
}

impl Paged {
    /// Three sequences of up to `n_ctx` rows each.
    pub fn new(rng: &mut Rng, n_ctx: usize) -> Self {
        let per_sequence = n_ctx.div_ceil(PAGE as usize);
        let count = 3 * per_sequence + 2;
        let mut pages: Vec<u32> = (0..count as u32).collect();
        rng.shuffle(&mut pages);
        pages.truncate(3 * per_sequence);
        Self {
            pages,
            per_sequence,
            own: 1 + rng.below(2),
            count: count as u32,
        }
    }

    /// The number of the sequence.
    pub fn own(&self) -> usize {
        self.own
    }

    /// The entry of the pages with its first page.
    pub fn first_page(&self) -> u32 {
        (self.own * self.per_sequence) as u32
    }

    /// The row of the cache that belongs to a position.
    pub fn row(&self, position: usize) -> usize {
        let page = self.pages[self.first_page() as usize + position / PAGE as usize];
        page as usize * PAGE as usize + position % PAGE as usize
    }

    /// The rows of the first `n` positions in such a cache.
    pub fn rows<'a>(&self, cache: &'a [f16], width: usize, n: usize) -> Vec<&'a [f16]> {
        let row = |position| &cache[self.row(position) * width..][..width];
        (0..n).map(row).collect()
    }

    /// The cache as kernels are told of it. They read no table.
    pub fn sequences(&self, gpu: &Gpu) -> Sequences {
        let none = || Range::whole(&upload(gpu, &[u32::MAX; 4]));
        Sequences {
            table: none(),
            pages: Some(Range::whole(&upload(gpu, &self.pages))),
            work: none(),
            page: PAGE,
            rows: self.count * PAGE,
            ids: 64,
            alone: true,
        }
    }
}
