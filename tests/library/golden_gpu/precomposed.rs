//! Protects `--precompose`: logits by products of weights are near the golden values.

use super::*;
use PrecomposeChoice::{Both, Qk, Vo};
use glimt::recipes::Residence;

/// With f32 activations and products rounded to Q8_0.
const NMSE_PRODUCTS: f64 = 1e-4;

/// With activations as bytes: in the small DeepSeek a token whose experts turn gives 1e-3 alone (9.7e-4 without products).
const NMSE_PRODUCTS_INT8: f64 = 3e-3;

#[test]
#[ignore = "long: scripts/test --all"]
fn logits_by_products_are_near_the_golden_values() {
    let floats = tiers().into_iter().map(|gpu| (gpu, NMSE_PRODUCTS));
    let bytes = int8().map(|gpu| (gpu, NMSE_PRODUCTS_INT8));
    let gpus: Vec<_> = floats.chain(bytes).collect();
    // In each run another tier and other choices. All tokens come one by one, because prompts do not read products.
    for (gpu, limit) in drawn(&gpus, 1) {
        let mut choices = some(&[Qk, Vo, Both], 3).into_iter().cycle();
        let mut backend = |model: &Arc<Model>, n_ctx: usize| -> Box<dyn Backend> {
            let choice = choices.next().expect("it goes round");
            let (gpu, model, told) = (Arc::clone(gpu), model.clone(), &mut |_, _| {});
            let loaded =
                GpuModel::load_precomposed(gpu, model, Residence::Whole, choice, n_ctx, told)
                    .wait();
            let loaded = loaded.expect("the model fits");
            let backend = GpuBackend::new(Arc::new(loaded), n_ctx).wait();
            Box::new(OneByOne(backend.expect("a small cache")))
        };
        let model = &embedded();
        let golden = Golden::read(&in_repository("tests/data/golden-tales-q4_k_m.json"));
        let golden = golden.with_a_prompt();
        let mut tales = backend(model, 128);
        check_golden(&mut *tales, &golden, "tales", *limit, f64::INFINITY);
        check_synthetic([1, 1], &mut backend, *limit, f64::INFINITY);
    }
}
