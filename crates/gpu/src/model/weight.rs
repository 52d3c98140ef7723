//! A matrix, or a group of matrices, in its GGUF format: a view of the file or bytes of its own.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::gguf::{Gguf, GgufError, TensorInfo};
use crate::quant::GgmlType;

/// `groups` matrices of `rows` x `cols`; a row is consecutive in memory, the rows of a group follow one another.
#[derive(Clone)]
pub struct Weight {
    /// The tensor's GGUF name; of a part of a fused tensor, with the part in brackets.
    pub name: String,
    /// Format of the blocks.
    pub ty: GgmlType,
    /// Experts or heads; 1 for a plain matrix.
    pub groups: usize,
    /// Rows of each group: output values.
    pub rows: usize,
    /// Values of each row: input values, a multiple of 32.
    pub cols: usize,
    storage: Storage,
    /// Offset of the first row in the storage, in bytes.
    start: usize,
    /// Distance of the groups, in bytes; more than `rows` rows in a part of a fused tensor.
    group_stride: usize,
    row_bytes: usize,
}

#[derive(Clone)]
enum Storage {
    /// A tensor of the file, by its index.
    File(Arc<Gguf>, usize),
    Owned(Arc<[u8]>),
}

impl Weight {
    /// A weight that owns its bytes, groups one after another.
    ///
    /// # Panics
    /// If `bytes` is not exactly `groups` x `rows` rows of `cols` values of type `ty`.
    pub fn from_bytes(
        name: impl Into<String>,
        ty: GgmlType,
        groups: usize,
        rows: usize,
        cols: usize,
        bytes: impl Into<Arc<[u8]>>,
    ) -> Weight {
        let (name, bytes) = (name.into(), bytes.into());
        let row_bytes = ty
            .row_bytes(cols)
            .unwrap_or_else(|| panic!("{name}: rows of {cols} values of {ty}"));
        assert_eq!(
            bytes.len(),
            groups * rows * row_bytes,
            "bytes of {name}, {groups} x {rows} x {cols} of {ty}"
        );
        let group_stride = rows * row_bytes;
        Weight {
            name,
            ty,
            groups,
            rows,
            cols,
            storage: Storage::Owned(bytes),
            start: 0,
            group_stride,
            row_bytes,
        }
    }

    /// The tensor at `index` of the file as a weight; its shape must have been checked.
    pub(crate) fn from_tensor(
        gguf: &Arc<Gguf>,
        index: usize,
        groups: usize,
        rows: usize,
        cols: usize,
    ) -> Weight {
        let info = &gguf.tensors()[index];
        let row_bytes = (info.byte_len() / (groups * rows) as u64) as usize;
        Weight {
            name: info.name.clone(),
            ty: info.ty,
            groups,
            rows,
            cols,
            storage: Storage::File(Arc::clone(gguf), index),
            start: 0,
            group_stride: rows * row_bytes,
            row_bytes,
        }
    }

    /// A plain matrix as `groups` matrices of consecutive rows.
    ///
    /// # Panics
    /// If this is not one group, or its rows are not a multiple of `groups`.
    pub fn split_rows(self, groups: usize) -> Weight {
        assert!(
            self.groups == 1 && self.rows.is_multiple_of(groups),
            "{groups} groups of {self:?}"
        );
        let rows = self.rows / groups;
        Weight {
            groups,
            rows,
            group_stride: rows * self.row_bytes,
            ..self
        }
    }

    /// The given rows of every group, as a view of the same bytes; `part` joins the name.
    ///
    /// # Panics
    /// If `rows` is not within the rows of a group.
    pub fn part(&self, rows: Range<usize>, part: &str) -> Weight {
        assert!(
            rows.start <= rows.end && rows.end <= self.rows,
            "rows {rows:?} of {self:?}"
        );
        Weight {
            name: format!("{} ({part})", self.name),
            rows: rows.len(),
            start: self.start + rows.start * self.row_bytes,
            ..self.clone()
        }
    }

    /// Whether its bytes exist; those of a model without a file do not ([`Gguf::planned`]).
    pub fn has_data(&self) -> bool {
        match &self.storage {
            Storage::File(gguf, index) => gguf.has_data(&gguf.tensors()[*index]),
            Storage::Owned(_) => true,
        }
    }

    fn bytes(&self) -> &[u8] {
        match &self.storage {
            Storage::File(gguf, index) => gguf.data(&gguf.tensors()[*index]),
            Storage::Owned(bytes) => bytes,
        }
    }

    /// The bytes of one row.
    ///
    /// # Panics
    /// If `group` or `row` is out of range.
    pub fn row(&self, group: usize, row: usize) -> &[u8] {
        self.rows_bytes(group, row..row + 1)
    }

    /// The bytes of consecutive rows of one group.
    ///
    /// # Panics
    /// If `group` or `rows` is out of range.
    pub fn rows_bytes(&self, group: usize, rows: Range<usize>) -> &[u8] {
        assert!(
            group < self.groups && rows.end <= self.rows,
            "group {group}, rows {rows:?} of {self:?}"
        );
        let start = self.start + group * self.group_stride;
        &self.bytes()[start + rows.start * self.row_bytes..start + rows.end * self.row_bytes]
    }

