//! Protects the attention of prompts by matrices on devices that have none: matrices of other devices are emulated.

use super::forms::{Kernels, case, far_case};
use super::*;
use crate::kernels::CacheType;
use crate::kernels::testing::agrees_changed;
use crate::kernels::testing::coop::{emulated_call, emulates, has_matrices};

/// A shape with its matrices emulated, for narrow heads.
fn check_emulated(shape: prompt_attention_coop::Shape, backwards: bool) {
    let cache = CacheType::ALL[Rng::fresh().below(2)];
    // Heads are as narrow as the shape's loads allow.
    let narrow = |columns| KvDims {
        mla: MlaDims {
            heads: 2,
            nope: columns,
            rope: 64,
            kv_lora: 64,
            cache,
        },
        v: 64,
    };
    let dims = [64, 128, 192].map(narrow);
    let dims = dims.into_iter().find(|dims| shape.fits(*dims));
    let dims = dims.expect("a head of 256");
    // The smallest expansion: it has a test of its own, and llvmpipe takes long to compile large tiles.
    let small = expand_kv_coop::Shape {
        coop: shape.coop,
        groups: [2, 2],
        tiles: [1, 1],
        depth: 32,
        vectors: shape.vectors,
    };
    if !has_matrices(shape.coop) {
        return;
    }
    let kernels = Kernels::Matrix(shape, small);
    // One tile is not full. One last block has fewer rows than are loaded ahead, and the first tokens see none of them. Masks begin within a
    // tile and at its edge. Some blocks are no multiple of a tile. Later blocks go on with the sums that earlier ones left. Blocks in pages
    // begin with one, and one block has several.
    let sizes = [
        ([0, 70, 64], false),
        ([31, 67, 64], false),
        ([64, 64, 50], false),
        ([150, 33, 256], false),
        ([150, 33, 64], true),
        ([155, 40, 128], true),
    ];
    let mut cases: Vec<_> = sizes
        .map(|(of, paged)| case(kernels, dims, of, paged))
        .into();
    cases.push(far_case(kernels, dims, 1000.0));
    for gpu in gpus().iter().filter(|gpu| emulates(gpu)) {
        for case in &cases {
            let of_coop = |call: Call| emulated_call(&call, shape.coop, backwards);
            agrees_changed(gpu, case, of_coop);
        }
    }
}

/// The shapes for `coop` that the sizes of the models choose, or those that none does.
fn emulated_shapes(coop: Coop, chosen: bool) -> impl Iterator<Item = prompt_attention_coop::Shape> {
    let best = SHAPES_OF_MODELS.map(|dims| prompt_attention_coop::best(dims, coop));
    prompt_attention_coop::SHAPES
        .into_iter()
        .filter(move |shape| shape.coop == coop && best.contains(&Some(*shape)) == chosen)
}

#[test]
#[ignore = "long: scripts/test --all"]
fn matrices_of_16_agree_with_the_twin_where_they_are_emulated() {
    for (i, shape) in emulated_shapes(NVIDIA, true).enumerate() {
        check_emulated(shape, i == 0);
    }
}

#[test]
#[ignore = "llvmpipe takes half a minute to compile 8x8 matrices over 32 lanes: cargo test --lib emulated -- --ignored"]
fn a_chunk_agrees_with_the_twin_where_matrices_of_8_over_32_lanes_are_emulated() {
    emulated_shapes(APPLE, true).for_each(|shape| check_emulated(shape, false));
}

#[test]
#[ignore = "llvmpipe takes long to compile shapes that no model chooses: cargo test --lib emulated -- --ignored"]
fn further_shapes_agree_with_the_twin_where_matrices_are_emulated() {
    for coop in [NVIDIA, APPLE] {
        emulated_shapes(coop, false).for_each(|shape| check_emulated(shape, false));
    }
}
