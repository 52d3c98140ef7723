//! The loops: rows of weights times inputs, and sums of rows.

use half::f16;

use super::simd::{FLOATS, Simd, Work};
use super::types::{Offsets, Packed};
use super::{Input, Rows, byte_blocks, takes_bytes};
use crate::quant::blocks::with_block;

/// Inputs that a row is multiplied by once it is unpacked: what they read of a group of its weights stays in the first cache.
const TILE: usize = 8;

/// `out[i][r]` = row r . `inputs[i]`.
pub(super) struct Multiply<'a, 'o, 'p> {
    rows: Rows<'a>,
    inputs: &'a [Input<'a>],
    out: &'o mut [&'p mut [f32]],
    row_bytes: usize,
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
        }
    }

    /// Multiplies every row by every input: `add` adds the products of a row and some inputs to sums.
    #[inline(always)]
    fn tiles<S: Simd, A: Add>(self, simd: S, add: A) {
        let tiles = self.inputs.chunks(TILE).zip(self.out.chunks_mut(TILE));
        for (inputs, out) in tiles {
            let rows = self.rows.bytes.chunks_exact(self.row_bytes).enumerate();
            if let ([input], [out]) = (inputs, &mut *out) {
                // The sum stays in a register.
                for (r, row) in rows {
                    let mut sums = [simd.splat(0.0)];
                    add.add(simd, row, std::slice::from_ref(input), &mut sums);
                    out[r] = simd.sum(sums[0]);
                }
                continue;
            }
            for (r, row) in rows {
                let mut sums = [simd.splat(0.0); TILE];
                add.add(simd, row, inputs, &mut sums);
                for (out, sum) in out.iter_mut().zip(sums) {
                    out[r] = simd.sum(sum);
                }
            }
        }
    }
}

impl Work for Multiply<'_, '_, '_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        with_block!(self.rows.ty, B => self.blocks::<S, B, _>(simd),
            GgmlType::F32 => self.tiles(simd, Singles),
            GgmlType::F16 => self.tiles(simd, Halves),
            GgmlType::BF16 => self.tiles(simd, Brain),
        );
    }
}

impl Multiply<'_, '_, '_> {
    #[inline(always)]
    fn blocks<S: Simd, B: Packed<N>, const N: usize>(self, simd: S) {
        self.tiles(simd, Blocks::<B, N>(std::marker::PhantomData));
    }
}

