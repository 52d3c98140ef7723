//! What brings experts that lie in host memory to a chunk of many tokens.
//!
//! Such a chunk chooses nearly all experts of a layer. So all of them are brought, before any is chosen: in parts, each of which stands beside a
//! level of what computes, so that the bus and the products work at the same time. A part is as large as its level's share of the operations,
//! since the next level waits for both.
//!
//! One room for each weight is enough, since no level reads all of them. `down` of a layer is brought while gate and up of that layer are
//! multiplied, a third of the bytes beside about a third of the operations, and then gate and up of the next layer.
//!
//! For a few tokens it is faster to wait for the choice, and to bring what they chose: then filling and computing take turns.

use super::Prompt;
use crate::gpu::call::{Call, State, When};
use crate::gpu::memory::GpuWeight;
use crate::gpu::record::works;
use crate::gpu::{GpuError, Step};
use crate::kernels::expert_part::GpuExpertParts;
use crate::kernels::expert_sources::ChosenBy;
use crate::model::Mlp;
use crate::recipes::Rooms;
use std::collections::BTreeMap;
use std::ops::Range;

/// The share of a layer's experts that a chunk may leave out and still have all of them brought. Computing a layer takes longer than so much of
/// its experts over the bus, since the memory of a device, from which the products read them again, is less than 64 times as fast as a bus.
const LEFT_OUT: f64 = 1.0 / 64.0;
/// The share of the operations of a layer that each of its levels counts for at least, since those that tell no operations take time, too: a norm
/// of 2048 tokens takes about so much of a layer of GLM-4.7-Flash on an H200.
const LEAST_SHARE: f64 = 1.0 / 128.0;
/// Operations that a device makes while a byte comes over its bus: 200 TFLOP/s and 50 GB/s were measured on an H200. If a layer has more, computing
/// takes longer, and the bus need not work all the time.
const OPERATIONS_PER_BYTE: f64 = 4000.0;
/// The share of the operations of a layer from which on a level then has a part: fewer parts cost less (benches/results/h200-2026-11-27-beyond.txt).
const LARGE_SHARE: f64 = 1.0 / 16.0;

