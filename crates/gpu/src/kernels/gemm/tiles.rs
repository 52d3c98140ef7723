//! The choice of a tile for a product.

use super::Form;
use crate::gpu::machine::tiles::ROOM_FOR_TOKENS;
use crate::gpu::machine::{self, Machine};

pub use crate::gpu::machine::tiles::{Tile, Tiles};

/// The tiles of a form, for one weight or for a pair, the largest first.
pub fn tiles(form: Form, pair: bool) -> Tiles {
    machine::tiles::tiles(form.matrices(), pair)
}

/// The tiles for experts, one of each height.
pub fn expert_tiles(form: Form, pair: bool) -> Tiles {
    machine::tiles::expert_tiles(form.matrices(), pair)
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

    /// The tile of a pair for experts of which each has about as many tokens: the lowest with `ROOM_FOR_TOKENS`, since
    /// experts that need a second one multiply mostly nothing in it.
    pub fn for_experts(form: Form, tokens_per_expert: u32) -> u32 {
        let heights = expert_tiles(form, true).iter().map(|tile| tile.tokens);
        let [room, tokens] = ROOM_FOR_TOKENS;
        let enough = heights
            .clone()
            .filter(|h| tokens * h >= room * tokens_per_expert);
        let height = enough.min().or(heights.max());
        height.expect("a form has tiles")
    }

    /// The tall tile that is faster than one of this height where few experts have most tokens: twice as high, where that is the
    /// highest of the form.
    pub fn taller(form: Form, height: u32) -> Option<u32> {
        let heights = expert_tiles(form, true).iter().map(|tile| tile.tokens);
        heights.max().filter(|most| *most == 2 * height)
    }

    /// The most tokens of an expert for which [`Tile::for_experts`] gives a height that has a taller one.
    pub fn most_beside_taller(form: Form) -> u32 {
        let mut heights = expert_tiles(form, true).iter().map(|tile| tile.tokens);
        let height = heights.find(|height| Self::taller(form, *height).is_some());
        let [room, tokens] = ROOM_FOR_TOKENS;
        height.map_or(0, |height| tokens * height / room)
    }

    /// Workgroups along `rows` rows of a weight.
    pub(super) fn across(self, rows: u32) -> u32 {
        rows.div_ceil(self.rows)
    }

    /// This tile for rows of `units` units: in stages of one where they are no multiple.
    pub(super) fn for_units(self, units: u32) -> Self {
        match units.is_multiple_of(self.units) {
            true => self,
            false => Self { units: 1, ..self },
        }
    }

    /// The tile of experts of a form with this many tokens, the widest.
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
    use crate::gpu::Coop;

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
            let tokens = Tile::most_beside_taller(form);
            let height = |tokens| Tile::for_experts(form, tokens);
            let found = [tokens, tokens + 1].map(height);
            assert_eq!(found, [most.tokens / 2, most.tokens]);
        }
    }
}
