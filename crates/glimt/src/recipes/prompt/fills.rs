//! What brings experts that lie in host memory to a chunk of many tokens.
//!
//! Such a chunk chooses nearly all experts of a layer. So all of them are brought, before any is chosen: in parts, each of which stands beside a
//! level of what computes from the layer before on, so that the bus and the products work at the same time. A part is as large as its level's
//! share of the operations, since the next level waits for both. For a few tokens it is faster to wait for the choice, and to bring what they
//! chose: then filling and computing take turns, as they do where memory has room for the experts of one layer only.

use super::Prompt;
use crate::gpu::call::{Call, State, When};
use crate::gpu::memory::GpuWeight;
use crate::gpu::record::works;
use crate::gpu::{GpuError, Step};
use crate::kernels::expert_part::GpuExpertParts;
use crate::kernels::expert_sources::ChosenBy;
use crate::model::{Experts, Mlp};
use crate::recipes::Rooms;
use std::collections::BTreeMap;

/// The share of a layer's experts that a chunk may leave out and still have all of them brought. Computing a layer takes longer than so much of
/// its experts over the bus, since the memory of a device, from which the products read them again, is less than 64 times as fast as a bus.
const LEFT_OUT: f64 = 1.0 / 64.0;
/// The share of the operations beside which a layer is brought that each level counts for at least, since those that tell no operations take time,
/// too: a norm of 2048 tokens takes about so much of a layer of GLM-4.7-Flash on an H200.
const LEAST_SHARE: f64 = 1.0 / 128.0;

/// All experts of a layer, to be brought before a dispatch.
pub(super) struct Fill<'a> {
    /// The number of the first dispatch that reads them.
    before: usize,
    weights: [GpuExpertParts<'a>; 3],
    /// The replays in which they are brought so.
    when: When,
}

/// The fewest tokens for which all experts of a layer are brought: of these experts, they choose all but [`LEFT_OUT`], if each is chosen alike
/// often.
fn least_of_all(experts: &Experts) -> u32 {
    let free = 1.0 - experts.used as f64 / experts.count as f64;
    let tokens = (LEFT_OUT.ln() / free.ln()).ceil();
    (tokens as u32).max(1)
}

impl<'a> Prompt<'a> {
    /// Has the experts of a layer be brought before what is recorded next, in a step of `least` tokens or more.
    pub(super) fn fill(&mut self, rooms: &'a Rooms, host: &'a Mlp<GpuWeight>, least: u32) {
        let config = self.given.experts();
        let enough = least_of_all(config);
        let [few, many] = match () {
            () if self.max_tokens < enough || rooms.in_turn => [Some(When::Always), None],
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
            let fills = rooms.fill(host, config, chosen, most);
            self.calls
                .extend(fills.into_iter().map(|call| call.only(when)));
        }
        if let Some(when) = many {
            self.fills.push(Fill {
                before: self.calls.len(),
                weights: rooms.parts(host),
                when,
            });
        }
    }
}

/// A level of a step: its first dispatch, and its operations.
struct Level {
    first: usize,
    flops: u64,
}

/// `step` with `fills` in parts, each beside a level of those that a replay for `state` has since the first products of the layer before.
///
/// # Errors
/// The errors of recording the step.
pub(super) fn beside(step: Step, fills: &[Fill<'_>], state: &State) -> Result<Step, GpuError> {
    let levels = levels(&step, state)?;
    let mut parts: BTreeMap<usize, Vec<Call>> = BTreeMap::new();
    let mut begin = 0;
    for fill in fills {
        let window = levels.iter();
        let window = window.filter(|level| (begin..fill.before).contains(&level.first));
        for (first, calls) in fill.beside(&window.collect::<Vec<_>>(), &step.calls) {
            parts.entry(first).or_default().extend(calls);
        }
        begin = fill.before;
    }
    let mut calls = Vec::with_capacity(step.calls.len() + parts.len());
    for (i, call) in step.calls.into_iter().enumerate() {
        let sublayer = call.sublayer;
        for (n, part) in parts.remove(&i).into_iter().flatten().enumerate() {
            let part = Call { sublayer, ..part };
            calls.push(match n {
                0 => part.beginning_level(),
                _ => part,
            });
        }
        calls.push(call);
    }
    Ok(Step::of(step.most, calls))
}

/// The levels of a replay of `step` for `state`, in order.
fn levels(step: &Step, state: &State) -> Result<Vec<Level>, GpuError> {
    let mut levels: BTreeMap<usize, Level> = BTreeMap::new();
    for work in works(step, state)? {
        let new = Level {
            first: work.dispatch,
            flops: 0,
        };
        let level = levels.entry(work.level).or_insert(new);
        level.first = level.first.min(work.dispatch);
        level.flops += work.flops;
    }
    Ok(levels.into_values().collect())
}

impl Fill<'_> {
    /// The parts beside each of these levels of `calls`, by its first dispatch.
    fn beside(&self, levels: &[&Level], calls: &[Call]) -> Vec<(usize, Vec<Call>)> {
        let all: u64 = levels.iter().map(|level| level.flops).sum();
        let least = (LEAST_SHARE * all as f64) as u64;
        let sizes = levels
            .iter()
            .map(|level| (level.first, level.flops.max(least).max(1)));
        let sizes: Vec<_> = sizes.collect();
        let counts = self.weights.map(GpuExpertParts::count);
        let shares = cut(counts.iter().sum(), &sizes);
        let part = |(first, share): (usize, std::ops::Range<u32>)| {
            // A dispatch between two that are repeated for each block is repeated with them.
            let blocks = calls[first].blocks;
            let blocks = blocks.filter(|_| first > 0 && calls[first - 1].blocks == blocks);
            let mut begin = 0;
            let mut of_level = vec![];
            for (weight, count) in self.weights.iter().zip(counts) {
                let own = |at: u32| at.clamp(begin, begin + count) - begin;
                let own = own(share.start)..own(share.end);
                if !own.is_empty() {
                    of_level.push(weight.call(own, blocks).only(self.when));
                }
                begin += count;
            }
            (first, of_level)
        };
        shares.into_iter().map(part).collect()
    }
}

/// `count` cut in proportion to these sizes, each of which has a name.
fn cut(count: u32, sizes: &[(usize, u64)]) -> Vec<(usize, std::ops::Range<u32>)> {
    let all: u64 = sizes.iter().map(|(_, size)| size).sum();
    let mut before = 0;
    let mut end = 0;
    let share = |&(name, size): &(usize, u64)| {
        before += size;
        let begin = end;
        end = (f64::from(count) * before as f64 / all as f64).round() as u32;
        (name, begin..end)
    };
    sizes.iter().map(share).collect()
}
