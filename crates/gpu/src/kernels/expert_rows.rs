//! The tokens of each expert, which the products of a prompt's experts walk along.

use super::router::MAX_EXPERTS;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent, Word};
use crate::gpu::machine::tiles::LOW_FOR_TALL;
use crate::gpu::machine::workgroups::{EXPERT_ROWS as WG, EXPERT_SLOTS as SLOTS};

/// Workgroups that cover the tiles of a step, whatever experts its tokens choose: each expert may leave one tile not full.
pub fn tile_extent(used: u32, height: u32, experts: u32) -> Extent {
    Extent::Slots {
        used,
        by: height,
        more: experts,
    }
}

/// Tiles that cover a step of `tokens` tokens, whatever experts they choose.
pub fn tile_count(tokens: u32, used: u32, height: u32, experts: u32) -> u32 {
    (tokens * used).div_ceil(height) + experts
}

/// Tiles of one height.
#[derive(Debug, Clone)]
pub struct TileList {
    /// Slots of a tile.
    pub height: u32,
    /// Tiles, ([`tile_count`], 4).
    pub tiles: Range,
}

/// Rows that products by tall tiles left, which are read instead of others where there are such tiles.
#[derive(Debug, Clone)]
pub struct Other {
    /// The rows, as many as those that are read else.
    pub rows: Range,
    /// The tall tiles of a [`GpuExpertRows`], its second list.
    pub tiles: Range,
}

/// The slots (token * used + rank) of a step by expert, then by token, and each list of tiles: (expert, first place, places, 0). Of two
/// lists one is empty: the second, unless the first has more than 5/4 as many tiles, since few experts have most tokens.
pub struct GpuExpertRows {
    /// The experts of each slot, (tokens, used).
    pub ids: Range,
    /// The number of experts.
    pub experts: u32,
    /// Experts of a token.
    pub used: u32,
    /// Slots by expert, (tokens * used).
    pub slots: Range,
    /// The tiles, or low and tall ones, of which one kind is left empty.
    pub lists: Vec<TileList>,
    /// Workgroups of the two products of each list, ([`Buffer::counts`](crate::gpu::buffer::Buffer::counts)): how many tiles there are is left in
    /// the second of three words.
    pub counts: Range,
}

impl GpuExpertRows {
    /// The dispatch.
    ///
    /// # Panics
    /// If there are other numbers of experts or lists than the kernel has room for.
    pub fn call(&self) -> Call {
        let &Self { experts, used, .. } = self;
        assert!(
            (1..=MAX_EXPERTS as u32).contains(&experts),
            "{experts} experts"
        );
        let (low, tall) = match &self.lists[..] {
            [low] => (low, None),
            [low, tall] => (low, Some(tall)),
            lists => panic!("{} lists of tiles", lists.len()),
        };
        let covered = |list: &TileList| Word::Workgroups(tile_extent(used, list.height, experts));
        Call::new("expert_rows")
            .number("WG", WG)
            .number("SLOTS", SLOTS)
            .number("EXPERTS", experts)
            .number("USED", used)
            .number("LISTS", self.lists.len() as u32)
            .number("HEIGHT0", low.height)
            .number("HEIGHT1", tall.unwrap_or(low).height)
            .number("LOW_TILES", LOW_FOR_TALL[0])
            .number("TALL_TILES", LOW_FOR_TALL[1])
            .word("tokens", Word::Tokens)
            .word("covered0", covered(low))
            .word_some("covered1", tall.map(covered))
            .bind("ids", &self.ids)
            .bind("slots", &self.slots)
            .bind("tiles0", &low.tiles)
            .listing(&low.tiles, 4)
            .bind_some("tiles1", tall.map(|list| &list.tiles))
            .bind("workgroups", &self.counts)
            .grid([Extent::N(experts), Extent::N(1), Extent::N(1)])
    }
}

/// The slots of each expert, ascending.
pub(super) fn slots_by_expert(ids: &[u32], n_experts: usize) -> Vec<Vec<usize>> {
    let mut slots = vec![Vec::new(); n_experts];
    for (slot, &expert) in ids.iter().enumerate() {
        slots[expert as usize].push(slot);
    }
    slots
}

/// The slots of `ids` (T, used), and for each of one or two `heights` the tiles of at most that height, as [`GpuExpertRows`] says.
///
/// # Panics
/// If an id is not below the number of experts.
pub fn expert_rows(
    ids: &[u32],
    experts: usize,
    heights: &[usize],
) -> (Vec<u32>, Vec<Vec<[u32; 4]>>) {
    let chosen = slots_by_expert(ids, experts);
    let slots = chosen.iter().flatten();
    let slots = slots.map(|slot| *slot as u32).collect();
    let tiles = |height: &usize| -> Vec<[u32; 4]> {
        let mut first = 0;
        let mut tiles = vec![];
        for (expert, slots) in chosen.iter().enumerate() {
            for tile in slots.chunks(*height) {
                tiles.push([expert, first, tile.len(), 0].map(|n| n as u32));
                first += tile.len();
            }
        }
        tiles
    };
    let mut lists: Vec<_> = heights.iter().map(tiles).collect();
    if let [low, tall] = &mut lists[..] {
        let [most_low, for_tall] = LOW_FOR_TALL.map(|n| n as usize);
        let other = if for_tall * low.len() > most_low * tall.len() {
            low
        } else {
            tall
        };
        other.clear();
    }
    (slots, lists)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Most;
    use crate::gpu::testing::gpus;
    use crate::kernels::cases::expert_rows::cases;
    use crate::kernels::testing::agree_everywhere;
    use crate::kernels::testing::bounds::needs_every_byte;

    #[test]
    fn the_gpu_sorts_as_its_twin_does() {
        agree_everywhere(gpus(), |_| cases());
    }

    #[test]
    fn every_index_lies_in_its_buffer() {
        let (tokens, used, experts) = (9, 2, 5);
        for heights in [vec![16], vec![16, 32]] {
            let list = |height: &u32| TileList {
                height: *height,
                tiles: Range::words(
                    "tiles",
                    4 * u64::from(tile_count(tokens, used, *height, experts)),
                ),
            };
            let slots = u64::from(tokens * used);
            let call = GpuExpertRows {
                ids: Range::words("ids", slots),
                experts,
                used,
                slots: Range::words("slots", slots),
                lists: heights.iter().map(list).collect(),
                counts: Range::words("counts", 6 * heights.len() as u64),
            };
            needs_every_byte(&call.call(), Most { tokens, context: 9 });
        }
    }

    #[test]
    fn tall_tiles_are_for_few_experts_with_most_tokens() {
        // 64 experts with 32 tokens each; 8 with 256 each.
        for (experts, tall) in [(64, false), (8, true)] {
            let ids: Vec<u32> = (0..2048).map(|slot| slot % experts).collect();
            let (_, lists) = expert_rows(&ids, 64, &[64, 128]);
            assert_eq!(lists[0].is_empty(), tall, "{experts}");
            assert_eq!(lists[1].is_empty(), !tall, "{experts}");
        }
    }
}
