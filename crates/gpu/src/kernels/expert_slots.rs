//! The choice of experts in a dispatch of its own: of several tokens, or of experts that lie in host memory, where each has its place on the
//! device, and what must be copied there first.

use super::token::{self, Divided};
use super::token_gate_up::{GpuTokenGateUp, chooses_by_lanes, of_logits, with_rms_in_runs};
use crate::gpu::buffer::{Buffer, Range};
use crate::gpu::call::{Call, Extent};
use crate::gpu::{Gpu, GpuError, Target};

/// The source of a fill that copies nothing.
pub const NONE: u32 = u32::MAX;
/// The count of one choice of an expert.
const COUNTED: u32 = 1 << 16;
/// Tokens from one decay of the counts to the next.
const PERIOD: u32 = 64;
/// The factor of a decay, a fraction.
const DECAY: [u32; 2] = [7, 10];
/// Words of a table before those of the experts.
pub(super) const HEAD: usize = 4;

/// The table of a layer's slots, as `expert_slots.wgsl` describes its words.
#[derive(Debug, Clone)]
pub struct Table {
    /// The words. In the beginning each slot holds the expert of its number, and no expert was chosen.
    pub words: Range,
    /// The number of slots.
    pub slots: u32,
}

impl Table {
    /// A new table of `slots` slots for `experts` experts.
    pub fn new(experts: u32, slots: u32) -> Self {
        Self {
            words: Range::whole(&Buffer::with(
                "table of slots",
                &first_words(experts, slots),
            )),
            slots,
        }
    }

    /// Has all slots be empty and no expert chosen so far, for steps that are submitted from now on.
    pub fn forget(&self, gpu: &Gpu) {
        let Range {
            buffer,
            offset,
            size,
            ..
        } = &self.words;
        let head = 4 * HEAD as u64;
        let zeros = vec![0; (size - head) as usize];
        gpu.queue.write_buffer(buffer.made(), offset + head, &zeros);
    }

    /// `call` with the table and the numbers of its rule.
    pub(super) fn bind(&self, call: Call) -> Call {
        call.number("SLOTS", self.slots)
            .number("COUNTED", COUNTED)
            .number("PERIOD", PERIOD)
            .number("DECAY_TIMES", DECAY[0])
            .number("DECAY_BY", DECAY[1])
            .bind("table", &self.words)
    }

    /// The counts of each of `tables`.
    ///
    /// # Errors
    /// The error that the device reports.
    pub async fn counts(gpu: &Gpu, tables: &[&Self]) -> Result<Vec<Counts>, GpuError> {
        let places: Vec<_> = tables
            .iter()
            .map(|table| (&table.words.buffer, table.words.offset))
            .collect();
        let words: Vec<[u32; HEAD]> = gpu.read_each(&places, 4 * HEAD as u64).await?;
        let counts = words.iter().map(|[_, hits, misses, _]| Counts {
            hits: *hits,
            misses: *misses,
        });
        Ok(counts.collect())
    }
}

/// The host's share of the missing experts of a token.
#[derive(Debug, Clone)]
pub struct Share {
    /// Of n missing experts the number that the host multiplies, (used + 1) u32.
    pub split: Range,
    /// Where the experts that it multiplies are told, (used) u32, with [`NONE`] in the places of the others.
    pub asked: Range,
}

/// The counts of a table so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Experts that steps chose and that had a slot. One that several tokens of a step chose counts once.
    pub hits: u32,
    /// Experts that steps chose and that had none.
    pub misses: u32,
}

/// A trace of choices of experts, to measure by.
#[derive(Debug, Clone)]
pub struct Routing {
    choices: Range,
    /// Tokens of the trace.
    tokens: u32,
}

impl Routing {
    /// The trace `choices` (tokens, used).
    ///
    /// # Panics
    /// If it has no token.
    pub fn new(choices: &[u32], used: usize) -> Self {
        assert!(choices.len() >= used, "{} choices", choices.len());
        Self {
            choices: Range::whole(&Buffer::with("routing", choices)),
            tokens: (choices.len() / used) as u32,
        }
    }
}

