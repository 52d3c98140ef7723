//! The loops: rows of weights times inputs, and sums of rows.

use std::array::from_fn;

use super::simd::{FLOATS, Simd, Strips, Work};
use super::types::{Affine, Coded, Offsets, Packed};
use super::{Apart, ByteBlock, Input, Rows, byte_blocks, takes_bytes};
use crate::quant::GgmlType;
use crate::quant::blocks::with_block;

/// Inputs that a row is multiplied by once it is unpacked: what they read of a group of its weights stays in the first cache.
const TILE: usize = 8;

/// `out[i][r]` = row r . `inputs[i]`.
pub(super) struct Multiply<'a, 'o, 'p> {
    rows: Rows<'a>,
    inputs: &'a [Input<'a>],
    out: &'o mut [&'p mut [f32]],
    row_bytes: usize,
    /// Bytes from the beginning of a row to that of the next, which only floats may have more of.
    stride: usize,
}

impl<'a, 'o, 'p> Multiply<'a, 'o, 'p> {
    pub(super) fn new(
        rows: Rows<'a>,
        inputs: &'a [Input<'a>],
        out: &'o mut [&'p mut [f32]],
    ) -> Self {
        let Rows { ty, cols, bytes } = rows;
        let row_bytes = ty.row_bytes(cols).unwrap_or_default();
        let whole = row_bytes > 0 && cols.is_multiple_of(32) && bytes.len() % row_bytes == 0;
        assert!(whole, "{} bytes for rows of {cols} {ty}", bytes.len());
        assert_eq!(inputs.len(), out.len(), "inputs and outputs");
        let count = bytes.len() / row_bytes;
        assert!(
            out.iter().all(|out| out.len() == count),
            "outputs of {count} rows"
        );
        let fits = |x: &Input<'_>| match takes_bytes(ty) {
            true => x.bytes.len() == byte_blocks(cols),
            false => x.floats.len() == cols,
        };
        assert!(inputs.iter().all(fits), "inputs of {cols} values for {ty}");
        Self {
            rows,
            inputs,
            out,
            row_bytes,
            stride: row_bytes,
        }
    }

    pub(super) fn apart(
        rows: Apart<'a>,
        inputs: &'a [Input<'a>],
        out: &'o mut [&'p mut [f32]],
    ) -> Self {
        let (ty, bytes) = (GgmlType::F16, bytemuck::cast_slice(rows.values));
        assert_eq!(inputs.len(), out.len(), "inputs and outputs");
        let cols = inputs.first().map_or(0, |x| x.floats.len());
        let count = out.first().map_or(0, |out| out.len());
        rows.check(count, cols);
        let fits = inputs.iter().all(|x| x.floats.len() == cols);
        assert!(fits, "inputs of {cols} values");
        let fits = out.iter().all(|out| out.len() == count);
        assert!(fits, "outputs of {count} rows");
        Self {
            rows: Rows { ty, cols, bytes },
            inputs,
            out,
            row_bytes: 2 * cols,
            stride: 2 * rows.stride,
        }
    }
}

impl Work for Multiply<'_, '_, '_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        with_block!(self.rows.ty, B => self.blocks::<S, B, _>(simd),
            GgmlType::F32 => simd.strips(Floats(self, Singles)),
            GgmlType::F16 => simd.strips(Floats(self, Halves)),
            GgmlType::BF16 => simd.strips(Floats(self, Brain)),
        );
    }
}

impl Multiply<'_, '_, '_> {
    #[inline(always)]
    fn blocks<S: Simd, B: Packed<N>, const N: usize>(self, simd: S) {
        let tiles = self.inputs.chunks(TILE).zip(self.out.chunks_mut(TILE));
        for (inputs, out) in tiles {
            let rows = self.rows.bytes.chunks_exact(self.row_bytes).enumerate();
            if let ([input], [out]) = (inputs, &mut *out) {
                // The sum stays in a register.
                for (r, row) in rows {
                    let mut sums = [simd.splat(0.0)];
                    add_row::<S, B, N>(simd, row, std::slice::from_ref(input), &mut sums);
                    out[r] = simd.sum(sums[0]);
                }
                continue;
            }
            for (r, row) in rows {
                let mut sums = [simd.splat(0.0); TILE];
                add_row::<S, B, N>(simd, row, inputs, &mut sums);
                for (out, sum) in out.iter_mut().zip(sums) {
                    out[r] = simd.sum(sum);
                }
            }
        }
    }
}

