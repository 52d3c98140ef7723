//! The slots of the experts that a step of several tokens chose, and which of them are still to be copied there.

use super::expert_slots::{HEAD, NONE, Table, slots_of_step};
use super::expert_sources::ChosenBy;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Word};
use crate::gpu::machine::workgroups::EXPERT_PLACES as WG;
use std::collections::BTreeMap;

/// The most experts that a step of up to `tokens` tokens chooses, of `experts` of which a token has `used`.
pub fn most_chosen(tokens: u32, [experts, used]: [u32; 2]) -> u32 {
    experts.min(tokens * used)
}

/// Slots for all experts that the tokens of a step chose. Their ids, or those of their tiles, become places among the slots.
pub struct GpuExpertPlaces<'a> {
    /// The experts that the tokens chose.
    pub chosen: ChosenBy,
    /// The number of experts, and of those of a token.
    pub experts: [u32; 2],
    /// The most tokens of a replay.
    pub most: u32,
    /// The slots, at least as many as [`most_chosen`].
    pub table: &'a Table,
    /// The pairs (source, place), ([`most_chosen`], 2) u32: what [`expert_fill`](super::expert_fill) is to copy.
    pub fills: Range,
}

impl GpuExpertPlaces<'_> {
    /// The dispatch.
    ///
    /// # Panics
    /// If the slots are too few.
    pub fn call(&self) -> Call {
        let (slots, most) = (self.table.slots, self.most);
        let fills = most_chosen(most, self.experts);
        assert!(slots >= fills, "{slots} slots for {fills} experts");
        let call = Call::new("expert_places")
            .number("WG", WG)
            .number("EXPERTS", self.experts[0])
            .number("FILLS", fills)
            .bind("fills", &self.fills);
        let call = self.chosen.bind(self.table.bind(call), self.experts);
        match self.chosen {
            ChosenBy::Ids(_) => call,
            ChosenBy::Tiles(..) => call.word("tokens", Word::Tokens),
        }
    }
}

/// The places of the experts `ids` (tokens, used) among the slots of `table`, and the pairs (source, place) of what is to be copied, by expert, of
/// `experts` experts. The table then tells of them.
///
/// # Panics
/// If fewer slots than chosen experts are in the table.
pub fn expert_places(
    table: &mut [u32],
    ids: &[u32],
    [experts, used]: [usize; 2],
) -> (Vec<u32>, Vec<[u32; 2]>) {
    let mut times = BTreeMap::<u32, u32>::new();
    for id in ids {
        *times.entry(*id).or_default() += 1;
    }
    let chosen: Vec<_> = times.into_iter().map(<[u32; 2]>::from).collect();
    let tokens = (ids.len() / used) as u32;
    let mut fills = slots_of_step(table, &chosen, tokens, experts, 0);
    fills.retain(|[source, _]| *source != NONE);
    let place = |id: &u32| table[HEAD + *id as usize] - 1;
    (ids.iter().map(place).collect(), fills)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Most;
    use crate::gpu::testing::gpus;
    use crate::kernels::batch_experts::TILE_WORDS;
    use crate::kernels::cases::expert_places::cases;
    use crate::kernels::testing::agree_everywhere;
    use crate::kernels::testing::bounds::needs_every_byte;

    #[test]
    fn every_index_lies_in_its_buffer() {
        let (most, experts) = (3, [12, 2]);
        let table = Table::new(12, 8);
        let tiles = u32::div_ceil(most * 2, 4) + 12;
        for chosen in [
            ChosenBy::Ids(Range::words("ids", 8)),
            ChosenBy::Tiles(Range::words("tiles", u64::from(TILE_WORDS * tiles)), 4),
        ] {
            let places = GpuExpertPlaces {
                chosen,
                experts,
                most: 4,
                table: &table,
                fills: Range::words("fills", 2 * 8),
            };
            let context = 9;
            needs_every_byte(&places.call(), Most { tokens: 4, context });
        }
    }

    #[test]
    fn the_gpu_gives_the_slots_that_its_twin_gives() {
        agree_everywhere(gpus(), |_| cases());
    }

    #[test]
    fn an_expert_that_several_tokens_choose_is_copied_once_and_stays_longer() {
        let mut table = super::super::expert_slots::first_words(8, 4);
        // The first four experts are kept. Two tokens choose 6, which takes the slot of the first expert that no token chose.
        let (places, fills) = expert_places(&mut table, &[6, 0, 2, 6], [8, 2]);
        assert_eq!((places, fills), (vec![1, 0, 2, 1], vec![[6, 1]]));
        assert_eq!(table[..3], [2, 2, 1], "tokens, hits and misses");
        // The third of the kept ones is chosen least.
        let (places, fills) = expert_places(&mut table, &[0, 6, 7, 6], [8, 2]);
        assert_eq!((places, fills), (vec![0, 1, 3, 1], vec![[7, 3]]));
        assert_eq!(table[..3], [4, 4, 2]);
    }
}
