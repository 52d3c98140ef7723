//! How long the attention of a token takes in each form and shape: a measurement for those who choose them, at the sizes of
//! GLM-4.7-Flash and DeepSeek-V2-Lite.

use super::testing::glm;
use super::*;
use crate::gpu::Gpu;
use crate::gpu::buffer::Role;
use crate::gpu::call::{Call, State};
use crate::gpu::record::Recording;
use crate::gpu::testing::{gpus, int8_gpu, output, upload};
use crate::gpu::{Most, Step};
use crate::kernels::attention_coop::Shapes;
use crate::kernels::{attention_heads, attention_merge};
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

/// Prints what each of `forms` takes over so many rows, as it is cut and into the numbers of slices of `cuts`.
fn measure(gpu: &Gpu, dims: MlaDims, forms: &[Form], cuts: &[usize]) {
    let software = gpu.info.device_type == wgpu::DeviceType::Cpu;
    let (counts, cached): (&[usize], usize) = match software {
        true => (&[1, 575], 4096),
        false => (&[1, 512, 4096, 32_768], CACHED),
    };
    let (repeats, rounds) = match software {
        true => ([2, 6], 3),
        false => (REPEATS, ROUNDS),
    };
    let row = dims.cache_row() * 2;
    let floats = |n: usize| Range::whole(&upload(gpu, &vec![0f32; n]));
    let cache = floats(cached * row / 4).holding(Role::Cache);
    let partials = partial_bytes(dims, 1).map(|b| Range::whole(&output(gpu, b as usize / 4)));
    let mut attention = GpuAttention {
        form: Form::Vector,
        q_lat: floats(dims.heads * dims.kv_lora),
        q_pe: floats(dims.heads * dims.rope),
        cache: cache.clone(),
        dims,
        scale: 1.0,
        partials: partials.clone(),
    };
    let out = output(gpu, dims.heads * dims.kv_lora);
    let merged = attention_merge::Output::Floats;
    let merge = attention_merge::call(&partials, dims, &Range::whole(&out), merged);
    let mut runs = vec![];
    for &form in forms {
        attention.form = form;
        for &rows in counts {
            let tile = form.tile(rows).0;
            let own = split(form, gpu.machine, rows, 1, dims.heads);
            let into = |slices: &usize| {
                let split_rows = rows.div_ceil(tile).div_ceil(*slices) * tile;
                (rows.div_ceil(split_rows) as u32, split_rows as u32)
            };
            let mut all: Vec<_> = cuts.iter().map(into).collect();
            all.push(own);
            all.sort_unstable();
            all.dedup();
            for (splits, split_rows) in all {
                let state = State {
                    pos: rows as u32 - 1,
                    tokens: 1,
                    splits,
                    split_rows,
                    ..State::default()
                };
                let parts = (cached / rows).min(repeats[0]);
                let each = (0..parts).flat_map(|i| {
                    attention.cache.offset = (i * (cached / parts) * row) as u64;
                    attention.cache.size = (rows * row) as u64;
                    attention.calls()
                });
                let alone: Vec<Call> = each.filter(|call| call.when.holds(&state)).collect();
                let mut kinds = vec![(alone.clone(), "")];
                if (splits, split_rows) == own {
                    let merged = alone.iter().flat_map(|call| [call.clone(), merge.clone()]);
                    kinds.push((merged.collect(), " and its merge"));
                }
                for (calls, what) in kinds {
                    let per = calls.len() / alone.len();
                    let recordings = repeats.map(|n| {
                        let calls: Vec<Call> =
                            calls.iter().cycle().take(n * per).cloned().collect();
                        Recording::new(gpu, &Step::of(Most::of(&state), calls))
                            .unwrap_or_else(|e| panic!("{e}"))
                    });
                    runs.push((form, rows, what, state, recordings, [f64::INFINITY; 2]));
                }
            }
        }
    }
    // In turns: clocks change.
    for _ in 0..rounds {
        for (_, _, _, state, recordings, best) in &mut runs {
            for (recording, best) in recordings.iter().zip(best) {
                *best = best.min(time(gpu, recording, state));
            }
        }
    }
    for &form in forms {
        println!("{} heads, {form:?}", dims.heads);
        for &rows in counts {
            print!("  {rows} rows, us in slices:");
            let of_both = runs.iter().filter(|run| (run.0, run.1) == (form, rows));
            for (_, _, what, state, _, best) in of_both {
                let seconds = (best[1] - best[0]) / (repeats[1] - repeats[0]) as f64;
                print!(" {:.2} in {}{what}", seconds * 1e6, state.splits);
            }
            println!();
        }
    }
}

#[test]
#[ignore = "a measurement: cargo test --release --lib attention::times::matrices -- --ignored --nocapture"]
fn matrices_in_every_shape() {
    let all = int8_gpu().into_iter().chain(gpus());
    let Some((gpu, coop)) = all.filter_map(|gpu| Some((gpu, gpu.coop?))).next() else {
        eprintln!("skipped: no cooperative matrices");
        return;
    };
    let memory = gpu.limits.max_compute_workgroup_storage_size;
    let shapes = attention_coop::fitting(coop, memory, glm());
    let shapes = shapes.flat_map(|s| match s.vectors {
        true => vec![s, s.of_numbers()],
        false => vec![s],
    });
    let forms: Vec<_> = shapes.map(|s| Form::Matrix(Shapes::always(s))).collect();
    measure(gpu, glm(), &forms, &[]);
}

#[test]
#[ignore = "a measurement: cargo test --release --lib attention::times::heads -- --ignored --nocapture"]
fn heads_in_every_shape() {
    let Some(gpu) = gpus()
        .iter()
        .find(|gpu| gpu.tier != crate::gpu::Tier::Plain)
    else {
        eprintln!("skipped: no subgroups");
        return;
    };
    let memory = gpu.limits.max_compute_workgroup_storage_size;
    for heads in [20, 16] {
        let dims = MlaDims { heads, ..glm() };
        let shapes = attention_heads::candidates(dims, memory);
        let shapes = shapes.into_iter().map(Form::Heads);
        let forms: Vec<_> = [Form::Vector].into_iter().chain(shapes).collect();
        measure(gpu, dims, &forms, &[32, 66, 132, 256]);
    }
}
