//! The products of a step of few tokens: a weight is read once for several of them, inputs come prepared, and outputs can leave prepared.

use super::expert_rows::tile_extent;
use super::products::silu;
use super::token::{
    Divided, TokenInput, TokenOutput, check_rows, divided, kernel, site, unsupported, weight,
};
use super::token_matvec::token_matvec;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent, Word};
use crate::gpu::geometry::{Geometry, PREPARED_ROWS, Site};
use crate::gpu::machine::Machine;
use crate::gpu::machine::geometries::{self, OfSeveral};
use crate::gpu::memory::{GpuWeight, Piece};
use crate::gpu::{GpuError, Target};
use crate::model::Weight;
use crate::quant::GgmlType;
use crate::quant::activation::Activation;

/// The input of a product.
#[derive(Clone)]
pub enum Input {
    /// Prepared values, (rows, stride units), and where a norm lies between their sums of squares, (rows, 2 * units).
    Prepared(TokenInput),
    /// The residual stream in f32 (tokens, cols), the weight of its norm (cols), its sums of squares (tokens, cols / 16) and the epsilon.
    /// It is for products that must not read rounded values.
    Stream(Range, Range, Range, f32),
}

/// The slots of each expert in tiles.
#[derive(Clone)]
pub struct Tiles {
    /// The tiles that [`GpuBatchExperts`](super::batch_experts::GpuBatchExperts) lists.
    pub list: Range,
    /// The most slots of a tile: 2 or 4.
    pub places: u32,
    /// The number of experts. The weight may have fewer groups: places for as many experts as a step chooses.
    pub experts: u32,
    /// Experts of a token.
    pub used: u32,
    /// The most tokens of a step.
    pub most: u32,
    /// Whether the slots of a token share a row of the input, as for gate and up, or each has its own, as for down.
    pub by_token: bool,
    /// The place at which the workgroups of this product are counted. Without it, as many as there may be are dispatched.
    pub counts: Option<Range>,
}

/// The product on the device: y = W x / rms(x) (+ residual), or silu(W x) * (U x).
#[derive(Clone)]
pub struct GpuBatchMatvec<'a> {
    /// W, (groups, rows, cols). The groups are heads or experts.
    pub weight: &'a GpuWeight,
    /// U, of the same shape and pieces.
    pub up: Option<&'a GpuWeight>,
    /// The format of prepared values.
    pub activation: Activation,
    /// Whether the sums of the threads of a row meet in subgroups, or in workgroup memory.
    pub subgroups: bool,
    /// The input.
    pub x: Input,
    /// Units of a row of the input.
    pub x_stride: u32,
    /// Units from one head's input to the next, where groups are heads.
    pub x_group: u32,
    /// The slots that each group multiplies, where groups are experts.
    pub experts: Option<Tiles>,
    /// Tokens that a workgroup takes at once, where groups are no experts: a power of two.
    pub columns: u32,
    /// Whether the product is of one token, whatever the step has.
    pub single: bool,
    /// Added to the output, of its shape.
    pub residual: Option<Range>,
    /// The output in f32, (tokens, groups * rows); of experts (slots, rows).
    pub y: Option<Range>,
    /// The output prepared for the next product, with rows of whole units.
    pub prepared: Option<TokenOutput>,
}

/// Tokens that a workgroup takes at once in steps of up to `tokens`, of a weight with `rows` rows.
fn columns(machine: Machine, rows: u32, tokens: u32) -> u32 {
    let across = rows.div_ceil(PREPARED_ROWS);
    let blocks = (machine.tuned.workgroups_of_batch * machine.cores)
        .div_ceil(across.max(1))
        .max(1);
    let [least, most] = geometries::TOKENS_AT_ONCE;
    if tokens == 1 {
        return 1;
    }
    tokens
        .div_ceil(blocks)
        .next_power_of_two()
        .clamp(least, most)
}

impl<'a> GpuBatchMatvec<'a> {
    /// The product of `weight` and `x` for steps of up to `tokens` tokens, to be completed.
    pub fn new(target: &Target, weight: &'a GpuWeight, tokens: u32, x: Input) -> Self {
        Self {
            weight,
            up: None,
            activation: target.activation(),
            subgroups: target.tier.has_subgroups(),
            x,
            x_stride: weight.cols / 32,
            x_group: 0,
            experts: None,
            columns: columns(target.machine, weight.total_rows(), tokens),
            single: false,
            residual: None,
            y: None,
            prepared: None,
        }
    }

