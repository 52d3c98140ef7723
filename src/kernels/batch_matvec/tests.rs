//! Protects the products of a batch: every type and shape agrees with the twin, for one weight, heads and experts, in every geometry.

use super::*;
use crate::gpu::buffer::{Buffer, Role};
use crate::gpu::call::State;
use crate::gpu::testing::{download, gpu_weights, output, run, token_gpus, upload};
use crate::gpu::{Gpu, Most};
use crate::kernels::expert_rows::tests::expert_rows;
use crate::kernels::testing::bounds::needs_every_byte;
use crate::kernels::testing::{Rng, assert_close, random_weight};
use crate::kernels::token::testing::{
    activation, assert_prepared, stand_for, sums_nmse, upload_values,
};
use crate::kernels::token_matvec::tests::token_matvec;
use crate::model::Weight;
use crate::quant::GgmlType;
use crate::quant::activation::squares;

const EPS: f32 = 1e-5;

/// One row of `y` = W x / rms(x) (+ residual), or silu(W x / rms) * (U x / rms): what [`token_matvec`] is, of group `group` alone where one
/// is given. `x` are the values that the prepared input stands for.
fn batch_matvec(
    weights: &[Weight],
    group: Option<usize>,
    x: &[f32],
    x_units: usize,
    rms: Option<&[f32]>,
    residual: Option<&[f32]>,
) -> Vec<f32> {
    let row = |w: &Weight| {
        let all = token_matvec(w, x, x_units, rms.map(|s| (s, EPS)), residual);
        match group {
            Some(group) => all[group * w.rows..][..w.rows].to_vec(),
            None => all,
        }
    };
    let mut y = row(&weights[0]);
    if let Some(up) = weights.get(1) {
        let silu = |(gate, up): (&mut f32, f32)| *gate = *gate / (1.0 + (-*gate).exp()) * up;
        y.iter_mut().zip(row(up)).for_each(silu);
    }
    y
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Dense,
    /// Heads whose inputs are so many units apart.
    Heads(usize),
    /// With so many experts a token.
    Gather(usize),
    Scatter(usize),
    /// f32 times the norm's weight.
    Stream,
}

struct Case {
    ty: GgmlType,
    kind: Kind,
    groups: usize,
    rows: usize,
    cols: usize,
    pair: bool,
    tokens: usize,
}

