//! The repacking for 16-byte loads: GGUF blocks of 18, 110 or 210 bytes are split over two planes, one of the codes
//! and one of everything else, in which every unit of 32 weights starts where a shader can load it with whole words.
//!
//! Units are numbered over the tensor: unit `row * cols / 32 + b` is weights `32 b .. 32 b + 32` of a row. The
//! repacking only permutes bits and turns some over (Q3_K gains two bytes of padding per 110), so nothing is lost.
//! The layout of each type is told by the heads of the modules in `wgsl/shared`, see [`shader_module`].
//!
//! A type with a grid keeps its indices, and its scales plane begins with the points of the grid ([`head`]). Levels in the place of indices
//! would need no look-up, but files of these types are chosen for their size, and they would grow: IQ2_XXS from 2.06 to 3.06 bits per weight,
//! IQ2_S from 2.56 to 3.31, IQ3_S from 3.44 to 4.31, IQ1_S from 1.56 to 2.19. Workgroup memory would have to be filled by each workgroup,
//! with up to as many bytes as the weights that it multiplies, and waited for. The points are packed into 1 to 4 KiB for each piece of
//! a tensor, so that they stay in a core's cache.

mod bits;
mod planes;

use std::ops::Range;

use bytemuck::Pod;

use super::blocks::with_block;
use super::types::GgmlType;
use planes::joined::join_blocks;
use planes::{Plain, Planar};
pub(super) use planes::{Q5KRecord, Q6KRecord, ScalesMins};

/// Weights per unit: what a shader dequantises at once.
pub const UNIT: usize = 32;
/// Values of an activation that share a scale: half a unit.
pub const HALF: usize = UNIT / 2;

/// A tensor may be repacked in runs of rows that begin at multiples of this: their places in the planes then begin and
/// end at whole vec4.
pub const ROW_STEP: usize = 16;

/// A repacked tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planes {
    /// The codes, or the weights themselves for the float types.
    pub quants: Vec<u8>,
    /// Scales, minima and high bits.
    pub scales: Vec<u8>,
}

impl Planes {
    /// Repacks the `rows * cols` weights of `src`; panics as [`repack_rows`] does.
    pub fn new(ty: GgmlType, rows: usize, cols: usize, src: &[u8]) -> Self {
        let (quants, scales) = plane_bytes(ty, rows, cols);
        let mut planes = Planes {
            quants: vec![0; quants],
            scales: vec![0; scales],
        };
        let (front, rest) = planes.scales.split_at_mut(head(ty).len());
        front.copy_from_slice(head(ty));
        let (records, subs) = rest.split_at_mut(extent(ty, rows, cols).records);
        repack_rows(ty, cols, src, [&mut planes.quants, records, subs]);
        planes
    }
}

/// The bytes that the scales plane of `ty` begins with, before the records: the points of its grid, nothing for types without one.
pub fn head(ty: GgmlType) -> &'static [u8] {
    bytemuck::cast_slice(with_block!(ty, B => B::head(),
        GgmlType::F32 => Plain::<128>::head(),
        GgmlType::F16 | GgmlType::BF16 => Plain::<64>::head(),
    ))
}

/// The sizes of a tensor's planes.
struct Extent {
    head: usize,
    quants: usize,
    records: usize,
    subs: usize,
}

fn extent(ty: GgmlType, rows: usize, cols: usize) -> Extent {
    let block_len = UNIT.max(ty.block_len());
    assert!(
        cols.is_multiple_of(block_len),
        "rows of {cols} weights cannot be repacked as {ty}",
    );
    let bytes_of_row = plane_row_bytes(ty, cols);
    let [quants, records, subs] = bytes_of_row.map(|bytes| (rows * bytes).next_multiple_of(16));
    Extent {
        head: head(ty).len(),
        quants,
        records,
        subs,
    }
}

