//! Rows of the cache that another page begins with as well: copied, so that they are not computed again.

use super::sequences::PAGE;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent};
use crate::gpu::machine::workgroups::COPY_ROWS as THREADS;

/// The most copies of a list.
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

/// Makes the copies in a cache with rows of `words` words.
pub fn copy_rows(cache: &mut [u32], words: usize, copies: &[Copied]) {
    for [from, to, rows, _] in copies.iter().map(|copied| copied.map(|n| n as usize)) {
        cache.copy_within(from * words..(from + rows) * words, to * words);
    }
}

#[cfg(test)]
mod tests {
    use crate::gpu::testing::gpus;
    use crate::kernels::cases::copy_rows::cases;
    use crate::kernels::testing::agree_everywhere;

    #[test]
    fn rows_are_copied_and_no_others() {
        agree_everywhere(gpus(), |_| cases());
    }
}
