//! Which tokens each expert has: what the products of a prompt's experts walk along.

use super::MAX_GRID;
use super::gate_up::slots_by_expert;
use super::router::MAX_EXPERTS;
use crate::gpu::pipeline::Spec;
use crate::gpu::record::{Extent, Op, Range, Word, accesses};
use crate::gpu::shader::Variant;

/// The slots (token * used + rank) of `ids` (T, used) by expert, then by token; and tiles of up to `height` of them, each
/// (expert, first place, places, 0).
///
/// # Panics
/// If an id is not below the number of experts.
pub fn expert_rows(ids: &[u32], experts: usize, height: usize) -> (Vec<u32>, Vec<[u32; 4]>) {
    let mut slots = vec![];
    let mut tiles = vec![];
    for chosen in slots_by_expert(ids, experts) {
        for tile in chosen.slots.chunks(height) {
            tiles.push([chosen.expert, slots.len(), tile.len(), 0].map(|n| n as u32));
            slots.extend(tile.iter().map(|slot| *slot as u32));
        }
    }
    (slots, tiles)
}

/// Workgroups that cover the tiles of a step, whatever experts its tokens choose: each expert may leave one tile not full.
pub fn tile_extent(used: u32, height: u32, experts: u32) -> Extent {
    Extent::Slots {
        used,
        by: height,
        more: experts,
    }
}

/// As many for a step of `tokens` tokens.
pub fn tile_count(tokens: u32, used: u32, height: u32, experts: u32) -> u32 {
    (tokens * used).div_ceil(height) + experts
}

/// Threads of a workgroup.
const WG: u32 = 256;
/// Slots of which a thread asks for the experts at once.
const SLOTS: u32 = 4;

/// The pipeline for `experts` experts, of which a token has `used`, and tiles of `height` slots.
pub(super) fn spec(experts: u32, used: u32, height: u32) -> Spec {
    Spec {
        kernel: "expert_rows",
        source: include_str!("../../wgsl/expert_rows.wgsl"),
        variant: Variant::default()
            .number("WG", WG)
            .number("SLOTS", SLOTS)
            .number("EXPERTS", experts)
            .number("USED", used)
            .number("HEIGHT", height),
        access: accesses("rww"),
    }
}

/// [`expert_rows`] on the device.
pub struct GpuExpertRows {
    /// The experts of each slot, (max_tokens, used).
    pub ids: Range,
    /// How many experts there are.
    pub experts: u32,
    /// Experts of a token.
    pub used: u32,
    /// Slots of a tile.
    pub height: u32,
    /// Most tokens of a replay.
    pub max_tokens: u32,
    /// Slots by expert, (max_tokens * used).
    pub slots: Range,
    /// Tiles, ([`tile_count`], 4).
    pub tiles: Range,
}

impl GpuExpertRows {
    /// The dispatch.
    ///
    /// # Panics
    /// If a buffer is too small for the sizes, which would let the kernel index beyond it.
    pub fn op(&self) -> Op {
        let slots = u64::from(self.max_tokens) * u64::from(self.used);
        let tiles = tile_count(self.max_tokens, self.used, self.height, self.experts);
        assert!(
            (1..=MAX_EXPERTS as u32).contains(&self.experts) && slots <= u64::from(MAX_GRID),
            "{slots} slots of {} experts",
            self.experts
        );
        assert!(
            self.ids.size.min(self.slots.size) >= slots * 4
                && self.tiles.size >= u64::from(tiles) * 16,
            "slots and tiles of {} experts",
            self.experts
        );
        Op::new(
            spec(self.experts, self.used, self.height),
            vec![self.ids.clone(), self.slots.clone(), self.tiles.clone()],
            vec![
                Word::Tokens,
                Word::Slots {
                    used: self.used,
                    by: self.height,
                    more: self.experts,
                },
            ],
            [Extent::N(self.experts), Extent::N(1), Extent::N(1)],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::record::State;
    use crate::gpu::testing::{download, gpus, run, upload};
    use crate::kernels::testing::Rng;

    #[test]
    fn the_gpu_sorts_as_its_twin_does() {
        let mut rng = Rng::fresh();
        for gpu in gpus() {
            for (experts, used, height, n_tokens) in [
                (64, 4, 128, 2048),
                (64, 6, 16, 100),
                (64, 6, 64, 1),
                (8, 2, 32, 37),
                (256, 8, 16, 511),
                (1, 1, 16, 40),
            ] {
                // Any choice; the same for all; none for most: an expert with no token and one with all.
                for most in [experts, used, used.min(experts / 2).max(1)] {
                    let ids: Vec<u32> = (0..n_tokens)
                        .flat_map(|_| {
                            let first = rng.below(most);
                            (0..used).map(move |k| ((first + k) % experts) as u32)
                        })
                        .collect();
                    let (slots, tiles) = expert_rows(&ids, experts, height);
                    let max_tokens = n_tokens as u32 + 3;
                    let [e, u, h] = [experts, used, height].map(|n| n as u32);
                    let mut padded = ids.clone();
                    padded.resize(used * max_tokens as usize, u32::MAX);
                    let unwritten = vec![u32::MAX; padded.len()];
                    let most_tiles = tile_count(max_tokens, u, h, e) as usize;
                    let buffers = [unwritten, vec![u32::MAX; 4 * most_tiles]]
                        .map(|words| upload(gpu, &words));
                    let op = GpuExpertRows {
                        ids: Range::whole(&upload(gpu, &padded)),
                        experts: e,
                        used: u,
                        height: h,
                        max_tokens,
                        slots: Range::whole(&buffers[0]),
                        tiles: Range::whole(&buffers[1]),
                    }
                    .op();
                    let state = State {
                        tokens: n_tokens as u32,
                        ..State::default()
                    };
                    run(gpu, &[op], &state);
                    let what = format!("{} {experts} {used} {n_tokens}", gpu.tier.name());
                    let found: Vec<u32> = download(gpu, &buffers[0], slots.len());
                    assert_eq!(found, slots, "{what}");
                    let covered = tile_count(n_tokens as u32, u, h, e) as usize;
                    assert!(tiles.len() <= covered, "{what}");
                    let mut expected = tiles;
                    expected.resize(covered, [0; 4]);
                    let found: Vec<[u32; 4]> = download(gpu, &buffers[1], covered);
                    assert_eq!(found, expected, "{what}");
                }
            }
        }
    }
}
