//! Protects the products of a decoded token: every type, shape and geometry agrees with the twin.

use super::*;
use crate::gpu::Gpu;
use crate::gpu::call::State;
use crate::gpu::testing::{
    download, gpu_weight, output, run, token_gpus, token_gpus_with_binding, upload,
};
use crate::kernels::attention::MAX_SLICES;
use crate::kernels::attention::partial_bytes;
use crate::kernels::attention_merge::attention_merge;
use crate::kernels::products::{MatvecOptions, matvec};
use crate::kernels::rope_cache::rotate_rows;
use crate::kernels::testing::{Rng, assert_close, drawn, drawn_pairs, random_weight, slice_stats};
use crate::kernels::token::testing::{
    Given, activation, assert_prepared, geometries, room, stand_for, sums_nmse, upload_values,
};
use crate::model::Weight;
use crate::quant::GgmlType;

mod several;

/// [`PartialLogits`] of `x` (rows), which is multiplied by the norm's weight already.
pub(crate) fn partial_logits(w: &Weight, x: &[f32]) -> Vec<f32> {
    let rows = ROUTER_ROWS as usize;
    let run = |at: usize| {
        let mut own = vec![0.0; x.len()];
        own[at..at + rows].copy_from_slice(&x[at..at + rows]);
        token_matvec(w, &own, 0, None, None)
    };
    (0..x.len()).step_by(rows).flat_map(run).collect()
}

/// How a case leaves its output.
#[derive(Clone, Copy, PartialEq)]
enum Out {
    Plain,
    Prepared,
    Both,
}

struct Case {
    ty: GgmlType,
    groups: usize,
    rows: usize,
    cols: usize,
    /// Units from one group's input to the next.
    x_units: usize,
    residual: bool,
    out: Out,
}

fn check(gpu: &Gpu, rng: &mut Rng, case: &Case) {
    check_with(gpu, rng, case, false);
}

