//! Products of rows that lie as a device reads them ([`repack`](crate::quant::repack)): on the planes themselves for the types that most experts
//! have. Of the other types some rows at a time become blocks again, which stay in a core's first cache.

use std::cell::Cell;
use std::marker::PhantomData;

use bytemuck::Pod;

use super::rows::add_products;
use super::simd::{Simd, Work};
use super::types::{Affine, Coded, above_minima, linear, scaled};
use super::{ByteBlock, Input, Instructions, Rows, byte_blocks, takes_bytes};
use crate::quant::iq4::unpack_scales_xs;
use crate::quant::k_quants::{Q4K, Q5K, Q6K};
use crate::quant::legacy::{Q4_0, Q8_0};
use crate::quant::repack::{Q5KRecord, Q6KRecord, ScalesMins, plane_row_bytes, unpack_rows};
use crate::quant::types::{GgmlType, SUPER_BLOCK};

/// Bytes of blocks that rows become at a time, at least one row.
const AT_ONCE: usize = 8 << 10;

thread_local! {
    /// Room for the blocks of a thread.
    static BLOCKS: Cell<Vec<u8>> = const { Cell::new(vec![]) };
}

/// Consecutive rows of a weight as they lie in its planes.
#[derive(Clone, Copy)]
pub struct PlaneRows<'a> {
    /// The format of the weights.
    pub ty: GgmlType,
    /// Values of a row, a multiple of 32.
    pub cols: usize,
    /// The quants, the records and the subs, which begin with those of the first row.
    pub planes: [&'a [u8]; 3],
}

impl Instructions {
    /// `out[r]` = row r . `input`, to the bits of [`multiply`](Self::multiply) with the rows' blocks.
    ///
    /// # Panics
    /// If a size does not fit the others.
    pub fn multiply_planes(self, rows: PlaneRows<'_>, input: Input<'_>, out: &mut [f32]) {
        if takes_bytes(rows.ty) {
            let blocks = byte_blocks(rows.cols);
            assert_eq!(input.bytes.len(), blocks, "{} values", rows.cols);
        }
        let bytes = plane_row_bytes(rows.ty, rows.cols);
        let has = |plane: usize| rows.planes[plane].len() >= out.len() * bytes[plane];
        assert!((0..3).all(has), "planes of {} rows", out.len());
        match rows.ty {
            GgmlType::Q4_0 => self.run(Multiply::<Q4_0>::new(rows, input, out)),
            GgmlType::Q8_0 => self.run(Multiply::<Q8_0>::new(rows, input, out)),
            GgmlType::Q4_K => self.run(Multiply::<Q4K>::new(rows, input, out)),
            GgmlType::Q5_K => self.run(Multiply::<Q5K>::new(rows, input, out)),
            GgmlType::Q6_K => self.run(Multiply::<Q6K>::new(rows, input, out)),
            _ => self.multiply_blocks(rows, input, out),
        }
    }

    /// The products of rows that become blocks again.
    fn multiply_blocks(self, rows: PlaneRows<'_>, input: Input<'_>, out: &mut [f32]) {
        let PlaneRows { ty, cols, planes } = rows;
        let row_bytes = ty.row_bytes(cols).unwrap_or_default().max(1);
        let at_once = (AT_ONCE / row_bytes).max(1);
        let mut blocks = BLOCKS.take();
        blocks.resize(blocks.len().max(at_once * row_bytes), 0);
        let bytes = plane_row_bytes(ty, cols);
        for (i, out) in out.chunks_mut(at_once).enumerate() {
            let first = i * at_once;
            let places = [0, 1, 2].map(|plane| &planes[plane][first * bytes[plane]..]);
            let bytes = &mut blocks[..out.len() * row_bytes];
            unpack_rows(ty, cols, places, bytes);
            self.multiply(Rows { ty, cols, bytes }, &[input], &mut [out]);
        }
        BLOCKS.set(blocks);
    }
}

/// `out[r]` = row r . `input`, for rows that lie as `L` does.
struct Multiply<'a, 'o, L> {
    rows: PlaneRows<'a>,
    input: Input<'a>,
    out: &'o mut [f32],
    lies: PhantomData<L>,
}

