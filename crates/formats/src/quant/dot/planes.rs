//! Products of rows that lie as a device reads them (`repack`). Some rows at a time become blocks again, which stay in a core's first cache.

use std::cell::Cell;

use super::rows::Multiply;
use super::simd::{Simd, Work};
use super::{Input, Instructions, Rows};
use crate::quant::repack::{plane_row_bytes, unpack_rows};
use crate::quant::types::GgmlType;

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
    /// `out[r]` = row r . `input`, to the bit as [`multiply`](Self::multiply) has it.
    ///
    /// # Panics
    /// If a size does not fit the others.
    pub fn multiply_planes(self, rows: PlaneRows<'_>, input: Input<'_>, out: &mut [f32]) {
        let row_bytes = rows.ty.row_bytes(rows.cols).unwrap_or_default().max(1);
        let at_once = (AT_ONCE / row_bytes).max(1);
        let mut blocks = BLOCKS.take();
        blocks.resize(blocks.len().max(at_once * row_bytes), 0);
        self.run(MultiplyPlanes {
            rows,
            input,
            out,
            blocks: &mut blocks,
            row_bytes,
            at_once,
        });
        BLOCKS.set(blocks);
    }
}

struct MultiplyPlanes<'a, 'o> {
    rows: PlaneRows<'a>,
    input: Input<'a>,
    out: &'o mut [f32],
    blocks: &'o mut [u8],
    row_bytes: usize,
    at_once: usize,
}

impl Work for MultiplyPlanes<'_, '_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let PlaneRows { ty, cols, planes } = self.rows;
        let bytes = plane_row_bytes(ty, cols);
        for (i, out) in self.out.chunks_mut(self.at_once).enumerate() {
            let first = i * self.at_once;
            let places = [0, 1, 2].map(|plane| &planes[plane][first * bytes[plane]..]);
            let blocks = &mut self.blocks[..out.len() * self.row_bytes];
            unpack_rows(ty, cols, places, blocks);
            let rows = Rows {
                ty,
                cols,
                bytes: blocks,
            };
            Multiply::new(rows, &[self.input], &mut [out]).run(simd);
        }
    }
}
