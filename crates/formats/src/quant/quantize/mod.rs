//! Quantisation of f32 to every tensor type.
//!
//! The legacy formats are quantised by the formulas of GGML's reference (`quantize_row_*_ref` in ggml-quants.c) and
//! give the same bytes. For the formats that leave a choice of scales, [`search`] minimises the squared error, and for those with grids
//! [`grids`] does.

mod grids;
mod iq1;
mod iq2;
mod iq3;
mod iq4;
mod k_quants;
mod legacy;
mod mxfp4;
mod search;

use half::{bf16, f16};
use rayon::prelude::*;

use super::block::Block;
use super::blocks::with_block;
use super::types::GgmlType;

/// A block that can be made from its weights.
trait Quantize<const N: usize>: Block<N> {
    /// The block that stands for `weights`.
    fn quantize(weights: &[f32; N]) -> Self;
}

/// Rounds `src.len()` weights to type `ty`.
///
/// Scales and minima that exceed f16 saturate, so that finite weights always give finite ones back; F16 and BF16 themselves round as IEEE says, to infinity beyond their range. What a NaN or an infinity among the
/// weights of a block makes of that block is unspecified.
///
/// # Panics
/// If `src` is not a whole number of blocks, or `dst` not exactly their bytes: both lengths follow from a tensor's
/// shape.
pub fn quantize_row(ty: GgmlType, src: &[f32], dst: &mut [u8]) {
    assert_eq!(
        Some(dst.len()),
        ty.row_bytes(src.len()),
        "{} bytes of {ty} for {} weights",
        dst.len(),
        src.len(),
    );
    with_block!(ty, B => quantize_blocks::<B, _>(src, dst),
        GgmlType::F32 => convert(src, dst, f32::to_le_bytes),
        GgmlType::F16 => convert(src, dst, |w| f16::from_f32(w).to_le_bytes()),
        GgmlType::BF16 => convert(src, dst, |w| bf16::from_f32(w).to_le_bytes()),
    )
}

/// [`quantize_row`] for a tensor of rows of `cols` weights, on all threads of the rayon pool.
///
/// # Panics
/// If `cols` is zero or no whole number of blocks, `src` no whole number of rows, or `dst` not exactly their bytes.
pub fn quantize_rows(ty: GgmlType, cols: usize, src: &[f32], dst: &mut [u8]) {
    let row_bytes = match ty.row_bytes(cols) {
        Some(bytes) if bytes > 0 => bytes,
        _ => panic!("rows of {cols} weights cannot be {ty}"),
    };
    assert!(
        src.len().is_multiple_of(cols),
        "{} weights in rows of {cols}",
        src.len()
    );
    assert_eq!(
        dst.len(),
        src.len() / cols * row_bytes,
        "bytes of {ty} for {} weights",
        src.len()
    );
    src.par_chunks(cols)
        .zip(dst.par_chunks_mut(row_bytes))
        .for_each(|(src, dst)| quantize_row(ty, src, dst));
}

fn convert<const BYTES: usize>(src: &[f32], dst: &mut [u8], narrow: impl Fn(f32) -> [u8; BYTES]) {
    let (words, _) = dst.as_chunks_mut::<BYTES>();
    for (word, &weight) in words.iter_mut().zip(src) {
        *word = narrow(weight);
    }
}

fn quantize_blocks<B: Quantize<N>, const N: usize>(src: &[f32], dst: &mut [u8]) {
    let blocks: &mut [B] = bytemuck::cast_slice_mut(dst);
    let (rows, _) = src.as_chunks::<N>();
    for (block, weights) in blocks.iter_mut().zip(rows) {
        *block = B::quantize(weights);
    }
}

/// A scale as the two bytes of an f16. Saturates: one infinite scale would make NaN of the zeros of its block.
fn narrow(scale: f32) -> [u8; 2] {
    let largest = f16::MAX.to_f32();
    f16::from_f32(scale.max(-largest).min(largest)).to_le_bytes()
}

/// The value of largest magnitude, the first of several.
fn extreme(values: &[f32]) -> f32 {
    let larger = |extreme: f32, &v: &f32| if v.abs() > extreme.abs() { v } else { extreme };
    values.iter().fold(0.0, larger)
}

/// `1 / scale`, or 0 for a scale of 0.
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// Rounds to the nearest integer, ties to even, for |v| < 2^22: adding 1.5 * 2^23 leaves no bits for a fraction. Unlike
/// `f32::round_ties_even` this vectorises without SSE4.1.
fn nearest(v: f32) -> f32 {
    const NO_FRACTION: f32 = 12_582_912.0;
    (v + NO_FRACTION) - NO_FRACTION
}

/// The integer code nearest to `v` in `low..=high`; NaN gives `low`.
fn code(v: f32, low: f32, high: f32) -> f32 {
    nearest(v.max(low).min(high))
}

#[cfg(test)]
mod tests;
