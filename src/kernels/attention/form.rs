//! Which kernel attends, and how it cuts a context.

use super::{HEADS_PER_GROUP, TILE};
use crate::gpu::{Gpu, GpuError, Tier};
use crate::kernels::{MlaDims, attention_coop, coop};

/// Of an H200.
const MULTIPROCESSORS: usize = 132;
/// Workgroups that fill a large GPU: about two for each multiprocessor.
const FULL: usize = 256;
/// Slices of all tokens of a step together, at most, unless there are more tokens: what bounds the partial sums.
pub const MAX_SLICES: usize = FULL;

/// Which kernel attends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `attention.wgsl`, in f32, everywhere.
    Vector,
    /// `attention_coop.wgsl`, by cooperative matrices, with queries and weights rounded to f16.
    Matrix(attention_coop::Shapes),
}

impl Form {
    /// The form for steps of one token on this device: [`Form::Matrix`] where it has the matrices, the sizes suit, and a
    /// trial of a shape agrees with the other form (wgpu calls them experimental; a device that fails is named in the log).
    ///
    /// # Errors
    /// What the device reports in the trial.
    pub fn for_decode(gpu: &Gpu, dims: MlaDims) -> Result<Self, GpuError> {
        let memory = gpu.limits.max_compute_workgroup_storage_size;
        let coop = gpu.coop.filter(|_| gpu.tier == Tier::Int8);
        let shapes = coop.map(|coop| attention_coop::fitting(coop, memory, dims));
        let shapes: Vec<_> = shapes.into_iter().flatten().collect();
        let shapes = attention_coop::Shapes::of(&shapes, |shape| {
            let error = attention_coop::trial(gpu, shape, dims);
            let limit = attention_coop::TRIAL_LIMIT;
            coop::agrees(gpu, "the attention of a token", limit, error)
        })?;
        Ok(shapes.map_or(Self::Vector, Self::Matrix))
    }

    /// Workgroups that are wanted. By matrices one has a multiprocessor for itself, and slices are whole tiles, so a few less than
    /// there are multiprocessors would be longer by a tile.
    const fn full(self) -> usize {
        match self {
            Self::Vector => FULL,
            Self::Matrix(_) => MULTIPROCESSORS,
        }
    }

    /// Tiles of a slice, at least, of so many in all. On an H200 a tile takes as long by matrices as some 32 slices take to be
    /// joined (benches/notes.md), so time is least where there are 32 times as many slices as a slice has tiles.
    const fn least(self, tiles: usize) -> usize {
        match self {
            Self::Vector => 1,
            Self::Matrix(_) => {
                let slices = (32 * tiles).isqrt();
                (tiles + slices / 2) / slices
            }
        }
    }

    /// Cache rows that a workgroup scores at once, and heads that it takes, in a context of so many rows.
    const fn tile(self, rows: usize) -> (usize, usize) {
        match self {
            Self::Vector => (TILE, HEADS_PER_GROUP),
            Self::Matrix(shapes) => shapes.at(rows).tile(),
        }
    }
}

/// How a step over `rows` cache rows (pos + tokens) is cut for this form: slices, and cache rows of each, for
/// [`State::splits`](crate::gpu::record::State::splits) and `split_rows`.
///
/// As many slices as fill the GPU with all heads and tokens, none shorter than a tile, so a short context is one slice. By
/// matrices fewer in contexts of medium length: see `Form::least`.
/// Each form is right for the cuts of the other too.
///
/// # Panics
/// If there are no rows, tokens or heads.
pub fn split(form: Form, rows: usize, tokens: usize, heads: usize) -> (u32, u32) {
    assert!(rows > 0 && tokens > 0 && heads > 0, "nothing to attend to");
    let (tile, group) = form.tile(rows);
    let wanted = form.full().div_ceil(heads.div_ceil(group) * tokens);
    let most = (MAX_SLICES / tokens).max(1);
    let tiles = rows.div_ceil(tile);
    let of_slice = tiles.div_ceil(wanted.min(most)).max(form.least(tiles));
    let split_rows = of_slice * tile;
    (rows.div_ceil(split_rows) as u32, split_rows as u32)
}
