//! The product of two weights as a weight, for `--precompose`: two matrices of a block with nothing between them, multiplied
//! once, when a model is loaded.

use super::MAX_GRID;
use crate::gpu::GpuError;
use crate::gpu::buffer::{Buffer, Range, Role};
use crate::gpu::call::{Call, Extent};
use crate::gpu::memory::{GpuWeight, Piece};
use crate::model::Weight;
use crate::quant::repack::{has_codes, plane_bytes, shader_module};
use crate::quant::{GgmlType, dequantize_row, quantize_row};
use rayon::prelude::*;

/// Rows and columns that a workgroup owns, as the text of the kernel says.
const TILE: u32 = 64;

/// Two weights with nothing between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pair {
    /// `attn_k_b` with the query's projection (`attn_q_b`, or `attn_q` where there is no query latent): for head h,
    /// q_lat = K\[h\] (Q\[h\] x)_nope becomes one matrix of kv_lora rows. The rotated rows of Q stay as they are, behind those
    /// of all heads, so that one product gives all of a query.
    Qk,
    /// `attn_output` with `attn_v_b`, which then reads the merged latents.
    Vo,
}

impl Pair {
    /// Every pair.
    pub const ALL: [Self; 2] = [Self::Qk, Self::Vo];

    /// The names of both weights, for messages.
    pub const fn weights(self) -> &'static str {
        match self {
            Self::Qk => "attn_k_b with the query's projection",
            Self::Vo => "attn_output with attn_v_b",
        }
    }

    /// The error of a pair that this device or this model keeps from being composed.
    pub fn refused(self, reason: String) -> GpuError {
        GpuError::CannotPrecompose {
            what: self.weights(),
            reason,
        }
    }
}

/// The type of the product of two weights. Half a step of Q8_0's blocks is a fourth of a percent of their largest weight, below
/// what factors of 4 to 6 bits leave. Where both factors are floats it is F16, so that a file of floats is not quantised unasked.
pub fn kept_as(left: GgmlType, right: GgmlType) -> GgmlType {
    match has_codes(left) || has_codes(right) {
        true => GgmlType::Q8_0,
        false => GgmlType::F16,
    }
}

/// The product of two weights, head by head. In rows counted over all groups, and for c in 0..cols, r in 0..rows:
///
/// out\[h * out_row + r\]\[h * out_col + c\] = sum over j in 0..depth of
/// left\[h * out_row + r\]\[h * left_col + j\] * right\[h * (depth + kept) + j\]\[c\]
///
/// and out\[heads * rows + h * kept + i\] = right\[h * (depth + kept) + depth + i\] for i in 0..kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Composition {
    /// The weights that are multiplied.
    pub pair: Pair,
    /// Query heads.
    pub heads: usize,
    /// Rows of a head's product.
    pub rows: usize,
    /// Terms of each sum.
    pub depth: usize,
    /// Columns of a head's product, and of the right factor.
    pub cols: usize,
    /// Rows of each head of the right factor that follow the product unchanged.
    pub kept: usize,
}

impl Composition {
    /// `n` where the heads of the left factor and of the product lie below each other.
    fn below(&self, n: usize) -> usize {
        if self.pair == Pair::Qk { n } else { 0 }
    }

    /// `n` where they lie beside each other.
    fn beside(&self, n: usize) -> usize {
        n - self.below(n)
    }

    /// Rows from one head to the next in the left factor and in the product.
    pub fn out_row(&self) -> usize {
        self.below(self.rows)
    }

    /// Columns from one head to the next in the left factor.
    pub fn left_col(&self) -> usize {
        self.beside(self.depth)
    }

    /// Columns from one head to the next in the product.
    fn out_col(&self) -> usize {
        self.beside(self.cols)
    }

    /// Rows from one head to the next in the right factor.
    pub fn right_row(&self) -> usize {
        self.depth + self.kept
    }

    /// Rows of the product.
    pub fn out_rows(&self) -> usize {
        (self.heads - 1) * self.out_row() + self.rows + self.heads * self.kept
    }

    /// Columns of the product.
    pub fn out_cols(&self) -> usize {
        (self.heads - 1) * self.out_col() + self.cols
    }

