//! How long products take in each tile: a measurement for those who choose them, at the shapes of GLM-4.7-Flash.

use super::tests::zeros;
use super::*;
use crate::gpu::buffer::Role;
use crate::gpu::call::State;
use crate::gpu::record::Recording;
use crate::gpu::testing::{gpus, upload};
use crate::gpu::{Most, Step};
use crate::kernels::expert_rows::{GpuExpertRows, TileList};
use crate::kernels::testing::Rng;
use crate::quant::GgmlType;

const EXPERTS: usize = 64;
const USED: usize = 4;
/// Dispatches of a submission, and submissions of which the best counts.
const REPEATS: usize = 10;
const ROUNDS: usize = 4;

/// Seconds of a dispatch.
fn time(gpu: &Gpu, call: &Call, state: &State) -> f64 {
    let calls = vec![call.clone(); REPEATS];
    let recording =
        Recording::new(gpu, &Step::of(Most::of(state), calls)).unwrap_or_else(|e| panic!("{e}"));
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let began = std::time::Instant::now();
        recording.submit(gpu, state);
        gpu.wait(None).unwrap_or_else(|e| panic!("{e}"));
        best = best.min(began.elapsed().as_secs_f64() / REPEATS as f64);
    }
    best
}

#[test]
#[ignore = "a measurement: cargo test --release --lib times_of_every_tile -- --ignored --nocapture"]
fn times_of_every_tile() {
    let mut rng = Rng::fresh();
    let Some(gpu) = gpus().iter().find(|gpu| gpu.coop.is_some()) else {
        eprintln!("skipped: no cooperative matrices");
        return;
    };
    let form = Form::best(gpu);
    let software = gpu.info.device_type == wgpu::DeviceType::Cpu;
    let counts: &[usize] = if software { &[32] } else { &[2048, 512] };
    for (&n_tokens, (name, rows, cols, pair, experts)) in counts.iter().flat_map(|n| {
        [
            ("gate and up of experts", 1536, 2048, true, true),
            ("down of experts", 2048, 1536, false, true),
            ("gate and up", 1536, 2048, true, false),
            ("attn_output", 2048, 5120, false, false),
            ("attn_q_b", 5120, 768, false, false),
            ("attn_q_a", 768, 2048, false, false),
            ("down", 2048, 1536, false, false),
        ]
        .map(|shape| (n, shape))
    }) {
        let (groups, used) = if experts { (EXPERTS, USED) } else { (1, 1) };
        let weights = [(); 2].map(|()| zeros(GgmlType::Q4_0, [groups, rows, cols]));
        let places = n_tokens * used;
        let inputs = if pair { n_tokens } else { places };
        let words = |n: usize| Range::whole(&upload(gpu, &vec![0u32; n]));
        let halves = words(inputs * cols / 2).holding(Role::Halves);
        let x = [halves, words(inputs).holding(Role::Floats)];
        let y = words(places * rows).holding(Role::Floats);
        // Experts by chance: each has about as many tokens.
        let ids: Vec<u32> = (0..n_tokens)
            .flat_map(|_| {
                let first = rng.below(EXPERTS);
                (0..USED).map(move |k| ((first + 16 * k) % EXPERTS) as u32)
            })
            .collect();
        let ids = Range::whole(&upload(gpu, &ids));
        let tokens = n_tokens as u32;
        let state = State {
            tokens,
            ..State::default()
        };
        let tiles = if experts { expert_tiles } else { tiles };
        for &tile in tiles(form, pair) {
            let height = tile.tokens;
            let count = crate::kernels::expert_rows::tile_count(tokens, USED as u32, height, 64);
            let list = GpuExpertRows {
                ids: ids.clone(),
                experts: EXPERTS as u32,
                used: USED as u32,
                slots: words(n_tokens * USED),
                lists: vec![TileList {
                    height,
                    tiles: words(count as usize * 4),
                }],
                counts: words(6),
            };
            time(gpu, &list.call(), &state);
            let product = GpuGemm {
                form,
                weight: &weights[0],
                up: pair.then_some(&weights[1]),
                max_tokens: tokens,
                x: Input::Halves(x.clone()),
                x_stride: cols as u32,
                x_group_stride: 0,
                experts: experts.then(|| GpuExperts {
                    tiles: list.lists[0].tiles.clone(),
                    slots: list.slots.clone(),
                    used: USED as u32,
                    height,
                    gather: pair,
                    counts: None,
                    either: false,
                }),
                residual: None,
                parts: 1,
                y: y.clone(),
                tile: Some(tile),
            };
            let seconds = time(gpu, &product.calls(gpu)[0], &state);
            let flops = 2 * places * rows * cols * if pair { 2 } else { 1 };
            println!(
                "{n_tokens} tokens, {name}: {:.1} us, {:.0} TFLOP/s, {tile:?}",
                seconds * 1e6,
                flops as f64 / seconds / 1e12
            );
        }
    }
}
