//! A weight in host memory as the processor reads it: the bytes that shaders read over the bus, in the same layout.

use super::buffer::Range as BufferRange;
use super::host_memory::HostMemory;
use super::memory::{GpuWeight, Piece};
use crate::quant::GgmlType;
use crate::quant::dot::PlaneRows;
use crate::quant::repack::{head, plane_row_bytes};
use std::ops::Range;

/// A weight whose planes the processor reaches.
pub struct OnHost {
    /// The type of its weights.
    pub ty: GgmlType,
    /// Experts.
    pub groups: usize,
    /// Rows of each.
    pub rows: usize,
    /// Weights of a row.
    pub cols: usize,
    /// The memory of the quants, of the records and of the subs, the first byte there and the bytes of a row.
    planes: [(HostMemory, u64, usize); 3],
}

impl OnHost {
    /// The weight, if it lies in one piece in memory that the processor reaches.
    pub fn of(weight: &GpuWeight) -> Option<Self> {
        let [
            Piece {
                quants,
                scales,
                sub,
                ..
            },
        ] = &weight.pieces[..]
        else {
            return None;
        };
        let cols = weight.cols as usize;
        let [of_quants, of_records, of_subs] = plane_row_bytes(weight.ty, cols);
        let plane = |range: &BufferRange, first: u64, bytes: usize| {
            let memory = range.buffer.memory()?.clone();
            Some((memory, range.offset + first, bytes))
        };
        let behind_head = head(weight.ty).len() as u64;
        Some(Self {
            ty: weight.ty,
            groups: weight.groups as usize,
            rows: weight.rows as usize,
            cols,
            planes: [
                plane(quants, 0, of_quants)?,
                plane(scales, behind_head, of_records)?,
                plane(scales, 4 * u64::from(*sub), of_subs)?,
            ],
        })
    }

    /// Rows of an expert.
    ///
    /// # Safety
    /// Nothing writes to the weight while they are in use, neither on a device nor on the host.
    ///
    /// # Panics
    /// If there are no such rows.
    pub unsafe fn rows(&self, group: usize, rows: Range<usize>) -> PlaneRows<'_> {
        assert!(
            group < self.groups && rows.end <= self.rows,
            "rows {rows:?} of expert {group}"
        );
        let all = group * self.rows + rows.start..group * self.rows + rows.end;
        // SAFETY: as the caller promises.
        let planes = unsafe {
            [
                self.plane(0, &all),
                self.plane(1, &all),
                self.plane(2, &all),
            ]
        };
        PlaneRows {
            ty: self.ty,
            cols: self.cols,
            planes,
        }
    }

    /// The bytes of rows, counted over all experts, in a plane.
    ///
    /// # Safety
    /// As for [`rows`](Self::rows).
    unsafe fn plane(&self, plane: usize, rows: &Range<usize>) -> &[u8] {
        let (memory, first, bytes) = &self.planes[plane];
        let place = |row: usize| first + (row * bytes) as u64;
        // SAFETY: as the caller promises.
        unsafe { memory.bytes(place(rows.start)..place(rows.end)) }
    }

    /// Bytes of an expert.
    pub fn bytes_of_group(&self) -> usize {
        self.rows * self.planes.iter().map(|(.., bytes)| bytes).sum::<usize>()
    }
}
