//! Grouped-query attention of prompts: causal, over the keys and values that lie in the cache.
//!
//! The kernels are those of [`prompt_attention`], with the flag `GROUPED`: a row of the cache is laid out as an
//! expanded row is, so nothing is expanded, and the whole context is attended to in one dispatch. Their twin is
//! [`grouped_attention`](super::grouped_attention::grouped_attention).

use super::prompt_attention::{self, ROWS};
use super::prompt_attention_coop::Shape;
use super::sequences::Sequences;
use super::{GroupedDims, coop};
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent, Flops, Word};
use crate::gpu::machine::attention::GROUPED_PROMPT as SHAPES;
use crate::gpu::{Coop, Gpu, GpuError, Target};

mod trial;

/// The kernels that attend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `prompt_attention.wgsl`, in f32, everywhere.
    Vector,
    /// `prompt_attention_coop.wgsl`, by cooperative matrices, with queries and weights rounded to f16.
    Matrix(Coop),
}

/// Whether the kernels can work on blocks of these sizes. The form in f32 takes all that it can, on every device.
pub fn fits(dims: GroupedDims) -> bool {
    let vectors = |n: usize| n > 0 && n.is_multiple_of(4);
    dims.heads.is_multiple_of(dims.kv_heads)
        && vectors(dims.key)
        && vectors(dims.value)
        && dims.has_whole_blocks()
}

/// The shape for a device's matrices, where one suits the sizes.
fn best(dims: GroupedDims, coop: Coop) -> Option<Shape> {
    SHAPES
        .into_iter()
        .find(|shape| shape.coop == coop && shape.fits(dims))
}

/// The reason why these matrices do not suit blocks of these sizes on a device with `memory` bytes of workgroup memory, if there is one.
fn missing(dims: GroupedDims, coop: Coop, memory: usize) -> Option<String> {
    match best(dims, coop).map(|shape| shape.bytes(dims)) {
        Some(bytes) if bytes > memory => Some(format!(
            "it takes {bytes} bytes of workgroup memory, the device has {memory}"
        )),
        Some(_) => None,
        None => Some(format!("there is no shape for {dims:?}")),
    }
}

impl Form {
    /// The form for a device: by matrices where it has them, the sizes suit, and a trial agrees with the other form and is not slower
    /// (wgpu calls them experimental; a device that fails is named in the log). None where the sizes suit neither.
    ///
    /// # Errors
    /// The error that the device reports in the trial.
    pub async fn of(gpu: &Gpu, dims: GroupedDims) -> Result<Option<Self>, GpuError> {
        if !fits(dims) {
            return Ok(None);
        }
        let Some(coop) = gpu.coop else {
            return Ok(Some(Self::Vector));
        };
        const WHAT: &str = "the grouped attention of prompts";
        let memory = gpu.limits.max_compute_workgroup_storage_size as usize;
        if let Some(missing) = missing(dims, coop, memory) {
            coop::left(gpu, WHAT, &missing);
            return Ok(Some(Self::Vector));
        }
        let good = coop::once(gpu, &format!("{WHAT}, {dims:?}"), async {
            let error = trial::compared(dims, coop).nmse(gpu).await;
            let timed = trial::timed(dims, coop, trial::TIMED);
            Ok(coop::agrees(gpu, WHAT, trial::LIMIT, error)? && timed.is_faster(gpu, WHAT).await?)
        })
        .await?;
        Ok(Some(match good {
            true => Self::Matrix(coop),
            false => Self::Vector,
        }))
    }

    /// The form for a device if its matrices are right and fast.
    pub fn untried(target: &Target, dims: GroupedDims) -> Option<Self> {
        let memory = target.machine.workgroup_memory as usize;
        let suits = |coop: &Coop| missing(dims, *coop, memory).is_none();
        fits(dims).then(|| target.coop.filter(suits).map_or(Self::Vector, Self::Matrix))
    }

    /// The kernel for blocks of these sizes.
    ///
    /// # Panics
    /// If the sizes do not suit the form.
    pub(super) fn kernel(self, dims: GroupedDims) -> Kernel {
        let Self::Matrix(coop) = self else {
            return Kernel::Vector;
        };
        let shape = best(dims, coop);
        let shape = shape.unwrap_or_else(|| panic!("grouped_prompt_attention: {self:?}, {dims:?}"));
        Kernel::Matrix(shape)
    }
}

/// A kernel with the shape of its workgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// The kernel in f32.
    Vector,
    /// The kernel by matrices in a shape.
    Matrix(Shape),
}

impl Kernel {
    /// The form that it belongs to.
    #[cfg_attr(
        target_arch = "wasm32",
        allow(dead_code, reason = "a page verifies no kernel")
    )]
    pub fn form(self) -> Form {
        match self {
            Self::Vector => Form::Vector,
            Self::Matrix(shape) => Form::Matrix(shape.coop),
        }
    }
}

/// The attention of a layer for a chunk of tokens.
pub struct GpuGroupedPromptAttention {
    /// The kernel.
    pub form: Form,
    /// The finished queries, (tokens, heads, key) of f32, for the most tokens of a replay.
    pub q: Range,
    /// The layer's cache, (rows) as `dims` say, the chunk's rows written.
    pub cache: Range,
    /// The places of the context's rows, if the cache has pages. Then the chunk belongs to one sequence, which is
    /// [alone](Sequences::alone).
    pub sequences: Option<Sequences>,
    /// The sizes of the block.
    pub dims: GroupedDims,
    /// Factor of the scores.
    pub scale: f32,
    /// The output, (tokens, heads, value) of f32.
    pub values: Range,
}

impl GpuGroupedPromptAttention {
    /// The dispatch. Token t of a replay sees rows `0..=pos + t`.
    ///
    /// A replay needs `pos` and `tokens` of its [`State`](crate::gpu::call::State), with `pos + tokens` within the rows of the cache, and
    /// `first_page` if the cache has pages.
    ///
    /// # Panics
    /// If the sizes do not suit the form, or tiles of rows do not divide a page.
    pub fn call(&self) -> Call {
        self.call_by(self.form.kernel(self.dims))
    }

    /// The dispatch of a kernel of the form.
    pub(super) fn call_by(&self, kernel: Kernel) -> Call {
        let dims = self.dims;
        assert!(fits(dims), "grouped_prompt_attention: {dims:?}");
        let (kernel, tokens) = match kernel {
            Kernel::Vector => prompt_attention::tiled(dims),
            Kernel::Matrix(shape) => shape.tiled(dims),
        };
        if let Some(Sequences { page, .. }) = &self.sequences {
            assert!(
                page.is_multiple_of(ROWS as u32),
                "grouped_prompt_attention: tiles of {ROWS} rows in pages of {page}"
            );
        }
        let heads = Extent::N(dims.heads as u32);
        let paged = self.sequences.as_ref().is_some_and(|s| s.pages.is_some());
        Sequences::bind_own_pages(self.sequences.as_ref(), kernel)
            .flag("PAGED_VALUES", paged && self.form != Form::Vector)
            .bind("q", &self.q)
            .bind("kv", &self.cache)
            .bind("values", &self.values)
            .word("pos", Word::Pos)
            .word("tokens", Word::Tokens)
            .word("scale", self.scale)
            .grid([heads, Extent::TokensBy(tokens as u32), Extent::N(1)])
            .with_bytes_per_row(dims.cache_row() as u64 * 2)
            .with_flops(Flops {
                per_pair: 2 * (dims.heads * (dims.key + dims.value)) as u64,
                ..Flops::default()
            })
    }
}

#[cfg(test)]
mod tests;