/// The words of a new table, in which each slot holds the expert of its number.
pub fn first_words(experts: u32, slots: u32) -> Vec<u32> {
    let slot_of = (0..experts).map(|e| if e < slots { e + 1 } else { 0 });
    let counts = (0..experts).map(|_| 0);
    let head = [0; HEAD].into_iter();
    head.chain(slot_of).chain(counts).chain(1..=slots).collect()
}

/// The choice of a product that does not choose ([`GpuTokenGateUp::given`]), by as many threads and in the same way as if it did.
pub struct GpuExpertSlots<'a> {
    /// The product. Its router's `ids` and weights are written here. The ids are experts for several tokens, and places for one.
    pub gate_up: &'a GpuTokenGateUp<'a>,
    /// The slots that are the places of one token; without them the places are the ranks.
    pub table: Option<&'a Table>,
    /// A trace of which each token takes the next choice instead of its own; only with a table.
    pub routing: Option<&'a Routing>,
    /// The pairs (source, place) of one token, (used, 2) u32: what [`expert_fill`](super::expert_fill) is to copy.
    pub fills: Option<Range>,
    /// The host's share, which only one token can have.
    pub share: Option<&'a Share>,
}

impl GpuExpertSlots<'_> {
    /// The dispatch.
    ///
    /// # Errors
    /// [`GpuError::TierUnsupported`] if the tier has no geometry for the product.
    ///
    /// # Panics
    /// If the product has no experts, or a table has too few slots for those of a token.
    pub fn call(&self, target: &Target) -> Result<Call, GpuError> {
        let gate_up = self.gate_up;
        let (pair, router) = gate_up.experts.as_ref().expect("the product of experts");
        let [count, used] = [router.experts.count, router.experts.used].map(|n| n as u32);
        // The sums of the logits and of the squares depend on the number of threads.
        let threads = token::geometry(target, &gate_up.site())?.threads();
        let mut call = Call::new("expert_slots").number("WG", threads);
        call = of_logits(call, target, threads, router, gate_up.raw_logits)
            .flag("SEVERAL", gate_up.tokens > 1)
            .word("scale", router.experts.weights_scale)
            .bind("ids", &router.ids)
            .bind("weights", &router.weights)
            .bind_some("fills", self.fills.as_ref());
        if let Some(Share { split, asked }) = self.share {
            assert!(self.fills.is_some(), "a share of several tokens");
            call = call.bind("split", split).bind("asked", asked);
        }
        if !chooses_by_lanes(target, router.experts) {
            call = call.number("LANES", 1);
        }
        if gate_up.raw_logits {
            let (squares, eps) = gate_up.x.rms.as_ref().expect("raw logits have a norm");
            let units = pair[0].cols / 32;
            call = with_rms_in_runs(call, target, threads, units)
                .number("COLS", 1)
                .number("UNITS", units)
                .bind("squares", squares)
                .word("eps", *eps);
        }
        if let Some(table) = self.table {
            assert!(
                (used..=count).contains(&table.slots) && gate_up.tokens == 1,
                "{} slots for {used} of {count} experts of {} tokens",
                table.slots,
                gate_up.tokens
            );
            call = table.bind(call);
            if let Some(Routing { choices, tokens }) = self.routing {
                call = call.number("TRACED", *tokens).bind("routing", choices);
            }
        }
        Ok(call.grid([Extent::Tokens, Extent::N(1), Extent::N(1)]))
    }
}

/// The choice of a token, as the kernel leaves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// The place of each expert, or [`NONE`] if the host multiplies it.
    pub places: Vec<u32>,
    /// The pairs (source, place) of what is to be copied.
    pub fills: Vec<[u32; 2]>,
    /// The experts that the host multiplies, or [`NONE`].
    pub asked: Vec<u32>,
}

