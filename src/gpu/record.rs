//! A recorded step: the dispatches of one token or one chunk of tokens as data, replayed in order.
//!
//! WebGPU has no reusable command buffers, so replaying means encoding again from objects made once: pipelines, bind groups
//! and parameter words. What changes from token to token is a handful of words ([`State`]), known at encode time.

use super::buffer::Range;
use super::call::{About, Block, Blocks, Extent, State, Taken, When, Word, extent, fill};
use super::interface::Resolved;
use super::levels::Levels;
use super::pipeline::{Pipeline, Spec};
use super::stamps::Stamping;
use super::tier::MAX_PARAMS;
use super::{Gpu, GpuError, Step, Tier};
use std::collections::BTreeSet;
use std::sync::Arc;
use wgpu::{BindGroup, Buffer, BufferUsages};

mod replay;
pub use replay::{Cost, Replay};

struct Dispatch {
    pipeline: Arc<Pipeline>,
    groups: Vec<BindGroup>,
    params: Vec<Word>,
    grid: [Extent; 3],
    counts: Option<Range>,
    when: When,
    /// Buffers to make readable before it, for it and those beside it.
    readable: Vec<Buffer>,
    /// The run of dispatches that do not wait for each other that it belongs to.
    level: usize,
    /// The pass that it belongs to.
    pass: usize,
    blocks: Option<Blocks>,
    by_block: bool,
    ahead: bool,
    /// Its first place among the parameters of the plain tier: one for each time it may be repeated.
    place: usize,
}

/// One encoding of a dispatch: which, and for which block of the context.
struct Turn {
    dispatch: usize,
    index: u32,
    block: Option<Block>,
    /// Whether a pass begins with it, whatever its number.
    begins_pass: bool,
}

/// A step ready to be replayed.
pub struct Recording {
    dispatches: Vec<Dispatch>,
    about: Vec<Arc<About>>,
    uniforms: Option<(Buffer, BindGroup)>,
}

/// Distance between the parameters of two dispatches in the uniform buffer of the plain tier.
const UNIFORM_STRIDE: usize = 256;

impl Recording {
    /// Compiles what is not compiled yet, in parallel, and makes the bind groups.
    ///
    /// # Errors
    /// [`GpuError::Shader`], [`GpuError::OutOfMemory`] or what the device reports.
    pub async fn new_async(gpu: &Gpu, step: &Step) -> Result<Self, GpuError> {
        let resolved = step.resolve()?;
        let calls = &step.calls;
        for buffer in step.buffers() {
            gpu.realise_async(buffer).await?;
        }
        let specs: Vec<&Spec> = resolved.iter().map(|call| &call.spec).collect();
        let pipelines = gpu.pipelines_async(&specs).await?;
        let levels = Levels::of(&resolved);
        let mut places = 0;
        let dispatches: Vec<_> = calls
            .iter()
            .zip(&resolved)
            .zip(pipelines)
            .zip(levels.readable)
            .zip(levels.number)
            .zip(levels.pass)
            .map(
                |(((((call, resolved), pipeline), readable), level), pass)| {
                    let place = places;
                    places += call.blocks.map_or(1, |b| b.most as usize);
                    Dispatch {
                        groups: bind_groups(gpu, resolved, &pipeline),
                        pipeline,
                        params: resolved.params.clone(),
                        grid: call.grid,
                        counts: call.counts.clone(),
                        when: call.when,
                        readable: readable.iter().map(|b| b.made().clone()).collect(),
                        level,
                        pass,
                        blocks: call.blocks,
                        by_block: call.by_block,
                        ahead: call.ahead,
                        place,
                    }
                },
            )
            .collect();
        let uniforms = match gpu.tier {
            Tier::Plain => Some(uniforms(gpu, places).await?),
            Tier::Subgroup | Tier::Int8 => None,
        };
        gpu.check()?;
        Ok(Self {
            dispatches,
            about: calls.iter().map(|call| Arc::new(call.about())).collect(),
            uniforms,
        })
    }

    /// Each dispatch that a replay for `state` has, in order: as [`Stamping`] counts them.
    pub fn step(&self, state: &State) -> Vec<Taken> {
        self.turns(state)
            .iter()
            .map(|t| Taken::new(t.dispatch, &self.about[t.dispatch], state, t.block))
            .collect()
    }

    /// Whether dispatch number `dispatch` had workgroups in the last replay, which is done: unless an earlier one counted none.
    pub async fn had_work_async(&self, gpu: &Gpu, dispatch: usize) -> Result<bool, GpuError> {
        let Some(counts) = &self.dispatches[dispatch].counts else {
            return Ok(true);
        };
        let grid = gpu
            .read_async::<u32>(&counts.buffer, counts.offset, 12)
            .await?;
        Ok(!grid.contains(&0))
    }