    /// Places of a tile.
    fn places(&self) -> u32 {
        self.experts
            .as_ref()
            .map_or(self.columns, |tiles| tiles.places)
    }

    /// The default geometry of devices with subgroups of 32.
    fn suggested(&self) -> Geometry {
        let product = OfSeveral {
            subgroups: self.subgroups,
            stream: matches!(self.x, Input::Stream(..)),
            experts: self.experts.is_some(),
            pair: self.up.is_some(),
            bytes: self.activation == Activation::Bytes,
            prepared: self.prepared.is_some(),
            units: self.weight.cols / 32,
            rows: self.weight.rows,
            places: self.places(),
        };
        product.geometry()
    }
}

impl Divided for GpuBatchMatvec<'_> {
    fn site(&self) -> Site {
        let kernel = match (&self.x, &self.experts) {
            (Input::Stream(..), _) => "batch_matvec+x_times_norm",
            (_, Some(_)) => "batch_matvec+experts",
            _ => "batch_matvec",
        };
        let weights: Vec<_> = [self.weight].into_iter().chain(self.up).collect();
        let shape = site(kernel, &weights, self.activation);
        let shape_of = |w: &&GpuWeight| {
            let tiles = self.experts.as_ref();
            w.shape_of(tiles.map_or(w.groups, |tiles| tiles.experts))
        };
        let shapes: Vec<_> = weights.iter().map(shape_of).collect();
        Site {
            shape: format!("{} by {}", shapes.join("+"), self.places()),
            prepared: self.prepared.is_some(),
            rows: match self.experts {
                Some(_) => self.weight.rows * self.places(),
                None => shape.rows,
            },
            at_once: 4,
            together: 4,
            thread_sums: match self.subgroups {
                true => 0,
                false => self.places() * (1 + u32::from(self.up.is_some())),
            },
            suggested: Some(self.suggested()),
            ..shape
        }
    }

    fn pieces(&self, target: &Target, geometry: &Geometry) -> Result<Vec<Call>, GpuError> {
        let w = self.weight;
        // Rows of the experts' logits are made whole vec4.
        let logits = matches!(self.x, Input::Stream(..)) && w.pieces.len() == 1;
        if !w.cols.is_multiple_of(32) || !(logits || w.rows.is_multiple_of(4)) {
            let missing = format!("a kernel for {} x {} in {}", w.rows, w.cols, w.name);
            return Err(unsupported(target, &missing));
        }
        if self.prepared.is_some() {
            check_rows(target, w.rows, &w.name)?;
            if !w.total_rows().is_multiple_of(32) && self.experts.is_none() {
                let missing = format!("a kernel for {} prepared rows of {}", w.rows, w.name);
                return Err(unsupported(target, &missing));
            }
        }
        let whole = self.whole(target, geometry)?;
        let pieces = w.pieces.iter().enumerate();
        let calls = pieces.map(|(i, piece)| {
            let up = self.up.map(|up| &up.pieces[i]);
            self.call(whole.clone(), geometry, piece, up)
        });
        Ok(calls.collect())
    }
}

