//! Protects the products of prompts: every type, form and tile agrees with the twin, and no index leaves its buffer.

use super::*;
use crate::gpu::GpuOptions;
use crate::gpu::Most;
use crate::gpu::buffer::{Buffer, Role};
use crate::gpu::call::State;
use crate::gpu::machine::tiles::{deep, tile, writing};
use crate::gpu::testing::{download, gpu_weights, gpus, open, output, padded, run, upload};
use crate::kernels::expert_rows::{GpuExpertRows, TileList, tile_count};
use crate::kernels::products::{MatvecOptions, gate_up, matvec};
use crate::kernels::rows_f16::GpuRowsF16;
use crate::kernels::testing::bounds::needs_every_byte;
use crate::kernels::testing::coop::{APPLE, NVIDIA, emulated_call, emulates, has_matrices};
use crate::kernels::testing::{Rng, assert_close, drawn, drawn_pairs, random_weight};
use crate::model::Weight;
use crate::quant::GgmlType;
use crate::quant::repack::{plane_bytes, sub_plane_words};
use half::f16;

/// The greatest NMSE: f32 sums of up to 11000 products in another order differ, and so do inputs and weights rounded to f16 (2^-12 each).
fn limit(form: Form) -> f64 {
    match form {
        Form::Float { .. } => 1e-10,
        Form::Matrix(_) => 1e-6,
    }
}

/// The forms that a device can run.
fn forms(gpu: &Gpu) -> Vec<Form> {
    let mut forms = vec![Form::float(gpu), Form::best(gpu)];
    forms.dedup();
    if forms.len() == 1 {
        eprintln!("tier {}: no cooperative matrices", gpu.tier.name());
    }
    forms
}

/// Every device with each of its forms.
fn in_each_form() -> Vec<(&'static Gpu, Form)> {
    let each = |gpu| forms(gpu).into_iter().map(move |form| (gpu, form));
    gpus().iter().flat_map(each).collect()
}

/// The input of a product, (max_tokens * used, cols), as `form` takes it, and the dispatch that prepares it.
fn input(
    gpu: &Gpu,
    form: Form,
    x: Range,
    cols: u32,
    max_tokens: u32,
    used: u32,
) -> (Input, Vec<Call>) {
    match form {
        Form::Float { .. } => (Input::Floats(x), vec![]),
        Form::Matrix(_) => {
            let rows = (max_tokens * used) as usize;
            let halves = vec![f16::NAN; rows * cols as usize];
            let halves = [upload(gpu, &halves), output(gpu, rows)].map(|b| Range::whole(&b));
            let call = GpuRowsF16 {
                other: None,
                x,
                partial_sums: 1,
                cols,
                norm: None,
                halves: Some(halves.clone()),
                floats: None,
                max_tokens,
                used,
                sum: None,
                last: false,
            };
            (Input::Halves(halves), vec![call.call()])
        }
    }
}

/// A product of heads or of one group.
struct Case {
    ty: GgmlType,
    groups: usize,
    rows: usize,
    cols: usize,
    /// Values from one head's input to the next.
    head: usize,
    n_tokens: usize,
    residual: bool,
    /// Ranges that the columns are cut into.
    split_k: usize,
    tile: Option<Tile>,
    /// Workgroup memory in numbers instead of vectors or the other way round: devices take one of the two.
    other_width: bool,
    /// Plain code in place of matrices, for devices without; whether with threads numbered backwards.
    emulated: Option<bool>,
}

impl Case {
    fn plain(ty: GgmlType, rows: usize, cols: usize, n_tokens: usize) -> Self {
        Self {
            ty,
            groups: 1,
            rows,
            cols,
            head: cols,
            n_tokens,
            residual: false,
            split_k: 1,
            tile: None,
            other_width: false,
            emulated: None,
        }
    }
}

