//! Protects the products of a decoded token: every type, shape and geometry agrees with the twin, and so do the heads' values of several
//! tokens, each of which has those of its own slices.

use crate::gpu::testing::{some_waves, token_gpus, token_gpus_with_binding};
use crate::kernels::cases::token_matvec::{OfSlices, Out, Product, cases, everywhere, of_slices};
use crate::kernels::testing::{agree, agree_everywhere, agree_long, assert_in_pieces, lab};
use crate::quant::GgmlType;

#[test]
fn the_gpu_agrees_for_every_type_and_shape_of_the_models() {
    agree(token_gpus(), |_| cases());
    agree_everywhere(token_gpus(), |_| everywhere());
}

#[test]
fn slices_are_merged_before_the_product() {
    agree(token_gpus(), |_| of_slices());
}

#[test]
#[ignore = "long: scripts/test --all"]
fn other_geometries_give_the_same() {
    agree_long(token_gpus(), |_| cases());
}

#[test]
fn a_weight_larger_than_a_binding_is_cut_into_rows() {
    let product = Product {
        ty: GgmlType::Q6_K,
        shape: [1, 1024, 512],
        x_units: 0,
        residual: true,
        out: Out::Both,
        many: false,
    };
    for gpu in &token_gpus_with_binding(100_000) {
        let lab = lab(gpu, "pieces");
        assert_in_pieces(gpu, &lab.weight(product.ty, product.shape));
        product.compare(&lab).unwrap_or_else(|e| panic!("{e}"));
    }
}

/// Slices of each of several tokens.
fn of_tokens(shape: [usize; 3]) -> OfSlices {
    OfSlices {
        ty: GgmlType::Q4_0,
        shape,
        slices: None,
        many: false,
    }
}

#[test]
fn slices_of_each_token_are_merged_in_larger_subgroups() {
    agree_everywhere(&some_waves(), |_| vec![of_tokens([20, 256, 512]).case()]);
}

#[test]
fn heads_of_several_tokens_lie_in_any_piece() {
    let of = of_tokens([8, 64, 512]);
    for gpu in &token_gpus_with_binding(40_000) {
        let lab = lab(gpu, "pieces");
        let w = lab.weight(of.ty, of.shape);
        assert_in_pieces(gpu, &w);
        of.compare(&lab, &w).unwrap_or_else(|e| panic!("{e}"));
    }
}
