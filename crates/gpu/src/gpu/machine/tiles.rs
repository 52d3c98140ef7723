//! The tiles of a prompt's products. Which there are, and how their work is divided, was measured on an NVIDIA H200 for 16x16
//! matrices and for f32. Those of 8x8 matrices are reckoned from these.

use crate::gpu::coop::Coop;

/// The tile of a product that a workgroup computes, and its number of subgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Tokens, BM.
    pub tokens: u32,
    /// Rows of each weight, BN.
    pub rows: u32,
    /// Subgroups along tokens and rows; in f32 threads, 8 along the rows.
    pub subgroups: [u32; 2],
    /// Units of 32 columns that pass through workgroup memory at once.
    pub units: u32,
    /// Subgroups that write their sums at once, by matrices; others wait for their turn at the same workgroup memory.
    pub writers: u32,
}

pub(crate) const fn tile(tokens: u32, rows: u32, subgroups: [u32; 2]) -> Tile {
    Tile {
        tokens,
        rows,
        subgroups,
        units: 1,
        writers: 4,
    }
}

/// Half as many stages of twice the columns.
pub(crate) const fn deep(tokens: u32, rows: u32, subgroups: [u32; 2]) -> Tile {
    Tile {
        units: 2,
        ..tile(tokens, rows, subgroups)
    }
}

/// Fewer subgroups write at once, for less workgroup memory.
pub(crate) const fn writing(writers: u32, tile: Tile) -> Tile {
    Tile { writers, ..tile }
}

/// Tokens of the lowest tile of every form.
pub const LOWEST: u32 = 16;
/// Tokens and rows of the largest tile of any form.
pub const LARGEST: u32 = 128;
/// The most tokens of the steps of a prompt that are recorded, besides those of a whole chunk. Each has tiles that suit its tokens. Reckoned.
pub const STEPS: [u32; 4] = [32, 128, 512, 2048];

/// Tiles of one weight or of a pair, the largest first.
pub type Tiles = &'static [Tile];

const FLOAT: Tiles = &[
    tile(64, 64, [8, 8]),
    tile(32, 64, [8, 8]),
    tile(16, 64, [8, 8]),
    tile(16, 32, [8, 8]),
];
const FLOAT_PAIR: Tiles = &[
    tile(64, 32, [8, 8]),
    tile(32, 32, [8, 8]),
    tile(16, 32, [8, 8]),
];
/// 16x16 matrices, subgroups of 32. Two workgroups of up to 24 KiB of workgroup memory share a core of an H200. So no tile takes
/// more, and low tiles are deep instead.
const COOP16: Tiles = &[
    tile(128, 128, [2, 2]),
    deep(64, 64, [2, 2]),
    tile(32, 128, [1, 4]),
    writing(2, deep(32, 64, [1, 4])),
    tile(16, 128, [1, 4]),
    tile(16, 64, [1, 4]),
];
const COOP16_PAIR: Tiles = &[
    tile(128, 64, [2, 2]),
    deep(64, 32, [2, 2]),
    tile(32, 64, [1, 4]),
    tile(16, 64, [1, 4]),
];
/// 16x16 matrices, of experts. Three workgroups of up to 16 KiB of workgroup memory share a core of an H200. Tiles of 48 tokens
/// are faster if all experts have few tokens, but slower by more if a few have most of them.
const COOP16_EXPERTS: Tiles = &[
    tile(128, 128, [2, 2]),
    writing(1, tile(64, 128, [1, 4])),
    writing(2, tile(32, 128, [1, 4])),
    tile(16, 128, [1, 4]),
];
const COOP16_EXPERTS_PAIR: Tiles = &[
    tile(128, 64, [2, 2]),
    writing(1, tile(64, 64, [1, 4])),
    writing(2, tile(32, 64, [1, 4])),
    tile(16, 64, [1, 4]),
];
/// 8x8 matrices, subgroups of 32.
const COOP8: Tiles = &[
    tile(64, 64, [2, 2]),
    tile(32, 64, [2, 2]),
    tile(16, 64, [2, 2]),
];
const COOP8_PAIR: Tiles = &[
    tile(64, 32, [2, 2]),
    tile(32, 32, [2, 2]),
    tile(16, 32, [2, 2]),
];
/// 8x8 matrices, subgroups of 8.
const COOP8_NARROW: Tiles = &[
    tile(64, 64, [2, 4]),
    tile(32, 64, [2, 4]),
    tile(16, 64, [2, 4]),
];
const COOP8_NARROW_PAIR: Tiles = &[
    tile(64, 32, [2, 4]),
    tile(32, 32, [2, 4]),
    tile(16, 32, [2, 4]),
];

/// The slots of a chunk fill fewer tall tiles than low ones. Experts take the tall tiles if the ratio of low to tall is above this one, 5 to 4.
/// Measured on an NVIDIA H200 ("Low or tall tiles of experts by their counts").
pub(crate) const LOW_FOR_TALL: [u32; 2] = [5, 4];
/// The room of a tile in relation to the tokens that an expert has on average: 5 to 4 at least. Reckoned: most experts have not many more.
pub(crate) const ROOM_FOR_TOKENS: [u32; 2] = [5, 4];

/// The tiles by `matrices`, or in f32 without, of one weight or of a pair, the largest first.
pub(crate) fn tiles(matrices: Option<Coop>, pair: bool) -> Tiles {
    let [one, two] = match matrices {
        None => [FLOAT, FLOAT_PAIR],
        Some(Coop { size: 16, .. }) => [COOP16, COOP16_PAIR],
        Some(Coop { lanes: 8, .. }) => [COOP8_NARROW, COOP8_NARROW_PAIR],
        Some(_) => [COOP8, COOP8_PAIR],
    };
    if pair { two } else { one }
}

/// The tiles of experts by `matrices`, or in f32 without, of one weight or of a pair: one of each height.
pub(crate) fn expert_tiles(matrices: Option<Coop>, pair: bool) -> Tiles {
    match matrices {
        Some(Coop { size: 16, .. }) if pair => COOP16_EXPERTS_PAIR,
        Some(Coop { size: 16, .. }) => COOP16_EXPERTS,
        _ => tiles(matrices, pair),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_tile_is_lower_or_larger_than_it_is_said() {
        let matrices = [Coop::NVIDIA, Coop::APPLE, Coop::LLVMPIPE].map(Some);
        let mut largest = 0;
        for form in matrices.into_iter().chain([None]) {
            for pair in [false, true] {
                for tiles in [tiles(form, pair), expert_tiles(form, pair)] {
                    let tokens = tiles.iter().map(|tile| tile.tokens);
                    assert_eq!(tokens.clone().min(), Some(LOWEST), "{form:?}, {pair}");
                    let rows = tiles.iter().map(|tile| tile.rows);
                    largest = tokens.chain(rows).fold(largest, u32::max);
                }
            }
        }
        assert_eq!(largest, LARGEST);
    }
}
