//! A recorded step: the dispatches of one token or one chunk of tokens as data, replayed in order.
//!
//! WebGPU has no reusable command buffers, so replaying means encoding again from objects made once: pipelines, bind groups
//! and parameter words. What changes from token to token is a handful of words ([`State`]), known at encode time.

use super::device::MAX_PARAMS;
use super::pipeline::{Access, Pipeline, Spec};
use super::{Gpu, GpuError, Tier};
use std::sync::Arc;
use wgpu::{BindGroup, Buffer, BufferUsages};

/// A part of a buffer.
#[derive(Debug, Clone)]
pub struct Range {
    /// The buffer.
    pub buffer: Buffer,
    /// First byte, a multiple of [`Gpu::offset_alignment`].
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

impl Range {
    /// The whole buffer.
    pub fn whole(buffer: &Buffer) -> Self {
        Self {
            buffer: buffer.clone(),
            offset: 0,
            size: buffer.size(),
        }
    }
}

/// What changes between two replays of the same recording.
#[derive(Debug, Clone, Copy, Default)]
pub struct State {
    /// Position of the first token: rows already in the cache.
    pub pos: u32,
    /// Tokens in this replay.
    pub tokens: u32,
    /// Parts that the context is split into by the attention.
    pub splits: u32,
    /// Cache rows of each part.
    pub split_rows: u32,
    /// Which of an operation's alternative bindings to use.
    pub slot: usize,
    /// Sampling parameters, as `kernels::sample` lays them out.
    pub sampling: [u32; 10],
}

/// One 32-bit parameter of a dispatch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Word {
    /// A number known when recording.
    U(u32),
    /// A float known when recording.
    F(f32),
    /// [`State::pos`].
    Pos,
    /// [`State::tokens`].
    Tokens,
    /// (tokens - 1) * n: where the last token's row of width n begins.
    LastTokenTimes(u32),
    /// [`State::splits`].
    Splits,
    /// [`State::split_rows`].
    SplitRows,
    /// [`State::sampling`] at this index.
    Sampling(usize),
}

/// How many workgroups along one dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// A number known when recording.
    N(u32),
    /// One per token.
    Tokens,
    /// One per n tokens, rounded up.
    TokensBy(u32),
    /// One per part of the context.
    Splits,
}

/// One dispatch before its pipeline exists.
#[derive(Debug, Clone)]
pub struct Op {
    /// The pipeline.
    pub spec: Spec,
    /// The buffers of bindings 0, 1, 2...
    pub bindings: Vec<Range>,
    /// A binding that takes another buffer per [`State::slot`], and those buffers.
    pub alternatives: Option<(usize, Vec<Range>)>,
    /// The parameter words in the order of the kernel's `Params`.
    pub params: Vec<Word>,
    /// The workgroups.
    pub grid: [Extent; 3],
    /// Bytes of weights and cache it reads at least, for profiles.
    pub bytes: u64,
}

impl Op {
    /// A dispatch of `spec` over `grid`.
    pub fn new(spec: Spec, bindings: Vec<Range>, params: Vec<Word>, grid: [Extent; 3]) -> Self {
        assert_eq!(
            spec.access.len(),
            bindings.len(),
            "{}: one buffer per binding",
            spec.kernel
        );
        assert!(
            params.len() * 4 <= MAX_PARAMS,
            "{}: parameters fit {MAX_PARAMS} bytes",
            spec.kernel
        );
        Self {
            spec,
            bindings,
            alternatives: None,
            params,
            grid,
            bytes: 0,
        }
    }

    /// Lets binding `index` change with [`State::slot`].
    pub fn with_alternatives(mut self, index: usize, ranges: Vec<Range>) -> Self {
        self.alternatives = Some((index, ranges));
        self
    }

    /// States the bytes it reads.
    pub fn with_bytes(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self
    }
}

struct Dispatch {
    pipeline: Arc<Pipeline>,
    groups: Vec<BindGroup>,
    params: Vec<Word>,
    grid: [Extent; 3],
}

/// A step ready to be replayed.
pub struct Recording {
    dispatches: Vec<Dispatch>,
    uniforms: Option<(Buffer, BindGroup)>,
}

/// Distance between the parameters of two dispatches in the uniform buffer of the plain tier.
const UNIFORM_STRIDE: usize = 256;