/// All experts of a layer.
pub(super) struct Fill<'a> {
    /// The number of the first dispatch that reads gate and up.
    before: usize,
    gate_up: [GpuExpertParts<'a>; 2],
    down: [GpuExpertParts<'a>; 1],
    /// The replays in which they are brought so.
    when: When,
}

/// The fewest tokens for which all `count` experts of a layer are brought: if each is chosen equally often, `used` by a token, they leave out at
/// most [`LEFT_OUT`] of them.
fn least_of_all([used, count]: [usize; 2]) -> u32 {
    let free = 1.0 - used as f64 / count as f64;
    let tokens = (LEFT_OUT.ln() / free.ln()).ceil();
    (tokens as u32).max(1)
}

impl<'a> Prompt<'a> {
    /// Has the experts of a layer be brought for gate and up, which are recorded next, and for `down`, in a step of `least` tokens or more. The
    /// host reads those of a file when they are chosen.
    pub(super) fn fill(&mut self, rooms: &'a Rooms, host: &'a Mlp<GpuWeight>, least: u32) {
        let config = self.given.experts();
        let enough = least_of_all([config.used, config.count]);
        let [few, many] = match () {
            () if self.max_tokens < enough || rooms.file.is_some() => [Some(When::Always), None],
            () if least >= enough => [None, Some(When::Always)],
            () => [
                Some(When::TokensUpTo(enough - 1)),
                Some(When::TokensAbove(enough - 1)),
            ],
        };
        if let Some(when) = few {
            let chosen = ChosenBy::Ids(self.chunk.expert_ids.clone());
            let most = match many {
                Some(_) => enough - 1,
                None => self.max_tokens,
            };
            let fills = rooms.fill(host, config, chosen, most).only(when);
            fills.record(&mut self.calls, &mut self.questions);
        }
        if let Some(when) = many {
            let [gate, up, down] = rooms.parts(host);
            self.fills.push(Fill {
                before: self.calls.len(),
                gate_up: [gate, up],
                down: [down],
                when,
            });
        }
    }
}

/// `step` with `fills` in parts, each beside a level of a replay for `state`.
///
/// # Errors
/// The errors of recording the step.
pub(super) fn beside(step: Step, fills: &[Fill<'_>], state: &State) -> Result<Step, GpuError> {
    let levels = levels(&step, state)?;
    let mut parts = Parts {
        calls: &step.calls,
        beside: BTreeMap::new(),
    };
    let at = |fill: &Fill<'_>| levels.partition_point(|level| level.first < fill.before);
    if let [first, ..] = fills {
        let before = Levels::of(&levels[..at(first)], bytes(&first.gate_up));
        parts.add(&first.gate_up, first.when, &before, 0.0..before.all());
    }
    for (i, fill) in fills.iter().enumerate() {
        let next = fills.get(i + 1);
        // From gate and up of this layer to those of the next.
        let levels = &levels[at(fill)..next.map_or(levels.len(), at)];
        let following = next.map_or(&[][..], |next| &next.gate_up);
        let own = Levels::of(levels, bytes(&fill.down) + bytes(following));
        // The operations after which the rooms of gate and up are free, and those after which `down` is read.
        let free = own
            .reading(&fill.gate_up[0], parts.calls)
            .last()
            .map_or(0, |last| last + 1);
        let needed = own
            .reading(&fill.down[0], parts.calls)
            .next()
            .unwrap_or(own.levels.len());
        let parts_of_down = f64::from(count(&fill.down));
        let share = parts_of_down / (parts_of_down + f64::from(count(following)));
        let turn = (share * own.all())
            .max(own.before(free))
            .min(own.before(needed));
        parts.add(&fill.down, fill.when, &own, 0.0..turn);
        if let Some(next) = next {
            parts.add(&next.gate_up, next.when, &own, turn..own.all());
        }
    }
    let beside = parts.beside;
    Ok(inserted(step, beside))
}

/// The parts of all `weights` together.
fn count(weights: &[GpuExpertParts<'_>]) -> u32 {
    weights.iter().map(|weight| weight.count()).sum()
}

/// Bytes that come over the bus for `weights`.
fn bytes(weights: &[GpuExpertParts<'_>]) -> f64 {
    weights.iter().map(|weight| weight.bytes_of_host()).sum()
}

/// A level of a step: its first dispatch, all of them, and their operations.
struct Level {
    first: usize,
    dispatches: Vec<usize>,
    flops: u64,
}

/// The levels of a replay of `step` for `state`, in order.
fn levels(step: &Step, state: &State) -> Result<Vec<Level>, GpuError> {
    let mut levels: BTreeMap<usize, Level> = BTreeMap::new();
    for work in works(step, state)? {
        let level = levels.entry(work.level).or_insert(Level {
            first: work.dispatch,
            dispatches: vec![],
            flops: 0,
        });
        level.first = level.first.min(work.dispatch);
        level.dispatches.push(work.dispatch);
        level.flops += work.flops;
    }
    Ok(levels.into_values().collect())
}

/// Levels that follow each other.
struct Levels<'a> {
    levels: &'a [Level],
    /// The operations of the levels before each, and of all.
    ends: Vec<f64>,
}

impl<'a> Levels<'a> {
    /// The levels beside which so many bytes come over the bus.
    fn of(levels: &'a [Level], bytes: f64) -> Self {
        let all = levels.iter().map(|level| level.flops as f64).sum::<f64>();
        let few = all > OPERATIONS_PER_BYTE * bytes;
        let mut ends = vec![0.0];
        for level in levels {
            // No level counts for nothing, in case that no other is long enough.
            let counts_for = match level.flops as f64 {
                small if few && small < LARGE_SHARE * all => 1.0,
                flops => flops.max(LEAST_SHARE * all).max(1.0),
            };
            ends.push(ends[ends.len() - 1] + counts_for);
        }
        Self { levels, ends }
    }

    /// The levels whose dispatches, of `calls`, read the room of a weight.
    fn reading(&self, weight: &GpuExpertParts<'_>, calls: &[Call]) -> impl Iterator<Item = usize> {
        let reads = |level: &Level| {
            let mut dispatches = level.dispatches.iter();
            dispatches.any(|dispatch| calls[*dispatch].binds(weight.to))
        };
        (0..self.levels.len()).filter(move |level| reads(&self.levels[*level]))
    }

    /// The operations before a level.
    fn before(&self, level: usize) -> f64 {
        self.ends[level]
    }

    /// The operations of all.
    fn all(&self) -> f64 {
        self.ends[self.levels.len()]
    }
}

/// The parts that stand beside levels, by the first dispatch of these.
struct Parts<'a> {
    calls: &'a [Call],
    beside: BTreeMap<usize, Vec<Call>>,
}

impl Parts<'_> {
    /// Adds all parts of `weights` beside the operations `during` of `levels`.
    fn add(
        &mut self,
        weights: &[GpuExpertParts<'_>],
        when: When,
        levels: &Levels<'_>,
        during: Range<f64>,
    ) {
        let all = f64::from(count(weights));
        // The parts that are there after so many operations.
        let after = |operations: f64| {
            let share = (operations - during.start) / (during.end - during.start);
            (all * share.clamp(0.0, 1.0)).round() as u32
        };
        for (level, ends) in levels.levels.iter().zip(levels.ends.windows(2)) {
            let first = level.first;
            // A dispatch between two that are repeated for each block is repeated with them.
            let blocks = self.calls[first].blocks;
            let blocks = blocks.filter(|_| first > 0 && self.calls[first - 1].blocks == blocks);
            let (own, mut begin) = (after(ends[0])..after(ends[1]), 0);
            for weight in weights {
                let end = begin + weight.count();
                let parts = [own.start, own.end].map(|at| at.clamp(begin, end) - begin);
                if parts[0] < parts[1] {
                    let part = weight.call(parts[0]..parts[1], blocks).only(when);
                    self.beside.entry(first).or_default().push(part);
                }
                begin = end;
            }
        }
    }
}

/// `step` with dispatches before others, so that levels begin with them.
fn inserted(step: Step, mut before: BTreeMap<usize, Vec<Call>>) -> Step {
    let mut calls = Vec::with_capacity(step.calls.len());
    for (i, call) in step.calls.into_iter().enumerate() {
        let sublayer = call.sublayer;
        let own = before.remove(&i).unwrap_or_default();
        for (n, part) in own.into_iter().enumerate() {
            let part = Call { sublayer, ..part };
            calls.push(match n {
                0 => part.beginning_level(),
                _ => part,
            });
        }
        calls.push(call);
    }
    Step::of(step.most, calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_experts_are_brought_where_hardly_any_is_left_out() {
        for (experts, tokens) in [([4, 64], 65), ([6, 64], 43), ([2, 8], 15), ([8, 8], 1)] {
            assert_eq!(least_of_all(experts), tokens, "{experts:?}");
        }
    }
}