/// Adds the products of a row of blocks and each input to its sums.
#[inline(always)]
fn add_row<S: Simd, B: Packed<N>, const N: usize>(
    simd: S,
    row: &[u8],
    inputs: &[Input<'_>],
    sums: &mut [S::Floats],
) {
    let (groups, rest) = bytemuck::cast_slice::<u8, B>(row).as_chunks::<N>();
    for (index, blocks) in groups.iter().enumerate() {
        add_group(simd, blocks, index, inputs, sums);
    }
    if !rest.is_empty() {
        // Blocks of zeroes, whose scales are finite: the activations there are 0.
        let mut last = [B::zeroed(); N];
        last[..rest.len()].copy_from_slice(rest);
        add_group(simd, &last, groups.len(), inputs, sums);
    }
}

/// Adds the products of 256 weights.
#[inline(always)]
fn add_group<S: Simd, B: Packed<N>, const N: usize>(
    simd: S,
    blocks: &[B; N],
    index: usize,
    inputs: &[Input<'_>],
    sums: &mut [S::Floats],
) {
    let affine = B::affine(simd, blocks);
    let codes = [
        B::codes(simd, blocks, 0),
        B::codes(simd, blocks, 1),
        B::codes(simd, blocks, 2),
        B::codes(simd, blocks, 3),
    ];
    for (x, sum) in inputs.iter().zip(sums) {
        *sum = add_products::<S, B>(simd, affine, codes, &x.bytes[index], *sum);
    }
}

/// `sum` and the products of 256 weights and an input.
#[inline(always)]
pub(super) fn add_products<S: Simd, C: Coded>(
    simd: S,
    [scales, offsets]: Affine<S>,
    codes: [S::Bytes; 4],
    x: &ByteBlock,
    sum: S::Floats,
) -> S::Floats {
    let [of_16, of_32] = [&x.scales, &x.scaled_sums].map(|x| simd.floats(x));
    let sums = simd.ints(&x.sums);
    let mut dots = simd.dots(codes, &x.codes, C::WIDE);
    if C::zero::<S>() != 0 {
        dots = simd.less(dots, sums, C::zero::<S>());
    }
    let sum = simd.fma(simd.to_floats(dots), simd.mul(scales, of_16), sum);
    match C::OFFSETS {
        Offsets::None => sum,
        Offsets::Of16 => {
            let scaled = simd.mul(of_16, simd.to_floats(sums));
            simd.fma(offsets, scaled, sum)
        }
        // Every other sum is 0, and its product adds nothing.
        Offsets::Of32 => simd.fma(offsets, of_32, sum),
    }
}

/// Floats as they lie in a file: `N` bytes are a register of them.
trait Widen<const N: usize>: Copy {
    /// A register.
    fn widen<S: Simd>(self, simd: S, bytes: &[u8; N]) -> S::Floats;
}

macro_rules! widen {
    ($name:ident, $bytes:literal, $widen:ident) => {
        #[derive(Clone, Copy)]
        struct $name;

        impl Widen<$bytes> for $name {
            #[inline(always)]
            fn widen<S: Simd>(self, simd: S, bytes: &[u8; $bytes]) -> S::Floats {
                simd.$widen(bytes)
            }
        }
    };
}
widen!(Singles, 64, singles);
widen!(Halves, 32, halves);
widen!(Brain, 32, brain);

/// Rows of floats times inputs.
struct Floats<'a, 'o, 'p, W, const N: usize>(Multiply<'a, 'o, 'p>, W);

/// Inputs that rows of floats are multiplied by at once.
const INPUTS: usize = 4;

impl<W: Widen<N>, const N: usize> Strips for Floats<'_, '_, '_, W, N> {
    #[inline(always)]
    fn run<S: Simd, const R: usize>(self, simd: S) {
        let Self(work, widen) = self;
        let inputs = work.inputs.chunks(INPUTS);
        for (inputs, out) in inputs.zip(work.out.chunks_mut(INPUTS)) {
            // The last inputs are as many by repeating one.
            let x = |i: usize| inputs[i.min(inputs.len() - 1)].floats.as_chunks().0;
            let rows = (work.rows.bytes, work.stride, work.row_bytes);
            match (inputs.len(), R) {
                (1, _) => strips::<_, _, N, 1, 1>(simd, widen, rows, [x(0)], out),
                (_, 8) => strips::<_, _, N, 2, INPUTS>(simd, widen, rows, from_fn(x), out),
                _ => strips::<_, _, N, 1, INPUTS>(simd, widen, rows, from_fn(x), out),
            }
        }
    }
}