    /// Bytes of the product's planes.
    pub fn bytes(&self, ty: GgmlType) -> u64 {
        let (quants, scales) = plane_bytes(ty, self.out_rows(), self.out_cols());
        (quants + scales) as u64
    }

    /// The product as a weight on a device, whose buffers nobody has made yet.
    pub fn product(&self, ty: GgmlType) -> GpuWeight {
        let (rows, cols) = (self.out_rows(), self.out_cols());
        let (quants, scales) = plane_bytes(ty, rows, cols);
        let plane =
            |bytes: usize, role| Range::whole(&Buffer::new("precomposed", bytes as u64, role));
        GpuWeight {
            name: self.pair.weights().to_owned(),
            ty,
            groups: 1,
            rows: rows as u32,
            cols: cols as u32,
            pieces: vec![Piece {
                first_row: 0,
                rows: rows as u32,
                quants: plane(quants, Role::Codes(ty)),
                scales: plane(scales, Role::Scales(ty)),
                sub: 0,
            }],
        }
    }
}

/// A composition on the device.
pub struct GpuCompose<'a> {
    /// The sizes of the factors and of the product.
    pub composition: Composition,
    /// The left factor.
    pub left: &'a GpuWeight,
    /// The right factor.
    pub right: &'a GpuWeight,
    /// The [product](Composition::product); its planes are zero before.
    pub out: &'a GpuWeight,
}

impl GpuCompose<'_> {
    /// The dispatches: the product, and the rows that are kept where there are any.
    ///
    /// # Errors
    /// [`GpuError::CannotPrecompose`] where a factor lies in several bindings or sizes are not whole units of 32.
    pub fn calls(&self) -> Result<Vec<Call>, GpuError> {
        let c = &self.composition;
        if let Some(odd) = [c.depth, c.cols, c.left_col(), c.out_col()]
            .iter()
            .find(|n| !n.is_multiple_of(32))
        {
            let reason = format!("a head's width of {odd} is no multiple of 32");
            return Err(c.pair.refused(reason));
        }
        let pieces = |w: &GpuWeight| match w.pieces.as_slice() {
            [piece] => Ok(piece.clone()),
            pieces => {
                let (name, pieces) = (&w.name, pieces.len());
                let reason = format!("{name} takes {pieces} bindings on this adapter, not one");
                Err(c.pair.refused(reason))
            }
        };
        let (left, right, out) = (pieces(self.left)?, pieces(self.right)?, pieces(self.out)?);
        let n = |size: usize| size as u32;
        let units = |size: usize| (size / 32) as u32;
        let grid = |rows: usize| {
            let tiles = |size: usize| Extent::N((size as u32).div_ceil(TILE));
            [tiles(c.cols), tiles(rows), Extent::N(c.heads as u32)]
        };
        if grid(c.rows).contains(&Extent::N(0)) || c.heads as u32 > MAX_GRID {
            let reason = format!("{} heads of {} x {}", c.heads, c.rows, c.cols);
            return Err(c.pair.refused(reason));
        }
        let call = |rows: usize, first: usize, out_row: usize| {
            Call::new("compose")
                .module("RIGHT", shader_module(self.right.ty))
                .module("OUT", shader_module(self.out.ty))
                .planes(["r_q", "r_s"], &right)
                .bind("quants", &out.quants)
                .bind_some(
                    "scales",
                    (self.out.ty == GgmlType::Q8_0).then_some(&out.scales),
                )
                .word("rows", n(rows))
                .word("units", units(c.cols))
                .word("right_row", n(c.right_row()))
                .word("right_sub", right.sub)
                .word("out_units", self.out.cols / 32)
                .word("out_first", n(first))
                .word("out_row", n(out_row))
                .word("out_unit", units(c.out_col()))
                .grid(grid(rows))
        };
        let product = call(c.rows, 0, c.out_row())
            .module("LEFT", shader_module(self.left.ty))
            .planes(["l_q", "l_s"], &left)
            .word("depth", units(c.depth))
            .word("left_units", self.left.cols / 32)
            .word("left_row", n(c.out_row()))
            .word("left_unit", units(c.left_col()))
            .word("left_sub", left.sub);
        let mut calls = vec![product];
        if c.kept > 0 {
            let first = c.out_rows() - c.heads * c.kept;
            calls.push(call(c.kept, first, c.kept).word("kept", n(c.depth)));
        }
        Ok(calls)
    }
}

