//! Protects the attention of one token and of few against its twin: every form, any cut into slices, and rows a token may not see.

use super::*;
use crate::gpu::buffer::{Buffer, Role};
use crate::gpu::call::State;
use crate::gpu::machine::Machine;
use crate::gpu::testing::{download, gpus, output, run, upload};
use crate::gpu::{Gpu, GpuError, Most, Step};
use crate::kernels::CacheType;
use crate::kernels::cases::Case;
use crate::kernels::cases::attention::{Context, DEEPSEEK, GLM, Kernel};
use crate::kernels::testing::{Rng, agree, agree_everywhere, assert_close};
use crate::kernels::{attention_coop, attention_heads, attention_merge};
use crate::quant::activation::Activation;
use half::slice::HalfFloatSliceExt;

mod pages;

#[test]
fn softmax_weighted_sum_of_what_each_token_may_see() {
    let mut rng = Rng::fresh();
    for (dims, pos, n_tokens) in [
        (
            MlaDims {
                heads: 3,
                nope: 32,
                rope: 16,
                kv_lora: 40,
                cache: CacheType::F16,
            },
            7,
            4,
        ),
        (
            MlaDims {
                heads: 2,
                nope: 128,
                rope: 64,
                kv_lora: 512,
                cache: CacheType::F16,
            },
            0,
            1,
        ),
        (
            MlaDims {
                heads: 2,
                nope: 128,
                rope: 64,
                kv_lora: 512,
                cache: CacheType::F16,
            },
            150,
            2,
        ),
    ] {
        let row = dims.cache_row();
        let n_ctx = pos + n_tokens + 3;
        // Rows behind the last token are NaN: reading one would show.
        let mut cache: Vec<f16> = rng
            .normals(n_ctx * row)
            .into_iter()
            .map(f16::from_f32)
            .collect();
        cache[(pos + n_tokens) * row..].fill(f16::NAN);
        let q_lat = rng.normals(n_tokens * dims.heads * dims.kv_lora);
        let q_pe = rng.normals(n_tokens * dims.heads * dims.rope);
        let scale = 1.0 / (row as f32).sqrt();
        let mut out = vec![f32::NAN; q_lat.len()];
        attention(&q_lat, &q_pe, &cache, pos, n_tokens, dims, scale, &mut out);

        for t in 0..n_tokens {
            for h in 0..dims.heads {
                let i = t * dims.heads + h;
                let q = q_lat[i * dims.kv_lora..][..dims.kv_lora]
                    .iter()
                    .chain(&q_pe[i * dims.rope..][..dims.rope]);
                let q: Vec<f64> = q.map(|x| f64::from(*x)).collect();
                let mut sum = 0.0;
                let mut exact = vec![0.0; dims.kv_lora];
                for k in cache.chunks_exact(row).take(pos + t + 1) {
                    let k: Vec<f64> = k.iter().map(|x| x.to_f64()).collect();
                    let score: f64 = q.iter().zip(&k).map(|(a, b)| a * b).sum();
                    let weight = (score * f64::from(scale)).exp();
                    sum += weight;
                    exact.iter_mut().zip(&k).for_each(|(e, k)| *e += weight * k);
                }
                exact.iter_mut().for_each(|e| *e /= sum);
                assert_close(
                    &out[i * dims.kv_lora..][..dims.kv_lora],
                    &exact,
                    1e-11,
                    "head",
                );
            }
        }
    }
}

#[test]
fn scores_far_beyond_the_range_of_exp_stay_finite() {
    let dims = MlaDims {
        heads: 1,
        nope: 2,
        rope: 2,
        kv_lora: 4,
        cache: CacheType::F16,
    };
    let cache: Vec<f16> = (0..3 * 6).map(|i| f16::from_f32(i as f32)).collect();
    let mut out = vec![f32::NAN; 4];
    attention(&[100.0; 4], &[100.0; 2], &cache, 2, 1, dims, 1.0, &mut out);
    assert_eq!(out, [12.0, 13.0, 14.0, 15.0], "all weight on the last row");
}

