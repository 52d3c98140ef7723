//! [`matvec`](Products::matvec) of one token or of each of several: the product before prepared its input, and it prepares its output for the
//! next.

use super::products::{MatvecOptions, Products};
use super::sequences::Sequences;
use super::token::{
    Divided, TokenInput, TokenOutput, alike, check_rows, columns, divided, geometry, kernel, site,
    staged, tiles_by, unsupported, weight, with_rms,
};
use super::{MAX_GRID, MlaDims};
use crate::gpu::buffer::{Range, Role};
use crate::gpu::call::{Call, Word};
use crate::gpu::geometry::{Geometry, SharedWork, Site};
use crate::gpu::machine::Machine;
use crate::gpu::memory::{GpuWeight, Piece};
use crate::gpu::{GpuError, Target};
use crate::kernels::rope_cache::Rotation;
use crate::model::Weight;
use crate::quant::GgmlType;
use crate::quant::activation::Activation;

/// The input of a product.
#[derive(Clone)]
pub enum Input {
    /// Prepared values. Group g reads them from unit g * n on, where n is the second field.
    Prepared(TokenInput, u32),
    /// The residual stream in f32 (tokens, cols), the weight of its norm (cols), its sums of squares (tokens, cols / 16) and the epsilon. It is
    /// for products that must not read rounded values.
    Stream(Range, Range, Range, f32),
    /// The slices that [`GpuAttention`](super::attention::GpuAttention) left in the same step. The product merges them as
    /// [`attention_merge`](super::attention_merge) does. W is `attn_v_b`, (heads, rows, kv_lora).
    Slices([Range; 2], MlaDims),
}

/// The product w . x / rms(x) (+ residual) on the device.
#[derive(Clone)]
pub struct GpuTokenMatvec<'a> {
    /// W, (groups, rows, cols).
    pub weight: &'a GpuWeight,
    /// The format of prepared values.
    pub activation: Activation,
    /// The input.
    pub x: Input,
    /// The residual that is added and the place of the output, by the names of the kernel's bindings (`residual`, `y`). Both are
    /// (groups * rows) f32.
    pub bound: Vec<(&'static str, Range)>,
    /// The output, prepared for the next product.
    pub prepared: Option<TokenOutput>,
    /// The partial sums of the experts' logits. With them the output must be prepared for a norm.
    pub router: Option<PartialLogits<'a>>,
    /// The rotation of the output, if it is queries. The product must have one group, a prepared input and an output in f32. Of several tokens, the
    /// rows that are not rotated then precede the others: (tokens, first row), then (tokens, other rows).
    pub rotation: Option<Rotation>,
    /// The tokens, if there are several.
    pub several: Option<OfTokens>,
}

/// The tokens of a step, of which each has the product that it has alone, to the bit.
#[derive(Clone)]
pub struct OfTokens {
    /// The most tokens.
    pub most: u32,
    /// Tokens that a workgroup takes, so that it reads a weight once for these: a power of two.
    pub columns: u32,
    /// The table of the places where they stand. A rotation and slices need it.
    pub table: Option<Range>,
    /// The fewest and the most slices of a token that the product is for. Other tokens are left out.
    pub slices: Option<[u32; 2]>,
}

/// Partial sums of the experts' logits, one for each [`ROUTER_ROWS`] rows of a product's output. Each is `weight` times those rows, after
/// they were multiplied by the norm's weight, in f32. The logits are their sum, divided by the root mean square of the whole output.
#[derive(Clone)]
pub struct PartialLogits<'a> {
    /// `ffn_gate_inp`, (experts, rows) f32.
    pub weight: &'a GpuWeight,
    /// The partial sums, (rows / 16, experts) f32.
    pub logits: Range,
}

/// Rows of the output for which there is one partial sum of the logits.
pub const ROUTER_ROWS: u32 = 16;

/// Whether a product in workgroups of `tile` rows can leave such partial sums for the router `w`, and the choice of experts add them up.
pub fn leaves_partial_logits(machine: Machine, w: &GpuWeight, tile: u32) -> bool {
    w.ty == GgmlType::F32
        && w.groups == 1
        && w.pieces.len() == 1
        && w.rows.is_multiple_of(4)
        && w.cols.is_multiple_of(ROUTER_ROWS)
        && router_bytes(w.rows, tile) <= u64::from(machine.tuned.router_bytes)
}

