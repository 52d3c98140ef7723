//! Products of rows that lie as a device reads them ([`repack`](crate::quant::repack)): on the planes themselves for the types that most experts
//! have. Of the other types some rows at a time become blocks again, which stay in a core's first cache.

use std::cell::Cell;

use bytemuck::Pod;

use super::rows::Multiply;
use super::simd::{Simd, Work};
use super::types::{Affine, around, scaled, twice};
use super::{ByteBlock, Input, Instructions, Rows, byte_blocks, takes_bytes};
use crate::quant::block::widen;
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
    /// `out[r]` = row r . `input`. A product of a row is the same sequence of operations among any other rows.
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
        self.run(MultiplyPlanes { rows, input, out });
    }
}

struct MultiplyPlanes<'a, 'o> {
    rows: PlaneRows<'a>,
    input: Input<'a>,
    out: &'o mut [f32],
}

impl Work for MultiplyPlanes<'_, '_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.rows.ty {
            GgmlType::Q4_0 => self.planes::<S, OfQ4_0>(simd),
            GgmlType::Q8_0 => self.planes::<S, OfQ8_0>(simd),
            GgmlType::Q4_K => self.planes::<S, OfQ4K>(simd),
            GgmlType::Q5_K => self.planes::<S, OfQ5K>(simd),
            GgmlType::Q6_K => self.planes::<S, OfQ6K>(simd),
            _ => self.blocks(simd),
        }
    }
}

impl MultiplyPlanes<'_, '_> {
    #[inline(always)]
    fn blocks<S: Simd>(self, simd: S) {
        let PlaneRows { ty, cols, planes } = self.rows;
        let row_bytes = ty.row_bytes(cols).unwrap_or_default().max(1);
        let at_once = (AT_ONCE / row_bytes).max(1);
        let mut blocks = BLOCKS.take();
        blocks.resize(blocks.len().max(at_once * row_bytes), 0);
        let bytes = plane_row_bytes(ty, cols);
        for (i, out) in self.out.chunks_mut(at_once).enumerate() {
            let first = i * at_once;
            let places = [0, 1, 2].map(|plane| &planes[plane][first * bytes[plane]..]);
            let blocks = &mut blocks[..out.len() * row_bytes];
            unpack_rows(ty, cols, places, blocks);
            let rows = Rows {
                ty,
                cols,
                bytes: blocks,
            };
            Multiply::new(rows, &[self.input], &mut [out]).run(simd);
        }
        BLOCKS.set(blocks);
    }