/// A row, counted over all groups, as floats.
fn values(w: &Weight, row: usize) -> Vec<f32> {
    let mut values = vec![0.0; w.cols];
    dequantize_row(w.ty, w.row(row / w.rows, row % w.rows), &mut values);
    values
}

/// Multiplies `left` with `right` as `composition` says, in f32, and quantises the product to `ty`.
///
/// # Panics
/// If a size does not fit the others: sizes come from a checked `Model`, never from input.
pub fn compose(composition: &Composition, [left, right]: [&Weight; 2], ty: GgmlType) -> Weight {
    let c = composition;
    let (rows, cols) = (c.out_rows(), c.out_cols());
    let right_rows: Vec<Vec<f32>> = (0..right.groups * right.rows)
        .into_par_iter()
        .map(|row| values(right, row))
        .collect();
    let row_bytes = ty
        .row_bytes(cols)
        .unwrap_or_else(|| panic!("rows of {cols} values of {ty}"));
    let mut bytes = vec![0; rows * row_bytes];
    bytes
        .par_chunks_exact_mut(row_bytes)
        .enumerate()
        .for_each(|(row, bytes)| {
            let products = rows - c.heads * c.kept;
            let mut out = vec![0.0; cols];
            if let Some(kept) = row.checked_sub(products) {
                let from = kept / c.kept * c.right_row() + c.depth + kept % c.kept;
                out.copy_from_slice(&right_rows[from]);
            } else {
                for head in 0..c.heads {
                    let inside = row.checked_sub(head * c.out_row());
                    let Some(r) = inside.filter(|r| *r < c.rows) else {
                        continue;
                    };
                    let factors = values(left, head * c.out_row() + r);
                    let factors = &factors[head * c.left_col()..][..c.depth];
                    let out = &mut out[head * c.out_col()..][..c.cols];
                    for (j, factor) in factors.iter().enumerate() {
                        let right = &right_rows[head * c.right_row() + j];
                        out.iter_mut()
                            .zip(right)
                            .for_each(|(y, x)| *y += factor * x);
                    }
                }
            }
            quantize_row(ty, &out, bytes);
        });
    Weight::from_bytes(c.pair.weights(), ty, 1, rows, cols, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::call::State;
    use crate::gpu::testing::{assert_refused, download, gpu_weight, gpus, run, unmade_weight};
    use crate::gpu::wait::Wait;
    use crate::gpu::{Gpu, GpuOptions, Most, Step};
    use crate::kernels::testing::{Rng, assert_close, drawn, drawn_pairs, nmse, random_weight};
    use crate::quant::repack::unpack;

    /// Sizes of a model: heads, nope, rope, v, kv_lora, width of the query's input, hidden width.
    type Sizes = [usize; 7];

    fn qk([heads, depth, kept, _, rows, cols, _]: Sizes) -> Composition {
        Composition {
            pair: Pair::Qk,
            heads,
            rows,
            depth,
            cols,
            kept,
        }
    }

    fn vo([heads, _, _, depth, cols, _, rows]: Sizes) -> Composition {
        Composition {
            pair: Pair::Vo,
            heads,
            rows,
            depth,
            cols,
            kept: 0,
        }
    }

    /// Random factors; the groups are those of real files.
    fn factors(rng: &mut Rng, c: &Composition, types: [GgmlType; 2]) -> [Weight; 2] {
        let [left, right] = types;
        if c.kept > 0 {
            let rows = c.heads * c.right_row();
            [
                random_weight(rng, left, c.heads, c.rows, c.depth),
                random_weight(rng, right, 1, rows, c.cols),
            ]
        } else {
            [
                random_weight(rng, left, 1, c.rows, c.heads * c.depth),
                random_weight(rng, right, c.heads, c.depth, c.cols),
            ]
        }
    }

    fn on_gpu(gpu: &Gpu, c: &Composition, [left, right]: [&Weight; 2], ty: GgmlType) -> Weight {
        let out = c.product(ty);
        let [quants, scales] = [&out.pieces[0].quants.buffer, &out.pieces[0].scales.buffer];
        for plane in [quants, scales] {
            gpu.realise(plane).wait().unwrap();
        }
        let call = GpuCompose {
            composition: *c,
            left: &gpu_weight(gpu, left),
            right: &gpu_weight(gpu, right),
            out: &out,
        };
        run(gpu, &call.calls().unwrap(), &State::default());
        let bytes = |b: &Buffer| download::<u8>(gpu, b, b.size() as usize);
        let (rows, cols) = (c.out_rows(), c.out_cols());
        let bytes = unpack(ty, rows, cols, &bytes(quants), &bytes(scales));
        Weight::from_bytes(c.pair.weights(), ty, 1, rows, cols, bytes)
    }

    fn all_values(w: &Weight) -> Vec<f32> {
        (0..w.rows).flat_map(|row| values(w, row)).collect()
    }

    /// The product in f64.
    fn exact(c: &Composition, [left, right]: [&Weight; 2]) -> Vec<f64> {
        let (rows, cols) = (c.out_rows(), c.out_cols());
        let mut out = vec![0.0; rows * cols];
        let right: Vec<_> = (0..right.groups * right.rows)
            .map(|row| values(right, row))
            .collect();
        for h in 0..c.heads {
            for r in 0..c.rows {
                let left = values(left, h * c.out_row() + r);
                let at = (h * c.out_row() + r) * cols + h * c.out_col();
                for j in 0..c.depth {
                    let factor = f64::from(left[h * c.left_col() + j]);
                    for (y, x) in out[at..at + c.cols]
                        .iter_mut()
                        .zip(&right[h * c.right_row() + j])
                    {
                        *y += factor * f64::from(*x);
                    }
                }
            }
            for i in 0..c.kept {
                let at = ((c.heads * c.rows) + h * c.kept + i) * cols;
                for (y, x) in out[at..at + cols]
                    .iter_mut()
                    .zip(&right[h * c.right_row() + c.depth + i])
                {
                    *y = f64::from(*x);
                }
            }
        }
        out
    }

    /// Rounding normal values to Q8_0: a 24th of the squared step, which is a 127th of the largest of 32, about 2.2 deviations.
    const Q8_0_NMSE: f64 = 4e-5;
    /// To f16: WGSL leaves the direction open, so a relative error of up to 2^-10, and on average a third of its square.
    const F16_NMSE: f64 = 3.2e-7;
    /// The greatest NMSE of the kernel against the twin: scales (or values) in f16 may be 2^-10 apart, and sums that round to another code
    /// are rare.
    const TWIN_NMSE: f64 = 2e-6;

    fn check(rng: &mut Rng, gpus: &[&Gpu], c: &Composition, types: [GgmlType; 2], ty: GgmlType) {
        let [left, right] = &factors(rng, c, types);
        let what = format!(
            "{} of {} and {} as {ty}",
            c.pair.weights(),
            types[0],
            types[1]
        );
        let twin = all_values(&compose(c, [left, right], ty));
        let exact = exact(c, [left, right]);
        let limit = match ty {
            GgmlType::F16 => F16_NMSE,
            _ => Q8_0_NMSE,
        };
        assert_close(&twin, &exact, limit, &what);
        let expected: Vec<f64> = twin.iter().map(|x| f64::from(*x)).collect();
        for gpu in gpus {
            let found = all_values(&on_gpu(gpu, c, [left, right], ty));
            let what = format!("{what}, {}", gpu.tier.name());
            assert_close(&found, &exact, limit, &what);
            assert_close(&found, &expected, limit.min(TWIN_NMSE), &what);
        }
    }

    /// GLM-4.7-Flash, DeepSeek-V2-Lite and the built-in model cut down in heads and widths; sizes that fill no tile and an
    /// odd number of units per row.
    const SHAPES: [Sizes; 4] = [
        [3, 192, 64, 256, 512, 768, 128],
        [2, 128, 64, 128, 512, 2048, 128],
        [4, 64, 32, 64, 256, 256, 384],
        [3, 32, 32, 96, 160, 96, 96],
    ];

    #[test]
    fn only_floats_stay_floats() {
        assert_eq!(kept_as(GgmlType::F16, GgmlType::F32), GgmlType::F16);
        assert_eq!(kept_as(GgmlType::F16, GgmlType::Q4_0), GgmlType::Q8_0);
    }

    #[test]
    fn the_kernel_agrees_with_its_twin_at_the_shapes_of_the_models() {
        let mut rng = Rng::fresh();
        let gpus: Vec<_> = gpus().iter().collect();
        let both = |sizes: &Sizes| [qk(*sizes), vo(*sizes)];
        let all: Vec<_> = SHAPES.iter().flat_map(both).collect();
        for (c, &ty) in drawn_pairs(&all, &[GgmlType::Q8_0, GgmlType::F16]) {
            check(&mut rng, &gpus, c, [GgmlType::Q4_0, GgmlType::Q5_0], ty);
        }
    }

    #[test]
    #[ignore = "long: scripts/test --all"]
    fn the_kernel_agrees_with_its_twin_for_every_type() {
        let mut rng = Rng::fresh();
        let gpus: Vec<_> = gpus().iter().collect();
        // Rows of 256, which every type has.
        let sizes = [2, 256, 32, 256, 256, 256, 96];
        for (i, &ty) in GgmlType::ALL.iter().enumerate() {
            let other = GgmlType::ALL[(i + 3) % GgmlType::ALL.len()];
            for &types in drawn(&[[ty, ty], [ty, other]], 1) {
                let c = if i % 2 == 0 { qk(sizes) } else { vo(sizes) };
                let kept = kept_as(types[0], types[1]);
                check(&mut rng, &gpus[i % gpus.len()..][..1], &c, types, kept);
            }
        }
    }

    #[test]
    fn a_product_of_zeros_is_zero() {
        let c = qk([1, 32, 32, 32, 64, 32, 32]);
        let zeros = |rows: usize| {
            Weight::from_bytes("zeros", GgmlType::F32, 1, rows, 32, vec![0; rows * 128])
        };
        let (left, right) = (zeros(64), zeros(64));
        for gpu in gpus() {
            let found = all_values(&on_gpu(gpu, &c, [&left, &right], GgmlType::Q8_0));
            assert!(found.iter().all(|x| *x == 0.0));
        }
        assert_eq!(
            nmse(
                &all_values(&compose(&c, [&left, &right], GgmlType::Q8_0)),
                &[0.0; 96 * 32]
            ),
            0.0
        );
    }

    #[test]
    fn factors_cut_by_the_binding_limit_are_refused_by_name() {
        let mut rng = Rng::fresh();
        let gpu = Gpu::open(&GpuOptions {
            max_binding: Some(100_000),
            ..Default::default()
        })
        .wait()
        .unwrap();
        let c = vo(SHAPES[1]);
        let [left, right] = factors(&mut rng, &c, [GgmlType::Q8_0, GgmlType::Q8_0]);
        let (left, right) = (gpu_weight(&gpu, &left), gpu_weight(&gpu, &right));
        let call = GpuCompose {
            composition: c,
            left: &left,
            right: &right,
            out: &left,
        };
        let error = call.calls().unwrap_err().to_string();
        assert!(
            error.contains("bindings") && error.contains("--precompose off"),
            "{error}"
        );
    }

    #[test]
    fn planes_that_end_before_the_product_are_refused() {
        let c = qk(SHAPES[1]);
        let weight =
            |rows: usize, cols: usize| unmade_weight(GgmlType::Q8_0, 1, rows as u32, cols as u32);
        let left = weight(c.heads * c.out_row(), c.depth);
        let right = weight(c.heads * c.right_row(), c.cols);
        let mut out = c.product(GgmlType::Q8_0);
        let calls = |left: &GpuWeight, out: &GpuWeight| {
            let call = GpuCompose {
                composition: c,
                left,
                right: &right,
                out,
            };
            call.calls().unwrap()
        };
        let mut short = left.clone();
        short.pieces[0].scales.size -= 16;
        assert_refused(&calls(&short, &out), 1, "compose", "l_s");
        // Only the rows that are kept reach the end.
        out.pieces[0].quants.size -= 16;
        assert_refused(&calls(&left, &out)[1..], 1, "compose", "quants");
        let product = Step::of(Most::token(1), calls(&left, &out)[..1].to_vec());
        assert!(product.resolve().is_ok());
    }
}