    /// Dispatches recorded: those of a replay, and those of the other ways that it does not take.
    pub fn len(&self) -> usize {
        self.dispatches.len()
    }

    /// Runs of dispatches that do not wait for each other, one after the other: how often the device
    /// must wait in a replay for `state`.
    pub fn levels(&self, state: &State) -> usize {
        let held = self.dispatches.iter().filter(|d| d.when.holds(state));
        let levels: BTreeSet<_> = held.map(|d| d.level).collect();
        levels.len()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.dispatches.is_empty()
    }

    /// Encodes the step for `state` into compute passes of `encoder`: one, unless buffers that several runs of dispatches share
    /// demand more.
    pub fn encode(&self, gpu: &Gpu, encoder: &mut wgpu::CommandEncoder, state: &State) {
        self.encode_stamped(gpu, encoder, state, Stamping::None);
    }

    /// As [`encode`](Self::encode), with timestamps; [`Stamping::Passes`] takes a pass per dispatch.
    pub fn encode_stamped(
        &self,
        gpu: &Gpu,
        encoder: &mut wgpu::CommandEncoder,
        state: &State,
        stamping: Stamping<'_>,
    ) {
        let turns = self.turns(state);
        self.write_uniforms(gpu, state, &turns);
        self.encode_turns(encoder, state, &turns, stamping, None);
    }

    /// Writes the parameters of `turns` where they travel in a buffer, for what is submitted next.
    fn write_uniforms(&self, gpu: &Gpu, state: &State, turns: &[Turn]) {
        let Some((buffer, _)) = &self.uniforms else {
            return;
        };
        let places = |t: &Turn| self.dispatches[t.dispatch].place + t.index as usize;
        let end = turns.iter().map(places).max().map_or(0, |place| place + 1);
        let mut all = vec![0u8; end * UNIFORM_STRIDE];
        for turn in turns {
            let chunk = &mut all[places(turn) * UNIFORM_STRIDE..][..UNIFORM_STRIDE];
            let params = &self.dispatches[turn.dispatch].params;
            fill(params, state, turn.block.unwrap_or_default(), chunk);
        }
        gpu.queue.write_buffer(buffer, 0, &all);
    }

    /// Encodes `turns` into compute passes, timed by `stamping`, and returns how many passes there are. Where `mark` is given, its first dispatch ends each pass.
    fn encode_turns(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        state: &State,
        turns: &[Turn],
        stamping: Stamping<'_>,
        mark: Option<&Recording>,
    ) -> u32 {
        let mut words = [0u8; MAX_PARAMS];
        let each = matches!(stamping, Stamping::Passes(..));
        let mut passes = turns
            .chunk_by(|a, b| !each && !self.separates_passes(a, b))
            .enumerate()
            .peekable();
        let (mut count, mut done) = (0, 0);
        while let Some((i, turns)) = passes.next() {
            let ends = match stamping {
                Stamping::Ends(stamps, first) => {
                    stamps.ends(first, [i == 0, passes.peek().is_none()])
                }
                Stamping::Passes(stamps, first) => stamps.ends(first + 2 * i, [true; 2]),
                _ => None,
            };
            let mut pass = begin_pass(encoder, ends);
            if let (0, Stamping::Dispatches(stamps, first)) = (i, stamping) {
                stamps.write(&mut pass, first);
            }
            for turn in turns {
                self.dispatch(&mut pass, turn, state, &mut words);
                done += 1;
                if let Stamping::Dispatches(stamps, first) = stamping {
                    stamps.write(&mut pass, first + done);
                }
            }
            if let Some(mark) = mark {
                let turn = Turn {
                    dispatch: 0,
                    index: 0,
                    block: None,
                    begins_pass: false,
                };
                mark.dispatch(&mut pass, &turn, state, &mut words);
            }
            count += 1;
        }
        count
    }

    /// Whether a pass ends between two neighbours.
    fn separates_passes(&self, a: &Turn, b: &Turn) -> bool {
        let number = |turn: &Turn| self.dispatches[turn.dispatch].pass;
        number(a) != number(b) || b.begins_pass
    }

    /// Encodes number `turn` of [`step`](Self::step) alone, `times` times in a pass, for those who time it.
    pub fn encode_alone(
        &self,
        gpu: &Gpu,
        encoder: &mut wgpu::CommandEncoder,
        state: &State,
        turn: usize,
        times: usize,
    ) {
        let turns = self.turns(state);
        self.write_uniforms(gpu, state, &turns);
        let mut pass = begin_pass(encoder, None);
        for _ in 0..times {
            self.dispatch(&mut pass, &turns[turn], state, &mut [0u8; MAX_PARAMS]);
        }
    }

