//! Protects the products of a batch: every type and shape agrees with the twin, for one weight, heads and experts, in every geometry.

use super::*;
use crate::gpu::Most;
use crate::gpu::buffer::{Buffer, Role};
use crate::gpu::testing::{all_gpus, token_gpus_with_binding};
use crate::kernels::batch_experts::{MOST_PLACES, TILE_WORDS};
use crate::kernels::cases::batch_matvec::{Division, Kind, Product, cases, ragged};
use crate::kernels::expert_rows::tile_count;
use crate::kernels::testing::bounds::needs_every_byte;
use crate::kernels::testing::{agree, agree_everywhere, agree_long, assert_in_pieces, lab};
use crate::quant::GgmlType;

#[test]
fn the_gpu_agrees_for_every_type_and_experts_take_their_own_tokens() {
    agree(all_gpus(), |_| cases());
    agree_everywhere(all_gpus(), |_| vec![ragged()]);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn the_gpu_agrees_at_the_shapes_of_the_models_and_in_other_geometries() {
    agree_long(all_gpus(), |_| cases());
}

#[test]
fn experts_lie_in_any_piece() {
    let product = Product {
        ty: GgmlType::Q4_0,
        kind: Kind::ByToken(2),
        shape: [8, 96, 256],
        pair: true,
        tokens: Some(19),
        division: Division::Default,
    };
    for gpu in &token_gpus_with_binding(40_000) {
        let lab = lab(gpu, "pieces");
        assert_in_pieces(gpu, &lab.weight(product.ty, product.shape));
        product.compare(&lab).unwrap_or_else(|e| panic!("{e}"));
    }
}

#[test]
fn every_index_lies_in_its_buffer() {
    let target = Target::h200();
    let form = target.activation();
    let (groups, rows, cols, tokens, used) = (3, 64, 256, 9, 2);
    let w = crate::gpu::testing::unmade_weight(GgmlType::Q4_0, groups, rows, cols);
    let most = Most { tokens, context: 9 };
    let values = |rows: u32, n: u32| Range::prepared("values", form, rows * n);
    for by_token in [true, false] {
        let outputs = tokens * used;
        let inputs = if by_token { tokens } else { outputs };
        let tiles = u64::from(tile_count(tokens, used, MOST_PLACES, groups));
        let product = GpuBatchMatvec {
            experts: Some(Tiles {
                list: Range::words("tiles", u64::from(TILE_WORDS) * tiles),
                places: MOST_PLACES,
                experts: groups,
                used,
                most: tokens,
                by_token,
                counts: None,
            }),
            y: Some(Range::whole(&Buffer::new(
                "y",
                u64::from(outputs * rows) * 4,
                Role::Floats,
            ))),
            ..GpuBatchMatvec::new(
                &target,
                &w,
                tokens,
                Input::Prepared(TokenInput::of(values(inputs, cols))),
            )
        };
        for call in product.calls(&target).expect("it is allowed") {
            needs_every_byte(&call, most);
        }
    }
}
