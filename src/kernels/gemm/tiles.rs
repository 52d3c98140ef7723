//! What the workgroups of a product multiply: the tiles of each form, and which of them suits.

use super::Form;
use crate::gpu::Coop;
use crate::gpu::machine::Machine;

/// What a workgroup multiplies, and with how many subgroups.
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

pub(super) const fn tile(tokens: u32, rows: u32, subgroups: [u32; 2]) -> Tile {
    Tile {
        tokens,
        rows,
        subgroups,
        units: 1,
        writers: 4,
    }
}

/// Half as many stages of twice the columns.
pub(super) const fn deep(tokens: u32, rows: u32, subgroups: [u32; 2]) -> Tile {
    Tile {
        units: 2,
        ..tile(tokens, rows, subgroups)
    }
}

/// Fewer subgroups write at once, for less workgroup memory.
pub(super) const fn writing(writers: u32, tile: Tile) -> Tile {
    Tile { writers, ..tile }
}

/// Tiles of one weight or of a pair, the largest first.
type Tiles = &'static [Tile];

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
/// 16x16 matrices, subgroups of 32. Two workgroups of up to 24 KiB share a core of [`Machine::H200`], one of more: so none
/// has more, and low tiles are deep instead.
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
/// Those of experts: three workgroups of up to 16 KiB share a core. Where all have some 32 tokens tiles of 48 are 2%
/// faster than those of 64, where a few have most of them 6% slower.
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

/// The tiles of a form, for one weight or for a pair, the largest first.
pub fn tiles(form: Form, pair: bool) -> Tiles {
    let [one, two] = match form {
        Form::Float { .. } => [FLOAT, FLOAT_PAIR],
        Form::Matrix(Coop { size: 16, .. }) => [COOP16, COOP16_PAIR],
        Form::Matrix(Coop { lanes: 8, .. }) => [COOP8_NARROW, COOP8_NARROW_PAIR],
        Form::Matrix(_) => [COOP8, COOP8_PAIR],
    };
    if pair { two } else { one }
}

/// Those for experts, one of each height.
pub fn expert_tiles(form: Form, pair: bool) -> Tiles {
    match form {
        Form::Matrix(Coop { size: 16, .. }) if pair => COOP16_EXPERTS_PAIR,
        Form::Matrix(Coop { size: 16, .. }) => COOP16_EXPERTS,
        _ => tiles(form, pair),
    }
}

impl Tile {
    /// The tile for a product of up to `tokens` tokens with `rows` rows of a weight, all its groups together, whose columns are cut
    /// into `split_k` ranges. It is the largest that has no more tokens than there are and of which there are enough to fill the
    /// device, else the smallest.
    pub fn choose(
        machine: Machine,
        form: Form,
        pair: bool,
        tokens: u32,
        rows: u32,
        split_k: u32,
    ) -> Self {
        let tiles = tiles(form, pair);
        let fits = |tile: &&Tile| tile.tokens <= tokens.next_power_of_two();
        let tuned = machine.tuned;
        let percent = match form {
            Form::Float { .. } => tuned.float_tiles_percent,
            Form::Matrix(_) if pair => tuned.pair_tiles_percent,
            Form::Matrix(_) => tuned.matrix_tiles_percent,
        };
        let full = machine.spread() * percent / 100;
        let tiles_of = |tile: &Tile| tokens.div_ceil(tile.tokens) * rows.div_ceil(tile.rows);
        let enough = |tile: &&Tile| tiles_of(tile) * split_k >= full;
        let last = &tiles[tiles.len() - 1];
        let mut fitting = tiles.iter().filter(fits);
        let smallest = fitting.clone().next_back().unwrap_or(last);
        *fitting.find(enough).unwrap_or(smallest)
    }

    /// The tile of a pair for experts of which each has about as many tokens: the lowest that holds a quarter more, since
    /// experts that need a second one multiply mostly nothing in it.
    pub fn for_experts(form: Form, tokens_per_expert: u32) -> u32 {
        let heights = expert_tiles(form, true).iter().map(|tile| tile.tokens);
        let mut heights: Vec<_> = heights.collect();
        heights.sort_unstable();
        let most = heights[heights.len() - 1];
        // Most experts have not many more than the average of them.
        let enough = heights.into_iter().find(|h| 4 * h >= 5 * tokens_per_expert);
        enough.unwrap_or(most)
    }

    /// The tall tile that is faster than one of this height where few experts have most tokens: twice as high, where that is the
    /// highest of the form.
    pub fn taller(form: Form, height: u32) -> Option<u32> {
        let heights = expert_tiles(form, true).iter().map(|tile| tile.tokens);
        heights.max().filter(|most| *most == 2 * height)
    }

    /// Workgroups along so many rows of a weight.
    pub(super) fn across(self, rows: u32) -> u32 {
        rows.div_ceil(self.rows)
    }

    /// The same tile for rows of so many units: in stages of one where they are no multiple.
    pub(super) fn for_units(self, units: u32) -> Self {
        match units.is_multiple_of(self.units) {
            true => self,
            false => Self { units: 1, ..self },
        }
    }

    /// The tile of experts of a form with this many tokens, the widest.
    ///
    /// # Panics
    /// If there is none.
    pub(super) fn of_height(form: Form, pair: bool, tokens: u32) -> Self {
        let mut tiles = expert_tiles(form, pair).iter();
        *tiles
            .find(|tile| tile.tokens == tokens)
            .unwrap_or_else(|| panic!("no tile of {tokens} tokens"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_follow_the_tokens() {
        let matrices = Form::Matrix(Coop {
            size: 16,
            lanes: 32,
        });
        for form in [matrices, Form::Float { eight: true }] {
            let most = tiles(form, false)[0];
            let choose = |tokens, rows| Tile::choose(Machine::H200, form, false, tokens, rows, 1);
            assert_eq!(choose(4096, 4096), most);
            assert_eq!(choose(9, 64).tokens, 16);
            assert_eq!(Tile::for_experts(form, 1), 16);
            assert_eq!(Tile::for_experts(form, 17), 32);
            for tile in expert_tiles(form, true) {
                assert_eq!(
                    Tile::of_height(form, false, tile.tokens).tokens,
                    tile.tokens
                );
            }
            assert_eq!(Tile::for_experts(form, 5000), most.tokens);
            assert_eq!(Tile::taller(form, most.tokens / 2), Some(most.tokens));
            assert_eq!(Tile::taller(form, most.tokens), None);
        }
    }
}
