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

/// How many slots a tile may have in steps of up to `tokens` tokens. In small steps most experts have one or two tokens.
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
    /// How many experts there are, and how they are chosen and weighted.
    pub experts: &'a Experts,
    /// Most tokens of a replay.
    pub max_tokens: u32,
    /// Slots of a tile at most: 2 or 4.
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
            .number("WG", wanted.clamp(64, machine.threads))
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
    use crate::gpu::call::State;
    use crate::gpu::testing::{download, gpus, output, run, upload};
    use crate::kernels::testing::bounds::needs_every_byte;
    use crate::kernels::testing::{Rng, assert_close, drawn_pairs};
    use crate::model::Gating;

    fn experts(count: usize, used: usize, gating: Gating, weights_norm: bool) -> Experts {
        Experts {
            count,
            used,
            shared_count: 1,
            feed_forward_length: 32,
            gating,
            weights_norm,
            weights_scale: 1.8,
        }
    }

    /// Logits whose order no rounding changes: each expert of a token has another one, or many have the same.
    fn logits(rng: &mut Rng, tokens: usize, count: usize, equal: bool) -> Vec<f32> {
        let of_token = |_| {
            // Steps of an odd width from anywhere come to each of a power of two, and to each of 7.
            let (first, by) = (rng.below(count), 2 * rng.below(3) + 1);
            let logit = move |i: usize| {
                let step = (first + i * by) % count;
                let step = if equal { step % 3 } else { step };
                step as f32 * 4.0 / count as f32 - 2.0
            };
            (0..count).map(logit)
        };
        (0..tokens).flat_map(of_token).collect()
    }

    #[test]
    fn the_gpu_chooses_and_lists_as_its_twin_does() {
        let mut rng = Rng::fresh();
        let cases = [
            (64, 4, Gating::Sigmoid, true, 64),
            (64, 6, Gating::Softmax, false, 64),
            (64, 6, Gating::Softmax, true, 2),
            (8, 2, Gating::Sigmoid, false, 9),
            (256, 8, Gating::Sigmoid, true, 16),
            (7, 3, Gating::Softmax, true, 40),
            (1, 1, Gating::Softmax, true, 3),
        ];
        for (gpu, &(count, used, gating, norm, max_tokens)) in drawn_pairs(gpus(), &cases) {
            for (with_bias, equal) in [(false, true), (true, false)] {
                let e = experts(count, used, gating, norm);
                // Without a bias there are all tokens, and workgroups are as small as on any device, so a thread takes several slots.
                let tokens = if equal {
                    max_tokens
                } else {
                    1 + rng.below(max_tokens)
                };
                let machine = Machine {
                    threads: if equal { 256 } else { gpu.machine.threads },
                    ..gpu.machine
                };
                let mut given = logits(&mut rng, tokens, count, equal);
                // The norm divides by no less than MIN_WEIGHT_SUM.
                if equal && norm && gating == Gating::Sigmoid {
                    given.iter_mut().for_each(|logit| *logit -= 16.0);
                }
                // The last expert comes first. Threads without an expert read its bias, but must not take a place behind it.
                let mut bias = vec![1.0; count];
                bias[count - 1] = 3.0;
                let bias = with_bias.then_some(bias);
                let places = 2 + 2 * rng.below(2) as u32;
                let (weights, mut listed) =
                    batch_experts(&given, bias.as_deref(), &e, tokens, places);
                let filled = listed.len() as u32;
                // On the CPU, a read behind buffers that end with the tokens shows.
                let mut padded = router::strided(&given, &e);
                padded.resize(max_tokens * router::logit_stride(&e) as usize, f32::NAN);
                let most = tiles(max_tokens as u32, places, &e) as usize;
                let list = upload(gpu, &vec![u32::MAX; TILE_WORDS as usize * most]);
                let counts = upload(gpu, &[7u32; 8]);
                let left = output(gpu, max_tokens * used);
                let call = GpuBatchExperts {
                    logits: Range::whole(&upload(gpu, &padded)),
                    bias: bias.map(|bias| Range::whole(&upload(gpu, &bias))),
                    experts: &e,
                    max_tokens: max_tokens as u32,
                    places,
                    weights: Range::whole(&left),
                    tiles: Range::whole(&list),
                    counts: Range::whole(&counts),
                };
                let state = State {
                    tokens: tokens as u32,
                    ..State::default()
                };
                run(gpu, &[call.call(machine)], &state);
                let what = format!("{} {count} {used} {tokens}", gpu.tier.name());
                let found: Vec<f32> = download(gpu, &left, weights.len());
                let exact: Vec<f64> = weights.iter().map(|w| f64::from(*w)).collect();
                assert_close(&found, &exact, 1e-11, &what);
                let found: Vec<u32> = download(gpu, &counts, 8);
                let expected = [7, filled, 7, 7, filled, 7, 7, 7];
                assert_eq!(found, expected, "{what}: workgroups");
                let covered = tiles(tokens as u32, places, &e) as usize;
                // Nobody writes all words, and behind the last tile only the number of slots.
                let mut none = [u32::MAX; TILE_WORDS as usize];
                none[2] = 0;
                listed.iter_mut().for_each(|tile| {
                    tile[1] = u32::MAX;
                    tile[3] = u32::MAX;
                });
                listed.resize(covered, none);
                let found: Vec<Tile> = download(gpu, &list, covered);
                assert_eq!(found, listed, "{what}");
            }
        }
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