/// Compares the kernel with its twin, in the geometry that the device takes, or in all that it allows.
fn check_with(gpu: &Gpu, rng: &mut Rng, case: &Case, all: bool) {
    let &Case {
        ty,
        groups,
        rows,
        cols,
        x_units,
        residual,
        out,
    } = case;
    let w = random_weight(rng, ty, groups, rows, cols);
    let n = groups * rows;
    let values = cols.max(groups * x_units * 32);
    let (x, norm) = (rng.normals(values), rng.normals(values));
    let given = Given::new(gpu, &x, &norm);
    let before = rng.normals(n);
    let g = rng.normals(n);
    let rms = (groups == 1).then_some((given.squares.as_slice(), 1e-5));
    let twin = token_matvec(
        &w,
        &given.values,
        x_units,
        rms,
        residual.then_some(&before[..]),
    );

    let mut input = given.upload(gpu, 1e-5);
    if groups > 1 {
        input.rms = None;
    }
    let x = Input::Prepared(input, x_units as u32);
    let residual = residual.then(|| Range::whole(&upload(gpu, &before)));
    let weight = gpu_weight(gpu, &w);
    let product =
        GpuTokenMatvec::new(&weight, activation(gpu), x).bind("residual", residual.as_ref());
    let outputs = || {
        let y = (out != Out::Prepared).then(|| Range::whole(&output(gpu, n)));
        (y, (out != Out::Plain).then(|| room(gpu, n, Some(&g))))
    };
    let (y, prepared) = outputs();
    let call = product.clone().bind("y", y.as_ref()).prepared(prepared);
    for geometry in geometries(gpu, &call.site(), all) {
        let (y, prepared) = outputs();
        let call = product.clone().bind("y", y.as_ref()).prepared(prepared);
        let calls = call.calls_with(gpu, &geometry);
        let state = State {
            tokens: 1,
            ..State::default()
        };
        run(gpu, &calls.unwrap_or_else(|e| panic!("{e}")), &state);
        let what = format!("{} {groups} x {rows} x {cols}, {geometry:?}", ty.name());
        if let Some(y) = &y {
            let exact: Vec<f64> = twin.iter().map(|v| f64::from(*v)).collect();
            assert_close(
                &download(gpu, &y.buffer, n),
                &exact,
                sums_nmse(activation(gpu)),
                &what,
            );
        }
        if let Some(q) = &call.prepared {
            assert_prepared(gpu, q, Some(&g), &twin, &what);
        }
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn other_geometries_give_the_same() {
    let mut rng = Rng::fresh();
    // Units and rows that are no multiples of what a workgroup takes; tiles that reach into a second group; exact multiples.
    let cases = [
        (GgmlType::Q4_0, 1, 160, 1120, 0, Out::Both),
        (GgmlType::Q5_0, 5, 80, 192, 8, Out::Plain),
        (GgmlType::Q8_0, 1, 67, 512, 0, Out::Plain),
        (GgmlType::F16, 4, 48, 96, 3, Out::Prepared),
    ];
    for (gpu, &(ty, groups, rows, cols, x_units, out)) in drawn_pairs(&token_gpus(), &cases) {
        let case = Case {
            ty,
            groups,
            rows,
            cols,
            x_units,
            residual: groups == 1,
            out,
        };
        check_with(gpu, &mut rng, &case, true);
    }
}

/// Compares attn_v_b over slices with its twin over the result of the merge's twin.
fn check_slices(gpu: &Gpu, rng: &mut Rng, w: &Weight, slices: usize, all: bool) {
    let (heads, rows, kv_lora) = (w.groups, w.rows, w.cols);
    let dims = MlaDims {
        heads,
        nope: 8,
        rope: 8,
        kv_lora,
    };
    let mut partial = rng.normals(heads * slices * kv_lora);
    let mut stats = slice_stats(rng, heads * slices);
    if slices > 1 {
        // A slice without rows.
        stats[slices - 1] = [-1e30, 0.0];
        partial[(slices - 1) * kv_lora..slices * kv_lora].fill(0.0);
    }
    let mut latent = vec![0.0; heads * kv_lora];
    attention_merge(&partial, &stats, slices, kv_lora, &mut latent);
    let twin = token_matvec(
        w,
        &stand_for(activation(gpu), &latent),
        kv_lora / 32,
        None,
        None,
    );
    let exact: Vec<f64> = twin.iter().map(|v| f64::from(*v)).collect();

    let [sums, pairs] = partial_bytes(dims, 1);
    let padded = |data: &[f32], bytes: u64| {
        let mut data = data.to_vec();
        data.resize(bytes as usize / 4, f32::NAN);
        Range::whole(&upload(gpu, &data))
    };
    let partials = [padded(&partial, sums), padded(stats.as_flattened(), pairs)];
    let n = heads * rows;
    let weight = gpu_weight(gpu, w);
    let product = GpuTokenMatvec::new(&weight, activation(gpu), Input::Slices(partials, dims));
    let call = product.clone().prepared(room(gpu, n, None));
    for geometry in geometries(gpu, &call.site(), all) {
        let (y, q) = (output(gpu, n), room(gpu, n, None));
        let call = product
            .clone()
            .bind("y", &Range::whole(&y))
            .prepared(q.clone());
        let calls = call.calls_with(gpu, &geometry);
        let state = State {
            tokens: 1,
            slices: slices as u32,
            ..State::default()
        };
        run(gpu, &calls.unwrap_or_else(|e| panic!("{e}")), &state);
        let what = format!("{heads} x {rows} x {kv_lora}, {slices} slices, {geometry:?}");
        let found = download(gpu, &y, n);
        let nmse = match activation(gpu) {
            // A latent midway between two rounded values may round to the other one. The limit has room for some.
            Activation::Bytes | Activation::Halves { .. } => 5e-6,
            Activation::Floats => 1e-11,
        };
        assert_close(&found, &exact, nmse, &what);
        assert_prepared(gpu, &q, None, &found, &what);
    }
}

#[test]
fn slices_are_merged_before_the_product() {
    let mut rng = Rng::fresh();
    for (ty, heads, rows, kv_lora, all_splits) in [
        (GgmlType::Q4_0, 20, 256, 512, &[1, 4, 5, 8, 9, 52][..]),
        (GgmlType::Q8_0, 16, 128, 512, &[2, MAX_SLICES]),
        (GgmlType::F16, 4, 48, 96, &[1, 9]),
    ] {
        let w = random_weight(&mut rng, ty, heads, rows, kv_lora);
        for (gpu, &slices) in drawn_pairs(&token_gpus(), all_splits) {
            check_slices(gpu, &mut rng, &w, slices, false);
        }
    }
    let w = random_weight(&mut rng, GgmlType::Q4_0, 2, 128, 288);
    for gpu in drawn(&token_gpus(), 1) {
        check_slices(gpu, &mut rng, &w, 7, true);
    }
}

#[test]
fn the_gpu_agrees_for_every_type() {
    let mut rng = Rng::fresh();
    for (gpu, &ty) in drawn_pairs(&token_gpus(), GgmlType::ALL) {
        let case = Case {
            ty,
            groups: 1,
            rows: 160,
            cols: 768,
            x_units: 0,
            residual: true,
            out: Out::Both,
        };
        check(gpu, &mut rng, &case);
    }
}

#[test]
fn the_gpu_agrees_at_the_shapes_of_the_models() {
    let mut rng = Rng::fresh();
    // GLM-4.7-Flash, DeepSeek-V2-Lite, Youtu-LLM-2B: q_a, kv_a, q_b, k_b, v_b, output, dense down, head.
    let cases = [
        (GgmlType::Q4_0, 1, 768, 2048, 0, false, Out::Prepared),
        (GgmlType::Q4_K, 1, 576, 2048, 0, false, Out::Plain),
        (GgmlType::Q4_0, 1, 5120, 768, 0, false, Out::Both),
        (GgmlType::Q5_0, 20, 512, 192, 8, false, Out::Plain),
        (GgmlType::Q8_0, 16, 512, 128, 6, false, Out::Plain),
        (GgmlType::Q4_0, 20, 256, 512, 16, false, Out::Prepared),
        (GgmlType::Q4_0, 1, 64, 5120, 0, true, Out::Both),
        (GgmlType::Q5_0, 1, 32, 10944, 0, true, Out::Both),
        (GgmlType::Q6_K, 1, 1003, 2048, 0, false, Out::Plain),
    ];
    for (gpu, &(ty, groups, rows, cols, x_units, residual, out)) in
        drawn_pairs(&token_gpus(), &cases)
    {
        let case = Case {
            ty,
            groups,
            rows,
            cols,
            x_units,
            residual,
            out,
        };
        check(gpu, &mut rng, &case);
    }
}

#[test]
fn a_weight_larger_than_a_binding_is_cut_into_rows() {
    for gpu in token_gpus_with_binding(100_000) {
        let mut rng = Rng::fresh();
        let case = Case {
            ty: GgmlType::Q6_K,
            groups: 1,
            rows: 1024,
            cols: 512,
            x_units: 0,
            residual: true,
            out: Out::Both,
        };
        check(&gpu, &mut rng, &case);
    }
}

#[test]
fn the_router_reads_the_stream_itself() {
    for gpu in token_gpus() {
        let mut rng = Rng::fresh();
        for ty in [GgmlType::F32, GgmlType::Q8_0] {
            let (rows, cols) = (64, 2048);
            let w = random_weight(&mut rng, ty, 1, rows, cols);
            let (x, norm) = (rng.normals(cols), rng.normals(cols));
            let mut twin = vec![0.0; rows];
            matvec(
                &w,
                &x,
                1,
                MatvecOptions::contiguous(cols).with_norm(&norm, 1e-5),
                &mut twin,
            );
            let y = output(gpu, rows);
            let range = |data: &[f32]| Range::whole(&upload(gpu, data));
            let squares = crate::quant::activation::squares(&x);
            let weight = gpu_weight(gpu, &w);
            let call = GpuTokenMatvec::new(
                &weight,
                activation(gpu),
                Input::Stream(range(&x), range(&norm), range(&squares), 1e-5),
            )
            .bind("y", &Range::whole(&y));
            run(
                gpu,
                &call.calls(gpu).unwrap_or_else(|e| panic!("{e}")),
                &State {
                    tokens: 1,
                    ..State::default()
                },
            );
            let exact: Vec<f64> = twin.iter().map(|v| f64::from(*v)).collect();
            assert_close(&download(gpu, &y, rows), &exact, 1e-11, ty.name());
        }
    }
}

#[test]
fn the_head_of_a_prompt_reads_floats() {
    let mut rng = Rng::fresh();
    for (gpu, &ty) in drawn_pairs(&token_gpus(), GgmlType::ALL) {
        let (rows, cols) = (67, 768);
        let w = random_weight(&mut rng, ty, 1, rows, cols);
        let x = rng.normals(cols);
        let twin = token_matvec(&w, &x, 0, None, None);
        let y = output(gpu, rows);
        let weight = gpu_weight(gpu, &w);
        let values = Range::whole(&upload(gpu, &x));
        let input = Input::Prepared(TokenInput::of(values), 0);
        let call =
            GpuTokenMatvec::new(&weight, Activation::Floats, input).bind("y", &Range::whole(&y));
        let state = State {
            tokens: 1,
            ..State::default()
        };
        run(
            gpu,
            &call.calls(gpu).unwrap_or_else(|e| panic!("{e}")),
            &state,
        );
        let exact: Vec<f64> = twin.iter().map(|v| f64::from(*v)).collect();
        assert_close(&download(gpu, &y, rows), &exact, 1e-11, ty.name());
    }
}

#[test]
fn the_experts_logits_leave_as_partial_sums() {
    let mut rng = Rng::fresh();
    // With 288 rows some geometries have a last tile that is half empty. With 44 experts some threads have none.
    let cases = [
        (64, 2048, 5120, false),
        (64, 2048, 2048, false),
        (44, 1056, 512, true),
        (8, 288, 512, true),
    ];
    for (gpu, &(experts, rows, cols, all)) in drawn_pairs(&token_gpus(), &cases) {
        let w = random_weight(&mut rng, GgmlType::Q4_0, 1, rows, cols);
        let router = random_weight(&mut rng, GgmlType::F32, 1, experts, rows);
        let x = rng.normals(cols);
        let (before, g) = (rng.normals(rows), rng.normals(rows));
        let values = stand_for(activation(gpu), &x);
        let twin = token_matvec(&w, &values, 0, None, Some(&before));
        let weighted: Vec<f32> = twin.iter().zip(&g).map(|(y, g)| y * g).collect();
        let logits_of_runs = partial_logits(&router, &weighted);
        let exact: Vec<f64> = logits_of_runs.iter().map(|v| f64::from(*v)).collect();
        let router = gpu_weight(gpu, &router);
        let (weight, before) = (gpu_weight(gpu, &w), Range::whole(&upload(gpu, &before)));
        let mut call = GpuTokenMatvec::new(
            &weight,
            activation(gpu),
            Input::Prepared(
                TokenInput {
                    values: upload_values(gpu, &x),
                    rms: None,
                },
                0,
            ),
        )
        .bind("residual", &before);
        call.prepared = Some(room(gpu, rows, Some(&g)));
        for geometry in geometries(gpu, &call.site(), all) {
            if !leaves_partial_logits(gpu.machine, &router, geometry.tile) {
                continue;
            }
            // On the CPU, a write behind the last run shows. Elsewhere it shows in the room for one more.
            let n = logits_of_runs.len();
            let more = if gpu.metal.is_some() { 0 } else { experts };
            let (y, logits) = (room(gpu, rows, Some(&g)), output(gpu, n + more));
            call.prepared = Some(y.clone());
            call.router = Some(PartialLogits {
                weight: &router,
                logits: Range::whole(&logits),
            });
            let calls = call.calls_with(gpu, &geometry);
            let state = State {
                tokens: 1,
                ..State::default()
            };
            run(gpu, &calls.unwrap_or_else(|e| panic!("{e}")), &state);
            let what = format!("{experts} experts, {rows} x {cols}, {geometry:?}");
            assert_prepared(gpu, &y, Some(&g), &twin, &what);
            let mut found: Vec<f32> = download(gpu, &logits, n + more);
            assert!(found.split_off(n).iter().all(|v| v.is_nan()), "{what}");
            assert_close(&found, &exact, sums_nmse(activation(gpu)), &what);
        }
    }
}

#[test]
fn queries_leave_rotated() {
    for gpu in token_gpus() {
        let mut rng = Rng::fresh();
        for (ty, first_row, rope, rows, cols) in [
            (GgmlType::Q8_0, 3 * 512, 64, 3 * 576, 768),
            (GgmlType::F16, 96, 20, 176, 2048),
        ] {
            let w = random_weight(&mut rng, ty, 1, rows, cols);
            let given = Given::new(gpu, &rng.normals(cols), &rng.normals(cols));
            let (pos, n_ctx) = (rng.below(7), 7);
            let table = rng.normals(n_ctx * rope);
            let rms = Some((given.squares.as_slice(), 1e-5));
            let mut twin = token_matvec(&w, &given.values, 0, rms, None);
            let (angles, _) = table[pos * rope..][..rope].as_chunks();
            rotate_rows(&mut twin, first_row, rope, angles);
            let (y, weight) = (output(gpu, rows), gpu_weight(gpu, &w));
            let x = Input::Prepared(given.upload(gpu, 1e-5), 0);
            let mut product = GpuTokenMatvec::new(&weight, activation(gpu), x);
            product = product.bind("y", &Range::whole(&y));
            product.rotation = Some(Rotation {
                table: Range::whole(&upload(gpu, &table)),
                first_row: first_row as u32,
                rope: rope as u32,
            });
            let state = State {
                pos: pos as u32,
                tokens: 1,
                ..State::default()
            };
            let calls = product.calls(gpu).unwrap_or_else(|e| panic!("{e}"));
            run(gpu, &calls, &state);
            let exact: Vec<f64> = twin.iter().map(|v| f64::from(*v)).collect();
            let found = download(gpu, &y, rows);
            assert_close(&found, &exact, sums_nmse(activation(gpu)), ty.name());
        }
    }
}
