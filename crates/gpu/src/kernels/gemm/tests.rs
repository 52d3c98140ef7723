//! Protects the products of prompts: every type, form and tile agrees with the twin, and no index leaves its buffer.

use super::*;
use crate::gpu::buffer::{Buffer, Role};
use crate::gpu::machine::tiles::{deep, tile, writing};
use crate::gpu::testing::{gpus, open, unmade_weight};
use crate::gpu::{GpuOptions, Most};
use crate::kernels::cases::Case;
use crate::kernels::cases::gemm::{OfExperts, Pair, Product, cases, everywhere};
use crate::kernels::expert_rows::tile_count;
use crate::kernels::testing::bounds::needs_every_byte;
use crate::kernels::testing::coop::{APPLE, NVIDIA, emulated_call, emulates, has_matrices};
use crate::kernels::testing::{agree, agree_everywhere, agree_long, agrees_changed, drawn, lab};
use crate::quant::GgmlType;

/// The forms that a device can run.
fn forms(gpu: &Gpu) -> Vec<Form> {
    let mut forms = vec![Form::float(gpu), Form::best(gpu)];
    forms.dedup();
    if forms.len() == 1 {
        eprintln!("tier {}: no cooperative matrices", gpu.tier.name());
    }
    forms
}

/// The cases of a device in each of its forms.
fn in_each_form(gpu: &Gpu, cases: fn(Form) -> Vec<Case>) -> Vec<Case> {
    forms(gpu).into_iter().flat_map(cases).collect()
}

#[test]
fn every_type_in_every_form_and_shapes_of_the_models() {
    agree(gpus(), |gpu| in_each_form(gpu, cases));
}

#[test]
fn ranges_of_the_columns_heads_and_experts_in_every_form() {
    agree_everywhere(gpus(), |gpu| in_each_form(gpu, everywhere));
}

#[test]
#[ignore = "long: scripts/test --all"]
fn dense_pairs_of_every_type() {
    agree_long(gpus(), |gpu| in_each_form(gpu, cases));
}

#[test]
#[ignore = "long: scripts/test --all"]
fn every_tile_of_every_form() {
    for gpu in gpus() {
        agree_long([gpu], |gpu| in_each_form(gpu, everywhere));
        // Workgroup memory in numbers instead of vectors or the other way round: devices take one of the two.
        let other_width = |mut call: Call| {
            let flags = &mut call.variant.flags;
            if !flags.remove("VECTORS") {
                flags.insert("VECTORS");
            }
            call
        };
        for form in forms(gpu)
            .into_iter()
            .filter(|form| form.matrices().is_some())
        {
            for &tile in tiles(form, false) {
                let mut product = Product::of(GgmlType::Q4_0, 150, 96, tile.tokens as usize + 1);
                product.tile = Some(tile);
                agrees_changed(gpu, &product.case(form), other_width);
            }
        }
    }
}

#[test]
fn a_weight_larger_than_a_binding_is_cut() {
    for tier in [Tier::Plain, Tier::Subgroup] {
        let options = GpuOptions {
            tier: Some(tier),
            max_binding: Some(40_000),
            ..Default::default()
        };
        let Ok(gpu) = open(&options) else {
            continue;
        };
        let types = [GgmlType::Q4_0, GgmlType::Q8_0];
        for form in forms(&gpu) {
            let product = Product {
                residual: true,
                ..Product::of(types[0], 700, 256, 20)
            };
            let heads = Product {
                shape: [7, 60, 256],
                ..Product::of(types[1], 60, 256, 18)
            };
            let pair = Pair {
                types,
                shape: [500, 256],
                tokens: 20,
                tile: None,
            };
            let experts = [true, false].map(|gather| OfExperts {
                types: Some(types),
                sizes: [8, 3, 64, 256],
                tokens: 30,
                height: 16,
                gather,
            });
            let lab = lab(&gpu, format!("{form:?} in pieces"));
            let all = [
                product.compare(&lab, form),
                heads.compare(&lab, form),
                pair.compare(&lab, form),
                experts[0].compare(&lab, form),
                experts[1].compare(&lab, form),
            ];
            for compared in all {
                compared.unwrap_or_else(|e| panic!("{e}"));
            }
        }
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn products_are_right_where_matrices_are_emulated() {
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
            let of = [tiles(form, false), expert_tiles(form, false)];
            assert!(of.iter().any(|tiles| tiles.contains(&tile)));
            let product = Product {
                tile: Some(tile),
                residual: true,
                ..Product::of(GgmlType::Q4_0, 150, cols, tile.tokens as usize + 5)
            };
            let emulated = |call: Call| emulated_call(&call, coop, backwards);
            agrees_changed(gpu, &product.case(form), emulated);
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
            let of = [tiles(form, true), expert_tiles(form, true)];
            assert!(of.iter().any(|tiles| tiles.contains(&tile)));
            let pair = Pair {
                types: [GgmlType::Q4_0, GgmlType::Q8_0],
                shape: [90, 96],
                tokens: tile.tokens as usize + 3,
                tile: Some(tile),
            };
            let emulated = |call: Call| emulated_call(&call, coop, false);
            agrees_changed(gpu, &pair.case(form), emulated);
        }
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
            let weight = |ty| unmade_weight(ty, groups as u32, rows as u32, COLS as u32);
            let weights = [GgmlType::Q4_0, GgmlType::F16].map(weight);
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
