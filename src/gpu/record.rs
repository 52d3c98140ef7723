//! A recorded step: the dispatches of one token or one chunk of tokens as data, replayed in order.
//!
//! WebGPU has no reusable command buffers, so replaying means encoding again from objects made once: pipelines, bind groups
//! and parameter words. What changes from token to token is a handful of words ([`State`]), known at encode time.

use super::device::MAX_PARAMS;
use super::geometry::Site;
use super::pipeline::{Access, Pipeline, Spec};
use super::stamps::{Stamping, Stamps};
use super::{Gpu, GpuError, Tier};
use crate::quant::GgmlType;
use crate::quant::repack::shader_module;
use std::collections::BTreeSet;
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

/// In which replays a dispatch takes part: how a recording holds two ways of doing the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum When {
    /// In all.
    #[default]
    Always,
    /// Where [`State::splits`] is at most this.
    SplitsUpTo(u32),
    /// Where it is greater.
    SplitsAbove(u32),
}

impl When {
    /// Whether a replay for `state` has the dispatch.
    pub fn holds(self, state: &State) -> bool {
        match self {
            Self::Always => true,
            Self::SplitsUpTo(most) => state.splits <= most,
            Self::SplitsAbove(most) => state.splits > most,
        }
    }
}

/// Which part of the model a dispatch belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Part {
    /// None of the layers: the embedding, the head, the choice of a token.
    #[default]
    Outside,
    /// The attention of the layer of this number.
    Attention(usize),
    /// The feed-forward part of the layer of this number.
    FeedForward(usize),
}

impl Part {
    /// The layer's number.
    pub fn layer(self) -> Option<usize> {
        match self {
            Self::Outside => None,
            Self::Attention(layer) | Self::FeedForward(layer) => Some(layer),
        }
    }
}

/// What a dispatch is, for those who measure it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct About {
    /// The kernel.
    pub kernel: &'static str,
    /// Kernel, weight types, shape and flags, such as `matvec Q4_0 2048x5120 +residual`.
    pub label: String,
    /// The part of the model.
    pub part: Part,
    /// Bytes of weights it reads at least (where a token is chosen: of logits).
    pub bytes: u64,
    /// Bytes it reads at least for each row of the cache.
    pub bytes_per_row: u64,
}

impl About {
    /// Bytes of weights and cache that a replay for `state` reads at least.
    pub fn bytes(&self, state: &State) -> u64 {
        self.bytes + self.bytes_per_row * u64::from(state.pos + state.tokens)
    }
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
    /// In which replays it takes part.
    pub when: When,
    /// What its geometry was chosen for, where there was a choice.
    pub site: Option<Site>,
    /// Bytes of weights it reads at least (where a token is chosen: of logits), for profiles.
    pub bytes: u64,
    /// Bytes it reads at least for each row of the cache, for profiles.
    pub bytes_per_row: u64,
    /// Shape of what it works on, such as `2048x5120`, for profiles; may be empty.
    pub shape: String,
    /// The part of the model, for profiles.
    pub part: Part,
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
            when: When::Always,
            site: None,
            bytes: 0,
            bytes_per_row: 0,
            shape: String::new(),
            part: Part::Outside,
        }
    }

    /// Lets binding `index` change with [`State::slot`].
    pub fn with_alternatives(mut self, index: usize, ranges: Vec<Range>) -> Self {
        self.alternatives = Some((index, ranges));
        self
    }

    /// Takes part only in some replays.
    pub fn only(mut self, when: When) -> Self {
        self.when = when;
        self
    }

    /// Names what its geometry was chosen for, whose shape is that of what it works on.
    pub fn at_site(mut self, site: Site) -> Self {
        self.shape = site.shape.clone();
        self.site = Some(site);
        self
    }

    /// States the bytes it reads.
    pub fn with_bytes(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self
    }

    /// States the bytes it reads for each row of the cache.
    pub fn with_bytes_per_row(mut self, bytes: u64) -> Self {
        self.bytes_per_row = bytes;
        self
    }

    /// States the shape of what it works on.
    pub fn with_shape(mut self, shape: String) -> Self {
        self.shape = shape;
        self
    }

    /// What it is, for those who measure it.
    pub fn about(&self) -> About {
        let spec = &self.spec;
        let mut label = spec.kernel.to_owned();
        // The types of its weights; other modules follow from them and from the flags.
        let modules: BTreeSet<_> = spec.variant.modules.values().collect();
        let types = GgmlType::ALL.iter().map(|ty| shader_module(*ty));
        let types = types.filter(|name| modules.contains(name));
        for ty in types {
            label += &format!(" {}", ty.to_uppercase());
        }
        if !self.shape.is_empty() {
            label += &format!(" {}", self.shape);
        }
        for flag in &spec.variant.flags {
            label += &format!(" +{}", flag.to_lowercase());
        }
        About {
            kernel: spec.kernel,
            label,
            part: self.part,
            bytes: self.bytes,
            bytes_per_row: self.bytes_per_row,
        }
    }
}