/// Bytes that a row of `cols` weights has in each plane: of its quants, its records and its subs.
pub fn plane_row_bytes(ty: GgmlType, cols: usize) -> [usize; 3] {
    let sizes = with_block!(ty, B => sizes::<B>(),
        GgmlType::F32 => sizes::<Plain<128>>(),
        GgmlType::F16 | GgmlType::BF16 => sizes::<Plain<64>>(),
    );
    sizes.map(|bytes| cols / UNIT.max(ty.block_len()) * bytes)
}

/// Bytes that a block has in each plane.
fn sizes<B: Planar>() -> [usize; 3] {
    [
        size_of::<B::Quants>(),
        size_of::<B::Record>(),
        size_of::<B::Sub>(),
    ]
}

impl Extent {
    /// A binding may not be empty, so the scales plane of the float types is one unused vec4.
    fn scales(&self) -> usize {
        (self.head + self.records + self.subs).max(16)
    }
}

/// The bytes of a run of rows in the planes of its tensor. The runs of a tensor cover its planes without gaps, but for the
/// [`head`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sections {
    /// The bytes in the quants plane.
    pub quants: Range<usize>,
    /// The bytes in the scales plane behind its head; empty for some types.
    pub records: Range<usize>,
    /// The bytes in the sub-plane of the scales plane; empty for some types.
    pub subs: Range<usize>,
}

impl Sections {
    /// Bytes of all three.
    pub fn bytes(&self) -> usize {
        self.quants.len() + self.records.len() + self.subs.len()
    }

    /// The three, in this order.
    pub fn in_order(&self) -> [&Range<usize>; 3] {
        [&self.quants, &self.records, &self.subs]
    }
}

/// The bytes of the run `run` of a tensor's `rows` rows in its planes. The last run takes the padding behind it along.
///
/// # Panics
/// Panics like [`plane_bytes`], and if the run does not begin at a multiple of [`ROW_STEP`], or does not end at one or at the last
/// row.
pub fn sections(ty: GgmlType, rows: usize, cols: usize, run: Range<usize>) -> Sections {
    assert!(
        run.start.is_multiple_of(ROW_STEP)
            && (run.end == rows || run.end < rows && run.end.is_multiple_of(ROW_STEP)),
        "rows {run:?} of {rows} cannot be repacked on their own"
    );
    let all = extent(ty, rows, cols);
    let before = extent(ty, run.start, cols);
    let end = if run.end == rows {
        Extent {
            subs: all.scales() - all.head - all.records,
            ..all
        }
    } else {
        extent(ty, run.end, cols)
    };
    let (records, subs) = (all.head, all.head + all.records);
    Sections {
        quants: before.quants..end.quants,
        records: records + before.records..records + end.records,
        subs: subs + before.subs..subs + end.subs,
    }
}

/// Bytes of the quants plane and of the scales plane; each is a multiple of 16 and at least 16 for a tensor that is
/// not empty.
///
/// # Panics
/// If `cols` is no multiple of [`UNIT`] and of the type's block length.
pub fn plane_bytes(ty: GgmlType, rows: usize, cols: usize) -> (usize, usize) {
    let extent = extent(ty, rows, cols);
    (extent.quants, extent.scales())
}

/// The start of the sub-plane in the scales plane, in u32 words; 0 for types without one. The kernels pass it on as
/// `sub` to the module's `unit` function. Panics as [`plane_bytes`] does.
pub fn sub_plane_words(ty: GgmlType, rows: usize, cols: usize) -> usize {
    let extent = extent(ty, rows, cols);
    if extent.subs == 0 {
        0
    } else {
        (extent.head + extent.records) / 4
    }
}

/// The name of the WGSL module in `wgsl/shared` that reads the planes of `ty`.
pub fn shader_module(ty: GgmlType) -> &'static str {
    ty.module()
}

/// Whether the module of `ty` also gives its weights as signed bytes for integer dot products: `codes` (32 bytes per unit)
/// and `affine` (scale and offset of the unit's two halves), where a weight is scale * code + offset. True for every type
/// but the float types.
pub fn has_codes(ty: GgmlType) -> bool {
    !matches!(ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16)
}