#[test]
fn slices_cover_the_context_and_fit_the_partial_sums() {
    let matrices = [0, 3, 4].map(|i| {
        let shapes = &attention_coop::SHAPES[i..];
        let shapes = attention_coop::Shapes::untried(Machine::H200, shapes);
        Form::Matrix(shapes.expect("some"))
    });
    let dims = MlaDims {
        heads: 20,
        nope: 192,
        rope: 64,
        kv_lora: 512,
        cache: CacheType::F16,
    };
    let of_heads = attention_heads::Shape::of(dims, 32 << 10).expect("it suits");
    let vectors = [Form::Vector, Form::Heads(of_heads)];
    for form in vectors.into_iter().chain(matrices) {
        for heads in [1, 16, 20, 128] {
            for tokens in [1, 3, 8, 200] {
                for rows in [tokens, 575 + tokens, 4096, 32768, 131_072] {
                    for cores in [1, 8, 132, 1000] {
                        let machine = Machine {
                            cores,
                            ..Machine::H200
                        };
                        let (slices, slice_rows) = cut_context(form, machine, rows, tokens, heads);
                        let (slices, slice_rows) = (slices as usize, slice_rows as usize);
                        assert!(slices * slice_rows >= rows, "all rows");
                        assert!((slices - 1) * slice_rows < rows, "no slice behind them");
                        assert!(tokens * slices <= MAX_SLICES.max(tokens), "room");
                    }
                }
            }
        }
        assert_eq!(
            cut_context(form, Machine::H200, 1, 1, 20).0,
            1,
            "a short context is one slice"
        );
        assert!(
            cut_context(form, Machine::H200, 4096, 1, 20).0 >= 32,
            "a long one fills the GPU"
        );
    }
    let shapes = attention_coop::Shapes::untried(Machine::H200, &attention_coop::SHAPES);
    let matrices = Form::Matrix(shapes.expect("some"));
    for (rows, cut) in [
        (513, (33, 16)),
        (4160, (65, 64)),
        (32_769, (129, 256)),
        (131_072, (128, 1024)),
    ] {
        assert_eq!(
            cut_context(matrices, Machine::H200, rows, 1, 20),
            cut,
            "{rows} rows"
        );
    }
}

/// The kernel and its merge on one GPU.
#[expect(
    clippy::too_many_arguments,
    reason = "the bindings of the kernel, one for one"
)]
fn on_gpu(
    gpu: &Gpu,
    q_lat: &[f32],
    q_pe: &[f32],
    cache: &[f16],
    pos: usize,
    n_tokens: usize,
    dims: MlaDims,
    scale: f32,
    (slices, slice_rows): (u32, u32),
) -> Vec<f32> {
    let partials =
        partial_bytes(dims, n_tokens).map(|bytes| Range::whole(&output(gpu, bytes as usize / 4)));
    let out = output(gpu, q_lat.len());
    let attention = GpuAttention {
        form: Form::Vector,
        q_lat: Range::whole(&upload(gpu, q_lat)),
        q_pe: Range::whole(&upload(gpu, q_pe)),
        cache: Range::whole(&upload(gpu, cache)).holding(Role::Cache),
        dims,
        scale,
        partials: partials.clone(),
        sequences: None,
    };
    let merged = Activation::Floats;
    let merge = attention_merge::call(
        (None, false),
        &partials,
        [dims.heads, dims.kv_lora],
        &Range::whole(&out),
        merged,
    );
    let state = State {
        pos: pos as u32,
        tokens: n_tokens as u32,
        slices,
        slice_rows,
        ..Default::default()
    };
    let calls = [attention.calls(), vec![merge]].concat();
    run(gpu, &calls, &state);
    download(gpu, &out, q_lat.len())
}

#[test]
fn buffers_that_do_not_suffice_are_named_before_anything_runs() {
    let dims = MlaDims {
        heads: 2,
        nope: 8,
        rope: 8,
        kv_lora: 8,
        cache: CacheType::F16,
    };
    let [sums, stats] = partial_bytes(dims, 3).map(|bytes| Range::floats("partials", bytes / 4));
    let cache = |role| Range::whole(&Buffer::new("cache", 20 * 16 * 2, role));
    let attention = GpuAttention {
        form: Form::Vector,
        q_lat: Range::floats("q_lat", 3 * 16),
        q_pe: Range::floats("q_pe", 3 * 16),
        cache: cache(Role::Cache),
        dims,
        scale: 1.0,
        partials: [sums, stats],
        sequences: None,
    };
    let found = |attention: &GpuAttention, tokens, context| {
        let step = Step::of(Most { tokens, context }, attention.calls());
        match step.resolve() {
            Ok(_) => None,
            Err(GpuError::Interface { kernel, what }) => {
                assert_eq!(kernel, "attention");
                what.split(' ').nth(1).map(str::to_owned)
            }
            Err(e) => panic!("{e}"),
        }
    };
    assert_eq!(found(&attention, 3, 20), None);
    assert_eq!(found(&attention, 3, 21).as_deref(), Some("cache"));
    assert_eq!(found(&attention, 4, 20).as_deref(), Some("q_lat"));
    let mut few = attention.clone();
    few.partials[1].size -= 4;
    assert_eq!(found(&few, 3, 20).as_deref(), Some("stats"));
    let halves = GpuAttention {
        cache: cache(Role::Halves),
        ..attention
    };
    assert_eq!(found(&halves, 3, 20).as_deref(), Some("cache"));
}

#[test]
fn the_kernel_agrees_with_its_twin_in_any_cut() {
    agree(gpus(), |_| of_vectors());
    agree_everywhere(gpus(), |_| of_any_cut());
}