impl Chosen {
    /// The experts `chosen`, each in its own place, of which the host multiplies `of_host`.
    pub fn in_order(chosen: &[u32], of_host: u32) -> Self {
        let ranks = 0..chosen.len() as u32;
        let ends = chosen.len() as u32 - of_host;
        let or_none = |value: u32, is_here: bool| if is_here { value } else { NONE };
        let each = || ranks.clone().zip(chosen);
        Self {
            places: ranks.clone().map(|t| or_none(t, t < ends)).collect(),
            fills: each().map(|(t, e)| [or_none(*e, t < ends), t]).collect(),
            asked: each().map(|(t, e)| or_none(*e, t >= ends)).collect(),
        }
    }
}

/// The places of the `chosen` experts of one token among the slots of `table`, and what is to be copied, of `experts` experts. The table then
/// tells of them. If there is a `split`, the host multiplies the last of those that are missing: of n so many as its number n is.
///
/// # Panics
/// If fewer slots than chosen experts are in the table.
pub fn expert_slots(
    table: &mut [u32],
    chosen: &[u32],
    experts: usize,
    split: Option<&[u32]>,
) -> Chosen {
    let before = table[HEAD..HEAD + experts].to_vec();
    let is_missing = |expert: u32| before[expert as usize] == 0;
    let lacking = chosen.iter().filter(|expert| is_missing(**expert)).count();
    let of_host = split.map_or(0, |split| split[lacking]);
    let once: Vec<_> = chosen.iter().map(|expert| [*expert, 1]).collect();
    let fills = slots_of_step(table, &once, 1, experts, of_host as usize);
    let each = chosen.iter().zip(&fills);
    let (places, asked) = each
        .map(
            |(expert, [source, place])| match is_missing(*expert) && *source == NONE {
                true => (NONE, *expert),
                false => (*place, NONE),
            },
        )
        .unzip();
    Chosen {
        places,
        fills,
        asked,
    }
}

