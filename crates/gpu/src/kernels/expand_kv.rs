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
use half::slice::HalfFloatSliceExt;
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

/// Threads of a workgroup of the form without matrices. Its text divides a tile among so many.
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

/// `kv` (rows, width): the latent of each of the rows of `cache` (rows, kv_lora + rope) times each row of `weights`
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
            let mut latent = vec![0.0f32; kv_lora];
            row[..kv_lora].convert_to_f32_slice(&mut latent);
            for (kv, weights) in kv.iter_mut().zip(weights.chunks_exact(kv_lora)) {
                *kv = dot(&latent, weights);
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
pub(super) mod tests {
    use super::*;
    use crate::gpu::buffer::{Buffer, Role};
    use crate::gpu::call::State;
    use crate::gpu::testing::{download, gpu_weight, gpus, output, run, upload};
    use crate::gpu::{Coop, Gpu, GpuError, Most, Step};
    use crate::kernels::testing::coop::{APPLE, NVIDIA, emulated_call, emulates, has_matrices};
    use crate::kernels::testing::paged::Paged;
    use crate::kernels::testing::{
        Rng, assert_close, cache_rows, drawn_pairs, exact_rows, random_weight,
    };
    use crate::kernels::{MlaDims, expand_kv_coop};
    use crate::quant::GgmlType;

    /// GLM-4.7-Flash, DeepSeek-V2-Lite and Youtu-LLM-2B, the model inside the program; fewer heads.
    pub(in crate::kernels) fn shapes() -> [KvDims; 3] {
        [(3, 192, 256), (2, 128, 128), (4, 64, 128)].map(|(heads, nope, v)| KvDims {
            mla: MlaDims {
                heads,
                nope,
                rope: 64,
                kv_lora: 512,
            },
            v,
        })
    }

    fn weights(rng: &mut Rng, types: [GgmlType; 2], dims: KvDims) -> [Weight; 2] {
        let mla = dims.mla;
        [
            random_weight(rng, types[0], mla.heads, mla.kv_lora, mla.nope),
            random_weight(rng, types[1], mla.heads, dims.v, mla.kv_lora),
        ]
    }

    #[test]
    fn expanded_rows_are_products_of_latents_with_every_head() {
        let mut rng = Rng::fresh();
        let dims = KvDims {
            mla: MlaDims {
                heads: 3,
                nope: 32,
                rope: 8,
                kv_lora: 64,
            },
            v: 32,
        };
        let [k_b, v_b] = weights(&mut rng, [GgmlType::Q5_1, GgmlType::Q4_0], dims);
        let cache: Vec<f16> = rng.normals(2 * 72).into_iter().map(f16::from_f32).collect();
        let mut all = vec![f32::NAN; dims.width() * 64];
        expand_kv_weights(&k_b, &v_b, dims, &mut all);
        let mut kv = vec![f32::NAN; 2 * dims.width()];
        expand_kv(&cache, &all, dims, &mut kv);
        for (row, kv) in cache.chunks_exact(72).zip(kv.chunks_exact(dims.width())) {
            let latent: Vec<f32> = row[..64].iter().map(|x| x.to_f32()).collect();
            let mut exact = vec![];
            for h in 0..3 {
                let mut key = vec![0.0f64; 32];
                for (r, x) in latent.iter().enumerate() {
                    let mut weights = vec![0.0; 32];
                    dequantize_row(k_b.ty, k_b.row(h, r), &mut weights);
                    let sums = key.iter_mut().zip(&weights);
                    sums.for_each(|(k, w)| *k += f64::from(*x) * f64::from(*w));
                }
                exact.extend(key);
            }
            (0..3).for_each(|h| exact.extend(exact_rows(&v_b, h, &latent)));
            assert_close(kv, &exact, 1e-12, "a row");
        }
    }

    /// The content of keys, values and their weights, for matrices or in f32.
    pub(in crate::kernels) fn role(matrices: bool) -> Role {
        match matrices {
            true => Role::Halves,
            false => Role::Floats,
        }
    }

    #[test]
    fn what_does_not_fit_is_named_before_anything_runs() {
        let [dims, ..] = shapes();
        let range = |bytes, role| Range::whole(&Buffer::new("test", bytes, role));
        let found = |rows: usize, blocks, role| {
            let cache = range(200 * dims.mla.cache_row() as u64 * 2, Role::Cache);
            let weights = range(dims.weight_bytes(true), role);
            let kv = range(dims.kv_bytes(rows, true), Role::Halves);
            let tiled = expand_kv_coop::tiled(dims, NVIDIA);
            let call = call((None, &cache), &weights, dims, true, tiled, blocks, &kv);
            match Step::of(Most::token(200), [call]).resolve() {
                Ok(_) => String::new(),
                Err(GpuError::Interface { kernel, what }) => {
                    assert_eq!(kernel, "expand_kv_coop");
                    what
                }
                Err(e) => panic!("{e}"),
            }
        };
        let blocks = Blocks::new(64, 200);
        assert_eq!(found(64, blocks, Role::Halves), "");
        assert!(found(63, blocks, Role::Halves).contains("binding kv"));
        assert!(found(64, blocks, Role::Floats).contains("binding weights"));
        let few = Blocks::new(64, 192);
        assert!(found(64, few, Role::Halves).contains("do not hold the context"));
    }

    #[test]
    #[ignore = "long: scripts/test --all"]
    fn weights_of_every_type_become_those_of_the_twin() {
        let mut rng = Rng::fresh();
        let [glm, ..] = shapes();
        for (gpu, &ty) in drawn_pairs(gpus(), GgmlType::ALL) {
            // Blocks of 256 do not fit the columns of attn_k_b.
            let of_k_b = if glm.mla.nope.is_multiple_of(ty.block_len()) {
                ty
            } else {
                GgmlType::Q5_0
            };
            let [k_b, v_b] = weights(&mut rng, [of_k_b, ty], glm);
            let mut twin = vec![f32::NAN; glm.width() * 512];
            expand_kv_weights(&k_b, &v_b, glm, &mut twin);
            let exact: Vec<f64> = twin.iter().map(|x| f64::from(*x)).collect();
            let [k_b, v_b] = [k_b, v_b].map(|w| gpu_weight(gpu, &w));
            for matrices in [false, true] {
                let out = output(gpu, glm.weight_bytes(matrices) as usize / 4);
                let whole = Range::whole(&out).holding(role(matrices));
                let calls = weights_calls(&k_b, &v_b, glm, matrices, &whole);
                run(gpu, &calls, &State::default());
                let what = format!("{}, {matrices} on {}", ty.name(), gpu.tier.name());
                let found = values(gpu, &out, twin.len(), matrices);
                let limit = if matrices { 1e-7 } else { 1e-12 };
                assert_close(&found, &exact, limit, &what);
            }
        }
    }

    #[test]
    fn threads_behind_the_last_weight_write_nothing() {
        let mut rng = Rng::fresh();
        // 66 units of the values' weights, for workgroups of 64 threads.
        let dims = KvDims {
            mla: MlaDims {
                heads: 1,
                nope: 32,
                rope: 8,
                kv_lora: 64,
            },
            v: 33,
        };
        let [k_b, v_b] = weights(&mut rng, [GgmlType::Q8_0, GgmlType::Q8_0], dims);
        let mut twin = vec![f32::NAN; dims.width() * 64];
        expand_kv_weights(&k_b, &v_b, dims, &mut twin);
        let exact: Vec<f64> = twin.iter().map(|x| f64::from(*x)).collect();
        for gpu in gpus() {
            let [k_b, v_b] = [&k_b, &v_b].map(|w| gpu_weight(gpu, w));
            let out = output(gpu, twin.len() + 64 * 32);
            let whole = Range::whole(&out);
            let calls = weights_calls(&k_b, &v_b, dims, false, &whole);
            run(gpu, &calls, &State::default());
            let found: Vec<f32> = download(gpu, &out, twin.len() + 64 * 32);
            let (found, behind) = found.split_at(twin.len());
            assert_close(found, &exact, 1e-12, gpu.tier.name());
            assert!(behind.iter().all(|x| x.is_nan()), "written behind the end");
        }
    }

    /// The first `n` values of a buffer, of f16 for matrices or of f32.
    fn values(gpu: &Gpu, buffer: &Buffer, n: usize, matrices: bool) -> Vec<f32> {
        match matrices {
            true => {
                let halves: Vec<f16> = download(gpu, buffer, n);
                halves.iter().map(|x| x.to_f32()).collect()
            }
            false => download(gpu, buffer, n),
        }
    }

    /// A form, and the matrices and the order of threads that are emulated.
    type Form = (Tiled, Option<(Coop, bool)>);

    /// The forms that a device has.
    fn forms(gpu: &Gpu, dims: KvDims) -> Vec<Form> {
        let mut forms = vec![(tiled(dims), None)];
        let of_device = |shape: &expand_kv_coop::Shape| Some(shape.coop) == gpu.coop;
        for shape in expand_kv_coop::SHAPES.into_iter().filter(of_device) {
            forms.push((shape.tiled(dims), None));
        }
        if forms.len() == 1 {
            eprintln!("skipped: tier {} (no matrices)", gpu.tier.name());
        }
        forms
    }

    /// A context of `n` rows in blocks of `rows`, by every one of the `forms`, in a cache of its own or in pages.
    fn check(
        rng: &mut Rng,
        dims: KvDims,
        [n, rows]: [usize; 2],
        paged: bool,
        forms: impl Fn(&Gpu, KvDims) -> Vec<Form>,
    ) {
        let row = dims.mla.cache_row();
        let halves: Vec<f16> = rng
            .normals(dims.width() * dims.mla.kv_lora)
            .into_iter()
            .map(|x| f16::from_f32(x * 0.05))
            .collect();
        let weights: Vec<f32> = halves.iter().map(|x| x.to_f32()).collect();
        let cache = cache_rows(rng, n, row);
        // The buffer holds the last block in the end, in the rows that it has.
        let begin = (n - 1) / rows * rows;
        let mut twin = vec![f32::NAN; (n - begin) * dims.width()];
        expand_kv(&cache[begin * row..n * row], &weights, dims, &mut twin);
        let exact: Vec<f64> = twin.iter().map(|x| f64::from(*x)).collect();
        let paged = paged.then(|| Paged::new(rng, n));
        let cache = match &paged {
            Some(paged) => paged.cache(&cache[..n * row], row),
            None => cache,
        };
        for gpu in gpus() {
            let sequences = paged.as_ref().map(|paged| paged.sequences(gpu));
            for (form, emulation) in forms(gpu, dims) {
                let what = format!("{n} rows, {:?} on {}", form.0.variant, gpu.tier.name());
                let matrices = form.0.kernel == "expand_kv_coop";
                let out = output(gpu, dims.kv_bytes(rows, matrices) as usize / 4);
                let weights = match matrices {
                    true => upload(gpu, &halves),
                    false => upload(gpu, &weights),
                };
                let cache = Range::whole(&upload(gpu, &cache)).holding(Role::Cache);
                let mut call = call(
                    (sequences.as_ref(), &cache),
                    &Range::whole(&weights),
                    dims,
                    matrices,
                    form,
                    Blocks::new(rows as u32, n as u32 + 3),
                    &Range::whole(&out).holding(role(matrices)),
                );
                if let Some((coop, backwards)) = emulation {
                    call = emulated_call(&call, coop, backwards);
                }
                let state = State {
                    pos: n as u32 - 1,
                    tokens: 1,
                    first_page: paged.as_ref().map_or(0, Paged::first_page),
                    ..State::default()
                };
                run(gpu, &[call], &state);
                let found = values(gpu, &out, twin.len(), matrices);
                let limit = if matrices { 1e-7 } else { 1e-12 };
                assert_close(&found, &exact, limit, &what);
            }
        }
    }

    #[test]
    fn blocks_of_any_size_become_those_of_the_twin() {
        let mut rng = Rng::fresh();
        let first = rng.below(2);
        for (i, (dims, sizes)) in [
            (shapes()[0], [1, 64]),
            (shapes()[0], [200, 130]),
            (shapes()[1], [64, 64]),
            (shapes()[1], [129, 1024]),
            (shapes()[2], [67, 33]),
        ]
        .into_iter()
        .enumerate()
        {
            check(&mut rng, dims, sizes, i % 2 == first, forms);
        }
    }

    #[test]
    #[ignore = "long: scripts/test --all"]
    fn blocks_become_those_of_the_twin_where_matrices_are_emulated() {
        let mut rng = Rng::fresh();
        // Narrow, with columns that no tile divides.
        let dims = KvDims {
            mla: MlaDims {
                heads: 2,
                nope: 32,
                rope: 8,
                kv_lora: 64,
            },
            v: 66,
        };
        let forms = |gpu: &Gpu, dims| {
            let mut forms = vec![];
            if emulates(gpu) {
                // Backwards where that is quicker to compile.
                let kinds = [(NVIDIA, false), (APPLE, false), (APPLE, true)];
                for (coop, backwards) in kinds.into_iter().filter(|kind| has_matrices(kind.0)) {
                    let of_coop = |shape: &expand_kv_coop::Shape| shape.coop == coop;
                    for shape in expand_kv_coop::SHAPES.into_iter().filter(of_coop) {
                        forms.push((shape.tiled(dims), Some((coop, backwards))));
                    }
                }
            }
            forms
        };
        for (sizes, paged) in [([1, 64], false), ([200, 130], true), ([129, 1024], true)] {
            check(&mut rng, dims, sizes, paged, forms);
        }
    }
}