#[test]
#[ignore = "long: scripts/test --all"]
fn the_kernel_is_exact_in_the_longest_context() {
    // Five heads are two groups. llvmpipe binds 128 MiB, 116508 rows; a few more rows stand behind those seen.
    let dims = MlaDims {
        heads: 5,
        nope: 192,
        rope: 64,
        kv_lora: 512,
        cache: CacheType::F16,
    };
    let row = dims.cache_row();
    let bound = gpus().iter().map(|gpu| gpu.max_binding).min();
    let most = bound.expect("a GPU") as usize / (row * 2) - 3;
    let rows = most.min(131_072);
    let mut rng = Rng::fresh();
    let mut cache: Vec<f16> = rng
        .normals(row * (rows + 3))
        .into_iter()
        .map(f16::from_f32)
        .collect();
    cache[rows * row..].fill(f16::NAN);
    let q_lat: Vec<f32> = rng.normals(5 * 512).iter().map(|x| x * 3.0).collect();
    let q_pe: Vec<f32> = rng.normals(5 * 64).iter().map(|x| x * 3.0).collect();
    let scale = 1.0 / (row as f32).sqrt();
    // In f64: the twin adds row by row in f32, which costs it 2e-8 here.
    let exact: Vec<f64> = (0..5usize)
        .into_par_iter()
        .flat_map_iter(|h| {
            let q: Vec<f64> = q_lat[h * 512..][..512]
                .iter()
                .chain(&q_pe[h * 64..][..64])
                .map(|x| f64::from(*x) * f64::from(scale))
                .collect();
            let mut wide = vec![0.0f32; row];
            let mut sums = vec![0.0; 512];
            let mut total = 0.0;
            for k in cache[..rows * row].chunks_exact(row) {
                k.convert_to_f32_slice(&mut wide);
                let score: f64 = q.iter().zip(&wide).map(|(q, k)| q * f64::from(*k)).sum();
                let weight = score.exp();
                total += weight;
                sums.iter_mut()
                    .zip(&wide)
                    .for_each(|(sum, v)| *sum += weight * f64::from(*v));
            }
            sums.into_iter().map(move |sum| sum / total)
        })
        .collect();
    for gpu in gpus() {
        let cut = cut_context(Form::Vector, Machine::H200, rows, 1, dims.heads);
        let found = on_gpu(gpu, &q_lat, &q_pe, &cache, rows - 1, 1, dims, scale, cut);
        let what = format!("{rows} rows, {}", gpu.tier.name());
        // Slices are added in f32, tile by tile.
        assert_close(&found, &exact, 1e-11, &what);
    }
}

#[test]
fn scores_far_beyond_the_range_of_exp_stay_finite_on_the_gpu() {
    let dims = MlaDims {
        heads: 1,
        nope: 8,
        rope: 8,
        kv_lora: 8,
        cache: CacheType::F16,
    };
    let cache: Vec<f16> = (0..200 * 16)
        .map(|i| f16::from_f32((i / 16) as f32))
        .collect();
    for gpu in gpus() {
        for sign in [1.0, -1.0] {
            let (q_lat, q_pe) = ([sign * 100.0; 8], [sign * 100.0; 8]);
            let found = on_gpu(gpu, &q_lat, &q_pe, &cache, 199, 1, dims, 1.0, (4, 64));
            let row = if sign > 0.0 { 199.0 } else { 0.0 };
            assert_eq!(found, [row; 8], "all weight on one row");
        }
    }
}

/// Cases of the form without subgroups and matrices.
fn of_vectors() -> Vec<Case> {
    // Heads that do not fill a workgroup, columns that do not fill its threads.
    let odd = MlaDims {
        heads: 6,
        nope: 16,
        rope: 24,
        kv_lora: 72,
        cache: CacheType::F16,
    };
    let codes = |dims: MlaDims| dims.with_cache(CacheType::Q8_0);
    let kernel = Kernel::Of(Form::Vector);
    let contexts = [
        (GLM, 0, 1),
        (GLM, 574, 1),
        (GLM, 4095, 1),
        (GLM, 32_767, 1),
        (GLM, 1, 3),
        (GLM, 570, 8),
        (DEEPSEEK, 0, 8),
        (DEEPSEEK, 4093, 3),
        (DEEPSEEK, 63, 2),
        (odd, 0, 3),
        (odd, 700, 8),
        (codes(GLM), 0, 1),
        (codes(GLM), 574, 1),
        (codes(DEEPSEEK), 4093, 3),
        (codes(MlaDims { kv_lora: 96, ..odd }), 700, 8),
    ];

    let context = |(dims, pos, tokens): (MlaDims, usize, usize)| {
        let (rows, machine) = (pos + tokens, Machine::H200);
        let (slices, slice_rows) = cut_context(Form::Vector, machine, rows, tokens, dims.heads);
        Context {
            kernel,
            dims,
            pos,
            tokens,
            cut: [slices, slice_rows],
        }
    };
    let cases = contexts.into_iter().map(|of| context(of).case());
    cases.collect()
}

/// Any cut gives the same result, also slices that a token cannot see.
fn of_any_cut() -> Vec<Case> {
    let dims = MlaDims {
        heads: 5,
        nope: 16,
        rope: 8,
        kv_lora: 64,
        cache: CacheType::F16,
    };
    let case = |cut| {
        let of = Context {
            kernel: Kernel::Of(Form::Vector),
            dims,
            pos: 64,
            tokens: 8,
            cut,
        };
        of.case()
    };
    [[1, 128], [2, 70], [8, 9], [5, 16]].map(case).into()
}