/// Bytes of workgroup memory that the router's weights for `tile` rows take.
pub(super) fn router_bytes(experts: u32, tile: u32) -> u64 {
    u64::from(experts) * u64::from(tile) * 4
}

/// The most threads of a workgroup that merges slices: the workgroup memory that WebGPU guarantees has room for so many.
const MERGE_THREADS: u32 = 512;

/// The rows per group that the kernel is told if there is one group: more than any product has, so every row is in group 0.
const ONE_GROUP: u32 = 1 << 31;

impl<'a> GpuTokenMatvec<'a> {
    /// The product of `weight` and `x`. The caller adds where the output goes.
    pub fn new(weight: &'a GpuWeight, activation: Activation, x: Input) -> Self {
        Self {
            weight,
            activation,
            x,
            bound: vec![],
            prepared: None,
            router: None,
            rotation: None,
            several: None,
        }
    }

    /// Binds `range` to `name`, if it is given.
    pub fn bind<'r>(mut self, name: &'static str, range: impl Into<Option<&'r Range>>) -> Self {
        let range: Option<&Range> = range.into();
        self.bound.extend(range.map(|range| (name, range.clone())));
        self
    }

    /// Leaves the output prepared, if a place for it is given.
    pub fn prepared(mut self, output: impl Into<Option<TokenOutput>>) -> Self {
        self.prepared = output.into();
        self
    }

    /// The product of each of up to `most` tokens, which stand in `sequences`.
    pub fn of_tokens(mut self, machine: Machine, most: u32, sequences: Option<&Sequences>) -> Self {
        let by_columns = matches!(self.x, Input::Prepared(..));
        self.several = (most > 1).then(|| OfTokens {
            most,
            columns: match by_columns {
                true => columns(machine, self.weight.total_rows(), most),
                false => 1,
            },
            table: sequences.and_then(Sequences::table).cloned(),
            slices: None,
        });
        self
    }

    /// The product for tokens with no less slices than the first of these numbers, and no more than the second. One token is not asked.
    pub fn of_slices(mut self, [least, most]: [u32; 2]) -> Self {
        if let Some(several) = &mut self.several {
            several.slices = Some([least, most]);
            // The tokens of a workgroup would have different numbers.
            several.columns = 1;
        }
        self
    }

    /// Tokens of a workgroup.
    fn columns(&self) -> u32 {
        self.several.as_ref().map_or(1, |several| several.columns)
    }
}

