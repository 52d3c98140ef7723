//! Protects the attention of prompts: in every form it agrees with its twin, wherever chunks and blocks begin and end.

use super::*;
use crate::gpu::call::State;
use crate::gpu::testing::{download, gpu_weights, gpus, metal, output, run, upload};
use crate::gpu::wait::complete;
use crate::kernels::attention::attention;
use crate::kernels::cases::expand_kv::SHAPES_OF_MODELS;
use crate::kernels::cases::prompt_attention::{Context, MATRIX_LIMIT};
use crate::kernels::expand_kv::{self, expand_kv_weights, weights_calls};
use crate::kernels::testing::coop::{APPLE, NVIDIA};
use crate::kernels::testing::{
    Rng, agree, agree_everywhere, agree_long, assert_close, lab, random_weight,
};
use crate::kernels::{CacheType, MlaDims};
use crate::quant::GgmlType;
use half::f16;

mod emulated;
mod forms;
mod pages;

/// The rotated part of the queries, (tokens, heads, rope).
fn rotated(of: &Context) -> Vec<f32> {
    let mla = of.dims.mla;
    let heads = of.q.chunks_exact(mla.head()).enumerate();
    let rotated = heads.flat_map(|(i, q)| {
        let mut q = q[mla.nope..].to_vec();
        let at = (of.pos + i / mla.heads) * mla.rope / 2;
        let angles = &of.table[at..][..mla.rope / 2];
        rotate_rows(&mut q, 0, mla.rope, angles);
        q
    });
    rotated.collect()
}

#[test]
fn expanded_and_absorbed_attention_are_the_same() {
    let mut rng = Rng::fresh();
    let lab = lab(&gpus()[0], "expanded");
    let dims = KvDims {
        mla: MlaDims {
            heads: 2,
            nope: 32,
            rope: 16,
            kv_lora: 64,
            cache: CacheType::F16,
        },
        v: 64,
    };
    let mla = dims.mla;
    let (pos, tokens) = (5, 3);
    let mut case = Context::random(&lab, dims, pos, tokens);
    let k_b = random_weight(&mut rng, GgmlType::F16, 2, 64, 32);
    let v_b = random_weight(&mut rng, GgmlType::F16, 2, 64, 64);
    let mut weights = vec![f32::NAN; case.weights.len()];
    expand_kv_weights(&k_b, &v_b, dims, &mut weights);
    // Weights of F16 are halves.
    case.weights = weights.iter().map(|w| f16::from_f32(*w)).collect();
    let (keys, values) = weights.split_at(2 * 32 * 64);
    // q_lat = q E_k per head, out = E_v latent.
    let mut q_lat = vec![0.0f32; tokens * 2 * 64];
    for (i, q_lat) in q_lat.chunks_exact_mut(64).enumerate() {
        for (c, q) in case.q[i * 48..][..32].iter().enumerate() {
            let row = &keys[(i % 2 * 32 + c) * 64..][..64];
            q_lat.iter_mut().zip(row).for_each(|(l, w)| *l += q * w);
        }
    }
    let mut latent = vec![f32::NAN; q_lat.len()];
    attention(
        &q_lat,
        &rotated(&case),
        &case.cache,
        pos,
        tokens,
        mla,
        case.scale,
        &mut latent,
    );
    let mut exact = vec![];
    for (i, latent) in latent.chunks_exact(64).enumerate() {
        for row in values[i % 2 * 64 * 64..][..64 * 64].chunks_exact(64) {
            exact.push(row.iter().zip(latent).map(|(a, b)| f64::from(a * b)).sum());
        }
    }
    let found = case.twin();
    assert_close(&found, &exact, 1e-10, "expanded");
}

