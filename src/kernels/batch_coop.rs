//! [`batch_matvec`](super::batch_matvec) by cooperative matrices: for products of more tokens than registers hold sums for.

use super::batch_matvec::{GpuBatchMatvec, Input};
use super::{coop, token};
use crate::gpu::call::{Call, Extent};
use crate::gpu::{Coop, Target};
use crate::quant::activation::Activation;
use crate::quant::repack::{has_codes, shader_module};

/// Rows of W of a workgroup: those that leave prepared together.
const TILE: u32 = 16;
/// Units that a row in workgroup memory has room for, in f16: 32 columns and 8 beside.
const PITCH_BYTES: u32 = 2 * 40;
/// Subgroups of a workgroup at most: each has sums of its own.
const MOST_SUBGROUPS: u32 = 8;
/// Tokens of a step from which on matrices are taken.
pub const LEAST_TOKENS: u32 = 16;

/// How a workgroup is made.
#[derive(Debug, Clone, Copy)]
struct Shape {
    coop: Coop,
    /// Tokens.
    columns: u32,
    /// Weights: two of a pair.
    weights: u32,
    subgroups: u32,
}

impl Shape {
    /// For steps of up to `tokens` tokens; `None` if the device has too little workgroup memory.
    fn of(target: &Target, coop: Coop, tokens: u32, weights: u32) -> Option<Self> {
        let columns = if tokens > 16 && weights == 1 { 32 } else { 16 };
        let has = target.machine.workgroup_memory;
        let powers = (0..).map(|i| MOST_SUBGROUPS >> i).take_while(|n| *n > 0);
        let shape = |subgroups| Self {
            coop,
            columns,
            weights,
            subgroups,
        };
        let fits = |shape: &Self| {
            let threads = shape.subgroups * coop.lanes;
            shape.memory() <= has && (64..=target.machine.threads).contains(&threads)
        };
        powers.map(shape).find(fits)
    }

    /// Bytes of workgroup memory.
    fn memory(self) -> u32 {
        let Self {
            columns,
            weights,
            subgroups,
            ..
        } = self;
        let rows = weights * TILE;
        let stages = (columns + rows) * PITCH_BYTES;
        let sums = columns * rows * 4;
        // The largest values and the squares, by runs of lanes.
        subgroups * (stages + sums) + 2 * 4 * columns * 32
    }
}

impl GpuBatchMatvec<'_> {
    /// The dispatches by the matrices of a device, for steps of up to `tokens` tokens; `None` where they do not suit: for experts, for
    /// f32 and for sizes that are no multiples of what a workgroup takes.
    pub fn calls_by_matrices(&self, target: &Target, coop: Coop, tokens: u32) -> Option<Vec<Call>> {
        let Input::Prepared(x) = &self.x else {
            return None;
        };
        let w = self.weight;
        let suits = self.experts.is_none()
            && tokens >= LEAST_TOKENS
            && self.activation != Activation::Floats
            && w.cols.is_multiple_of(32)
            && w.rows.is_multiple_of(TILE)
            && w.total_rows().is_multiple_of(32);
        let weights = if self.up.is_some() { 2 } else { 1 };
        let shape = Shape::of(target, coop, tokens, weights).filter(|_| suits)?;
        let whole = x.bind(self.by_matrices(target, shape));
        let pieces = w.pieces.iter().enumerate();
        let calls = pieces.map(|(i, piece)| {
            let up = self.up.map(|up| &up.pieces[i]);
            let call = self.of_piece(whole.clone(), piece, up);
            let (rows, groups) = match w.groups {
                1 => (piece.rows, 1),
                _ => (w.rows, piece.rows / w.rows),
            };
            call.grid([
                Extent::N(rows.div_ceil(TILE)),
                Extent::TokensBy(shape.columns),
                Extent::N(groups),
            ])
        });
        Some(calls.collect())
    }

    /// The call without a piece of the weight and without its input.
    fn by_matrices(&self, target: &Target, shape: Shape) -> Call {
        let Shape {
            coop,
            columns,
            weights,
            subgroups,
        } = shape;
        let units = self.weight.cols / 32;
        let threads = subgroups * coop.lanes;
        let of_place = threads / columns;
        let run = of_place.min(target.lanes());
        let loads = |rows: u32| (2 * rows).div_ceil(coop.lanes);
        let module = |ty| match has_codes(ty) {
            true => "fraction_codes",
            false => "fraction_floats",
        };
        let input = match self.activation {
            Activation::Bytes => "half_bytes",
            _ => "half_halves",
        };
        let mut call = self
            .bound(Call::new("batch_coop").variant(token::variant(self.activation)))
            .module("INPUT", input)
            .module("WEIGHT", shader_module(self.weight.ty))
            .module("W_FRACTION", module(self.weight.ty))
            .module("GROUPS", "batch_heads")
            .module("MATRICES", coop::module(coop.size as usize));
        if let Some(up) = self.up {
            call = call
                .module("UP", shader_module(up.ty))
                .module("U_FRACTION", module(up.ty));
        }
        let metal = (coop.size, coop.lanes) == (8, 32);
        let numbers = [
            ("UNITS", units),
            ("X_STRIDE", self.x_stride),
            ("X_GROUP", self.x_group),
            ("OUT_STRIDE", self.weight.total_rows()),
            ("TILE", TILE),
            ("COLS", columns),
            ("WEIGHTS", weights),
            ("MAT", coop.size),
            ("LANES", coop.lanes),
            ("SUBGROUPS", subgroups),
            ("WG", threads),
            ("STEPS", 32 / coop.size),
            ("TURNS", units.div_ceil(subgroups)),
            ("TOKEN_TILES", columns / coop.size),
            ("W_TILES", weights * TILE / coop.size),
            ("X_LOADS", loads(columns)),
            ("W_LOADS", loads(TILE)),
            ("U_LOADS", (weights - 1) * loads(TILE)),
            ("FRACTION_VECTORS", 4),
            ("QUADS", (TILE * columns / 4).div_ceil(threads)),
            ("SQUARE_THREADS", of_place),
            ("SQUARE_RUN", run),
            ("SQUARE_RUNS", of_place / run),
            ("SQUARE_LOADS", (2 * units).div_ceil(of_place)),
        ];
        let numbers = numbers.into_iter();
        numbers
            .fold(call, |call, (name, n)| call.number(name, n))
            // What llvmpipe needs.
            .flag("TOGETHER", coop.lanes == 8)
            .flag("VECTORS", !metal)
    }
}

#[cfg(test)]
mod tests;
