//! Rows of a page that another page begins with as well: copied, so that they are not computed again.

use super::GpuBatch;
use crate::kernels::sequences::PAGE;
use wgpu::CommandEncoder;

/// The first rows of a page, on their way to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Copied {
    from: u32,
    to: u32,
    rows: u32,
}

impl GpuBatch {
    /// Has the first `rows` rows of page `from` copied to page `to` in all layers, after all steps that were submitted and before the next.
    ///
    /// # Panics
    /// If the cache has no such pages, or a page no such rows.
    pub fn copy_rows(&mut self, from: u32, to: u32, rows: u32) {
        assert!(
            from.max(to) < self.sizes.pages && rows <= PAGE,
            "{rows} rows of page {from} to page {to}"
        );
        if from != to && rows > 0 {
            self.copies.push(Copied { from, to, rows });
        }
    }

    /// Encodes what is to be copied, in the order in which it was asked for. A buffer cannot be copied to itself, so rows go through `passing`;
    /// those of one page go there once.
    pub(super) fn encode_copies(&mut self, encoder: &mut CommandEncoder) {
        let copies = std::mem::take(&mut self.copies);
        let pages = u64::from(self.sizes.pages);
        for group in copies.chunk_by(|a, b| a.from == b.from && a.to != b.from) {
            let most = group.iter().map(|copied| copied.rows).max();
            let mut place = 0;
            for cache in self.recipes.cache() {
                let (buffer, page) = (cache.buffer.made(), cache.size / pages);
                let row = page / u64::from(PAGE);
                let at = |number: u32| cache.offset + page * u64::from(number);
                let bytes = row * u64::from(most.unwrap_or(0));
                let from = at(group[0].from);
                encoder.copy_buffer_to_buffer(buffer, from, &self.passing, place, bytes);
                place += page;
            }
            for Copied { to, rows, .. } in group {
                let mut place = 0;
                for cache in self.recipes.cache() {
                    let (buffer, page) = (cache.buffer.made(), cache.size / pages);
                    let bytes = page / u64::from(PAGE) * u64::from(*rows);
                    let to = cache.offset + page * u64::from(*to);
                    encoder.copy_buffer_to_buffer(&self.passing, place, buffer, to, bytes);
                    place += page;
                }
            }
        }
    }
}
