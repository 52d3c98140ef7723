//! A plain read of a buffer: the measure of a device's memory.

use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent};
use crate::gpu::machine::workgroups::READ as WG;

use super::MAX_GRID;

/// Loads per thread that are worth trying.
pub const AT_ONCE: [u32; 2] = [8, 16];

/// Bytes that one workgroup reads with `at_once` loads per thread.
pub const fn tile_bytes(at_once: u32) -> u64 {
    at_once as u64 * WG as u64 * 16
}

/// The dispatch that reads the whole tiles ([`tile_bytes`]) of `data`; the rest is left out. `found` is one word, which tells whether
/// the exclusive or of any thread's words is `sought`.
///
/// # Panics
/// If `data` holds no tile, or more than a grid has room for.
pub fn call(data: &Range, found: &Range, at_once: u32, sought: u32) -> Call {
    let tiles =
        u32::try_from(data.size / tile_bytes(at_once)).expect("a binding has 4 GiB at most");
    assert!(tiles > 0, "{} bytes are no tile", data.size);
    let row_tiles = tiles.min(MAX_GRID);
    // Whole rows of workgroups only: an incomplete one would read behind the data.
    let rows = tiles / row_tiles;
    let bytes = u64::from(row_tiles * rows) * tile_bytes(at_once);
    Call::new("read")
        .number("WG", WG)
        .number("AT_ONCE", at_once)
        .bind("data", data)
        .bind("found", found)
        .word("row_tiles", row_tiles)
        .word("sought", sought)
        .grid([Extent::N(row_tiles), Extent::N(rows), Extent::N(1)])
        .with_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::call::State;
    use crate::gpu::testing::{assert_refused, download, gpus, run, upload};
    use crate::kernels::testing::Rng;

    /// Whether the exclusive or of any thread's words is `sought`: thread t of workgroup w has the vec4s
    /// `(w * at_once + i) * 256 + t`. The twin of the kernel, for its test.
    pub(crate) fn read(data: &[u32], at_once: u32, sought: u32) -> bool {
        let (wg, at_once) = (WG as usize, at_once as usize);
        data.chunks_exact(at_once * wg * 4).any(|tile| {
            (0..wg).any(|t| {
                let words = (0..at_once).flat_map(|i| &tile[(i * wg + t) * 4..][..4]);
                words.fold(0, |all, word| all ^ word) == sought
            })
        })
    }

    #[test]
    fn every_word_is_read() {
        let mut rng = Rng::fresh();
        for gpu in gpus() {
            for at_once in AT_ONCE {
                let words = 3 * tile_bytes(at_once) as usize / 4;
                let data: Vec<u32> = (0..words).map(|_| rng.bits() as u32).collect();
                let range = Range::whole(&upload(gpu, &data));
                // The value of one thread, which holds only if each of its words was read.
                let (tile, t) = (rng.below(3), rng.below(WG as usize));
                let first = tile * words / 3;
                let sought = (0..at_once as usize)
                    .flat_map(|i| &data[first + (i * WG as usize + t) * 4..][..4])
                    .fold(0, |all, word| all ^ word);
                for sought in [sought, rng.bits() as u32] {
                    let found = upload(gpu, &[0u32; 4]);
                    let call = call(&range, &Range::whole(&found), at_once, sought);
                    assert_eq!(call.bytes, range.size);
                    run(gpu, &[call], &State::default());
                    let expected = read(&data, at_once, sought);
                    assert_eq!(download::<u32>(gpu, &found, 1)[0] == 1, expected);
                }
                assert!(read(&data, at_once, sought));
            }
        }
    }

    #[test]
    fn what_is_no_words_is_refused() {
        let data = Range::floats("data", tile_bytes(AT_ONCE[0]) / 4);
        let call = call(&data, &Range::words("found", 1), AT_ONCE[0], 1);
        assert_refused(&[call], 1, "read", "data");
    }
}