impl Divided for GpuTokenMatvec<'_> {
    fn site(&self) -> Site {
        let w = self.weight;
        let merge = matches!(self.x, Input::Slices(..));
        let rotates = self.rotation.is_some();
        let kernel = match self.x {
            Input::Prepared(..) if rotates => "token_matvec+rotate",
            Input::Prepared(..) => "token_matvec",
            Input::Stream(..) => "token_matvec+x_times_norm",
            Input::Slices(..) => "token_matvec+merge",
        };
        let mut site = site(kernel, &[w], self.activation);
        if let Some(several) = &self.several {
            site.shape = format!("{} by {} tokens", site.shape, several.columns);
        }
        Site {
            prepared: self.prepared.is_some(),
            together: if rotates { 2 } else { 1 },
            at_once: if rotates { 1 } else { 2 },
            whole: merge.then_some(w.rows),
            threads: match merge {
                // A thread for every four columns.
                true => [w.cols / 4, MERGE_THREADS],
                false => site.threads,
            },
            // A thread requests all its weights before the slices are merged.
            one_block: merge,
            shares_work: merge.then_some(SharedWork::Slices),
            ..site
        }
    }

    fn geometry(&self, target: &Target) -> Result<Geometry, GpuError> {
        if self.several.is_none() {
            return geometry(target, &self.site());
        }
        let of_one = Self {
            several: None,
            ..self.clone()
        };
        let one = geometry(target, &of_one.site())?;
        // Registers hold the sums of each token, so a thread requests less ahead.
        let tall = self.weight.total_rows() >= target.machine.tuned.tall_rows;
        let suggested = match self.columns() {
            1 => one,
            _ => Geometry {
                unroll: one.unroll.min(if tall { 1 } else { 2 }),
                ..one
            },
        };
        Ok(alike(target, &self.site(), one, suggested))
    }

    fn pieces(&self, target: &Target, geometry: &Geometry) -> Result<Vec<Call>, GpuError> {
        let w = self.weight;
        if !w.cols.is_multiple_of(32) {
            let missing = format!("a kernel for rows of {} in {}", w.cols, w.name);
            return Err(unsupported(target, &missing));
        }
        if let Some(OfTokens { most, .. }) = &self.several
            && self.prepared.is_some()
            && !w.total_rows().is_multiple_of(32)
        {
            let rows = w.total_rows();
            let missing = format!(
                "a kernel for {rows} prepared rows of {} of {most} tokens",
                w.name
            );
            return Err(unsupported(target, &missing));
        }
        let call = self.input(self.whole(target, geometry));
        let experts = self.router.as_ref().map_or(0, |router| router.weight.rows);
        let tokens = self.several.as_ref().map_or(1, |several| several.most);
        let of_piece = |piece: &Piece| {
            if self.prepared.is_some() {
                check_rows(target, piece.rows, &w.name)?;
            }
            let tiles = piece.rows.div_ceil(geometry.tile);
            // Each row of the output meets a column of the router's weight.
            let router = u64::from(piece.rows) * u64::from(experts);
            let weights = u64::from(piece.rows) * u64::from(w.cols) + router;
            Ok(call
                .clone()
                .planes(["w_q", "w_s"], piece)
                .word("rows", piece.rows)
                .word("first_row", piece.first_row)
                .word("sub", piece.sub)
                .word("row_tiles", tiles.min(MAX_GRID))
                .grid(tiles_by(tokens, self.columns(), tiles))
                .with_bytes(piece.quants.size + piece.scales.size + 4 * router)
                .with_flops(super::once(2 * weights)))
        };
        w.pieces.iter().map(of_piece).collect()
    }
}