/// How a row is multiplied by inputs.
trait Add: Copy {
    /// Adds the products of a row and each input to its sums.
    fn add<S: Simd>(self, simd: S, row: &[u8], inputs: &[Input<'_>], sums: &mut [S::Floats]);
}

/// Blocks, `N` of which have 256 weights.
struct Blocks<B, const N: usize>(std::marker::PhantomData<B>);

impl<B, const N: usize> Clone for Blocks<B, N> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B, const N: usize> Copy for Blocks<B, N> {}

impl<B: Packed<N>, const N: usize> Blocks<B, N> {
    /// The products of 256 weights.
    #[inline(always)]
    fn group<S: Simd>(
        simd: S,
        blocks: &[B; N],
        index: usize,
        inputs: &[Input<'_>],
        sums: &mut [S::Floats],
    ) {
        let [scales, offsets] = B::affine(simd, blocks);
        let codes = [
            B::codes(simd, blocks, 0),
            B::codes(simd, blocks, 1),
            B::codes(simd, blocks, 2),
            B::codes(simd, blocks, 3),
        ];
        for (x, sum) in inputs.iter().zip(sums) {
            let x = &x.bytes[index];
            let [of_16, of_32] = [&x.scales, &x.scaled_sums].map(|x| simd.floats(x));
            let sums = simd.ints(&x.sums);
            let mut dots = simd.dots(codes, &x.codes, B::WIDE);
            if B::zero::<S>() != 0 {
                dots = simd.less(dots, sums, B::zero::<S>());
            }
            *sum = simd.fma(simd.to_floats(dots), simd.mul(scales, of_16), *sum);
            match B::OFFSETS {
                Offsets::None => {}
                Offsets::Of16 => {
                    let scaled = simd.mul(of_16, simd.to_floats(sums));
                    *sum = simd.fma(offsets, scaled, *sum);
                }
                // Every other sum is 0, and its product adds nothing.
                Offsets::Of32 => *sum = simd.fma(offsets, of_32, *sum),
            }
        }
    }
}

impl<B: Packed<N>, const N: usize> Add for Blocks<B, N> {
    #[inline(always)]
    fn add<S: Simd>(self, simd: S, row: &[u8], inputs: &[Input<'_>], sums: &mut [S::Floats]) {
        let (groups, rest) = bytemuck::cast_slice::<u8, B>(row).as_chunks::<N>();
        for (index, blocks) in groups.iter().enumerate() {
            Self::group(simd, blocks, index, inputs, sums);
        }
        if !rest.is_empty() {
            // Blocks of zeroes, whose scales are finite: the activations there are 0.
            let mut last = [B::zeroed(); N];
            last[..rest.len()].copy_from_slice(rest);
            Self::group(simd, &last, groups.len(), inputs, sums);
        }
    }
}

/// Rows of floats: as many as four registers, or two at the end of a row, are widened once for all inputs. Their products are summed apart
/// before they join the sum of the row, so that the next do not wait for it.
macro_rules! floats {
    ($name:ident, $bytes:literal, $widen:ident) => {
        #[derive(Clone, Copy)]
        struct $name;

        impl $name {
            #[inline(always)]
            fn group<S: Simd, const N: usize>(
                simd: S,
                weights: &[[u8; $bytes]; N],
                first: usize,
                inputs: &[Input<'_>],
                sums: &mut [S::Floats],
            ) {
                let mut values = [simd.splat(0.0); N];
                for (value, weights) in values.iter_mut().zip(weights) {
                    *value = simd.$widen(weights);
                }
                for (x, sum) in inputs.iter().zip(sums) {
                    let x = &x.floats.as_chunks::<FLOATS>().0[first..first + N];
                    let mut products = simd.mul(values[0], simd.floats(&x[0]));
                    for i in 1..N {
                        products = simd.fma(values[i], simd.floats(&x[i]), products);
                    }
                    *sum = simd.add(*sum, products);
                }
            }
        }

        impl Add for $name {
            #[inline(always)]
            fn add<S: Simd>(
                self,
                simd: S,
                row: &[u8],
                inputs: &[Input<'_>],
                sums: &mut [S::Floats],
            ) {
                let (registers, _) = row.as_chunks::<$bytes>();
                let (fours, rest) = registers.as_chunks::<4>();
                for (i, weights) in fours.iter().enumerate() {
                    Self::group(simd, weights, 4 * i, inputs, sums);
                }
                if let ([weights], _) = rest.as_chunks::<2>() {
                    Self::group(simd, weights, 4 * fours.len(), inputs, sums);
                }
            }
        }
    };
}
floats!(Singles, 64, singles);
floats!(Halves, 32, halves);
floats!(Brain, 32, brain);

/// `out[i]` = sum over r of `weights[i][r]` * row r.
pub(super) struct AddRows<'a, 'o, 'p> {
    pub(super) rows: &'a [f16],
    pub(super) stride: usize,
    pub(super) weights: &'a [&'a [f32]],
    pub(super) out: &'o mut [&'p mut [f32]],
}

/// Outputs whose sums stay in registers.
const OUTPUTS: usize = 4;

impl Work for AddRows<'_, '_, '_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        assert_eq!(self.weights.len(), self.out.len(), "weights and outputs");
        let sets = self.weights.chunks(OUTPUTS);
        for (weights, out) in sets.zip(self.out.chunks_mut(OUTPUTS)) {
            let len = out.iter().map(|out| out.len()).max().unwrap_or_default();
            assert!(
                len <= self.stride && len.is_multiple_of(2 * FLOATS),
                "sums of {len} values"
            );
            let count = weights.iter().map(|w| w.len()).max().unwrap_or_default();
            assert!(count * self.stride <= self.rows.len(), "{count} rows");
            for first in (0..len).step_by(2 * FLOATS) {
                let mut sums = [[simd.splat(0.0); 2]; OUTPUTS];
                for (r, row) in self.rows.chunks_exact(self.stride).take(count).enumerate() {
                    let bytes: &[u8] = bytemuck::cast_slice(&row[first..first + 2 * FLOATS]);
                    let (halves, _) = bytes.as_chunks::<32>();
                    let values = [simd.halves(&halves[0]), simd.halves(&halves[1])];
                    for (weights, sums) in weights.iter().zip(&mut sums) {
                        let weight = simd.splat(weights[r]);
                        sums[0] = simd.fma(weight, values[0], sums[0]);
                        sums[1] = simd.fma(weight, values[1], sums[1]);
                    }
                }
                for (out, sums) in out.iter_mut().zip(sums) {
                    let (to, _) = out[first..].as_chunks_mut::<FLOATS>();
                    simd.store(sums[0], &mut to[0]);
                    simd.store(sums[1], &mut to[1]);
                }
            }
        }
    }
}