/// The products of all rows, `R` at once, with as many inputs as there are outputs.
#[inline(always)]
fn strips<S: Simd, W: Widen<N>, const N: usize, const R: usize, const X: usize>(
    simd: S,
    widen: W,
    (bytes, stride, row_bytes): (&[u8], usize, usize),
    inputs: [&[[f32; FLOATS]]; X],
    out: &mut [&mut [f32]],
) {
    let count = out.first().map_or(0, |out| out.len());
    for first in (0..count).step_by(R) {
        // The last rows are as many by repeating one.
        let row = |r: usize| &bytes[(first + r).min(count - 1) * stride..][..row_bytes];
        let rows: [&[[u8; N]]; R] = from_fn(|r| row(r).as_chunks().0);
        let registers = rows[0].len();
        let fours = registers - registers % 4;
        let mut sums = [[simd.splat(0.0); X]; R];
        for i in (0..fours).step_by(4) {
            add::<_, _, N, R, X, 4>(simd, widen, &rows, &inputs, i, &mut sums);
        }
        if fours < registers {
            add::<_, _, N, R, X, 2>(simd, widen, &rows, &inputs, fours, &mut sums);
        }
        for (r, sums) in sums.iter().enumerate().take(count - first) {
            for (out, sum) in out.iter_mut().zip(sums) {
                out[first + r] = simd.sum(*sum);
            }
        }
    }
}

/// Adds the products of `C` registers of each row from `first` on. They are summed apart before they join the sum of the row, so that the
/// next do not wait for it.
#[inline(always)]
fn add<S: Simd, W: Widen<N>, const N: usize, const R: usize, const X: usize, const C: usize>(
    simd: S,
    widen: W,
    rows: &[&[[u8; N]]; R],
    inputs: &[&[[f32; FLOATS]]; X],
    first: usize,
    sums: &mut [[S::Floats; X]; R],
) {
    let mut values = [[simd.splat(0.0); C]; R];
    for (values, row) in values.iter_mut().zip(rows) {
        for (value, bytes) in values.iter_mut().zip(&row[first..first + C]) {
            *value = widen.widen(simd, bytes);
        }
    }
    for (i, x) in inputs.iter().enumerate() {
        let x = &x[first..first + C];
        for (values, sums) in values.iter().zip(&mut *sums) {
            let mut products = simd.mul(values[0], simd.floats(&x[0]));
            for c in 1..C {
                products = simd.fma(values[c], simd.floats(&x[c]), products);
            }
            sums[i] = simd.add(sums[i], products);
        }
    }
}

/// `out[i]` = sum over r of `weights[i][r]` * row r.
pub(super) struct AddRows<'a, 'o, 'p> {
    pub(super) rows: Apart<'a>,
    pub(super) weights: &'a [&'a [f32]],
    pub(super) out: &'o mut [&'p mut [f32]],
}

impl Work for AddRows<'_, '_, '_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        assert_eq!(self.weights.len(), self.out.len(), "weights and outputs");
        simd.strips(self);
    }
}

impl Strips for AddRows<'_, '_, '_> {
    #[inline(always)]
    fn run<S: Simd, const R: usize>(self, simd: S) {
        match (self.weights.len(), R) {
            (1, _) => self.sums::<S, 1, 2>(simd),
            (5.., 8) => self.sums::<S, 8, 2>(simd),
            (_, 8) => self.sums::<S, 4, 2>(simd),
            _ => self.sums::<S, 4, 1>(simd),
        }
    }
}

impl AddRows<'_, '_, '_> {
    /// `X` outputs at once, of which `V` registers stay such.
    #[inline(always)]
    fn sums<S: Simd, const X: usize, const V: usize>(self, simd: S) {
        let Self { rows, weights, out } = self;
        let sets = weights.chunks(X);
        for (weights, out) in sets.zip(out.chunks_mut(X)) {
            let len = out.iter().map(|out| out.len()).max().unwrap_or_default();
            let count = weights.iter().map(|w| w.len()).max().unwrap_or_default();
            rows.check(count, len);
            // The last outputs are as many by repeating one, which is not stored.
            let weights: [&[f32]; X] = from_fn(|i| &weights[i.min(weights.len() - 1)][..count]);
            for first in (0..len).step_by(V * FLOATS) {
                let mut sums = [[simd.splat(0.0); V]; X];
                let all = rows.values.chunks(rows.stride);
                for (r, row) in all.take(count).enumerate() {
                    let bytes: &[u8] = bytemuck::cast_slice(&row[first..first + V * FLOATS]);
                    let (halves, _) = bytes.as_chunks::<32>();
                    let mut values = [simd.splat(0.0); V];
                    for (value, halves) in values.iter_mut().zip(halves) {
                        *value = simd.halves(halves);
                    }
                    for i in 0..X {
                        let weight = simd.splat(weights[i][r]);
                        for v in 0..V {
                            sums[i][v] = simd.fma(weight, values[v], sums[i][v]);
                        }
                    }
                }
                for (out, sums) in out.iter_mut().zip(sums) {
                    let (to, _) = out[first..].as_chunks_mut::<FLOATS>();
                    for (to, sum) in to.iter_mut().zip(sums) {
                        simd.store(sum, to);
                    }
                }
            }
        }
    }
}