fn check(gpu: &Gpu, rng: &mut Rng, case: &Case, all: bool) {
    let &Case {
        ty,
        kind,
        groups,
        rows,
        cols,
        pair,
        tokens,
    } = case;
    let weights: Vec<_> = (0..1 + usize::from(pair))
        .map(|_| random_weight(rng, ty, groups, rows, cols))
        .collect();
    let used = match kind {
        Kind::Gather(used) | Kind::Scatter(used) => used,
        _ => 1,
    };
    let units = cols / 32;
    let (x_units, stride) = match kind {
        Kind::Heads(x_units) => (x_units, groups * x_units),
        _ => (0, units),
    };
    let form = match kind {
        Kind::Stream => Activation::Floats,
        _ => activation(gpu),
    };
    let first = rng.below(groups);
    let ids: Vec<u32> = (0..tokens)
        .flat_map(|t| (0..used).map(move |k| ((first + t / 3 + k) % groups) as u32))
        .collect();
    let experts = matches!(kind, Kind::Gather(_) | Kind::Scatter(_));
    // A height that leaves tiles full and not full.
    let height = 4;
    let (slots, lists) = match experts {
        true => expert_rows(&ids, groups, &[height]),
        false => (vec![], vec![vec![]]),
    };
    let in_rows = if let Kind::Scatter(_) = kind {
        tokens * used
    } else {
        tokens
    };
    let out_rows = tokens * used;
    let normed = matches!(kind, Kind::Dense | Kind::Gather(_) | Kind::Stream);
    let residual = kind == Kind::Dense && !pair;
    let width = stride * 32;
    let (x, norm) = (rng.normals(in_rows * width), rng.normals(width));
    let weighted: Vec<f32> = x
        .iter()
        .zip(norm.iter().cycle())
        .map(|(x, g)| x * g)
        .collect();
    let stands = match form {
        Activation::Floats => weighted.clone(),
        form => stand_for(form, &weighted),
    };
    let all_squares = squares(&x);
    let n = match experts {
        true => rows,
        false => groups * rows,
    };
    let before = rng.normals(out_rows * n);
    let g = rng.normals(n);
    let mut twin = vec![f32::NAN; out_rows * n];
    let mut own = |out: usize, row: usize, group: Option<usize>| {
        let rms = normed.then(|| &all_squares[row * width / 16..][..width / 16]);
        let before = residual.then(|| &before[out * n..][..n]);
        let x = &stands[row * width..][..width];
        let y = batch_matvec(&weights, group, x, x_units, rms, before);
        twin[out * n..][..n].copy_from_slice(&y);
    };
    let slot_of = |i: usize| slots.get(i).map_or(i, |slot| *slot as usize);
    for i in 0..out_rows {
        let slot = slot_of(i);
        let expert = ids.get(slot).map(|id| *id as usize);
        match kind {
            Kind::Gather(_) => own(i, slot / used, expert),
            Kind::Scatter(_) => own(slot, i, expert),
            _ => own(i, i, None),
        }
    }

    let refs: Vec<&Weight> = weights.iter().collect();
    let on_gpu = gpu_weights(gpu, &refs);
    let range = |data: &[f32]| Range::whole(&upload(gpu, data));
    let sums = || range(&all_squares);
    let input = match kind {
        Kind::Stream => Input::Stream(range(&x), range(&norm), sums(), EPS),
        _ => Input::Prepared(TokenInput {
            values: upload_values(gpu, &weighted),
            rms: normed.then(|| (sums(), EPS)),
        }),
    };
    let most = tokens as u32;
    let tiles = |list: &[[u32; 4]]| {
        let mut list = list.to_vec();
        let most =
            super::super::expert_rows::tile_count(most, used as u32, height as u32, groups as u32);
        list.resize(most as usize, [0; 4]);
        Range::whole(&upload(gpu, &list))
    };
    let prepares = rows.is_multiple_of(32);
    let product = GpuBatchMatvec {
        up: on_gpu.get(1),
        x_stride: stride as u32,
        x_group: x_units as u32,
        experts: experts.then(|| GpuExperts {
            tiles: tiles(&lists[0]),
            slots: Range::whole(&upload(gpu, &slots)),
            used: used as u32,
            height: height as u32,
            gather: matches!(kind, Kind::Gather(_)),
            counts: None,
            either: false,
        }),
        residual: residual.then(|| range(&before)),
        ..GpuBatchMatvec::new(gpu.machine, &on_gpu[0], activation(gpu), most, input)
    };
    let words = activation(gpu).bytes((out_rows * n).div_ceil(32) as u64) as usize / 4;
    let outputs = || {
        let prepared = TokenOutput {
            values: Range::whole(&output(gpu, words)).holding(Role::prepared(activation(gpu))),
            norm: (!experts).then(|| {
                let sums = output(gpu, out_rows * n / 16);
                (range(&g), Range::whole(&sums))
            }),
        };
        GpuBatchMatvec {
            y: Some(Range::whole(&output(gpu, out_rows * n))),
            prepared: prepares.then_some(prepared),
            ..product.clone()
        }
    };
    let site = outputs().site();
    let geometries = match all {
        true => site.candidates(gpu.machine),
        false => vec![gpu.geometry(&site).expect("the device allows one")],
    };
    for geometry in geometries {
        let call = outputs();
        let calls = match call.calls_with(gpu, &geometry) {
            Ok(calls) => calls,
            Err(GpuError::TierUnsupported { .. }) if all => continue,
            Err(e) => panic!("{e}"),
        };
        let state = State {
            tokens: most,
            ..State::default()
        };
        run(gpu, &calls, &state);
        let what = format!(
            "{} {groups} x {rows} x {cols}, {tokens} tokens, {geometry:?}",
            ty.name()
        );
        let exact: Vec<f64> = twin.iter().map(|v| f64::from(*v)).collect();
        let y = call.y.as_ref().expect("it is there");
        let found: Vec<f32> = download(gpu, &y.buffer, twin.len());
        assert_close(&found, &exact, sums_nmse(form), &what);
        if let Some(prepared) = &call.prepared {
            let g: Vec<f32> = g.iter().cycle().take(twin.len()).copied().collect();
            let g = prepared.norm.is_some().then_some(&g[..]);
            assert_prepared(gpu, prepared, g, &found, &what);
        }
    }
}

/// Numbers of tokens that fill workgroups and that do not.
const TOKENS: [usize; 5] = [1, 2, 5, 8, 19];

#[test]
fn the_gpu_agrees_for_every_type() {
    for gpu in token_gpus() {
        let mut rng = Rng::fresh();
        for &ty in GgmlType::ALL {
            let case = Case {
                ty,
                kind: Kind::Dense,
                groups: 1,
                rows: 160,
                cols: 768,
                pair: false,
                tokens: 1 + rng.below(9),
            };
            check(gpu, &mut rng, &case, false);
        }
    }
}