/// Tells `ops` the part of the model they belong to.
pub fn belong(ops: &mut [Op], part: Part) {
    for op in ops {
        op.part = part;
    }
}

struct Dispatch {
    pipeline: Arc<Pipeline>,
    groups: Vec<BindGroup>,
    params: Vec<Word>,
    grid: [Extent; 3],
    when: When,
}

/// A step ready to be replayed.
pub struct Recording {
    dispatches: Vec<Dispatch>,
    about: Vec<About>,
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
                when: op.when,
            })
            .collect();
        let uniforms = match gpu.tier {
            Tier::Plain => Some(uniforms(gpu, dispatches.len())?),
            Tier::Subgroup | Tier::Int8 => None,
        };
        gpu.check()?;
        Ok(Self {
            dispatches,
            about: ops.iter().map(Op::about).collect(),
            uniforms,
        })
    }

    /// The number in the recording of each dispatch that a replay for `state` has, and what it is, in order.
    pub fn step<'a>(&'a self, state: &State) -> impl Iterator<Item = (usize, &'a About)> {
        let dispatches = self.dispatches.iter().zip(&self.about).enumerate();
        dispatches
            .filter(|(_, (dispatch, _))| dispatch.when.holds(state))
            .map(|(i, (_, about))| (i, about))
    }

    /// Dispatches recorded: those of a replay, and those of the other ways that it does not take.
    pub fn len(&self) -> usize {
        self.dispatches.len()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.dispatches.is_empty()
    }

    /// Encodes the step for `state` into one compute pass of `encoder`.
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
        let mut words = [0u8; MAX_PARAMS];
        if let Stamping::Passes(stamps) = stamping {
            for i in 0..self.dispatches.len() {
                let mut pass = begin_pass(encoder, Some((stamps, 2 * i)));
                self.dispatch(&mut pass, i, state, &mut words);
            }
            return;
        }
        let ends = match stamping {
            Stamping::Ends(stamps, first) => Some((stamps, first)),
            _ => None,
        };
        let mut pass = begin_pass(encoder, ends);
        if let Stamping::Dispatches(stamps) = stamping {
            stamps.write(&mut pass, 0);
        }
        for i in 0..self.dispatches.len() {
            self.dispatch(&mut pass, i, state, &mut words);
            if let Stamping::Dispatches(stamps) = stamping {
                stamps.write(&mut pass, i + 1);
            }
        }
    }

    /// Encodes dispatch `i`; `words` is room for its parameters, of which those left from others are harmless.
    fn dispatch(
        &self,
        pass: &mut wgpu::ComputePass<'_>,
        i: usize,
        state: &State,
        words: &mut [u8; MAX_PARAMS],
    ) {
        let d = &self.dispatches[i];
        let grid = d.grid.map(|e| extent(e, state));
        if grid.contains(&0) || !d.when.holds(state) {
            return;
        }
        pass.set_pipeline(&d.pipeline.pipeline);
        pass.set_bind_group(0, &d.groups[state.slot % d.groups.len()], &[]);
        match &self.uniforms {
            Some((_, group)) => pass.set_bind_group(1, group, &[(i * UNIFORM_STRIDE) as u32]),
            None => {
                fill(&d.params, state, words);
                // Every word of the layout must be set once after the layout changes, so all are always set.
                pass.set_immediates(0, words);
            }
        }
        pass.dispatch_workgroups(grid[0], grid[1], grid[2]);
    }

    /// Encodes and submits the step alone.
    pub fn submit(&self, gpu: &Gpu, state: &State) -> wgpu::SubmissionIndex {
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        self.encode(gpu, &mut encoder, state);
        gpu.queue.submit([encoder.finish()])
    }
}

/// A compute pass, with timestamps `first` and `first + 1` at its ends where wanted.
fn begin_pass<'a>(
    encoder: &'a mut wgpu::CommandEncoder,
    ends: Option<(&Stamps, usize)>,
) -> wgpu::ComputePass<'a> {
    encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
        label: None,
        timestamp_writes: ends.map(|(stamps, first)| stamps.ends(first)),
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::shader::Variant;

    #[test]
    fn a_dispatch_tells_what_it_is_and_reads() {
        let spec = Spec {
            kernel: "gate_up",
            source: "",
            variant: Variant::default()
                .module("UP", "q4_k")
                .module("GATE", "q4_k")
                .flag("EXPERTS", true)
                .flag("NORM", false),
            access: vec![],
        };
        let op = Op::new(spec, vec![], vec![], [Extent::N(1); 3]);
        assert_eq!(op.about().label, "gate_up Q4_K +experts");
        let mut ops = [op
            .with_shape("4x1536x2048".to_owned())
            .with_bytes(1000)
            .with_bytes_per_row(10)];
        belong(&mut ops, Part::FeedForward(3));
        let about = ops[0].about();
        assert_eq!(about.label, "gate_up Q4_K 4x1536x2048 +experts");
        assert_eq!(about.part.layer(), Some(3));
        let state = State {
            pos: 4,
            tokens: 1,
            ..Default::default()
        };
        assert_eq!(about.bytes(&state), 1050);
    }
}