impl GpuBatchMatvec<'_> {
    /// The call without a piece of the weight.
    fn whole(&self, target: &Target, geometry: &Geometry) -> Result<Call, GpuError> {
        let (w, places) = (self.weight, self.places());
        let (units, threads) = (w.cols / 32, geometry.threads());
        if !threads.is_power_of_two() || !places.is_power_of_two() || threads < places {
            let missing = format!("a division of {threads} threads among {places} tokens");
            return Err(unsupported(target, &missing));
        }
        let of_place = threads / places;
        let (of_place, run) = match self.subgroups {
            true => (of_place, of_place.min(target.lanes())),
            false => (of_place.min(geometries::SQUARE_THREADS), 1),
        };
        let (groups, stride) = match &self.experts {
            Some(_) => ("batch_experts", w.rows),
            None if self.single => ("batch_one", w.total_rows().next_multiple_of(4)),
            None => ("batch_heads", w.total_rows().next_multiple_of(4)),
        };
        let tokens = match self.single {
            true => Word::U(1),
            false => Word::Tokens,
        };
        // The output is prepared in the tier's form, whatever the input is.
        let mut call = kernel("batch_matvec", self.activation);
        let mut form = self.activation;
        // The router reads f32 in every tier.
        if let Input::Stream(..) = self.x {
            // Neighbouring threads read neighbouring values: see shared/f32.wgsl.
            let spread = w.ty == GgmlType::F32 && units.is_multiple_of(geometry.lanes);
            call = call
                .module("INPUT", "x_rows_times_norm")
                .flag("SPREAD", spread);
            form = Activation::Floats;
        }
        let mut call = weight(call, ["WEIGHT", "WEIGHT_TIMES"], w.ty, form);
        if let Some(up) = self.up {
            call = weight(call, ["UP", "UP_TIMES"], up.ty, form);
        }
        let mut call = divided(call, geometry, units)
            .module("GROUPS", groups)
            .number("UNITS", units)
            .number("AT_ONCE", geometry.at_once)
            .number("COLS", places)
            .number("HALF", places.div_ceil(2))
            .number("QUARTER", places.div_ceil(4))
            .number("X_STRIDE", self.x_stride)
            .number("X_GROUP", self.x_group)
            .number("OUT_STRIDE", stride)
            .number("QUADS", (geometry.tile * places / 4).div_ceil(threads))
            .number("SQUARE_THREADS", of_place)
            .number("SQUARE_RUN", run)
            .number("SQUARE_RUNS", of_place / run)
            .number("SQUARE_LOADS", (2 * units).div_ceil(of_place))
            .word("tokens", tokens)
            .bind_some("residual", self.residual.as_ref())
            .bind_some("y", self.y.as_ref());
        call = TokenOutput::bind(self.prepared.as_ref(), call);
        if let Some(tiles) = &self.experts {
            call = call
                .number("USED", tiles.used)
                .flag("FOUR", tiles.places == 4)
                .number("SLOTS_OF_ROW", if tiles.by_token { tiles.used } else { 1 })
                .bind("tiles", &tiles.list)
                .with_counts(tiles.counts.clone());
        }
        Ok(match &self.x {
            Input::Prepared(x) => x.bind(call),
            Input::Stream(x, norm, squares, eps) => call
                .bind("x", x)
                .bind("x_norm", norm)
                .bind("squares", squares)
                .word("eps", *eps),
        })
    }

    /// The call with a piece of the weight, and of the second one, in workgroups of this geometry.
    fn call(&self, call: Call, geometry: &Geometry, piece: &Piece, up: Option<&Piece>) -> Call {
        let w = self.weight;
        let [rows, first_group, groups] = super::groups_of(w, piece);
        let (along_tokens, along_groups) = match &self.experts {
            Some(tiles) => (tile_extent(tiles.used, tiles.places, tiles.experts), 1),
            None if self.single => (Extent::N(1), groups),
            None => (Extent::TokensBy(self.columns), groups),
        };
        let first_row = match self.experts {
            Some(_) => 0,
            None => piece.first_row,
        };
        let mut call = call
            .planes(["w_q", "w_s"], piece)
            .word("rows", rows)
            .word("first_row", first_row)
            .word("first_group", first_group)
            .word("groups", groups)
            .word("sub", piece.sub);
        let mut bytes = piece.quants.size + piece.scales.size;
        let mut weights = u64::from(piece.rows) * u64::from(w.cols);
        if let Some(up) = up {
            call = call.planes(["u_q", "u_s"], up).word("u_sub", up.sub);
            bytes += up.quants.size + up.scales.size;
            weights *= 2;
        }
        let share = match &self.experts {
            Some(tiles) => {
                let experts = u64::from(w.groups);
                let chosen = experts.min(u64::from(tiles.used * tiles.most));
                bytes = bytes / experts * chosen;
                weights / experts * u64::from(tiles.used)
            }
            None => weights,
        };
        let across = Extent::N(rows.div_ceil(geometry.tile));
        call.grid([across, along_tokens, Extent::N(along_groups)])
            .with_bytes(bytes)
            .with_flops(super::per_token(2 * share))
    }
}

/// One row of `y` = W x / rms(x) (+ residual), or silu(W x / rms) * (U x / rms): what [`token_matvec`] is, of group `group` alone where one
/// is given. `x` are the values that the prepared input stands for, `rms` as there.
pub fn batch_matvec(
    weights: &[Weight],
    group: Option<usize>,
    x: &[f32],
    x_units: usize,
    rms: Option<(&[f32], f32)>,
    residual: Option<&[f32]>,
) -> Vec<f32> {
    let row = |w: &Weight| {
        let all = token_matvec(w, x, x_units, rms, residual);
        match group {
            Some(group) => all[group * w.rows..][..w.rows].to_vec(),
            None => all,
        }
    };
    let mut y = row(&weights[0]);
    if let Some(up) = weights.get(1) {
        let pairs = y.iter_mut().zip(row(up));
        pairs.for_each(|(gate, up)| *gate = silu(*gate) * up);
    }
    y
}

#[cfg(test)]
mod tests;
