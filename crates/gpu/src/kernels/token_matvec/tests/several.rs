//! Protects the heads' values of several tokens: each has those of its own slices, however many these are.

use super::*;
use crate::gpu::testing::some_waves;
use crate::kernels::testing::several::{Several, standing};
use crate::kernels::testing::slice_stats;

/// Slices of other tokens, before those of the first one here.
const PRECEDING: usize = 2;

/// Slices of each token, their sums and their statistics as the attention leaves them, and the latents of all tokens.
struct Merged {
    slices: Vec<u32>,
    sums: Vec<f32>,
    stats: Vec<[f32; 2]>,
    latents: Vec<f32>,
}

impl Merged {
    /// Some slices have no rows.
    fn new(rng: &mut Rng, tokens: usize, heads: usize, kv_lora: usize) -> Self {
        let before = PRECEDING * heads;
        let mut merged = Self {
            slices: vec![],
            sums: vec![f32::NAN; before * kv_lora],
            stats: vec![[f32::NAN; 2]; before],
            latents: vec![],
        };
        for _ in 0..tokens {
            // Few, about as many as threads share a vector, or more.
            let most = [3, 10, 20][rng.below(3)];
            let slices = 1 + rng.below(most);
            let mut sums = rng.normals(heads * slices * kv_lora);
            let mut stats = slice_stats(rng, heads * slices);
            if slices > 1 {
                stats[slices - 1] = [-1e30, 0.0];
                sums[(slices - 1) * kv_lora..slices * kv_lora].fill(0.0);
            }
            let mut latents = vec![0.0; heads * kv_lora];
            attention_merge(&sums, &stats, slices, kv_lora, &mut latents);
            merged.slices.push(slices as u32);
            merged.sums.extend(sums);
            merged.stats.extend(stats);
            merged.latents.extend(latents);
        }
        merged
    }
}

/// Every geometry in question against the twin over the result of the merge's twin; the pieces of the weight.
fn check_several(gpu: &Gpu, rng: &mut Rng, w: &Weight, all: bool) -> usize {
    let several = Several::new(rng);
    let Several { here, most } = several;
    let (heads, rows, kv_lora) = (w.groups, w.rows, w.cols);
    let (n, latent) = (heads * rows, heads * kv_lora);
    let dims = MlaDims {
        heads,
        nope: 8,
        rope: 8,
        kv_lora,
    };
    let merged = Merged::new(rng, here, heads, kv_lora);
    let of_token = |x: &[f32]| {
        let x = stand_for(activation(gpu), x);
        token_matvec(w, &x, kv_lora / 32, None, None)
    };
    let twin: Vec<f32> = merged
        .latents
        .chunks_exact(latent)
        .flat_map(of_token)
        .collect();
    let exact: Vec<f64> = twin.iter().map(|v| f64::from(*v)).collect();

    let [sums, pairs] = partial_bytes(dims, MAX_SLICES + most);
    let padded = |data: &[f32], bytes: u64| {
        let mut data = data.to_vec();
        assert!(data.len() <= bytes as usize / 4, "{:?}", merged.slices);
        data.resize(bytes as usize / 4, f32::NAN);
        Range::whole(&upload(gpu, &data))
    };
    let partials = [
        padded(&merged.sums, sums),
        padded(merged.stats.as_flattened(), pairs),
    ];
    let mut slices = merged.slices.clone();
    slices.resize(most, 0);
    let sequences = standing(gpu, &vec![u32::MAX; most], &slices, PRECEDING as u32);
    let weight = gpu_weight(gpu, w);
    let product = GpuTokenMatvec::new(&weight, activation(gpu), Input::Slices(partials, dims))
        .of_tokens(most as u32, &sequences);
    let call = product.clone().prepared(room(gpu, most * n, None));
    for geometry in geometries(gpu, &call.site(), all) {
        let (y, q) = (output(gpu, most * n), room(gpu, most * n, None));
        let call = product
            .clone()
            .bind("y", &Range::whole(&y))
            .prepared(q.clone());
        let calls = call.calls_with(gpu, &geometry);
        several.run(gpu, &calls.unwrap_or_else(|e| panic!("{e}")), most);
        let slices = &merged.slices;
        let what = format!("{heads} x {rows} x {kv_lora}, {several:?}, {slices:?}, {geometry:?}");
        let found = several.download(gpu, &y, n);
        let nmse = match activation(gpu) {
            // A latent midway between two rounded values may round to the other one. The limit has room for some.
            Activation::Bytes | Activation::Halves { .. } => 5e-6,
            Activation::Floats => 1e-11,
        };
        assert_close(&found, &exact, nmse, &what);
        assert_prepared(gpu, &q, None, &found, &what);
    }
    weight.pieces.len()
}

#[test]
fn slices_of_each_token_are_merged_before_the_product() {
    let mut rng = Rng::fresh();
    let cases = [
        (GgmlType::Q4_0, 20, 256, 512, false),
        (GgmlType::Q8_0, 16, 128, 512, false),
        (GgmlType::F16, 4, 48, 96, false),
        (GgmlType::Q4_0, 2, 128, 288, true),
    ];
    for (gpu, &(ty, heads, rows, kv_lora, all)) in drawn_pairs(&token_gpus(), &cases) {
        let w = random_weight(&mut rng, ty, heads, rows, kv_lora);
        check_several(gpu, &mut rng, &w, all);
    }
}

#[test]
fn slices_of_each_token_are_merged_in_larger_subgroups() {
    let mut rng = Rng::fresh();
    let w = random_weight(&mut rng, GgmlType::Q4_0, 20, 256, 512);
    for gpu in &some_waves() {
        check_several(gpu, &mut rng, &w, false);
    }
}

#[test]
fn heads_of_several_tokens_lie_in_any_piece() {
    let mut rng = Rng::fresh();
    let w = random_weight(&mut rng, GgmlType::Q4_0, 8, 64, 512);
    for gpu in token_gpus_with_binding(40_000) {
        let pieces = check_several(&gpu, &mut rng, &w, false);
        assert!(pieces > 1, "{pieces} pieces");
    }
}
