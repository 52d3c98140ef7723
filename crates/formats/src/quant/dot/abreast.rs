//! Many inputs at once: a vector has the sums of 16 of them, each of which is multiplied by the same codes.

use std::cell::Cell;

use super::simd::{FLOATS, Simd, Strips, Work, sum};
use super::types::{Offsets, Packed};
use super::{ByteBlock, Rows, byte_blocks};
use crate::quant::blocks::with_block;
use crate::quant::repack::HALF;
use crate::quant::types::SUPER_BLOCK;

/// Inputs side by side at most.
const WIDTH: usize = FLOATS;

/// Bytes of the codes of rows that are unpacked at once: they stay in the second cache, beside as many of inputs.
const UNPACKED: usize = 256 * 1024;

/// A sixteenth of a block of each of up to 16 inputs.
#[derive(Clone)]
#[repr(C, align(64))]
struct Sixteenth {
    /// Four consecutive codes of every input, then the next four.
    codes: [[i8; 64]; 4],
    /// The scale of each input.
    scales: [f32; WIDTH],
    /// The sum of the codes of each input.
    sums: [i32; WIDTH],
}

/// Up to 16 inputs side by side.
#[derive(Default)]
pub struct Abreast {
    /// The first sixteenth of every block, then the second, as many as have values.
    sixteenths: Vec<Sixteenth>,
    cols: usize,
    count: usize,
}

/// The number of blocks of a row of `cols` values that have a sixteenth of this number.
fn blocks_with(cols: usize, sixteenth: usize) -> usize {
    cols.saturating_sub(HALF * sixteenth).div_ceil(SUPER_BLOCK)
}

impl Abreast {
    /// The number of inputs side by side at most.
    pub const WIDTH: usize = WIDTH;

    /// Inputs of `cols` values side by side.
    ///
    /// # Panics
    /// If they are more than [`WIDTH`](Self::WIDTH), or an input has not as many blocks as [`byte_blocks`] says.
    pub fn new(cols: usize, inputs: &[&[ByteBlock]]) -> Self {
        assert!(inputs.len() <= WIDTH, "{} inputs abreast", inputs.len());
        let fits = inputs
            .iter()
            .all(|blocks| blocks.len() == byte_blocks(cols));
        assert!(fits, "inputs of {cols} values");
        let mut sixteenths = Vec::with_capacity(cols / HALF);
        for h in 0..16 {
            for g in 0..blocks_with(cols, h) {
                let mut of_all = Sixteenth {
                    codes: [[0; 64]; 4],
                    scales: [0.0; WIDTH],
                    sums: [0; WIDTH],
                };
                for (i, blocks) in inputs.iter().enumerate() {
                    let block = &blocks[g];
                    let (fours, _) = block.codes[h / 4][16 * (h % 4)..].as_chunks::<4>();
                    for (to, four) in of_all.codes.iter_mut().zip(fours) {
                        to[4 * i..4 * i + 4].copy_from_slice(four);
                    }
                    of_all.scales[i] = block.scales[h];
                    of_all.sums[i] = block.sums[h];
                }
                sixteenths.push(of_all);
            }
        }
        Self {
            sixteenths,
            cols,
            count: inputs.len(),
        }
    }

    /// The number of inputs.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The sixteenths of all blocks by their number.
    fn by_number(&self) -> [&[Sixteenth]; 16] {
        let mut rest = &self.sixteenths[..];
        std::array::from_fn(|h| {
            let (these, others) = rest.split_at(blocks_with(self.cols, h));
            rest = others;
            these
        })
    }
}

/// Rows unpacked, in strips of as many as are multiplied at once: all a thread keeps of the last ones is the memory.
#[derive(Default)]
struct Unpacked {
    /// The codes of a quarter of a block of every row of a strip, then of the next block, quarter and strip.
    codes: Vec<[u8; 64]>,
    /// The scales of a block of every row of a strip, then of the next block and strip.
    scales: Vec<[f32; 16]>,
    /// The offsets, which lie as scales do.
    offsets: Vec<[f32; 16]>,
    /// The sums of the inputs for every row of a strip, of the first sixteenth of its blocks, then of the next.
    sums: Vec<[f32; FLOATS]>,
}

thread_local! {
    static SCRATCH: Cell<Unpacked> = Cell::default();
}