#[test]
fn the_gpu_agrees_at_the_shapes_of_the_models() {
    for gpu in token_gpus() {
        let mut rng = Rng::fresh();
        // q_a, kv_a, k_b, v_b, the router, a dense pair; of GLM-4.7-Flash and DeepSeek-V2-Lite.
        for (i, (ty, kind, groups, rows, cols, pair)) in [
            (GgmlType::Q4_0, Kind::Dense, 1, 768, 2048, false),
            (GgmlType::Q4_K, Kind::Dense, 1, 576, 2048, false),
            (GgmlType::Q5_0, Kind::Heads(8), 20, 512, 192, false),
            (GgmlType::Q8_0, Kind::Heads(6), 16, 512, 128, false),
            (GgmlType::Q4_0, Kind::Heads(16), 20, 256, 512, false),
            (GgmlType::F32, Kind::Stream, 1, 64, 2048, false),
            (GgmlType::Q4_0, Kind::Dense, 1, 320, 2048, true),
            (GgmlType::Q5_0, Kind::Dense, 1, 32, 10944, false),
            (GgmlType::Q6_K, Kind::Dense, 1, 1004, 2048, false),
        ]
        .into_iter()
        .enumerate()
        {
            let tokens = TOKENS[i % TOKENS.len()];
            let case = Case {
                ty,
                kind,
                groups,
                rows,
                cols,
                pair,
                tokens,
            };
            check(gpu, &mut rng, &case, false);
        }
    }
}

#[test]
fn experts_take_their_own_tokens() {
    for gpu in token_gpus() {
        let mut rng = Rng::fresh();
        for tokens in TOKENS {
            for (ty, kind, groups, rows, cols, pair) in [
                (GgmlType::Q4_0, Kind::Gather(4), 9, 96, 512, true),
                (GgmlType::Q5_1, Kind::Scatter(4), 9, 64, 352, false),
                (GgmlType::Q4_K, Kind::Gather(2), 3, 32, 256, true),
                (GgmlType::Q6_K, Kind::Scatter(1), 2, 68, 256, false),
            ] {
                let case = Case {
                    ty,
                    kind,
                    groups,
                    rows,
                    cols,
                    pair,
                    tokens,
                };
                check(gpu, &mut rng, &case, false);
            }
        }
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn every_geometry_gives_the_same() {
    for gpu in token_gpus() {
        let mut rng = Rng::fresh();
        for (ty, kind, groups, rows, cols, pair) in [
            (GgmlType::Q4_0, Kind::Dense, 1, 160, 1120, false),
            (GgmlType::Q5_0, Kind::Heads(8), 5, 96, 192, false),
            (GgmlType::Q8_0, Kind::Gather(2), 3, 96, 256, true),
            (GgmlType::F32, Kind::Stream, 1, 64, 512, false),
        ] {
            let case = Case {
                ty,
                kind,
                groups,
                rows,
                cols,
                pair,
                tokens: 7,
            };
            check(gpu, &mut rng, &case, true);
        }
    }
}

#[test]
fn every_index_lies_in_its_buffer() {
    let target = Target::h200();
    let form = target.activation().expect("a tier with subgroups");
    let (groups, rows, cols, tokens, used) = (3, 64, 256, 9, 2);
    let w = crate::gpu::testing::unmade_weight(GgmlType::Q4_0, groups, rows, cols);
    let most = Most { tokens, context: 9 };
    let values = |rows: u32, n: u32| Range::prepared("values", form, rows * n);
    for gather in [true, false] {
        let (inputs, outputs) = match gather {
            true => (tokens, tokens * used),
            false => (tokens * used, tokens * used),
        };
        let product = GpuBatchMatvec {
            experts: Some(GpuExperts {
                tiles: Range::words(
                    "tiles",
                    4 * u64::from(super::super::expert_rows::tile_count(
                        tokens, used, 4, groups,
                    )),
                ),
                slots: Range::words("slots", u64::from(tokens * used)),
                used,
                height: 4,
                gather,
                counts: None,
                either: false,
            }),
            y: Some(Range::whole(&Buffer::new(
                "y",
                u64::from(outputs * rows) * 4,
                Role::Floats,
            ))),
            ..GpuBatchMatvec::new(
                target.machine,
                &w,
                form,
                tokens,
                Input::Prepared(TokenInput::of(values(inputs, cols))),
            )
        };
        for call in product.calls(&target).expect("it is allowed") {
            needs_every_byte(&call, most);
        }
    }
}
