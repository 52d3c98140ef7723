//! A recorded step: the dispatches of one token or one chunk of tokens as data, replayed in order.
//!
//! WebGPU has no reusable command buffers, so replaying means encoding again from objects made once: pipelines, bind groups
//! and parameter words. What changes from token to token is a handful of words ([`State`]), known at encode time.

use super::buffer::Range;
use super::call::{About, State, Taken, extent, fill};
use super::interface::Resolved;
use super::pipeline::{Pipeline, Spec};
use super::question::Question;
use super::stamps::Stamping;
use super::tier::MAX_PARAMS;
use super::{Gpu, GpuError, Step};
use std::collections::BTreeSet;
use std::sync::Arc;
use wgpu::{BindGroup, Buffer, BufferUsages};

mod plan;
mod replay;
#[cfg(any(test, feature = "testing"))]
pub mod runs;
mod works;
use plan::{Plan, Turn, turns};
pub use replay::{Cost, Replay, encode_all};
pub use works::{Work, works};

/// A dispatch, made for a device.
struct Dispatch {
    pipeline: Arc<Pipeline>,
    groups: Vec<BindGroup>,
}

/// A step ready to be replayed.
pub struct Recording {
    plans: Vec<Plan>,
    dispatches: Vec<Dispatch>,
    about: Vec<Arc<About>>,
    questions: Vec<Question>,
    uniforms: Option<(Buffer, BindGroup)>,
}

/// Distance between the parameters of two dispatches in a buffer of uniforms.
const UNIFORM_STRIDE: usize = 256;

impl Recording {
    /// Compiles what is not compiled yet, in parallel, and makes the bind groups.
    ///
    /// # Errors
    /// [`GpuError::Shader`], [`GpuError::OutOfMemory`] or what the device reports.
    pub async fn new(gpu: &Gpu, step: &Step) -> Result<Self, GpuError> {
        let resolved = step.resolve()?;
        for buffer in step.buffers() {
            gpu.realise(buffer).await?;
        }
        let specs: Vec<&Spec> = resolved.iter().map(|call| &call.spec).collect();
        let pipelines = gpu.pipelines(&specs).await?;
        let plans = Plan::all(step, &resolved);
        let places = plans.iter().map(Plan::places).sum();
        let dispatches = resolved.iter().zip(pipelines);
        let dispatches = dispatches.map(|(resolved, pipeline)| Dispatch {
            groups: bind_groups(gpu, resolved, &pipeline),
            pipeline,
        });
        let dispatches = dispatches.collect();
        let about = step.calls.iter().map(|call| Arc::new(call.about()));
        let uniforms = match gpu.has_immediates() {
            true => None,
            false => Some(uniforms(gpu, places).await?),
        };
        gpu.check()?;
        Ok(Self {
            plans,
            dispatches,
            about: about.collect(),
            questions: step.questions.clone(),
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
    pub async fn had_work(&self, gpu: &Gpu, dispatch: usize) -> Result<bool, GpuError> {
        let Some(counts) = &self.plans[dispatch].counts else {
            return Ok(true);
        };
        let grid = gpu.read::<u32>(&counts.buffer, counts.offset, 12).await?;
        Ok(!grid.contains(&0))
    }

    /// Runs of dispatches that do not wait for each other, one after the other: how often the device
    /// must wait in a replay for `state`.
    pub fn levels(&self, state: &State) -> usize {
        let held = self.plans.iter().filter(|plan| plan.when.holds(state));
        let levels: BTreeSet<_> = held.map(|plan| plan.level).collect();
        levels.len()
    }

    /// Encodes the step for `state` into compute passes of `encoder`: one, unless buffers that several runs of dispatches share
    /// demand more.
    pub fn encode(&self, gpu: &Gpu, encoder: &mut wgpu::CommandEncoder, state: &State) {
        self.encode_stamped(gpu, encoder, state, Stamping::None);
    }

    /// Encodes the step with timestamps, else as [`encode`](Self::encode); [`Stamping::Passes`] takes a pass per dispatch.
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
        let places = |t: &Turn| self.plans[t.dispatch].place + t.index as usize;
        let end = turns.iter().map(places).max().map_or(0, |place| place + 1);
        let mut all = vec![0u8; end * UNIFORM_STRIDE];
        for turn in turns {
            let chunk = &mut all[places(turn) * UNIFORM_STRIDE..][..UNIFORM_STRIDE];
            let params = &self.plans[turn.dispatch].params;
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
                mark.dispatch(&mut pass, &Turn::default(), state, &mut words);
            }
            count += 1;
        }
        count
    }

    /// Whether a pass ends between two neighbours.
    fn separates_passes(&self, a: &Turn, b: &Turn) -> bool {
        let number = |turn: &Turn| self.plans[turn.dispatch].pass;
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

    /// The dispatches that a replay has, in order.
    fn turns(&self, state: &State) -> Vec<Turn> {
        turns(&self.plans, state)
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
        let plan = &self.plans[turn.dispatch];
        let block = turn.block.unwrap_or_default();
        let grid = plan.grid.map(|e| extent(e, state, block));
        if grid.contains(&0) {
            return;
        }
        if !plan.readable.is_empty() {
            let transitions = plan.readable.iter().map(|buffer| wgpu::BufferTransition {
                buffer: buffer.made(),
                state: match buffer.is_counts() {
                    true => wgpu::BufferUses::INDIRECT,
                    false => wgpu::BufferUses::STORAGE_READ_ONLY,
                },
            });
            pass.transition_resources(transitions, std::iter::empty());
        }
        pass.set_pipeline(&d.pipeline.pipeline);
        let other = plan.alternative(turn, state);
        pass.set_bind_group(0, &d.groups[other % d.groups.len()], &[]);
        match &self.uniforms {
            Some((_, group)) => {
                let place = plan.place + turn.index as usize;
                pass.set_bind_group(1, group, &[(place * UNIFORM_STRIDE) as u32]);
            }
            None => {
                fill(&plan.params, state, block, words);
                // Every word of the layout must be set once after the layout changes, so all are always set.
                pass.set_immediates(0, words);
            }
        }
        match &plan.counts {
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
    let buffer = gpu.buffer("parameters", bytes, usage).await?;
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