    /// The dispatches that a replay has in order, runs of those cut alike repeated for each block of the context, some of them a
    /// block ahead.
    fn turns(&self, state: &State) -> Vec<Turn> {
        let mut turns = Vec::with_capacity(self.dispatches.len());
        let mut begin = 0;
        while begin < self.dispatches.len() {
            let blocks = self.dispatches[begin].blocks;
            let alike = |d: &&Dispatch| d.blocks.is_some() && d.blocks == blocks;
            let run = self.dispatches[begin..].iter().take_while(alike).count();
            let times = blocks.map_or(1, |b| b.count(state).min(b.most));
            let held =
                || (begin..begin + run.max(1)).filter(|d| self.dispatches[*d].when.holds(state));
            let turn = |index| {
                move |dispatch| Turn {
                    dispatch,
                    index,
                    block: blocks.map(|b| b.block(index, state)),
                    begins_pass: false,
                }
            };
            let ahead = |dispatch: &usize| self.dispatches[*dispatch].ahead;
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

    /// Encodes a dispatch; `words` is room for its parameters, of which those left from others are harmless.
    fn dispatch(
        &self,
        pass: &mut wgpu::ComputePass<'_>,
        turn: &Turn,
        state: &State,
        words: &mut [u8; MAX_PARAMS],
    ) {
        let d = &self.dispatches[turn.dispatch];
        let block = turn.block.unwrap_or_default();
        let grid = d.grid.map(|e| extent(e, state, block));
        if grid.contains(&0) {
            return;
        }
        if !d.readable.is_empty() {
            let transitions = d.readable.iter().map(|buffer| wgpu::BufferTransition {
                buffer,
                state: wgpu::BufferUses::STORAGE_READ_ONLY,
            });
            pass.transition_resources(transitions, std::iter::empty());
        }
        pass.set_pipeline(&d.pipeline.pipeline);
        let other = if d.by_block {
            turn.index as usize
        } else {
            state.slot
        };
        pass.set_bind_group(0, &d.groups[other % d.groups.len()], &[]);
        match &self.uniforms {
            Some((_, group)) => {
                let place = d.place + turn.index as usize;
                pass.set_bind_group(1, group, &[(place * UNIFORM_STRIDE) as u32]);
            }
            None => {
                fill(&d.params, state, block, words);
                // Every word of the layout must be set once after the layout changes, so all are always set.
                pass.set_immediates(0, words);
            }
        }
        match &d.counts {
            Some(counts) => pass.dispatch_workgroups_indirect(counts.buffer.made(), counts.offset),
            None => pass.dispatch_workgroups(grid[0], grid[1], grid[2]),
        }
    }

    /// Encodes and submits the step alone.
    pub fn submit(&self, gpu: &Gpu, state: &State) -> wgpu::SubmissionIndex {
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        self.encode(gpu, &mut encoder, state);
        gpu.queue.submit([encoder.finish()])
    }
}

/// A compute pass, with timestamps at its ends where wanted.
fn begin_pass<'a>(
    encoder: &'a mut wgpu::CommandEncoder,
    timestamp_writes: Option<wgpu::ComputePassTimestampWrites<'_>>,
) -> wgpu::ComputePass<'a> {
    encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
        label: None,
        timestamp_writes,
    })
}

fn bind_groups(gpu: &Gpu, call: &Resolved, pipeline: &Pipeline) -> Vec<BindGroup> {
    let make = |replaced: Option<(usize, &Range)>| {
        let entries: Vec<_> = call
            .bindings
            .iter()
            .enumerate()
            .map(|(i, range)| {
                let range = match replaced {
                    Some((index, other)) if index == i => other,
                    _ => range,
                };
                wgpu::BindGroupEntry {
                    binding: i as u32,
                    resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                        buffer: range.buffer.made(),
                        offset: range.offset,
                        size: std::num::NonZeroU64::new(range.size),
                    }),
                }
            })
            .collect();
        gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(call.spec.kernel),
            layout: &pipeline.layout,
            entries: &entries,
        })
    };
    match &call.alternatives {
        Some((index, ranges)) => ranges.iter().map(|r| make(Some((*index, r)))).collect(),
        None => vec![make(None)],
    }
}

async fn uniforms(gpu: &Gpu, places: usize) -> Result<(Buffer, BindGroup), GpuError> {
    let bytes = (places.max(1) * UNIFORM_STRIDE) as u64;
    let usage = BufferUsages::UNIFORM | BufferUsages::COPY_DST;
    let buffer = gpu.buffer_async("parameters", bytes, usage).await?;
    let group = gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: Some("parameters"),
        layout: &gpu.pipelines.uniform_layout,
        entries: &[wgpu::BindGroupEntry {
            binding: 0,
            resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer: &buffer,
                offset: 0,
                size: std::num::NonZeroU64::new(MAX_PARAMS as u64),
            }),
        }],
    });
    Ok((buffer, group))
}

#[cfg(test)]
mod tests;