    /// The bytes of consecutive rows, counted over all groups: borrowed where they lie so in the program's own memory,
    /// otherwise read from the file into `scratch`, past its map (see [`Gguf::read`]).
    ///
    /// # Errors
    /// [`GgufError::Read`].
    ///
    /// # Panics
    /// If `rows` is out of range.
    pub fn read_rows<'a>(
        &'a self,
        rows: Range<usize>,
        scratch: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], GgufError> {
        assert!(
            rows.start <= rows.end && rows.end <= self.groups * self.rows,
            "rows {rows:?} over all groups of {self:?}"
        );
        let in_memory = match &self.storage {
            Storage::File(gguf, index) => gguf.in_memory(&gguf.tensors()[*index]),
            Storage::Owned(bytes) => Some(&**bytes),
        };
        let len = rows.len() * self.row_bytes;
        let gapless = self.group_stride == self.rows * self.row_bytes;
        if let Some(bytes) = in_memory
            && gapless
        {
            return Ok(&bytes[self.start + rows.start * self.row_bytes..][..len]);
        }
        if scratch.len() < len {
            scratch.resize(len, 0);
        }
        let mut rest = &mut scratch[..len];
        let mut row = rows.start;
        while row < rows.end {
            let (group, inside) = (row / self.rows, row % self.rows);
            let left = rows.end - row;
            let take = if gapless {
                left
            } else {
                left.min(self.rows - inside)
            };
            let (into, behind) = rest.split_at_mut(take * self.row_bytes);
            let offset = self.start + group * self.group_stride + inside * self.row_bytes;
            match &self.storage {
                Storage::File(gguf, index) => gguf.read(&gguf.tensors()[*index], offset, into)?,
                Storage::Owned(bytes) => into.copy_from_slice(&bytes[offset..][..into.len()]),
            }
            rest = behind;
            row += take;
        }
        Ok(&scratch[..len])
    }

    /// Whether the system has a group in memory, by a byte in its middle. `None` where it does not tell, or where the weight is in no file.
    pub fn is_kept(&self, group: usize) -> Option<bool> {
        match &self.storage {
            Storage::File(gguf, index) => {
                gguf.is_kept(&gguf.tensors()[*index], self.bytes_of_group(group))
            }
            Storage::Owned(_) => None,
        }
    }

    /// Asks the system to forget a group, so that it is read from the disk next.
    pub fn let_go(&self, group: usize) {
        if let Storage::File(gguf, index) = &self.storage {
            gguf.let_go(&gguf.tensors()[*index], self.bytes_of_group(group));
        }
    }

    /// The place of a group among the bytes of its tensor.
    fn bytes_of_group(&self, group: usize) -> Range<usize> {
        let start = self.start + group * self.group_stride;
        start..start + self.rows * self.row_bytes
    }

    /// Whether what was read until now is what the model's files held when they were opened.
    ///
    /// # Errors
    /// The errors of [`Gguf::check_unchanged`].
    pub fn check_unchanged(&self) -> Result<(), GgufError> {
        match &self.storage {
            Storage::File(gguf, _) => gguf.check_unchanged(),
            Storage::Owned(_) => Ok(()),
        }
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Bytes of all rows of all groups.
    pub fn byte_len(&self) -> u64 {
        self.groups as u64 * self.rows as u64 * self.row_bytes as u64
    }

    /// The tensor of the file that this is a view of; `None` where the bytes were made at load.
    pub fn tensor(&self) -> Option<&TensorInfo> {
        match &self.storage {
            Storage::File(gguf, index) => Some(&gguf.tensors()[*index]),
            Storage::Owned(_) => None,
        }
    }
}

impl fmt::Debug for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} {} x {} x {}",
            self.name, self.ty, self.groups, self.rows, self.cols
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_takes_its_rows_of_every_group() {
        let values: Vec<f32> = (0..2 * 3 * 32).map(|i| i as f32).collect();
        let whole = Weight::from_bytes(
            "w",
            GgmlType::F32,
            2,
            3,
            32,
            bytemuck::cast_slice::<_, u8>(&values).to_vec(),
        );
        let part = whole.part(1..3, "tail");
        assert_eq!(
            (part.name.as_str(), part.groups, part.rows, part.cols),
            ("w (tail)", 2, 2, 32)
        );
        for group in 0..2 {
            for row in 0..2 {
                assert_eq!(part.row(group, row), whole.row(group, row + 1));
            }
            assert_eq!(part.rows_bytes(group, 0..2), whole.rows_bytes(group, 1..3));
        }
        let mut scratch = vec![];
        for rows in [0..4, 1..3, 2..3, 4..4] {
            let expected: Vec<u8> = rows
                .clone()
                .flat_map(|row| part.row(row / 2, row % 2).to_vec())
                .collect();
            let read = part.read_rows(rows.clone(), &mut scratch);
            assert_eq!(read.expect("it is in memory"), expected, "rows {rows:?}");
        }
        assert_eq!(part.byte_len(), 2 * 2 * 32 * 4);
        assert_eq!(part.row(1, 0)[..4], (128f32).to_le_bytes());
    }

    #[test]
    #[should_panic(expected = "group 2")]
    fn a_group_out_of_range_is_noticed() {
        Weight::from_bytes("w", GgmlType::F32, 2, 1, 32, vec![0; 256]).row(2, 0);
    }

    #[test]
    #[should_panic(expected = "rows 1..2")]
    fn a_row_of_the_next_group_is_not_reached() {
        Weight::from_bytes("w", GgmlType::F32, 2, 1, 32, vec![0; 256]).row(0, 1);
    }
}
