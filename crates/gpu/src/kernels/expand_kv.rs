//! Keys and values of context rows, expanded from their latents: what the attention of prompts works on.
//!
//! Once per layer and chunk `attn_k_b` and `attn_v_b` become one matrix ([`weights_calls`]), then each block of
//! context rows is multiplied by it: in f32, or in f16 by cooperative matrices.

use super::expand_kv_coop::Tiled;
use super::linear::dot;
use super::sequences::Sequences;
use super::{KvDims, MAX_GRID};
use crate::gpu::buffer::Range;
use crate::gpu::call::{Blocks, Call, Extent, Flops, Word};
use crate::gpu::memory::GpuWeight;
use crate::model::Weight;
use crate::quant::dequantize_row;
use crate::quant::repack::shader_module;
use half::f16;
use rayon::prelude::*;

/// Threads of a workgroup that unpacks weights: as many rows of `attn_k_b`, which has a multiple of them.
const WEIGHTS_WG: usize = 64;

/// The dispatches that unpack a layer's `attn_k_b` and `attn_v_b` to `out` (width, kv_lora), of f16 for matrices or f32.
///
/// # Panics
/// If a weight has another shape, or the latent's width is not a multiple of 64.
pub fn weights_calls(
    k_b: &GpuWeight,
    v_b: &GpuWeight,
    dims: KvDims,
    matrices: bool,
    out: &Range,
) -> Vec<Call> {
    let mla = dims.mla;
    let shape = |w: &GpuWeight| [w.groups, w.rows, w.cols].map(|n| n as usize);
    assert_eq!(
        [shape(k_b), shape(v_b)],
        [
            [mla.heads, mla.kv_lora, mla.nope],
            [mla.heads, dims.v, mla.kv_lora]
        ],
        "{} and {} as (heads, rows, columns)",
        k_b.name,
        v_b.name
    );
    assert!(
        mla.kv_lora.is_multiple_of(WEIGHTS_WG),
        "expand_kv works on {WEIGHTS_WG} rows at a time: {mla:?}"
    );
    let mut calls = vec![];
    for (weight, transposed, out_row) in [(k_b, true, 0), (v_b, false, mla.heads * mla.nope)] {
        for piece in &weight.pieces {
            let units = weight.cols / 32;
            let wg = WEIGHTS_WG as u32;
            let grid = if transposed {
                // Pieces are cut between heads, so this cuts nothing.
                assert!(
                    piece.rows.is_multiple_of(wg) && piece.first_row.is_multiple_of(wg),
                    "{}: pieces of whole {wg} rows",
                    weight.name
                );
                [piece.rows / wg, units, 1]
            } else {
                [(piece.rows * units).div_ceil(wg), 1, 1]
            };
            assert!(grid.iter().all(|n| *n <= MAX_GRID), "{}", weight.name);
            let kernel = match transposed {
                true => Call::new("expand_kv_turned")
                    .number("NOPE", mla.nope as u32)
                    .number("KV_LORA", mla.kv_lora as u32),
                false => Call::new("expand_kv_weights"),
            };
            let call = kernel
                .module("WEIGHT", shader_module(weight.ty))
                .number("WG", wg)
                .flag("HALVES", matrices)
                .planes(["w_q", "w_s"], piece)
                .bind("weights", out)
                .word("rows", piece.rows)
                .word("first_row", piece.first_row)
                .word("units", units)
                .word("sub", piece.sub)
                .word("out_row", out_row as u32)
                .grid(grid.map(Extent::N))
                .with_bytes(weight.bytes_of_rows(u64::from(piece.rows)))
                .with_shape(weight.shape());
            calls.push(call);
        }
    }
    calls
}

/// Threads of a workgroup of the form without matrices. Its text divides a tile among these.
const WG: usize = 128;
/// Rows and columns of its tile.
const TILE: usize = 64;

/// The form without matrices.
pub(super) fn tiled(dims: KvDims) -> Tiled {
    let kernel = Call::new("expand_kv").variant(dims.numbers_of_expansion());
    (kernel.number("WG", WG as u32), [TILE; 2])
}

/// Whether the kernels can work on blocks of these sizes.
pub(super) fn fits(dims: KvDims) -> bool {
    dims.mla.kv_lora.is_multiple_of(WEIGHTS_WG)
        && dims.mla.nope.is_multiple_of(32)
        && dims.mla.rope.is_multiple_of(8)
        && dims.v.is_multiple_of(2)
}

