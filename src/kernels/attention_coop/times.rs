//! How long the attention of a token takes in each shape: a measurement for those who choose them, at the sizes of GLM-4.7-Flash.

use super::*;
use crate::gpu::record::Op;
use crate::gpu::testing::{gpus, int8_gpu, output, upload};
use std::time::Instant;

/// Rows of all caches that dispatches take in turn, more than second-level caches hold.
const CACHED: usize = 6 * 32_768;
/// Dispatches of a submission, in two lengths whose difference counts, and submissions of which the best does.
const REPEATS: [usize; 2] = [24, 96];
const ROUNDS: usize = 10;

/// Seconds of a submission.
fn time(gpu: &Gpu, recording: &Recording, state: &State) -> f64 {
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    recording.encode(gpu, &mut encoder, state);
    let commands = encoder.finish();
    gpu.wait(None).unwrap_or_else(|e| panic!("{e}"));
    let began = Instant::now();
    gpu.queue.submit([commands]);
    gpu.wait(None).unwrap_or_else(|e| panic!("{e}"));
    began.elapsed().as_secs_f64()
}

#[test]
#[ignore = "a measurement: cargo test --release --lib attention_coop::times -- --ignored --nocapture"]
fn times_of_every_shape() {
    let all = int8_gpu().into_iter().chain(gpus());
    let Some((gpu, coop)) = all.filter_map(|gpu| Some((gpu, gpu.coop?))).next() else {
        eprintln!("skipped: no cooperative matrices");
        return;
    };
    let software = gpu.info.device_type == wgpu::DeviceType::Cpu;
    let (counts, cached): (&[usize], usize) = match software {
        true => (&[1, 575], 4096),
        false => (&[1, 512, 4096, 32_768], CACHED),
    };
    let dims = MlaDims {
        heads: 20,
        nope: 192,
        rope: 64,
        kv_lora: 512,
    };
    let row = dims.cache_row() * 2;
    let words = |n: usize| Range::whole(&upload(gpu, &vec![0u32; n]));
    let cache = words(cached * row / 4);
    let partials = partial_bytes(dims, 1).map(|b| Range::whole(&output(gpu, b as usize / 4)));
    let mut attention = GpuAttention {
        form: Form::Vector,
        q_lat: words(dims.heads * dims.kv_lora),
        q_pe: words(dims.heads * dims.rope),
        cache: cache.clone(),
        dims,
        scale: 1.0,
        max_tokens: 1,
        partials: partials.clone(),
    };
    let out = output(gpu, dims.heads * dims.kv_lora);
    let floats = attention_merge::Output::Floats;
    let merge = attention_merge::op(&partials, dims, 1, &Range::whole(&out), floats);
    let mut runs = vec![];
    for shape in fitting(coop, gpu.limits.max_compute_workgroup_storage_size, dims) {
        attention.form = Form::Matrix(Shapes::always(shape));
        for &rows in counts {
            let (splits, split_rows) = split(attention.form, rows, 1, dims.heads);
            let state = State {
                pos: rows as u32 - 1,
                tokens: 1,
                splits,
                split_rows,
                ..State::default()
            };
            let parts = (cached / rows).min(REPEATS[0]);
            let each = (0..parts).flat_map(|i| {
                attention.cache.offset = (i * (cached / parts) * row) as u64;
                attention.cache.size = (rows * row) as u64;
                attention.ops()
            });
            let alone: Vec<Op> = each.collect();
            let merged = alone.iter().flat_map(|op| [op.clone(), merge.clone()]);
            for (ops, what) in [
                (merged.collect(), "with its merge"),
                (alone.clone(), "alone"),
            ] {
                let ops: Vec<Op> = ops;
                let per = ops.len() / alone.len();
                let recordings = REPEATS.map(|n| {
                    let ops: Vec<Op> = ops.iter().cycle().take(n * per).cloned().collect();
                    Recording::new(gpu, &ops).unwrap_or_else(|e| panic!("{e}"))
                });
                runs.push((shape, rows, what, state, recordings, [f64::INFINITY; 2]));
            }
        }
    }
    // In turns: clocks change.
    for _ in 0..ROUNDS {
        for (_, _, _, state, recordings, best) in &mut runs {
            for (recording, best) in recordings.iter().zip(best) {
                *best = best.min(time(gpu, recording, state));
            }
        }
    }
    for (shape, rows, what, state, _, best) in &runs {
        let seconds = (best[1] - best[0]) / (REPEATS[1] - REPEATS[0]) as f64;
        let (us, splits) = (seconds * 1e6, state.splits);
        println!("{rows} rows in {splits} slices, {what}: {us:.2} us, {shape:?}");
    }
}
