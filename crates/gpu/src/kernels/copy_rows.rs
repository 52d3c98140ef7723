//! Rows of the cache that another page begins with as well: copied, so that they are not computed again.

use super::sequences::PAGE;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent};
use crate::gpu::machine::workgroups::COPY_ROWS as THREADS;

/// Copies of a list at most.
pub const MOST: u32 = 64;

/// A copy as the device takes it: the first row of the source, that of the copy, the number of rows up to [`PAGE`], and 0.
pub type Copied = [u32; 4];

/// The dispatch that makes the copies of a list in the `cache` of a layer, (rows, `values`) f16. A replay has as many tokens as the list,
/// (copies) [`Copied`], has copies. No row that is written may belong to another copy of the list.
///
/// # Panics
/// If a row is no multiple of 4 bytes.
pub fn call(cache: &Range, rows: u32, values: u32, list: &Range) -> Call {
    assert!(values.is_multiple_of(2), "rows of {values} values");
    Call::new("copy_rows")
        .number("WG", THREADS)
        .number("ROW_WORDS", values / 2)
        .number("CACHE_ROWS", rows)
        .bind("cache", cache)
        .bind("copies", list)
        .grid([Extent::N(PAGE), Extent::Tokens, Extent::N(1)])
}

/// Makes the copies in a cache with rows of so many words.
pub fn copy_rows(cache: &mut [u32], words: usize, copies: &[Copied]) {
    for [from, to, rows, _] in copies.iter().map(|copied| copied.map(|n| n as usize)) {
        cache.copy_within(from * words..(from + rows) * words, to * words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::buffer::Role;
    use crate::gpu::call::State;
    use crate::gpu::testing::{download, gpus, run, upload};
    use crate::kernels::testing::Rng;

    #[test]
    fn rows_are_copied_and_no_others() {
        let mut rng = Rng::fresh();
        for (pages, values) in [(9, 576), (5, 320), (140, 2), (3, 66)] {
            for gpu in gpus() {
                let words = values / 2;
                let cache: Vec<u32> = (0..pages * PAGE as usize * words)
                    .map(|_| rng.bits() as u32)
                    .collect();
                // Half of the pages begin as one of the others, one of which several may copy.
                let half = pages / 2;
                let copies: Vec<Copied> = (0..half.min(MOST as usize))
                    .map(|i| {
                        let from = half + rng.below(pages - half);
                        let rows = [1, 31, PAGE, 1 + rng.below(PAGE as usize) as u32][rng.below(4)];
                        [from as u32 * PAGE, i as u32 * PAGE, rows, 0]
                    })
                    .collect();
                let mut expected = cache.clone();
                copy_rows(&mut expected, words, &copies);
                let found = upload(gpu, &cache);
                let list = Range::whole(&upload(gpu, copies.as_flattened()));
                let range = Range::whole(&found).holding(Role::Cache);
                let call = call(&range, pages as u32 * PAGE, values as u32, &list);
                let state = State {
                    tokens: copies.len() as u32,
                    ..State::default()
                };
                run(gpu, &[call], &state);
                let all: Vec<u32> = download(gpu, &found, cache.len());
                assert!(all == expected, "{pages} pages of {values} values");
            }
        }
    }
}