impl GpuTokenMatvec<'_> {
    /// The call without its input and without its piece of the weight.
    fn whole(&self, target: &Target, geometry: &Geometry) -> Call {
        let w = self.weight;
        let units = w.cols / 32;
        let router = self.router.as_ref();
        // The router reads f32 in every tier.
        let activation = match self.x {
            Input::Stream(..) => Activation::Floats,
            Input::Prepared(..) | Input::Slices(..) => self.activation,
        };
        let call = kernel("token_matvec", activation);
        let call = weight(call, ["WEIGHT", "WEIGHT_TIMES"], w.ty, activation);
        let mut call = with_rms(target, divided(call, geometry, units), geometry, units)
            .number("UNITS", units)
            .number("COLS", self.columns())
            .number("AT_ONCE", geometry.at_once);
        if matches!(self.x, Input::Prepared(..)) && w.groups == 1 && self.columns() == 1 {
            let beside = router.map_or(0, |r| router_bytes(r.weight.rows, geometry.tile));
            let tokens = self.several.as_ref().map_or(1, |several| several.most);
            let input = [tokens, units, 1];
            call = staged(target.machine, call, geometry, activation, input, beside);
        }
        for (name, range) in &self.bound {
            call = call.bind(name, range);
        }
        call = TokenOutput::bind(self.prepared.as_ref(), call);
        if let Some(PartialLogits { weight, logits }) = router {
            let rows = w.total_rows();
            assert_eq!(weight.cols, rows, "{} behind {}", weight.name, w.name);
            let (threads, experts) = (geometry.threads(), weight.rows);
            let columns = match self.leaves_all(geometry) {
                true => self.columns(),
                false => 1,
            };
            let share = |values: u32| (experts * geometry.tile / values).div_ceil(threads);
            let weights = weight.pieces[0].quants.clone().holding(Role::Floats);
            call = call
                .bind("router", &weights)
                .bind("partial_logits", logits)
                .number("EXPERTS", experts)
                .number("ROUTER_COLUMNS", weight.cols / 4)
                .number("ROUTER_LOADS", share(4))
                .number(
                    "ROUTER_STORES",
                    (columns * experts * geometry.tile / ROUTER_ROWS).div_ceil(threads),
                );
        }
        self.of_each(call.flag("ALL_COLUMNS", self.leaves_all(geometry)))
    }

    /// Whether a workgroup leaves the rows of all its tokens at once.
    fn leaves_all(&self, geometry: &Geometry) -> bool {
        let columns = self.columns();
        columns > 1 && self.rotation.is_none() && columns * geometry.tile / 4 <= geometry.threads()
    }

    /// The call with what tells the tokens apart, and the rotation of each.
    fn of_each(&self, mut call: Call) -> Call {
        let Some(several) = &self.several else {
            return match &self.rotation {
                Some(rotation) => rotation.bind(call, None),
                None => call,
            };
        };
        let (w, table) = (self.weight, several.table.as_ref());
        let units = match self.x {
            Input::Prepared(_, x_units) if w.groups > 1 => w.groups * x_units,
            Input::Prepared(..) | Input::Stream(..) => w.cols / 32,
            Input::Slices(..) => 0,
        };
        call = call
            .flag("SEVERAL", true)
            .number("TOKEN_ROWS", w.total_rows())
            .number("TOKEN_UNITS", units)
            .word("tokens", Word::Tokens);
        let by_slices = matches!(self.x, Input::Slices(..)) || several.slices.is_some();
        let table = || table.expect("several tokens have a table");
        if by_slices {
            call = call.number("HEADS", w.groups).bind("table", table());
        }
        if let Some([least, most]) = several.slices {
            call = call
                .flag("SLICES_LEAST", true)
                .number("SLICES_LEAST", least)
                .number("SLICES_MOST", most);
        }
        match &self.rotation {
            Some(rotation) => rotation.bind(call, Some((several.most, table()))),
            None => call,
        }
    }

    /// The call with its input.
    fn input(&self, call: Call) -> Call {
        let (w, units) = (self.weight, self.weight.cols / 32);
        match &self.x {
            Input::Prepared(x, x_units) => {
                let groups = w.groups > 1;
                x.bind(call)
                    .flag("GROUPS", groups)
                    .number("ROWS_PER_GROUP", if groups { w.rows } else { ONE_GROUP })
                    .number("X_UNITS", if groups { *x_units } else { 0 })
            }
            Input::Stream(x, norm, squares, eps) => call
                .module("INPUT", "x_times_norm")
                .bind("x", x)
                .bind("x_norm", norm)
                .bind("squares", squares)
                .word("eps", *eps)
                .number("ROWS_PER_GROUP", ONE_GROUP)
                .number("X_UNITS", 0),
            Input::Slices([sums, stats], _) => {
                let threads = call.variant.consts["WG"];
                let call = match &self.several {
                    Some(_) => call,
                    None => call.number("HEADS", w.groups).word("slices", Word::Slices),
                };
                call.module("INPUT", "x_slices")
                    .bind("slice_sums", sums)
                    .bind("stats", stats)
                    .number("ROWS_PER_GROUP", w.rows)
                    .number("X_UNITS", 0)
                    .number("PHASES", threads / (units * 8))
            }
        }
    }
}

/// One over the root mean square of `n` values, from the sums of squares of every 16 of them and the norm's epsilon.
pub(super) fn inverse_rms((squares, eps): (&[f32], f32), n: usize) -> f32 {
    1.0 / (squares.iter().sum::<f32>() / n as f32 + eps).sqrt()
}

/// `y` (groups * rows) = w . x / rms(x) (+ residual) for one token.
///
/// `x` are the values that the prepared input stands for. Group g reads them from unit g * x_units on. `rms` are the sums of squares of
/// every 16 values before they were multiplied by the norm's weight, and the norm's epsilon.
pub fn token_matvec(
    w: &Weight,
    x: &[f32],
    x_units: usize,
    rms: Option<(&[f32], f32)>,
    residual: Option<&[f32]>,
) -> Vec<f32> {
    let mut y = vec![0.0; w.groups * w.rows];
    let options = MatvecOptions::per_group(x.len(), x_units * 32);
    Products::Exact.matvec(w, x, 1, options, &mut y);
    if let Some(rms) = rms {
        let scale = inverse_rms(rms, w.cols);
        y.iter_mut().for_each(|v| *v *= scale);
    }
    if let Some(residual) = residual {
        y.iter_mut().zip(residual).for_each(|(v, r)| *v += r);
    }
    y
}

#[cfg(test)]
pub(super) mod tests;