/// `out[i][r]` = row r . input i.
pub(super) struct Multiply<'a, 'o, 'p> {
    pub(super) rows: Rows<'a>,
    pub(super) inputs: &'a [Abreast],
    pub(super) out: &'o mut [&'p mut [f32]],
}

impl Work for Multiply<'_, '_, '_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        simd.strips(self);
    }
}

impl Strips for Multiply<'_, '_, '_> {
    #[inline(always)]
    fn run<S: Simd, const R: usize>(self, simd: S) {
        with_block!(self.rows.ty, B => self.blocks::<S, B, _, R>(simd),
            ty @ (GgmlType::F32 | GgmlType::F16 | GgmlType::BF16) => panic!("{ty} has no codes"),
        );
    }
}

impl Multiply<'_, '_, '_> {
    #[inline(always)]
    fn blocks<S: Simd, B: Packed<N>, const N: usize, const R: usize>(self, simd: S) {
        let Rows { ty, cols, bytes } = self.rows;
        let row_bytes = ty.row_bytes(cols).unwrap_or_default();
        let whole = row_bytes > 0 && cols.is_multiple_of(32) && bytes.len() % row_bytes == 0;
        assert!(whole, "{} bytes for rows of {cols} {ty}", bytes.len());
        let rows = bytes.len() / row_bytes;
        let inputs: usize = self.inputs.iter().map(|x| x.count).sum();
        let fits = self.out.iter().all(|out| out.len() == rows) && self.out.len() == inputs;
        assert!(fits, "outputs of {rows} rows for {inputs} inputs");
        let fits = self.inputs.iter().all(|x| x.cols == cols);
        assert!(fits, "inputs of {cols} values for {ty}");

        // For few inputs a strip does not leave the first cache.
        let at_once = match self.inputs.len() {
            0 => return,
            1 | 2 => R,
            _ => (UNPACKED / cols).next_multiple_of(R),
        };
        // Not in a closure, which might become a function without the instructions.
        let mut unpacked = SCRATCH.take();
        for first in (0..rows).step_by(at_once) {
            let count = at_once.min(rows - first);
            let bytes = &bytes[first * row_bytes..][..count * row_bytes];
            unpacked.fill::<S, B, N, R>(simd, bytes, row_bytes);
            let mut out = &mut *self.out;
            for x in self.inputs {
                let (these, others) = out.split_at_mut(x.count);
                out = others;
                unpacked.multiply::<S, B, N, R>(simd, x, first..first + count, these);
            }
        }
        SCRATCH.set(unpacked);
    }
}

impl Unpacked {
    /// Unpacks rows.
    #[inline(always)]
    fn fill<S: Simd, B: Packed<N>, const N: usize, const R: usize>(
        &mut self,
        simd: S,
        bytes: &[u8],
        row_bytes: usize,
    ) {
        let groups = (row_bytes / size_of::<B>()).div_ceil(N);
        let rows = (bytes.len() / row_bytes).next_multiple_of(R);
        self.codes.resize(4 * groups * rows, [0; 64]);
        self.scales.resize(groups * rows, [0.0; 16]);
        if B::OFFSETS != Offsets::None {
            self.offsets.resize(groups * rows, [0.0; 16]);
        }
        for (r, row) in bytes.chunks_exact(row_bytes).enumerate() {
            let blocks = bytemuck::cast_slice::<u8, B>(row).chunks(N);
            for (g, blocks) in blocks.enumerate() {
                // Blocks of zeroes behind the last, whose scales are finite.
                let mut whole = [B::zeroed(); N];
                let blocks = match <&[B; N]>::try_from(blocks) {
                    Ok(blocks) => blocks,
                    Err(_) => {
                        whole[..blocks.len()].copy_from_slice(blocks);
                        &whole
                    }
                };
                let [scales, offsets] = B::affine(simd, blocks);
                let place = (r / R * groups + g) * R + r % R;
                simd.store(scales, &mut self.scales[place]);
                if B::OFFSETS != Offsets::None {
                    simd.store(offsets, &mut self.offsets[place]);
                }
                for quarter in 0..4 {
                    let place = ((r / R * 4 + quarter) * groups + g) * R + r % R;
                    simd.put(B::codes(simd, blocks, quarter), &mut self.codes[place]);
                }
            }
        }
    }

