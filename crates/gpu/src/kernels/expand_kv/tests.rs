//! Protects the expansion of keys and values, and its weights: every form agrees with the twin.

use super::*;
use crate::gpu::buffer::{Buffer, Role};
use crate::gpu::call::Call;
use crate::gpu::testing::gpus;
use crate::gpu::{Gpu, GpuError, Most, Step};
use crate::kernels::cases::Case;
use crate::kernels::cases::expand_kv::{Expansion, SHAPES_OF_MODELS, weights as of_weights};
use crate::kernels::cases::lab::heads;
use crate::kernels::testing::coop::{APPLE, NVIDIA, emulated_call, emulates, has_matrices};
use crate::kernels::testing::{
    Rng, agree, agree_everywhere, agree_long, agrees_changed, assert_close, exact_rows,
    random_weight,
};
use crate::kernels::{CacheType, MlaDims, expand_kv_coop};
use crate::quant::GgmlType;

fn weights(rng: &mut Rng, types: [GgmlType; 2], dims: KvDims) -> [Weight; 2] {
    let mla = dims.mla;
    [
        random_weight(rng, types[0], mla.heads, mla.kv_lora, mla.nope),
        random_weight(rng, types[1], mla.heads, dims.v, mla.kv_lora),
    ]
}

#[test]
fn expanded_rows_are_products_of_latents_with_every_head() {
    let mut rng = Rng::fresh();
    let dims = KvDims {
        mla: MlaDims {
            heads: 3,
            nope: 32,
            rope: 8,
            kv_lora: 64,
            cache: CacheType::F16,
        },
        v: 32,
    };
    let [k_b, v_b] = weights(&mut rng, [GgmlType::Q5_1, GgmlType::Q4_0], dims);
    let cache: Vec<f16> = rng.normals(2 * 72).into_iter().map(f16::from_f32).collect();
    let mut all = vec![f32::NAN; dims.width() * 64];
    expand_kv_weights(&k_b, &v_b, dims, &mut all);
    let mut kv = vec![f32::NAN; 2 * dims.width()];
    expand_kv(&cache, &all, dims, &mut kv);
    for (row, kv) in cache.chunks_exact(72).zip(kv.chunks_exact(dims.width())) {
        let latent: Vec<f32> = row[..64].iter().map(|x| x.to_f32()).collect();
        let mut exact = vec![];
        for h in 0..3 {
            let mut key = vec![0.0f64; 32];
            for (r, x) in latent.iter().enumerate() {
                let mut weights = vec![0.0; 32];
                dequantize_row(k_b.ty, k_b.row(h, r), &mut weights);
                let sums = key.iter_mut().zip(&weights);
                sums.for_each(|(k, w)| *k += f64::from(*x) * f64::from(*w));
            }
            exact.extend(key);
        }
        (0..3).for_each(|h| exact.extend(exact_rows(&v_b, h, &latent)));
        assert_close(kv, &exact, 1e-12, "a row");
    }
}

#[test]
fn what_does_not_fit_is_named_before_anything_runs() {
    let [dims, ..] = SHAPES_OF_MODELS;
    let range = |bytes, role| Range::whole(&Buffer::new("test", bytes, role));
    let found = |rows: usize, blocks, role| {
        let cache = range(200 * dims.mla.cache_row() as u64 * 2, Role::Cache);
        let weights = range(dims.weight_bytes(true), role);
        let kv = range(dims.kv_bytes(rows, true), Role::Halves);
        let tiled = expand_kv_coop::tiled(dims, NVIDIA);
        let call = call((None, &cache), &weights, dims, true, tiled, blocks, &kv);
        match Step::of(Most::token(200), [call]).resolve() {
            Ok(_) => String::new(),
            Err(GpuError::Interface { kernel, what }) => {
                assert_eq!(kernel, "expand_kv_coop");
                what
            }
            Err(e) => panic!("{e}"),
        }
    };
    let blocks = Blocks::new(64, 200);
    assert_eq!(found(64, blocks, Role::Halves), "");
    assert!(found(63, blocks, Role::Halves).contains("binding kv"));
    assert!(found(64, blocks, Role::Floats).contains("binding weights"));
    let few = Blocks::new(64, 192);
    assert!(found(64, few, Role::Halves).contains("do not hold the context"));
}

#[test]
#[ignore = "long: scripts/test --all"]
fn weights_of_every_type_become_those_of_the_twin() {
    agree_long(gpus(), |_| of_weights());
}

#[test]
fn weights_become_those_of_the_twin_and_threads_behind_the_last_write_nothing() {
    agree_everywhere(gpus(), |_| of_weights());
}

/// The case of an expansion.
fn case(of: Expansion) -> Case {
    let pages = if of.paged { ", in pages" } else { "" };
    let by = of
        .shape
        .map_or(String::new(), |shape| format!(", {shape:?}"));
    let name = format!("{} rows by {} of {}", of.n, of.rows, heads(of.dims.mla));
    Case::new(name + pages + &by, move |lab| of.compare(lab))
}

/// Blocks of contexts in every form that a device has.
fn cases(gpu: &Gpu) -> Vec<Case> {
    let of_device = |shape: &expand_kv_coop::Shape| Some(shape.coop) == gpu.coop;
    let shapes = expand_kv_coop::SHAPES
        .into_iter()
        .filter(of_device)
        .map(Some);
    let shapes: Vec<_> = [None].into_iter().chain(shapes).collect();
    let [glm, deepseek, tales] = SHAPES_OF_MODELS;
    let mut all = vec![];
    for (dims, n, rows) in [
        (glm, 1, 64),
        (glm, 200, 130),
        (deepseek, 64, 64),
        (deepseek, 129, 1024),
        (tales, 67, 33),
        (glm.with_cache(CacheType::Q8_0), 200, 130),
        (tales.with_cache(CacheType::Q8_0), 67, 33),
    ] {
        for paged in [false, true] {
            let of = |&shape| Expansion {
                dims,
                n,
                rows,
                paged,
                shape,
            };
            all.extend(shapes.iter().map(|shape| case(of(shape))));
        }
    }
    all
}

#[test]
fn blocks_of_any_size_become_those_of_the_twin() {
    agree(gpus(), cases);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn blocks_become_those_of_the_twin_where_matrices_are_emulated() {
    // Narrow, with columns that no tile divides.
    let mla = MlaDims {
        heads: 2,
        nope: 32,
        rope: 8,
        kv_lora: 64,
        cache: CacheType::F16,
    };
    let dims = KvDims { mla, v: 66 };
    // Backwards where that is quicker to compile.
    let kinds = [(NVIDIA, false), (APPLE, false), (APPLE, true)];
    for gpu in gpus().iter().filter(|gpu| emulates(gpu)) {
        for (coop, backwards) in kinds.into_iter().filter(|kind| has_matrices(kind.0)) {
            let of_coop = |shape: &expand_kv_coop::Shape| shape.coop == coop;
            for shape in expand_kv_coop::SHAPES.into_iter().filter(of_coop) {
                for (n, rows, paged) in [(1, 64, false), (200, 130, true), (129, 1024, true)] {
                    let of = Expansion {
                        dims,
                        n,
                        rows,
                        paged,
                        shape: Some(shape),
                    };
                    let emulated = |call: Call| emulated_call(&call, coop, backwards);
                    agrees_changed(gpu, &case(of), emulated);
                }
            }
        }
    }
}