fn check(gpu: &Gpu, form: Form, rng: &mut Rng, case: &Case) {
    let &Case {
        ty,
        groups,
        rows,
        cols,
        head,
        n_tokens,
        ..
    } = case;
    let w = random_weight(rng, ty, groups, rows, cols);
    let stride = groups * head;
    let x = rng.normals(n_tokens * stride);
    let out = groups * rows;
    let residual = case.residual.then(|| rng.normals(n_tokens * out));
    let mut options = MatvecOptions::per_group(stride, head);
    options.residual = residual.as_deref();
    let mut twin = vec![0.0; n_tokens * out];
    matvec(&w, &x, n_tokens, options, &mut twin);

    let max_tokens = n_tokens as u32 + 2;
    let range = max_tokens as usize * out;
    let y = output(gpu, case.split_k * range);
    let all = Range::whole(&upload(gpu, &padded(&x, stride, max_tokens)));
    let (input, mut calls) = input(gpu, form, all, stride as u32, max_tokens, 1);
    let weights = gpu_weights(gpu, &[&w]);
    let product = GpuGemm {
        form,
        weight: &weights[0],
        up: None,
        max_tokens,
        x: input,
        x_stride: stride as u32,
        x_group_stride: if groups == 1 { 0 } else { head as u32 },
        experts: None,
        residual: residual
            .as_ref()
            .map(|r| Range::whole(&upload(gpu, &padded(r, out, max_tokens)))),
        split_k: case.split_k as u32,
        y: Range::whole(&y),
        tile: case.tile,
    };
    for mut call in product.calls(gpu) {
        if case.other_width {
            let flags = &mut call.variant.flags;
            if !flags.remove("VECTORS") {
                flags.insert("VECTORS");
            }
        }
        if let (Some(backwards), Form::Matrix(coop)) = (case.emulated, form) {
            call = emulated_call(&call, coop, backwards);
        }
        calls.push(call);
    }
    let state = State {
        tokens: n_tokens as u32,
        ..State::default()
    };
    run(gpu, &calls, &state);
    let sums: Vec<f32> = download(gpu, &y, case.split_k * range);
    let mut found = vec![0.0; range];
    for partial in sums.chunks_exact(range) {
        found.iter_mut().zip(partial).for_each(|(sum, v)| *sum += v);
    }
    let (found, behind) = found.split_at(n_tokens * out);
    let exact: Vec<f64> = twin.iter().map(|v| f64::from(*v)).collect();
    let what = format!(
        "{} {form:?} {} {groups}x{rows}x{cols} {n_tokens} tokens {:?}",
        gpu.tier.name(),
        ty.name(),
        case.tile
    );
    assert_close(found, &exact, limit(form), &what);
    assert!(behind.iter().all(|v| v.is_nan()), "{what}: padded rows");
}

#[test]
fn every_type_in_every_form() {
    let mut rng = Rng::fresh();
    let all: Vec<_> = GgmlType::ALL.iter().enumerate().collect();
    for (&(gpu, form), &(i, &ty)) in drawn_pairs(&in_each_form(), &all) {
        let mut case = Case::plain(ty, 70 - i, 512, 9 + 2 * i);
        case.residual = i % 2 == 0;
        check(gpu, form, &mut rng, &case);
    }
}

#[test]
fn shapes_of_the_models_and_odd_ones() {
    let mut rng = Rng::fresh();
    let cases = [
        (GgmlType::F32, 64, 2048, 33),
        (GgmlType::Q4_0, 576, 2048, 20),
        (GgmlType::Q5_0, 100, 1408, 17),
        (GgmlType::Q4_0, 40, 10_944, 12),
        (GgmlType::Q8_0, 10_944, 64, 9),
        (GgmlType::Q6_K, 15_488, 256, 2),
        (GgmlType::Q8_0, 154_880, 32, 3),
        (GgmlType::Q8_0, 1, 32, 150),
        (GgmlType::IQ4_NL, 129, 96, 257),
    ];
    for (&(gpu, form), &(ty, rows, cols, n_tokens)) in drawn_pairs(&in_each_form(), &cases) {
        check(gpu, form, &mut rng, &Case::plain(ty, rows, cols, n_tokens));
    }
}

#[test]
fn ranges_of_the_columns_add_up() {
    let mut rng = Rng::fresh();
    for gpu in gpus() {
        for form in forms(gpu) {
            for (ty, rows, cols, n_tokens, split_k) in [
                (GgmlType::F32, 64, 2048, 33, 8),
                (GgmlType::Q4_0, 96, 768, 70, 3),
                (GgmlType::Q6_K, 130, 512, 129, 2),
            ] {
                let case = Case {
                    split_k,
                    ..Case::plain(ty, rows, cols, n_tokens)
                };
                check(gpu, form, &mut rng, &case);
            }
        }
    }
}