    /// The products of rows `rows` of `out`.
    #[inline(always)]
    fn multiply<S: Simd, B: Packed<N>, const N: usize, const R: usize>(
        &mut self,
        simd: S,
        x: &Abreast,
        rows: std::ops::Range<usize>,
        out: &mut [&mut [f32]],
    ) {
        let groups = byte_blocks(x.cols);
        let by_number = x.by_number();
        let ((codes, _), (scales, _)) = (self.codes.as_chunks::<R>(), self.scales.as_chunks::<R>());
        let (offsets, _) = self.offsets.as_chunks::<R>();
        self.sums.resize(16 * R, [0.0; FLOATS]);
        for (strip, first) in rows.clone().step_by(R).enumerate() {
            let of_strip = strip * groups..(strip + 1) * groups;
            let scales = &scales[of_strip.clone()];
            let offsets = match B::OFFSETS {
                Offsets::None => scales,
                _ => &offsets[of_strip],
            };
            let (sums, _) = self.sums.as_chunks_mut::<R>();
            for (h, sums) in sums.iter_mut().enumerate() {
                let codes = &codes[(4 * strip + h / 4) * groups..][..groups];
                let next = match B::OFFSETS == Offsets::Of32 && h % 2 == 0 {
                    true => Some(by_number[h + 1]),
                    false => None,
                };
                let weights = codes.iter().zip(scales).zip(offsets);
                let of_rows = sixteenths::<S, B, N, R>(simd, h, weights, by_number[h], next);
                for (to, of_row) in sums.iter_mut().zip(of_rows) {
                    simd.store(of_row, to);
                }
            }
            for r in 0..R.min(rows.end - first) {
                let mut of_all = [simd.splat(0.0); 16];
                for (of_all, sums) in of_all.iter_mut().zip(&*sums) {
                    *of_all = simd.floats(&sums[r]);
                }
                let mut of_inputs = [0.0; FLOATS];
                simd.store(sum(of_all, |a, b| simd.add(a, b)), &mut of_inputs);
                for (out, y) in out.iter_mut().zip(of_inputs) {
                    out[first + r] = y;
                }
            }
        }
    }
}

/// The codes, the scales and the offsets of a block of each row of a strip.
type Strip<'a, const R: usize> = ((&'a [[u8; 64]; R], &'a [[f32; 16]; R]), &'a [[f32; 16]; R]);

/// The sums of sixteenth `h` of all blocks of a strip of rows. `next` are the inputs' next sixteenths, where its offset is theirs, too.
#[inline(always)]
fn sixteenths<'a, S: Simd, B: Packed<N>, const N: usize, const R: usize>(
    simd: S,
    h: usize,
    weights: impl Iterator<Item = Strip<'a, R>>,
    inputs: &[Sixteenth],
    next: Option<&[Sixteenth]>,
) -> [S::Floats; R] {
    let mut sums = [simd.splat(0.0); R];
    let scaled =
        |x: &Sixteenth| simd.mul(simd.floats(&x.scales), simd.to_floats(simd.ints(&x.sums)));
    for (g, (((codes, scales), offsets), x)) in weights.zip(inputs).enumerate() {
        let x_scales = simd.floats(&x.scales);
        let none = simd.ints(&[0; 16]);
        let begin = match B::zero::<S>() {
            0 => none,
            zero => simd.less(none, simd.ints(&x.sums), zero),
        };
        for r in 0..R {
            let (fours, _) = codes[r].as_chunks::<4>();
            let mut dots = begin;
            for i in 0..4 {
                dots = simd.dot_four(dots, &fours[4 * (h % 4) + i], &x.codes[i], B::WIDE);
            }
            let scales = simd.mul(simd.splat(scales[r][h]), x_scales);
            sums[r] = simd.fma(simd.to_floats(dots), scales, sums[r]);
        }
        let scaled = match (B::OFFSETS, next) {
            (Offsets::Of16, _) => scaled(x),
            (Offsets::Of32, Some(next)) => simd.add(scaled(x), scaled(&next[g])),
            _ => continue,
        };
        for r in 0..R {
            sums[r] = simd.fma(simd.splat(offsets[r][h]), scaled, sums[r]);
        }
    }
    sums
}