/// The expansion of each block of the context by a kernel. It multiplies latents by `weights`, which [`weights_calls`] makes, and writes
/// `kv` (rows of a block, width). Both are f16 for `matrices`, and else f32. With `sequences` the cache has pages, and the context is that
/// of one sequence.
///
/// # Panics
/// If a size does not suit, or the tokens of a step may belong to several sequences.
pub(super) fn call(
    (sequences, cache): (Option<&Sequences>, &Range),
    weights: &Range,
    dims: KvDims,
    matrices: bool,
    (kernel, [tile_rows, tile_columns]): Tiled,
    blocks: Blocks,
    kv: &Range,
) -> Call {
    assert!(fits(dims), "expand_kv: {dims:?}");
    let rows = Extent::BlockRowsBy(tile_rows as u32);
    let columns = dims.width().div_ceil(tile_columns) as u32;
    Sequences::bind_own_pages(sequences, kernel)
        .bind("cache", cache)
        .bind("weights", weights)
        .bind("kv", kv)
        .word("begin", Word::BlockBegin)
        .word("rows", Word::BlockRows)
        .grid([rows, Extent::N(columns), Extent::N(1)])
        .per_block(blocks)
        .with_bytes(dims.weight_bytes(matrices))
        .with_bytes_per_row(dims.mla.cache_row() as u64 * 2)
        .with_flops(Flops {
            per_row: 2 * (dims.width() * dims.mla.kv_lora) as u64,
            ..Flops::default()
        })
        .with_shape(format!("{}x{}", dims.width(), dims.mla.kv_lora))
}

/// `kv` (rows, width): the latent of each of the rows of `cache`, (rows) as `dims` say, times each row of `weights`
/// (width, kv_lora).
///
/// # Panics
/// If a size does not fit the others.
pub fn expand_kv(cache: &[f16], weights: &[f32], dims: KvDims, kv: &mut [f32]) {
    let (row, kv_lora) = (dims.mla.cache_row(), dims.mla.kv_lora);
    assert_eq!(weights.len(), dims.width() * kv_lora, "weights");
    assert_eq!(kv.len(), cache.len() / row * dims.width(), "expanded rows");
    kv.par_chunks_exact_mut(dims.width())
        .zip(cache.par_chunks_exact(row))
        .for_each(|(kv, row)| {
            let mut values = vec![0.0f32; dims.mla.cache_values()];
            dims.mla.rows().read(row, &mut values);
            for (kv, weights) in kv.iter_mut().zip(weights.chunks_exact(kv_lora)) {
                *kv = dot(&values[..kv_lora], weights);
            }
        });
}

/// The rows of `attn_k_b` (heads, kv_lora, nope), transposed, and of `attn_v_b` (heads, v, kv_lora) as one matrix (heads *
/// nope + heads * v, kv_lora).
///
/// # Panics
/// If a weight does not have that shape.
pub fn expand_kv_weights(k_b: &Weight, v_b: &Weight, dims: KvDims, out: &mut [f32]) {
    let (heads, nope, kv_lora) = (dims.mla.heads, dims.mla.nope, dims.mla.kv_lora);
    assert_eq!(
        [
            (k_b.groups, k_b.rows, k_b.cols),
            (v_b.groups, v_b.rows, v_b.cols)
        ],
        [(heads, kv_lora, nope), (heads, dims.v, kv_lora)],
        "{} and {} as (heads, rows, columns)",
        k_b.name,
        v_b.name
    );
    assert_eq!(out.len(), dims.width() * kv_lora, "weights");
    let (keys, values) = out.split_at_mut(heads * nope * kv_lora);
    let mut row = vec![0.0f32; nope];
    for (head, keys) in keys.chunks_exact_mut(nope * kv_lora).enumerate() {
        for r in 0..kv_lora {
            dequantize_row(k_b.ty, k_b.row(head, r), &mut row);
            for (c, w) in row.iter().enumerate() {
                keys[c * kv_lora + r] = *w;
            }
        }
    }
    for (i, out) in values.chunks_exact_mut(kv_lora).enumerate() {
        dequantize_row(v_b.ty, v_b.row(i / dims.v, i % dims.v), out);
    }
}

#[cfg(test)]
mod tests;