/// The pairs (source, place) of the experts of a step of `tokens` tokens, each `chosen` so many times, among the slots of `table`. The host
/// multiplies the last `of_host` of those that are missing, which are not copied.
pub(super) fn slots_of_step(
    table: &mut [u32],
    chosen: &[[u32; 2]],
    tokens: u32,
    experts: usize,
    of_host: usize,
) -> Vec<[u32; 2]> {
    let (head, rest) = table.split_at_mut(HEAD);
    let (slot_of, rest) = rest.split_at_mut(experts);
    let (counts, expert_in) = rest.split_at_mut(experts);
    let is_chosen = |held: u32| held > 0 && chosen.iter().any(|[expert, _]| *expert == held - 1);
    // The order in which slots are forgotten is that before the step.
    let order = |(_, held): &(usize, u32)| match *held {
        0 => 0,
        held if is_chosen(held) => NONE,
        held => counts[held as usize - 1] + 1,
    };
    let mut slots: Vec<(usize, u32)> = expert_in.iter().copied().enumerate().collect();
    slots.sort_by_key(order);
    let before = slot_of.to_vec();
    let is_missing = |[expert, _]: &&[u32; 2]| before[*expert as usize] == 0;
    let copied = chosen.iter().filter(is_missing).count() - of_host;
    let (mut fills, mut misses) = (vec![], 0);
    for &[expert, _] in chosen {
        let kept = before[expert as usize];
        if kept > 0 {
            fills.push([NONE, kept - 1]);
            continue;
        }
        let slot = slots[misses].0;
        misses += 1;
        if misses > copied {
            fills.push([NONE, slot as u32]);
            continue;
        }
        let old = std::mem::replace(&mut expert_in[slot], expert + 1);
        if old > 0 {
            slot_of[old as usize - 1] = 0;
        }
        slot_of[expert as usize] = slot as u32 + 1;
        fills.push([expert, slot as u32]);
    }
    for [expert, times] in chosen {
        counts[*expert as usize] += times * COUNTED;
    }
    let number = head[0];
    head[0] += tokens;
    if head[0] / PERIOD > number / PERIOD {
        counts
            .iter_mut()
            .for_each(|n| *n = *n * DECAY[0] / DECAY[1]);
    }
    head[1] += (chosen.len() - misses) as u32;
    head[2] += misses as u32;
    fills
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Most;
    use crate::gpu::testing::{some_waves, token_gpus, unmade_weight};
    use crate::kernels::cases::expert_slots::cases;
    use crate::kernels::cases::router::experts;
    use crate::kernels::router::GpuRouter;
    use crate::kernels::testing::bounds::needs_every_byte;
    use crate::kernels::testing::{Rng, agree, agree_everywhere};
    use crate::kernels::token::TokenInput;
    use crate::model::Gating;
    use crate::quant::GgmlType;
    use crate::quant::activation::Activation;

    #[test]
    fn the_gpu_keeps_the_experts_that_its_twin_keeps() {
        agree(token_gpus(), |_| cases());
        agree_everywhere(&some_waves(), |_| cases());
    }

    #[test]
    fn every_index_lies_in_its_buffer() {
        let pair = unmade_weight(GgmlType::Q4_0, 8, 32, 64);
        let config = experts(8, 4, Gating::Sigmoid, true);
        let table = Table::new(8, 4);
        let room = |name| Range::floats(name, 0);
        let gate_up = GpuTokenGateUp {
            tokens: 1,
            experts: Some((
                [&pair, &pair],
                GpuRouter {
                    logits: Range::floats("logits", 8),
                    partial_sums: 1,
                    bias: Some(Range::floats("bias", 8)),
                    experts: &config,
                    max_tokens: 1,
                    ids: Range::words("ids", 4),
                    weights: Range::floats("weights", 4),
                },
            )),
            given: true,
            raw_logits: true,
            shared: None,
            activation: Activation::Bytes,
            x: TokenInput {
                values: room("x"),
                rms: Some((Range::floats("squares", 4), 1e-5)),
            },
            h: room("h"),
        };
        let chosen = GpuExpertSlots {
            gate_up: &gate_up,
            table: Some(&table),
            routing: Some(&Routing::new(&[0; 8], 4)),
            fills: Some(Range::words("fills", 8)),
            share: Some(&Share {
                split: Range::words("split", 5),
                asked: Range::words("asked", 4),
            }),
        };
        let call = chosen.call(&Target::h200()).expect("its shape suits");
        needs_every_byte(&call, Most::token(1));
    }

    #[test]
    fn experts_that_are_chosen_often_stay_and_a_change_of_topic_forgets_them() {
        let (experts, slots) = (16, 6);
        let mut table = vec![0; HEAD + 2 * experts + slots];
        let mut rng = Rng::fresh();
        // Two experts come again and again, beside any others.
        let mut missed = [0, 0];
        for (topic, often) in [[3, 7], [8, 1]].into_iter().enumerate() {
            for token in 0..200 {
                let other = loop {
                    let other = rng.below(experts) as u32;
                    if !often.contains(&other) {
                        break other;
                    }
                };
                let Chosen { places, fills, .. } =
                    expert_slots(&mut table, &[often[0], other, often[1]], experts, None);
                for (place, expert) in places.iter().zip([often[0], other, often[1]]) {
                    assert_eq!(table[HEAD + 2 * experts + *place as usize], expert + 1);
                    assert_eq!(table[HEAD + expert as usize], place + 1);
                }
                let of_often = [fills[0], fills[2]];
                let missing = of_often.iter().filter(|[source, _]| *source != NONE);
                missed[topic] += missing.count();
                assert!(token < 100 || fills[0][0] == NONE, "token {token}");
            }
        }
        // Both are missed once. After the change of topic they may be missed a few times more, until their counts are the higher ones.
        assert_eq!(missed[0], 2);
        assert!(missed[1] < 20, "{missed:?}");
        assert_eq!(table[1] + table[2], 2 * 200 * 3);
    }
}