impl<'a, 'o, L> Multiply<'a, 'o, L> {
    fn new(rows: PlaneRows<'a>, input: Input<'a>, out: &'o mut [f32]) -> Self {
        Self {
            rows,
            input,
            out,
            lies: PhantomData,
        }
    }
}

impl<L: Lies> Work for Multiply<'_, '_, L> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let PlaneRows { ty, cols, planes } = self.rows;
        let bytes = plane_row_bytes(ty, cols);
        let whole = cols / SUPER_BLOCK;
        for (r, out) in self.out.iter_mut().enumerate() {
            let row = |plane: usize| &planes[plane][r * bytes[plane]..(r + 1) * bytes[plane]];
            let (quants, records, subs) = (row(0), row(1), row(2));
            let mut sum = simd.splat(0.0);
            for (i, x) in self.input.bytes.iter().enumerate() {
                sum = if i < whole {
                    let parts = (part(quants, i), part(records, i), part(subs, i));
                    add::<S, L>(simd, parts, x, sum)
                } else {
                    // Scales of zero: the activations there are 0.
                    let parts = (&rest(quants, i), &rest(records, i), &rest(subs, i));
                    add::<S, L>(simd, parts, x, sum)
                };
            }
            *out = simd.sum(sum);
        }
    }
}

/// Part `i` of a plane.
#[inline(always)]
fn part<T: Pod>(plane: &[u8], i: usize) -> &T {
    let bytes = size_of::<T>();
    bytemuck::from_bytes(&plane[i * bytes..][..bytes])
}

/// The last part `i` of a plane, which is not whole, and zeros.
fn rest<T: Pod>(plane: &[u8], i: usize) -> T {
    let mut all = T::zeroed();
    let rest = &plane[i * size_of::<T>()..];
    bytemuck::bytes_of_mut(&mut all)[..rest.len()].copy_from_slice(rest);
    all
}

/// The quants, the records and the subs of 256 weights.
type Parts<'a, L> = (
    &'a <L as Lies>::Quants,
    &'a <L as Lies>::Records,
    &'a <L as Lies>::Subs,
);

/// `sum` and the products of 256 weights.
#[inline(always)]
fn add<S: Simd, L: Lies>(
    simd: S,
    (quants, records, subs): Parts<'_, L>,
    x: &ByteBlock,
    sum: S::Floats,
) -> S::Floats {
    let codes = [
        L::codes(simd, quants, records, 0),
        L::codes(simd, quants, records, 1),
        L::codes(simd, quants, records, 2),
        L::codes(simd, quants, records, 3),
    ];
    add_products::<S, L>(simd, L::affine(simd, records, subs), codes, x, sum)
}

/// The parts of 256 weights in the planes.
trait Lies: Coded {
    type Quants: Pod;
    type Records: Pod;
    type Subs: Pod;

    /// The scales and offsets of the weights, which [`Packed::affine`](super::types::Packed::affine) gives for a block.
    fn affine<S: Simd>(simd: S, records: &Self::Records, subs: &Self::Subs) -> Affine<S>;

    /// The codes of a quarter of the weights, in their order.
    fn codes<S: Simd>(
        simd: S,
        quants: &Self::Quants,
        records: &Self::Records,
        quarter: usize,
    ) -> S::Bytes;
}

/// The highest bit of each byte.
const TOP_BITS: u128 = u128::MAX / 255 * 128;

/// The codes of two runs whose high nibbles were turned over.
#[inline(always)]
fn turned<S: Simd>(simd: S, runs: &[[u8; 16]; 8], quarter: usize) -> S::Bytes {
    let turn = |run: [u8; 16]| (u128::from_ne_bytes(run) ^ TOP_BITS).to_ne_bytes();
    simd.nibbles(&turn(runs[2 * quarter]), &turn(runs[2 * quarter + 1]))
}

/// A word of bytes.
#[inline(always)]
fn word(bytes: [u8; 4]) -> u32 {
    u32::from_le_bytes(bytes)
}

/// The scales and offsets of Q4_K and Q5_K.
#[inline(always)]
fn of_record<S: Simd>(simd: S, of: &ScalesMins) -> Affine<S> {
    let [a, b, c, d] = of.high;
    let scales = unpack_scales_xs(of.scales_low, [a, b]);
    let minima = unpack_scales_xs(of.mins_low, [c, d]);
    above_minima(simd, [of.d, of.dmin], (scales, minima))
}