impl Recording {
    /// Compiles what is not compiled yet, in parallel, and makes the bind groups.
    ///
    /// # Errors
    /// [`GpuError::Shader`], [`GpuError::OutOfMemory`] or what the device reports.
    pub fn new(gpu: &Gpu, ops: &[Op]) -> Result<Self, GpuError> {
        let specs: Vec<&Spec> = ops.iter().map(|o| &o.spec).collect();
        let pipelines = gpu.pipelines(&specs)?;
        let dispatches: Vec<_> = ops
            .iter()
            .zip(pipelines)
            .map(|(op, pipeline)| Dispatch {
                groups: bind_groups(gpu, op, &pipeline),
                pipeline,
                params: op.params.clone(),
                grid: op.grid,
            })
            .collect();
        let uniforms = match gpu.tier {
            Tier::Plain => Some(uniforms(gpu, dispatches.len())?),
            Tier::Subgroup | Tier::Int8 => None,
        };
        gpu.check()?;
        Ok(Self {
            dispatches,
            uniforms,
        })
    }

    /// Dispatches in the step.
    pub fn len(&self) -> usize {
        self.dispatches.len()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.dispatches.is_empty()
    }

    /// Encodes the step for `state` into one compute pass of `encoder`.
    pub fn encode(&self, gpu: &Gpu, encoder: &mut wgpu::CommandEncoder, state: &State) {
        let mut words = [0u8; MAX_PARAMS];
        if let Some((buffer, _)) = &self.uniforms {
            let mut all = vec![0u8; self.dispatches.len() * UNIFORM_STRIDE];
            for (d, chunk) in self
                .dispatches
                .iter()
                .zip(all.chunks_exact_mut(UNIFORM_STRIDE))
            {
                fill(&d.params, state, chunk);
            }
            gpu.queue.write_buffer(buffer, 0, &all);
        }
        let mut pass = encoder.begin_compute_pass(&Default::default());
        for (i, d) in self.dispatches.iter().enumerate() {
            let grid = d.grid.map(|e| extent(e, state));
            if grid.contains(&0) {
                continue;
            }
            pass.set_pipeline(&d.pipeline.pipeline);
            pass.set_bind_group(0, &d.groups[state.slot % d.groups.len()], &[]);
            match &self.uniforms {
                Some((_, group)) => pass.set_bind_group(1, group, &[(i * UNIFORM_STRIDE) as u32]),
                None => {
                    fill(&d.params, state, &mut words);
                    // Every word of the layout must be set once after the layout changes, so all are always set.
                    pass.set_immediates(0, &words);
                }
            }
            pass.dispatch_workgroups(grid[0], grid[1], grid[2]);
        }
    }

    /// Encodes and submits the step alone.
    pub fn submit(&self, gpu: &Gpu, state: &State) -> wgpu::SubmissionIndex {
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        self.encode(gpu, &mut encoder, state);
        gpu.queue.submit([encoder.finish()])
    }
}

fn bind_groups(gpu: &Gpu, op: &Op, pipeline: &Pipeline) -> Vec<BindGroup> {
    let make = |replaced: Option<(usize, &Range)>| {
        let entries: Vec<_> = op
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
                        buffer: &range.buffer,
                        offset: range.offset,
                        size: std::num::NonZeroU64::new(range.size),
                    }),
                }
            })
            .collect();
        gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(op.spec.kernel),
            layout: &pipeline.layout,
            entries: &entries,
        })
    };
    match &op.alternatives {
        Some((index, ranges)) => ranges.iter().map(|r| make(Some((*index, r)))).collect(),
        None => vec![make(None)],
    }
}

fn uniforms(gpu: &Gpu, dispatches: usize) -> Result<(Buffer, BindGroup), GpuError> {
    let bytes = (dispatches.max(1) * UNIFORM_STRIDE) as u64;
    let buffer = gpu.buffer(
        "parameters",
        bytes,
        BufferUsages::UNIFORM | BufferUsages::COPY_DST,
    )?;
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

fn fill(params: &[Word], state: &State, out: &mut [u8]) {
    for (word, bytes) in params.iter().zip(out.chunks_exact_mut(4)) {
        let value = match *word {
            Word::U(v) => v,
            Word::F(v) => v.to_bits(),
            Word::Pos => state.pos,
            Word::Tokens => state.tokens,
            Word::LastTokenTimes(n) => (state.tokens - 1) * n,
            Word::Splits => state.splits,
            Word::SplitRows => state.split_rows,
            Word::Sampling(i) => state.sampling[i],
        };
        bytes.copy_from_slice(&value.to_le_bytes());
    }
}

fn extent(extent: Extent, state: &State) -> u32 {
    match extent {
        Extent::N(n) => n,
        Extent::Tokens => state.tokens,
        Extent::TokensBy(n) => state.tokens.div_ceil(n),
        Extent::Splits => state.splits,
    }
}

/// Shorthand for the accesses of a spec: `r` read, `w` read and write.
pub fn accesses(text: &str) -> Vec<Access> {
    text.bytes()
        .map(|b| {
            if b == b'w' {
                Access::Write
            } else {
                Access::Read
            }
        })
        .collect()
}