/// Whether the codes of `ty` are four bits each, in one plane, with one scale and offset for a unit.
pub fn has_nibbles(ty: GgmlType) -> bool {
    matches!(ty, GgmlType::Q4_0 | GgmlType::Q4_1 | GgmlType::Q4_K)
}

/// Splits the weights of `src`, whole rows of `cols` weights, over their places in the planes: quants, records and subs,
/// as long as [`sections`] says.
///
/// # Panics
/// If `cols` does not fit the type (see [`plane_bytes`]), `src` is not whole rows, or a place is too short.
pub fn repack_rows(ty: GgmlType, cols: usize, src: &[u8], places: [&mut [u8]; 3]) {
    let row_bytes = ty.row_bytes(cols).unwrap_or(usize::MAX);
    assert!(
        src.len().is_multiple_of(row_bytes),
        "{} bytes are not whole rows of {cols} weights of {ty}",
        src.len()
    );
    with_block!(ty, B => split_blocks::<B>(src, places),
        GgmlType::F32 => split_blocks::<Plain<128>>(src, places),
        GgmlType::F16 | GgmlType::BF16 => split_blocks::<Plain<64>>(src, places),
    )
}

fn split_blocks<B: Planar>(src: &[u8], [quants, records, subs]: [&mut [u8]; 3]) {
    let blocks: &[B] = bytemuck::cast_slice(src);
    let (quants, quants_rest) = quants.split_at_mut(blocks.len() * size_of::<B::Quants>());
    let (records, records_rest) = records.split_at_mut(blocks.len() * size_of::<B::Record>());
    let (subs, subs_rest) = subs.split_at_mut(blocks.len() * size_of::<B::Sub>());
    for (i, block) in blocks.iter().enumerate() {
        let (quant, record, sub) = block.split();
        store(quants, i, &quant);
        store(records, i, &record);
        store(subs, i, &sub);
    }
    for rest in [quants_rest, records_rest, subs_rest] {
        rest.fill(0);
    }
}

/// The inverse of [`repack_rows`]: the weights `to`, whole rows of `cols` weights, from their places in the planes, which begin with the first
/// of these rows.
///
/// # Panics
/// If `cols` does not fit the type (see [`plane_bytes`]), `to` is not whole rows, or a place is too short.
#[inline(always)]
pub fn unpack_rows(ty: GgmlType, cols: usize, places: [&[u8]; 3], to: &mut [u8]) {
    let row_bytes = ty.row_bytes(cols).unwrap_or(usize::MAX);
    assert!(
        to.len().is_multiple_of(row_bytes),
        "{} bytes are not whole rows of {cols} weights of {ty}",
        to.len()
    );
    with_block!(ty, B => join_blocks::<B>(places, to),
        GgmlType::F32 => join_blocks::<Plain<128>>(places, to),
        GgmlType::F16 | GgmlType::BF16 => join_blocks::<Plain<64>>(places, to),
    )
}

/// [`unpack_rows`] of a whole tensor.
///
/// # Panics
/// Panics like [`plane_bytes`], and if a plane has another size than that says.
#[cfg(any(test, feature = "testing"))]
pub fn unpack(ty: GgmlType, rows: usize, cols: usize, quants: &[u8], scales: &[u8]) -> Vec<u8> {
    let extent = extent(ty, rows, cols);
    assert_eq!(quants.len(), extent.quants, "bytes of the quants plane");
    assert_eq!(scales.len(), extent.scales(), "bytes of the scales plane");
    let (records, subs) = scales[extent.head..].split_at(extent.records);
    let row_bytes = ty.row_bytes(cols).expect("the planes have a size");
    let mut rows = vec![0; rows * row_bytes];
    unpack_rows(ty, cols, [quants, records, subs], &mut rows);
    rows
}

fn store<T: Pod>(plane: &mut [u8], i: usize, value: &T) {
    let size = size_of::<T>();
    plane[i * size..(i + 1) * size].copy_from_slice(bytemuck::bytes_of(value));
}

#[cfg(test)]
mod tests;