#[test]
fn heads_read_their_own_inputs() {
    let mut rng = Rng::fresh();
    for gpu in gpus() {
        for form in forms(gpu) {
            // attn_k_b and attn_v_b of GLM-4.7-Flash, fewer heads; an odd one.
            for (ty, groups, rows, cols, head) in [
                (GgmlType::Q8_0, 3, 512, 192, 256),
                (GgmlType::Q4_0, 3, 256, 512, 512),
                (GgmlType::Q5_1, 5, 41, 96, 100),
            ] {
                let case = Case {
                    groups,
                    head,
                    ..Case::plain(ty, rows, cols, 21)
                };
                check(gpu, form, &mut rng, &case);
            }
        }
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn every_tile_of_every_form() {
    let mut rng = Rng::fresh();
    for gpu in gpus() {
        for form in forms(gpu) {
            for &tile in tiles(form, false) {
                for n_tokens in [tile.tokens + 1, tile.tokens - 3] {
                    let mut case = Case {
                        tile: Some(tile),
                        ..Case::plain(GgmlType::Q4_0, 150, 96, n_tokens as usize)
                    };
                    check(gpu, form, &mut rng, &case);
                    if matches!(form, Form::Matrix(_)) {
                        case.other_width = true;
                        check(gpu, form, &mut rng, &case);
                    }
                }
            }
            for &tile in tiles(form, true) {
                for n_tokens in [tile.tokens as usize + 1, tile.tokens as usize - 3] {
                    let types = [GgmlType::Q4_0, GgmlType::Q8_0];
                    check_pair(
                        gpu,
                        form,
                        &mut rng,
                        types,
                        [90, 96],
                        n_tokens,
                        Some(tile),
                        None,
                    );
                }
            }
        }
    }
}

#[expect(
    clippy::too_many_arguments,
    reason = "what a product of a pair depends on"
)]
fn check_pair(
    gpu: &Gpu,
    form: Form,
    rng: &mut Rng,
    types: [GgmlType; 2],
    [rows, cols]: [usize; 2],
    n_tokens: usize,
    tile: Option<Tile>,
    stand_ins: Option<bool>,
) {
    let [gate, up] = types.map(|ty| random_weight(rng, ty, 1, rows, cols));
    let x = rng.normals(n_tokens * cols);
    let mut twin = vec![0.0; n_tokens * rows];
    gate_up(&gate, &up, &x, n_tokens, None, None, &mut twin);
    let max_tokens = n_tokens as u32 + 1;
    let y = output(gpu, max_tokens as usize * rows);
    let all = Range::whole(&upload(gpu, &padded(&x, cols, max_tokens)));
    let (input, mut calls) = input(gpu, form, all, cols as u32, max_tokens, 1);
    let weights = gpu_weights(gpu, &[&gate, &up]);
    let product = GpuGemm {
        form,
        weight: &weights[0],
        up: Some(&weights[1]),
        max_tokens,
        x: input,
        x_stride: cols as u32,
        x_group_stride: 0,
        experts: None,
        residual: None,
        split_k: 1,
        y: Range::whole(&y),
        tile,
    };
    for mut call in product.calls(gpu) {
        if let (Some(backwards), Form::Matrix(coop)) = (stand_ins, form) {
            call = emulated_call(&call, coop, backwards);
        }
        calls.push(call);
    }
    let state = State {
        tokens: n_tokens as u32,
        ..State::default()
    };
    run(gpu, &calls, &state);
    let found: Vec<f32> = download(gpu, &y, n_tokens * rows);
    let exact: Vec<f64> = twin.iter().map(|v| f64::from(*v)).collect();
    let what = format!("{} {form:?} {types:?} {tile:?}", gpu.tier.name());
    assert_close(&found, &exact, 10.0 * limit(form), &what);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn dense_pairs_of_every_type() {
    let mut rng = Rng::fresh();
    let others = GgmlType::ALL.iter().cycle().skip(1);
    let all: Vec<_> = GgmlType::ALL.iter().zip(others).collect();
    for (&(gpu, form), &(&ty, &other)) in drawn_pairs(&in_each_form(), &all) {
        check_pair(gpu, form, &mut rng, [ty, other], [65, 256], 11, None, None);
    }
}

/// Experts, the tokens that chose them, and what they make of these: (slots, cols).
struct Chosen {
    /// Gate, up and down.
    weights: [Weight; 3],
    x: Vec<f32>,
    ids: Vec<u32>,
    exact: Vec<f64>,
}

impl Chosen {
    fn new(
        rng: &mut Rng,
        types: [GgmlType; 3],
        [experts, used, rows, cols]: [usize; 4],
        n_tokens: usize,
    ) -> Self {
        let mut weight = |ty, rows, cols| random_weight(rng, ty, experts, rows, cols);
        let (gate, up) = (weight(types[0], rows, cols), weight(types[1], rows, cols));
        let down: Weight = weight(types[2], cols, rows);
        let x = rng.normals(n_tokens * cols);
        // Different experts for the slots of a token, most of them among the first.
        let ids: Vec<u32> = (0..n_tokens)
            .flat_map(|_| {
                let first = rng.below(experts) * rng.below(2);
                (0..used).map(move |k| ((first + k) % experts) as u32)
            })
            .collect();
        let mut h = vec![0.0; ids.len() * rows];
        gate_up(&gate, &up, &x, n_tokens, None, Some(&ids), &mut h);
        // Each slot alone.
        let slots = ids.iter().zip(h.chunks_exact(rows));
        let exact = slots.flat_map(|(expert, h)| {
            crate::kernels::testing::exact_rows(&down, *expert as usize, h)
        });
        Self {
            exact: exact.collect(),
            weights: [gate, up, down],
            x,
            ids,
        }
    }
}

/// The slots of `ids`, `used` for each token, sorted by expert, and how a product goes through them.
fn sorted(
    gpu: &Gpu,
    form: Form,
    ids: &[u32],
    [experts, used, rows, cols]: [u32; 4],
    max_tokens: u32,
    height: u32,
) -> (Call, GpuExperts) {
    let mut all_ids = ids.to_vec();
    all_ids.resize((max_tokens * used) as usize, u32::MAX);
    let tiles = tile_count(max_tokens, used, height, experts) as usize;
    let [slots, tiles] =
        [all_ids.len(), 4 * tiles].map(|words| Range::whole(&upload(gpu, &vec![u32::MAX; words])));
    let across = GpuExperts::workgroups(form, height, [rows, cols]);
    let counts = Range::whole(&Buffer::counts("workgroups", &across));
    let sort = GpuExpertRows {
        ids: Range::whole(&upload(gpu, &all_ids)),
        experts,
        used,
        slots: slots.clone(),
        lists: vec![TileList {
            height,
            tiles: tiles.clone(),
        }],
        counts: counts.clone(),
    };
    let experts = GpuExperts {
        tiles,
        slots,
        used,
        height,
        gather: true,
        counts: Some(counts),
        either: false,
    };
    (sort.call(), experts)
}

/// Gate and up of experts, then down, in the order of [`expert_rows`](crate::kernels::expert_rows).
fn check_experts(
    gpu: &Gpu,
    form: Form,
    rng: &mut Rng,
    types: [GgmlType; 3],
    sizes: [usize; 4],
    n_tokens: usize,
    height: u32,
) {
    let Chosen {
        weights: [gate, up, down],
        x,
        ids,
        exact,
    } = Chosen::new(rng, types, sizes, n_tokens);
    let [experts, used, rows, cols] = sizes;
    let max_tokens = n_tokens as u32 + 2;
    let all = max_tokens as usize * used;
    let numbers = sizes.map(|n| n as u32);
    let (sort, gather) = sorted(gpu, form, &ids, numbers, max_tokens, height);
    let mut calls = vec![sort];
    let x = Range::whole(&upload(gpu, &padded(&x, cols, max_tokens)));
    let (x, prepare) = input(gpu, form, x, cols as u32, max_tokens, 1);
    calls.extend(prepare);
    let pair = gpu_weights(gpu, &[&gate, &up]);
    let down = gpu_weights(gpu, &[&down]);
    let between = Range::whole(&output(gpu, all * rows));
    let y = output(gpu, all * cols);
    let first = GpuGemm {
        form,
        weight: &pair[0],
        up: Some(&pair[1]),
        max_tokens,
        x,
        x_stride: cols as u32,
        x_group_stride: 0,
        experts: Some(gather.clone()),
        residual: None,
        split_k: 1,
        y: between.clone(),
        tile: None,
    };
    calls.extend(first.calls(gpu));
    let (h, prepare) = input(gpu, form, between, rows as u32, max_tokens, used as u32);
    calls.extend(prepare);
    let second = GpuGemm {
        weight: &down[0],
        up: None,
        x: h,
        x_stride: rows as u32,
        experts: Some(GpuExperts {
            gather: false,
            ..gather
        }),
        y: Range::whole(&y),
        ..first
    };
    calls.extend(second.calls(gpu));
    let state = State {
        tokens: n_tokens as u32,
        ..State::default()
    };
    run(gpu, &calls, &state);
    let found: Vec<f32> = download(gpu, &y, all * cols);
    let (found, behind) = found.split_at(exact.len());
    let what = format!(
        "{} {form:?} {types:?} {experts} experts, {n_tokens} tokens, height {height}",
        gpu.tier.name()
    );
    assert_close(found, &exact, 10.0 * limit(form), &what);
    assert!(behind.iter().all(|v| v.is_nan()), "{what}: padded rows");
}

#[test]
fn experts_multiply_their_tokens() {
    let mut rng = Rng::fresh();
    for gpu in gpus() {
        for form in forms(gpu) {
            for tile in drawn(expert_tiles(form, true), 2) {
                let first = rng.below(GgmlType::ALL.len());
                let types = [0, 1, 2].map(|k| GgmlType::ALL[(first + k) % GgmlType::ALL.len()]);
                // Some experts with full tiles, some with less than half, some with less than a quarter of one.
                for tokens in [37, 2 * tile.tokens as usize + 44] {
                    let sizes = [5, 2, 256, 256];
                    check_experts(gpu, form, &mut rng, types, sizes, tokens, tile.tokens);
                }
            }
            // DeepSeek-V2-Lite's experts, narrower, and a single one.
            let types = [GgmlType::Q4_0, GgmlType::Q4_0, GgmlType::Q5_0];
            check_experts(gpu, form, &mut rng, types, [64, 6, 352, 96], 40, 16);
            check_experts(gpu, form, &mut rng, types, [1, 1, 32, 32], 65, 16);
            check_experts(gpu, form, &mut rng, types, [8, 8, 32, 64], 2, 16);
        }
    }
}

#[test]
fn a_weight_larger_than_a_binding_is_cut() {
    let mut rng = Rng::fresh();
    for tier in [Tier::Plain, Tier::Subgroup] {
        let options = GpuOptions {
            tier: Some(tier),
            max_binding: Some(40_000),
            ..Default::default()
        };
        let Ok(gpu) = open(&options) else {
            continue;
        };
        for form in forms(&gpu) {
            let mut case = Case::plain(GgmlType::Q4_0, 700, 256, 20);
            case.residual = true;
            check(&gpu, form, &mut rng, &case);
            let heads = Case {
                groups: 7,
                head: 256,
                ..Case::plain(GgmlType::Q8_0, 60, 256, 18)
            };
            check(&gpu, form, &mut rng, &heads);
            let types = [GgmlType::Q4_0, GgmlType::Q8_0, GgmlType::Q4_0];
            check_pair(
                &gpu,
                form,
                &mut rng,
                [types[0], types[1]],
                [500, 256],
                20,
                None,
                None,
            );
            check_experts(&gpu, form, &mut rng, types, [8, 3, 64, 256], 30, 16);
        }
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn products_are_right_where_matrices_are_emulated() {
    let mut rng = Rng::fresh();
    for gpu in gpus().iter().filter(|gpu| emulates(gpu)) {
        let cases = [
            (NVIDIA, deep(64, 64, [2, 2]), 128, false),
            // Not whole stages of two units.
            (NVIDIA, deep(64, 64, [2, 2]), 96, false),
            (NVIDIA, writing(2, deep(32, 64, [1, 4])), 128, true),
            (NVIDIA, tile(16, 128, [1, 4]), 96, false),
            (NVIDIA, writing(2, tile(32, 128, [1, 4])), 64, true),
            (NVIDIA, writing(1, tile(64, 128, [1, 4])), 64, false),
            (APPLE, tile(32, 64, [2, 2]), 96, false),
        ];
        let cases: Vec<_> = cases
            .into_iter()
            .filter(|case| has_matrices(case.0))
            .collect();
        for &(coop, tile, cols, backwards) in drawn(&cases, 3) {
            let form = Form::Matrix(coop);
            assert!(
                [tiles, expert_tiles]
                    .iter()
                    .any(|of| of(form, false).contains(&tile))
            );
            let mut case = Case::plain(GgmlType::Q4_0, 150, cols, tile.tokens as usize + 5);
            (case.tile, case.residual) = (Some(tile), true);
            case.emulated = Some(backwards);
            check(gpu, form, &mut rng, &case);
        }
        let cases = [
            (NVIDIA, tiles(Form::Matrix(NVIDIA), true)[1]),
            (NVIDIA, writing(2, tile(32, 64, [1, 4]))),
            (NVIDIA, writing(1, tile(64, 64, [1, 4]))),
            (APPLE, tile(16, 32, [2, 2])),
        ];
        let cases: Vec<_> = cases
            .into_iter()
            .filter(|case| has_matrices(case.0))
            .collect();
        for &(coop, tile) in drawn(&cases, 2) {
            let form = Form::Matrix(coop);
            assert!(
                [tiles, expert_tiles]
                    .iter()
                    .any(|of| of(form, true).contains(&tile))
            );
            let (types, tokens) = ([GgmlType::Q4_0, GgmlType::Q8_0], tile.tokens as usize + 3);
            let tile = Some(tile);
            check_pair(
                gpu,
                form,
                &mut rng,
                types,
                [90, 96],
                tokens,
                tile,
                Some(false),
            );
        }
    }
}

/// A weight of zeros.
pub(super) fn zeros(ty: GgmlType, [groups, rows, cols]: [usize; 3]) -> GpuWeight {
    let (quants, scales) = plane_bytes(ty, groups * rows, cols);
    let plane = |bytes, role| Range::whole(&Buffer::new("weight", bytes as u64, role));
    GpuWeight {
        name: format!("{groups}x{rows}x{cols}"),
        ty,
        groups: groups as u32,
        rows: rows as u32,
        cols: cols as u32,
        pieces: vec![Piece {
            first_row: 0,
            rows: (groups * rows) as u32,
            quants: plane(quants, Role::Codes(ty)),
            scales: plane(scales, Role::Scales(ty)),
            sub: sub_plane_words(ty, groups * rows, cols) as u32,
        }],
    }
}

#[test]
fn every_index_lies_in_its_buffer() {
    const COLS: usize = 128;
    let most = Most {
        tokens: 9,
        context: 9,
    };
    let forms = [Form::Float { eight: false }, Form::Matrix(NVIDIA)];
    // The groups, whether they are experts and gathered, pairs, ranges of the columns.
    for (groups, gather, pair, split_k) in [
        (1, None, false, 1),
        (1, None, false, 2),
        (1, None, true, 1),
        (5, None, false, 1),
        (5, Some(true), true, 1),
        (5, Some(false), false, 1),
    ] {
        for (form, rows) in forms
            .into_iter()
            .flat_map(|f| [64, 70].map(|rows| (f, rows)))
        {
            let weights = [GgmlType::Q4_0, GgmlType::F16].map(|ty| zeros(ty, [groups, rows, COLS]));
            let heads = if gather.is_none() { groups } else { 1 };
            let used = if gather.is_some() { 2 } else { 1 };
            let inputs = u64::from(most.tokens * if gather == Some(false) { 2 } else { 1 });
            let stride = (heads * COLS) as u32;
            let values = inputs * u64::from(stride);
            let whole = |bytes, role| Range::whole(&Buffer::new("test", bytes, role));
            let places = most.tokens * used;
            let out = u64::from(places) * (heads * rows) as u64;
            let tile = tiles(form, pair)[tiles(form, pair).len() - 1];
            let tile_words = 4 * tile_count(most.tokens, used, tile.tokens, groups as u32);
            let product = GpuGemm {
                form,
                weight: &weights[0],
                up: pair.then_some(&weights[1]),
                max_tokens: most.tokens,
                x: match form {
                    Form::Float { .. } => Input::Floats(Range::floats("x", values)),
                    Form::Matrix(_) => Input::Halves([
                        whole(values * 2, Role::Halves),
                        Range::floats("scales", inputs),
                    ]),
                },
                x_stride: stride,
                x_group_stride: if heads > 1 { COLS as u32 } else { 0 },
                experts: gather.map(|gather| GpuExperts {
                    tiles: Range::words("tiles", tile_words.into()),
                    slots: Range::words("slots", places.into()),
                    used,
                    height: tile.tokens,
                    gather,
                    counts: None,
                    either: false,
                }),
                residual: (!pair && gather.is_none() && split_k == 1)
                    .then(|| Range::floats("residual", out)),
                split_k,
                y: Range::floats("y", out * u64::from(split_k)),
                tile: Some(tile),
            };
            product.check();
            let up = product.up.map(|up| &up.pieces[0]);
            let call = product.call(product.kernel(tile), tile, &weights[0].pieces[0], up);
            needs_every_byte(&call, most);
        }
    }
}
