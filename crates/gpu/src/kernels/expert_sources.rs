//! Which experts a step of several tokens needs, and where each of them lies.

use super::batch_experts::TILE_WORDS;
use super::expert_rows::tile_extent;
use super::expert_slots::{NONE, Table};
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Word};
use crate::gpu::machine::workgroups::EXPERT_SOURCES as WG;

/// The source of an expert that slot 0 keeps; the next slots follow.
pub const KEPT: u32 = 1 << 31;

/// The experts that the tokens of a step chose.
#[derive(Debug, Clone)]
pub enum ChosenBy {
    /// The experts of each token, (tokens, used).
    Ids(Range),
    /// The tiles of [`batch_experts`](super::batch_experts) with so many places.
    Tiles(Range, u32),
}

impl ChosenBy {
    /// `call` with them, of `experts` experts of which a token has `used`.
    pub(super) fn bind(&self, call: Call, [experts, used]: [u32; 2]) -> Call {
        match self {
            Self::Ids(ids) => call
                .number("USED", used)
                .word("tokens", Word::Tokens)
                .bind("ids", ids),
            Self::Tiles(tiles, places) => {
                let covered = tile_extent(used, *places, experts);
                call.number("TILE_WORDS", TILE_WORDS)
                    .word("covered", Word::Workgroups(covered))
                    .bind("tiles", tiles)
            }
        }
    }
}

/// A list of all experts of a layer: where [`expert_fill`](super::expert_fill) finds those that a token chose.
pub struct GpuExpertSources<'a> {
    /// The experts that the tokens chose.
    pub chosen: ChosenBy,
    /// The number of experts.
    pub experts: u32,
    /// Experts of a token.
    pub used: u32,
    /// The slots that keep some experts.
    pub table: Option<&'a Table>,
    /// The pairs (source, expert), (experts, 2) u32.
    pub fills: Range,
}

impl GpuExpertSources<'_> {
    /// The dispatch.
    pub fn call(&self) -> Call {
        let &Self { experts, used, .. } = self;
        let call = Call::new("expert_sources")
            .number("WG", WG)
            .number("EXPERTS", experts)
            .bind("fills", &self.fills)
            .bind_some("table", self.table.map(|table| &table.words));
        self.chosen.bind(call, [experts, used])
    }
}

/// The pairs (source, expert) of all experts, if tokens chose `ids` and the words of a `table` ([`Table`]) tell which slots keep experts. The
/// table then counts which of them had one.
///
/// # Panics
/// If an id is not below the number of experts.
pub fn expert_sources(ids: &[u32], experts: usize, table: Option<&mut [u32]>) -> Vec<[u32; 2]> {
    let mut fills: Vec<_> = (0..experts as u32).map(|expert| [NONE, expert]).collect();
    for &id in ids {
        let slot = table.as_ref().map_or(0, |table| table[4 + id as usize]);
        fills[id as usize][0] = match slot {
            0 => id,
            kept => KEPT + kept - 1,
        };
    }
    if let Some(table) = table {
        count_fills(table, &fills);
    }
    fills
}

/// Counts the hits and misses of `fills` in a table.
pub(super) fn count_fills(table: &mut [u32], fills: &[[u32; 2]]) {
    let wanted = fills.iter().filter(|[source, _]| *source != NONE);
    for [source, _] in wanted {
        table[if *source < KEPT { 2 } else { 1 }] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Most;
    use crate::gpu::testing::gpus;
    use crate::kernels::cases::expert_sources::cases;
    use crate::kernels::testing::agree_everywhere;
    use crate::kernels::testing::bounds::needs_every_byte;

    #[test]
    fn every_index_lies_in_its_buffer() {
        let (tokens, used, experts) = (6, 2, 8u32);
        let table = Table {
            words: Range::words("table", 4 + 8),
            slots: 3,
        };
        let tiles = u32::div_ceil(tokens * used, 4) + experts;
        for chosen in [
            ChosenBy::Ids(Range::words("ids", 12)),
            ChosenBy::Tiles(Range::words("tiles", u64::from(TILE_WORDS * tiles)), 4),
        ] {
            let sources = GpuExpertSources {
                chosen,
                experts,
                used,
                table: Some(&table),
                fills: Range::words("fills", 16),
            };
            needs_every_byte(&sources.call(), Most { tokens, context: 9 });
        }
    }

    #[test]
    fn the_gpu_finds_each_expert_where_its_twin_does() {
        agree_everywhere(gpus(), |_| cases());
    }
}
