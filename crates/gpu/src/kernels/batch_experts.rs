//! The choice of experts of a step of few tokens, and which tokens each expert has, in one dispatch.

use super::expert_rows::{expert_rows, tile_count, tile_extent};
use super::router::{self, choice, router};
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent, Word};
use crate::gpu::machine::Machine;
use crate::model::Experts;

/// The most slots of a tile.
pub const MOST_PLACES: u32 = 4;

/// A tile: an expert, a word that nobody reads, the number of slots, another such word, and the slots. In the first three words it is like a tile
/// of [`expert_rows`]. If it has fewer slots than there are places, its last slot is repeated.
pub type Tile = [u32; 4 + MOST_PLACES as usize];

/// Words of a [`Tile`].
pub const TILE_WORDS: u32 = size_of::<Tile>() as u32 / 4;

/// The most slots of a tile in steps of up to `tokens` tokens. In small steps most experts have one or two tokens.
pub fn places(machine: Machine, tokens: u32) -> u32 {
    match tokens <= machine.tuned.short_tiles_of_batch {
        true => 2,
        false => MOST_PLACES,
    }
}

/// The tiles of the slots of each expert, by expert and then by slot. `ids` are the experts of the slots. Words that nobody reads are 0.
pub(crate) fn tiles_of(ids: &[u32], experts: usize, places: u32) -> Vec<Tile> {
    let (slots, mut lists) = expert_rows(ids, experts, &[places as usize]);
    let tile = |[expert, first, own, _]: [u32; 4]| {
        let slot = |place: u32| slots[(first + place.min(own - 1)) as usize];
        [expert, 0, own, 0, slot(0), slot(1), slot(2), slot(3)]
    };
    lists.remove(0).into_iter().map(tile).collect()
}

/// The choice as [`router()`] makes it, and tiles of the slots (token * used + rank) of each expert.
pub struct GpuBatchExperts<'a> {
    /// The router's logits, (max_tokens, [`logit_stride`](router::logit_stride)), f32.
    pub logits: Range,
    /// `exp_probs_b`, (count), f32.
    pub bias: Option<Range>,
    /// The number of experts, and how they are chosen and weighted.
    pub experts: &'a Experts,
    /// Most tokens of a replay.
    pub max_tokens: u32,
    /// The most slots of a tile: 2 or 4.
    pub places: u32,
    /// The weights of the slots, (max_tokens, used) f32.
    pub weights: Range,
    /// The tiles, [`tiles`] of them, each a [`Tile`].
    pub tiles: Range,
    /// Workgroups of the two products of the tiles ([`Buffer::counts`](crate::gpu::buffer::Buffer::counts)): how many tiles there are is left in
    /// the second of three words.
    pub counts: Range,
}

/// The most tiles of up to `places` slots in steps of up to `tokens` tokens.
pub fn tiles(tokens: u32, places: u32, experts: &Experts) -> u32 {
    tile_count(tokens, experts.used as u32, places, experts.count as u32)
}

impl GpuBatchExperts<'_> {
    /// The most threads, a power of two, whose values have room in workgroup memory: up to 12 bytes each, beside 8 of each slot and each expert.
    fn most_threads(&self, machine: Machine) -> u32 {
        let slots = self.max_tokens * self.experts.used as u32;
        let beside = 8 * (slots + self.experts.count as u32);
        let room = machine.workgroup_memory.saturating_sub(beside) / 12;
        machine.threads.min(1 << room.max(64).ilog2())
    }

    /// The dispatch.
    ///
    /// # Panics
    /// If there are more than [`MAX_EXPERTS`](router::MAX_EXPERTS) experts, or fewer than are chosen.
    pub fn call(&self, machine: Machine) -> Call {
        let experts = self.experts;
        router::check(experts);
        let [count, used] = [experts.count, experts.used].map(|n| n as u32);
        let of_token = count.next_power_of_two().max(4);
        let wanted = of_token * self.max_tokens.next_power_of_two();
        let covered = Word::Workgroups(tile_extent(used, self.places, count));
        let call = Call::new("batch_experts");
        choice(call, experts, &self.logits, self.bias.as_ref())
            .number("WG", wanted.clamp(64, self.most_threads(machine)))
            .number("THREADS", of_token)
            .number("MOST", self.max_tokens)
            .number("PLACES", self.places)
            .number("LOGIT_STRIDE", router::logit_stride(experts))
            .word("tokens", Word::Tokens)
            .word("covered", covered)
            .word("scale", experts.weights_scale)
            .bind("weights", &self.weights)
            .bind("tiles", &self.tiles)
            .listing(&self.tiles, TILE_WORDS)
            .bind("workgroups", &self.counts)
            .grid([Extent::N(1), Extent::N(1), Extent::N(1)])
    }
}

/// The weights (T, used) of the experts that [`router()`] chooses by `logits` (T, count), and tiles of their slots. A slot is token * used + rank.
/// A tile has up to `places` slots.
///
/// # Panics
/// Panics like [`router()`].
pub fn batch_experts(
    logits: &[f32],
    bias: Option<&[f32]>,
    experts: &Experts,
    n_tokens: usize,
    places: u32,
) -> (Vec<f32>, Vec<Tile>) {
    let n = n_tokens * experts.used;
    let (mut ids, mut weights) = (vec![0; n], vec![0.0; n]);
    router(logits, bias, experts, n_tokens, &mut ids, &mut weights);
    let tiles = tiles_of(&ids, experts.count, places);
    (weights, tiles)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Most;
    use crate::gpu::buffer::Buffer;
    use crate::gpu::testing::gpus;
    use crate::kernels::cases::batch_experts::cases;
    use crate::kernels::cases::router::experts;
    use crate::kernels::testing::agree;
    use crate::kernels::testing::bounds::needs_every_byte;
    use crate::model::Gating;

    #[test]
    fn threads_have_room_in_the_workgroup_memory_of_a_device() {
        let softmax = experts(128, 8, Gating::Softmax, true);
        let [logits, weights, tiles, counts] = [(); 4].map(|()| Range::floats("any", 1));
        let choice = GpuBatchExperts {
            experts: &softmax,
            logits,
            bias: None,
            max_tokens: 64,
            places: 4,
            weights,
            tiles,
            counts,
        };
        let with = |kib: u32| {
            let machine = Machine {
                workgroup_memory: kib << 10,
                ..Machine::H200
            };
            choice.most_threads(machine)
        };
        assert_eq!([16, 32].map(with), [512, 1024]);
    }

    #[test]
    fn the_gpu_chooses_and_lists_as_its_twin_does() {
        agree(gpus(), |_| cases());
    }

    #[test]
    fn every_index_lies_in_its_buffer() {
        let (tokens, e) = (9, experts(5, 2, Gating::Softmax, true));
        let [count, used] = [5, 2];
        let call = GpuBatchExperts {
            logits: Range::floats("logits", u64::from((tokens - 1) * 8 + count)),
            bias: Some(Range::whole(&Buffer::new(
                "bias",
                u64::from(count) * 4,
                crate::gpu::buffer::Role::Floats,
            ))),
            experts: &e,
            max_tokens: tokens,
            places: MOST_PLACES,
            weights: Range::floats("weights", u64::from(tokens * used)),
            tiles: Range::words(
                "tiles",
                u64::from(TILE_WORDS * tiles(tokens, MOST_PLACES, &e)),
            ),
            counts: Range::words("counts", 6),
        };
        needs_every_byte(&call.call(Machine::H200), Most { tokens, context: 9 });
    }
}
