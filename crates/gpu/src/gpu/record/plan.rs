//! The plan of a recording's dispatches in a replay, and their order, without the objects of a device.

use crate::gpu::Step;
use crate::gpu::buffer::{Buffer, Range};
use crate::gpu::call::{Block, Blocks, Extent, State, When, Word};
use crate::gpu::interface::Resolved;
use crate::gpu::levels::Levels;

/// The plan of one dispatch.
pub(super) struct Plan {
    pub params: Vec<Word>,
    pub grid: [Extent; 3],
    pub counts: Option<Range>,
    pub when: When,
    /// The run of dispatches that do not wait for each other that it belongs to.
    pub level: usize,
    /// The pass that it belongs to.
    pub pass: usize,
    /// Buffers to make readable before it, for it and those beside it.
    pub readable: Vec<Buffer>,
    blocks: Option<Blocks>,
    by_block: bool,
    pub ahead: bool,
    /// The dispatch's first place among the parameters of the plain tier: one for each time it may be repeated.
    pub place: usize,
}

/// One encoding of a dispatch: which, and for which block of the context.
#[derive(Default)]
pub(super) struct Turn {
    pub dispatch: usize,
    pub index: u32,
    pub block: Option<Block>,
    /// Whether a pass begins with it, whatever its number.
    pub begins_pass: bool,
}

impl Plan {
    /// The plans of the dispatches of a step, which are `resolved`.
    pub fn all(step: &Step, resolved: &[Resolved]) -> Vec<Self> {
        let mut levels = Levels::of(resolved);
        let calls = &step.calls;
        let mut place = 0;
        let plan = |i: usize| {
            let call = &calls[i];
            let plan = Self {
                params: resolved[i].params.clone(),
                grid: call.grid,
                counts: call.counts.clone(),
                when: call.when,
                level: levels.number[i],
                pass: levels.pass[i],
                readable: std::mem::take(&mut levels.readable[i]),
                blocks: call.blocks,
                by_block: call.by_block,
                ahead: call.ahead,
                place,
            };
            place += plan.places();
            plan
        };
        (0..calls.len()).map(plan).collect()
    }

    /// How often a replay repeats it at most.
    pub fn places(&self) -> usize {
        self.blocks.map_or(1, |blocks| blocks.most as usize)
    }

    /// The number of its alternative binding that a turn takes, to be taken modulo their count.
    pub fn alternative(&self, turn: &Turn, state: &State) -> usize {
        if self.by_block {
            turn.index as usize
        } else {
            state.slot
        }
    }
}

/// The dispatches that a replay has in order, runs of those cut alike repeated for each block of the context, some of them a
/// block ahead.
pub(super) fn turns(plans: &[Plan], state: &State) -> Vec<Turn> {
    let mut turns = Vec::with_capacity(plans.len());
    let mut begin = 0;
    while begin < plans.len() {
        let blocks = plans[begin].blocks;
        let alike = |plan: &&Plan| plan.blocks.is_some() && plan.blocks == blocks;
        let run = plans[begin..].iter().take_while(alike).count();
        let times = blocks.map_or(1, |b| b.count(state).min(b.most));
        let held = || (begin..begin + run.max(1)).filter(|d| plans[*d].when.holds(state));
        let turn = |index| {
            move |dispatch| Turn {
                dispatch,
                index,
                block: blocks.map(|b| b.block(index, state)),
                begins_pass: false,
            }
        };
        let ahead = |dispatch: &usize| plans[*dispatch].ahead;
        if times > 0 {
            turns.extend(held().filter(ahead).map(turn(0)));
        }
        for index in 0..times {
            let first = turns.len();
            turns.extend(held().filter(|d| !ahead(d)).map(turn(index)));
            if index + 1 < times {
                let beside = turns.len();
                turns.extend(held().filter(ahead).map(turn(index + 1)));
                if turns.len() > beside && beside > first {
                    turns[first].begins_pass = true;
                }
            }
        }
        begin += run.max(1);
    }
    turns
}