impl Lies for Q4_0 {
    type Quants = [[u8; 16]; 8];
    type Records = [u8; 0];
    type Subs = [[u8; 2]; 8];

    #[inline(always)]
    fn affine<S: Simd>(simd: S, _: &[u8; 0], subs: &[[u8; 2]; 8]) -> Affine<S> {
        linear::<S>(simd.half_pairs(*subs))
    }

    #[inline(always)]
    fn codes<S: Simd>(simd: S, quants: &[[u8; 16]; 8], _: &[u8; 0], quarter: usize) -> S::Bytes {
        turned(simd, quants, quarter)
    }
}

impl Lies for Q8_0 {
    type Quants = [[u8; 64]; 4];
    type Records = [u8; 0];
    type Subs = [[u8; 2]; 8];

    #[inline(always)]
    fn affine<S: Simd>(simd: S, _: &[u8; 0], subs: &[[u8; 2]; 8]) -> Affine<S> {
        linear::<S>(simd.half_pairs(*subs))
    }

    #[inline(always)]
    fn codes<S: Simd>(simd: S, quants: &[[u8; 64]; 4], _: &[u8; 0], quarter: usize) -> S::Bytes {
        simd.signed(simd.bytes(&quants[quarter]))
    }
}

impl Lies for Q4K {
    type Quants = [[u8; 16]; 8];
    type Records = ScalesMins;
    type Subs = [u8; 0];

    #[inline(always)]
    fn affine<S: Simd>(simd: S, records: &ScalesMins, _: &[u8; 0]) -> Affine<S> {
        of_record(simd, records)
    }

    #[inline(always)]
    fn codes<S: Simd>(simd: S, quants: &[[u8; 16]; 8], _: &ScalesMins, quarter: usize) -> S::Bytes {
        turned(simd, quants, quarter)
    }
}

impl Lies for Q5K {
    type Quants = [[u8; 16]; 8];
    type Records = Q5KRecord;
    type Subs = [u8; 0];

    #[inline(always)]
    fn affine<S: Simd>(simd: S, records: &Q5KRecord, _: &[u8; 0]) -> Affine<S> {
        of_record(simd, &records.scales)
    }

    #[inline(always)]
    fn codes<S: Simd>(
        simd: S,
        quants: &[[u8; 16]; 8],
        records: &Q5KRecord,
        quarter: usize,
    ) -> S::Bytes {
        // Bit 8 b + i of a run's word belongs to weight 4 i + b.
        let words: &[[u8; 4]; 8] = bytemuck::cast_ref(&records.high_bits);
        let (a, b) = (word(words[2 * quarter]), word(words[2 * quarter + 1]));
        let highs = simd.fields([a, a >> 4, b, b >> 4], 1);
        let lows = simd.nibbles(&quants[2 * quarter], &quants[2 * quarter + 1]);
        simd.above(lows, highs, 4)
    }
}

impl Lies for Q6K {
    type Quants = [[u8; 16]; 8];
    type Records = Q6KRecord;
    type Subs = [u8; 2];

    #[inline(always)]
    fn affine<S: Simd>(simd: S, records: &Q6KRecord, d: &[u8; 2]) -> Affine<S> {
        // Signed bytes with 128 added are unsigned.
        let scales = u128::from_ne_bytes(*bytemuck::cast_ref(&records.scales));
        let scales = (scales ^ TOP_BITS).to_ne_bytes();
        linear::<S>(scaled(simd, *d, scales, 128.0))
    }

    #[inline(always)]
    fn codes<S: Simd>(
        simd: S,
        quants: &[[u8; 16]; 8],
        records: &Q6KRecord,
        quarter: usize,
    ) -> S::Bytes {
        let words: &[[[u8; 4]; 4]; 4] = bytemuck::cast_ref(&records.high_bits);
        let [a, b, c, d] = words[quarter];
        let highs = simd.fields([word(a), word(b), word(c), word(d)], 2);
        let lows = simd.nibbles(&quants[2 * quarter], &quants[2 * quarter + 1]);
        simd.above(lows, highs, 4)
    }
}