    #[inline(always)]
    fn planes<S: Simd, L: Lies>(self, simd: S) {
        let PlaneRows { ty, cols, planes } = self.rows;
        let bytes = plane_row_bytes(ty, cols);
        let whole = cols / SUPER_BLOCK;
        for (r, out) in self.out.iter_mut().enumerate() {
            let row = |plane: usize| &planes[plane][r * bytes[plane]..(r + 1) * bytes[plane]];
            let (quants, records, subs) = (row(0), row(1), row(2));
            let mut sum = simd.splat(0.0);
            for (i, x) in self.input.bytes.iter().enumerate() {
                let products = if i < whole {
                    products::<S, L>(simd, part(quants, i), part(records, i), part(subs, i), x)
                } else {
                    // Scales of zero: the activations there are 0.
                    let (quants, records, subs) =
                        (rest(quants, i), rest(records, i), rest(subs, i));
                    products::<S, L>(simd, &quants, &records, &subs, x)
                };
                sum = simd.add(sum, products);
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

/// The products of 256 weights.
#[inline(always)]
fn products<S: Simd, L: Lies>(
    simd: S,
    quants: &L::Quants,
    records: &L::Records,
    subs: &L::Subs,
    x: &ByteBlock,
) -> S::Floats {
    let [scales, offsets] = L::affine(simd, records, subs);
    let scales = simd.mul(scales, simd.floats(&x.scales));
    let mut products = simd.mul(offsets, simd.floats(&x.scaled_sums));
    for quarter in 0..4 {
        let codes = L::codes(simd, quants, records, quarter);
        let dots = simd.dot(codes, &x.codes[quarter], L::WIDE);
        products = simd.fma(dots, simd.spread(scales, quarter), products);
    }
    products
}

/// The parts of 256 weights in the planes.
trait Lies {
    type Quants: Pod;
    type Records: Pod;
    type Subs: Pod;

    /// Whether the codes are of eight bits, from [`Simd::signed`].
    const WIDE: bool = false;

    /// Weight i is `scales[i / 16] * codes[i] + offsets[i / 16]`.
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

/// The eight nibbles of a word as bytes.
#[inline(always)]
fn nibbles(bytes: [u8; 4]) -> u64 {
    let all = u64::from(word(bytes));
    let all = (all | all << 16) & 0x0000_ffff_0000_ffff;
    let all = (all | all << 8) & 0x00ff_00ff_00ff_00ff;
    (all | all << 4) & 0x0f0f_0f0f_0f0f_0f0f
}

/// Eight numbers of two bits as bytes.
#[inline(always)]
fn crumbs(both: [u8; 2]) -> u64 {
    let all = u64::from(u16::from_le_bytes(both));
    let all = (all | all << 24) & 0x0000_00ff_0000_00ff;
    let all = (all | all << 12) & 0x000f_000f_000f_000f;
    (all | all << 6) & 0x0303_0303_0303_0303
}

/// The scales and offsets of weights `scale * code - min`.
#[inline(always)]
fn above_minima<S: Simd>(simd: S, of: &ScalesMins) -> Affine<S> {
    let [a, b, c, d] = of.high;
    let scales = nibbles(of.scales_low) | crumbs([a, b]) << 4;
    let minima = nibbles(of.mins_low) | crumbs([c, d]) << 4;
    let times = |all: u64, factor: f32| simd.mul(simd.each_twice(all), simd.splat(factor));
    [times(scales, widen(of.d)), times(minima, -widen(of.dmin))]
}

struct OfQ4_0;

impl Lies for OfQ4_0 {
    type Quants = [[u8; 16]; 8];
    type Records = [u8; 0];
    type Subs = [[u8; 2]; 8];

    #[inline(always)]
    fn affine<S: Simd>(simd: S, _: &[u8; 0], subs: &[[u8; 2]; 8]) -> Affine<S> {
        around(simd, twice(simd, *subs), 8.0)
    }

    #[inline(always)]
    fn codes<S: Simd>(simd: S, quants: &[[u8; 16]; 8], _: &[u8; 0], quarter: usize) -> S::Bytes {
        turned(simd, quants, quarter)
    }
}

struct OfQ8_0;

impl Lies for OfQ8_0 {
    type Quants = [[[u8; 32]; 2]; 4];
    type Records = [u8; 0];
    type Subs = [[u8; 2]; 8];
    const WIDE: bool = true;

    #[inline(always)]
    fn affine<S: Simd>(simd: S, _: &[u8; 0], subs: &[[u8; 2]; 8]) -> Affine<S> {
        around(simd, twice(simd, *subs), S::BIAS)
    }

    #[inline(always)]
    fn codes<S: Simd>(
        simd: S,
        quants: &[[[u8; 32]; 2]; 4],
        _: &[u8; 0],
        quarter: usize,
    ) -> S::Bytes {
        let [low, high] = &quants[quarter];
        simd.signed(simd.join(low, high))
    }
}

struct OfQ4K;

impl Lies for OfQ4K {
    type Quants = [[u8; 16]; 8];
    type Records = ScalesMins;
    type Subs = [u8; 0];

    #[inline(always)]
    fn affine<S: Simd>(simd: S, records: &ScalesMins, _: &[u8; 0]) -> Affine<S> {
        above_minima(simd, records)
    }

    #[inline(always)]
    fn codes<S: Simd>(simd: S, quants: &[[u8; 16]; 8], _: &ScalesMins, quarter: usize) -> S::Bytes {
        turned(simd, quants, quarter)
    }
}

struct OfQ5K;

impl Lies for OfQ5K {
    type Quants = [[u8; 16]; 8];
    type Records = Q5KRecord;
    type Subs = [u8; 0];

    #[inline(always)]
    fn affine<S: Simd>(simd: S, records: &Q5KRecord, _: &[u8; 0]) -> Affine<S> {
        above_minima(simd, &records.scales)
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

struct OfQ6K;

impl Lies for OfQ6K {
    type Quants = [[u8; 16]; 8];
    type Records = Q6KRecord;
    type Subs = [u8; 2];

    #[inline(always)]
    fn affine<S: Simd>(simd: S, records: &Q6KRecord, d: &[u8; 2]) -> Affine<S> {
        // Signed bytes with 128 added are unsigned.
        let scales = u128::from_ne_bytes(*bytemuck::cast_ref(&records.scales));
        let scales = (scales ^ TOP_BITS).to_ne_bytes();
        around(simd, scaled(simd, *d, scales, 128.0), 32.0)
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