#[test]
fn chunks_of_any_size_anywhere_agree_with_the_twin_also_in_pages() {
    agree(gpus(), forms::cases);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn masks_hold_at_the_edges_of_tiles_and_blocks_and_in_long_contexts() {
    agree_long(gpus(), forms::cases);
}

#[test]
fn scores_far_beyond_the_range_of_exp_stay_finite() {
    agree_everywhere(gpus(), forms::far);
}

#[test]
fn the_whole_list_of_dispatches_reads_weights_of_any_type() {
    let [.., dims] = SHAPES_OF_MODELS;
    let lab = lab(&gpus()[0], "all dispatches");
    let mla = dims.mla;
    let mut case = Context::random(&lab, dims, 100, 40);
    let k_b = lab.weight(GgmlType::Q5_0, [mla.heads, mla.kv_lora, mla.nope]);
    let v_b = lab.weight(GgmlType::Q6_K, [mla.heads, dims.v, mla.kv_lora]);
    let mut weights = vec![f32::NAN; case.weights.len()];
    expand_kv_weights(&k_b, &v_b, dims, &mut weights);
    // Rounded here, not by the kernels in f32: the same to 1e-7.
    case.weights = weights.iter().map(|w| f16::from_f32(*w)).collect();
    let exact: Vec<f64> = case.twin().into_iter().map(f64::from).collect();
    for gpu in gpus() {
        let form = complete(Form::of(gpu, dims)).unwrap_or_else(|e| panic!("{e}"));
        let form = form.expect("sizes that suit");
        let weights = [&k_b, &v_b].map(|w| gpu_weights(gpu, &[w]).remove(0));
        let scratch = Scratch::new(gpu, dims, form, 40, 140);
        let values = output(gpu, exact.len());
        let [k_b, v_b] = &weights;
        let mut calls = weights_calls(k_b, v_b, dims, form.is_matrix(), &scratch.weights);
        let attention = GpuPromptAttention {
            form,
            q: Range::whole(&upload(gpu, &case.q)),
            rope_table: Range::whole(&upload(gpu, &case.table)),
            cache: Range::whole(&upload(gpu, &case.cache)).holding(Role::Cache),
            sequences: None,
            dims,
            scale: case.scale,
            max_tokens: 40,
            scratch: &scratch,
            values: Range::whole(&values),
        };
        calls.extend(attention.calls(gpu));
        let state = State {
            pos: 100,
            tokens: 40,
            ..State::default()
        };
        run(gpu, &calls, &state);
        let found: Vec<f32> = download(gpu, &values, exact.len());
        let what = format!("{form:?} on {}", gpu.tier.name());
        assert_close(&found, &exact, MATRIX_LIMIT, &what);
    }
}

#[test]
fn the_trial_passes_where_there_are_matrices() {
    if metal::skips("a trial, which runs on the device") {
        return;
    }
    for gpu in gpus() {
        let Some(coop) = gpu.coop else {
            eprintln!("skipped: tier {} (no matrices)", gpu.tier.name());
            continue;
        };
        for dims in SHAPES_OF_MODELS {
            let error = complete(trial::compared(gpu, dims, coop).nmse(gpu))
                .unwrap_or_else(|e| panic!("{e}"));
            eprintln!("{dims:?}: NMSE {error:.1e}");
            assert!(error <= trial::LIMIT / 4.0, "{dims:?}: {error:e}");
        }
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn what_is_timed_is_an_attention_by_matrices_and_one_in_floats() {
    for gpu in gpus() {
        let trial = trial::timed(gpu, glm(), NVIDIA, 16);
        let calls = |matrices: bool, values: &Range| {
            let calls = (trial.calls)(matrices, values);
            let floats = (trial.calls)(false, values);
            assert_eq!(calls.len(), floats.len());
            // Matrices where there are some: they take long to emulate.
            if gpu.coop == Some(NVIDIA) {
                calls
            } else {
                floats
            }
        };
        let (state, values) = (trial.state, trial.values);
        let trial = coop::Trial {
            state,
            values,
            calls,
        };
        let us = complete(trial.times(gpu)).unwrap_or_else(|e| panic!("{e}"));
        assert!(us.iter().all(|us| *us > 0.0), "{us:?}");
    }
}

/// GLM-4.7-Flash with all its heads.
pub(super) fn glm() -> KvDims {
    let [glm, ..] = SHAPES_OF_MODELS;
    KvDims {
        mla: MlaDims {
            heads: 20,
            ..glm.mla
        },
        ..glm
    }
}

#[test]
fn scratch_depends_on_the_chunk_and_not_on_the_context() {
    for matrices in [false, true] {
        for (tokens, n_ctx, rows) in [
            (64, 1000, 1024),
            (64, 131_072, 2048),
            (2048, 131_072, 2048),
            (3000, 131_072, 3008),
        ] {
            let rows = if matrices && n_ctx > 4096 { 4096 } else { rows };
            let blocks = Scratch::blocks(Machine::H200, glm(), matrices, tokens, n_ctx, 1 << 40);
            assert_eq!(blocks.rows, rows, "{tokens} tokens, {n_ctx} rows");
            let bytes = Scratch::bytes(glm(), matrices, tokens, blocks);
            assert!(bytes.iter().all(|n| *n <= 128 << 20), "{bytes:?}");
        }
    }
    let blocks = Scratch::blocks(Machine::H200, glm(), true, 2048, 131_072, 16 << 20);
    assert_eq!(blocks.rows, 896, "what 16 MiB hold");
    let blocks = Scratch::blocks(Machine::H200, glm(), false, 4096, 131_072, 128 << 20);
    assert_eq!(blocks.rows, 3712, "what 128 MiB hold");
}

#[test]
fn few_tokens_late_in_a_context_are_left_to_the_absorbed_attention() {
    let coop = Coop {
        size: 16,
        lanes: 32,
    };
    for form in [Form::Vector, Form::Matrix(coop)] {
        let most = most_few(Machine::H200, glm(), form != Form::Vector) as usize;
        assert!((8..1000).contains(&most), "{most}");
        for pos in [0, 100, 4096, 131_000] {
            assert!(
                form.few(Machine::H200, glm(), pos, 1) && form.few(Machine::H200, glm(), pos, 8)
            );
            assert!(!form.few(Machine::H200, glm(), pos, most + 1));
        }
        assert!(form.few(Machine::H200, glm(), 130_000, most - 3));
        assert!(
            !form.few(Machine::H200, glm(), 0, 64),
            "a first chunk is expanded"
        );
    }
}
