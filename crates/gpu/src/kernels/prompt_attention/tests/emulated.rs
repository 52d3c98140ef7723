//! Protects the attention of prompts by matrices on devices that have none: matrices of other devices are emulated.

use super::*;
use crate::kernels::testing::coop::{emulated_call, emulates, has_matrices};

/// A shape with its matrices emulated, for narrow heads.
fn check_emulated(shape: prompt_attention_coop::Shape, backwards: bool) {
    let mut rng = Rng::fresh();
    // Heads are as narrow as the shape's loads allow.
    let narrow = |columns| KvDims {
        mla: MlaDims {
            heads: 2,
            nope: columns,
            rope: 64,
            kv_lora: 64,
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
    let of_coop = |call: Call| emulated_call(&call, shape.coop, backwards);
    // One tile is not full. One last block has fewer rows than are loaded ahead, and the first tokens see none of them. Masks begin within a
    // tile and at its edge. Some blocks are no multiple of a tile. Later blocks go on with the sums that earlier ones left.
    let sizes = [(0, 70, 64), (31, 67, 64), (64, 64, 50), (150, 33, 256)];
    let random = sizes.map(|(pos, tokens, rows)| (Case::random(&mut rng, dims, pos, tokens), rows));
    let far = (Case::far(&mut rng, dims, 1000.0), 64);
    // Blocks that begin with a page, and one that has several.
    let paged = [(150, 33, 64), (155, 40, 128)].map(|(pos, tokens, rows)| {
        let case = Case::random(&mut rng, dims, pos, tokens);
        (case.in_pages(&mut rng), rows)
    });
    for (case, rows) in random.into_iter().chain([far]).chain(paged) {
        let (pos, tokens) = (case.pos, case.tokens);
        let exact = case.twin();
        for gpu in gpus().iter().filter(|gpu| emulates(gpu)) {
            let (expansion, tiled) = (Some(small.tiled(dims)), Some(shape.tiled(dims)));
            let form = Form::Matrix(shape.coop);
            let found = case.run(gpu, form, expansion, tiled, rows, of_coop);
            let error = nmse(&found, &exact);
            let pages = if case.paged.is_some() {
                ", in pages"
            } else {
                ""
            };
            let what = format!("{tokens} at {pos}, blocks of {rows}{pages}: NMSE {error:.1e}");
            eprintln!("{what}");
            assert!(error <= MATRIX_LIMIT, "{shape:?}: {what}");
        }
    }
}

/// The shapes for `coop` that the sizes of the models choose, or those that none does.
fn emulated_shapes(coop: Coop, chosen: bool) -> impl Iterator<Item = prompt_attention_coop::Shape> {
    let best = shapes().map(|dims| prompt_attention_coop::best(dims, coop));
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
