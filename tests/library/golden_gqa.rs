//! Protects grouped-query attention on the CPU: models of each architecture, with each of its variants, give the values that llama.cpp computes.

use glimt::engine::Products;
use glimt::engine::cpu::CpuBackend;
use glimt::models;

use crate::golden::{Golden, check_golden, in_repository};
use crate::testing::some;

/// A model of each architecture: 3, 7, 16 and 8 query heads to a key head, whose widths are 96, 64, 80 and 128.
const MODELS: [&str; 4] = [
    "tiny-llama-q8_0",
    "tiny-qwen2-q4_k_m",
    "tiny-qwen3-q4_0",
    "tiny-qwen3moe-q4_k_m",
];

/// The limits of exact products, for the error over all positions and for the worst one relative to its spread: the cache of f16 costs so much.
const EXACT: [f64; 2] = [1e-7, 1e-4];

/// Those of quick products, which round activations to bytes.
const QUICK: [f64; 2] = [1e-4, 5e-2];

#[test]
fn models_of_each_architecture_give_their_golden_values() {
    for name in some(&MODELS, 2) {
        let golden = Golden::read(&in_repository(&format!("tests/data/golden-{name}.json")));
        let synthetic = golden.synthetic.as_ref().expect("it is synthetic");
        let model = models::load(synthetic.file()).unwrap_or_else(|e| panic!("{name}: {e}"));
        for (products, [nmse, contrast]) in [(Products::Exact, EXACT), (Products::Quick, QUICK)] {
            let backend = CpuBackend::new(model.clone(), products, 128);
            let mut backend = backend.expect("a small cache");
            check_golden(&mut backend, &golden, name, nmse, contrast);
        }
    }
}
