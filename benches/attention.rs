//! How long the attention of one token takes in each form and shape, and cut into how many slices, at the sizes of GLM-4.7-Flash and
//! DeepSeek-V2-Lite.

mod common;

use common::{Bench, Work};
use glimt::gpu::buffer::{Range, Role};
use glimt::gpu::call::{Call, State};
use glimt::gpu::record::Recording;
use glimt::gpu::{GpuError, Tier};
use glimt::kernels::attention::{Cuts, Form, GpuAttention, cut_context, partial_bytes};
use glimt::kernels::{CacheType, MlaDims, attention_merge, choices};
use glimt::quant::activation::Activation;
use std::process::ExitCode;

/// Rows of all caches that dispatches take in turn, more than second-level caches hold.
const CACHED: usize = 6 * 32_768;
/// Dispatches of a replay, in two lengths whose difference counts, and replays of which the best does.
const REPEATS: [usize; 2] = [24, 96];
const ROUNDS: usize = 10;

fn main() -> ExitCode {
    common::main(run)
}

fn run(bench: &Bench) -> Result<(), GpuError> {
    if bench.gpu.coop.is_none() {
        println!("The device has no cooperative matrices, so only the forms in f32 are timed.");
    }
    if bench.gpu.tier == Tier::Plain {
        println!("The device runs without subgroups, so there is one form in f32.");
    }
    for heads in [20, 16] {
        let dims = MlaDims {
            heads,
            nope: 192,
            rope: 64,
            kv_lora: 512,
            cache: CacheType::F16,
        };
        let by_matrices = choices::attention_by_matrices(&bench.gpu, dims);
        measure(bench, dims, &by_matrices, &[])?;
        let mut by_floats = choices::attention_by_floats(&bench.gpu, dims);
        if bench.gpu.tier == Tier::Plain {
            by_floats.truncate(1);
        }
        let cuts: &[usize] = match bench.quick {
            true => &[],
            false => &[32, 66, 132, 256],
        };
        measure(bench, dims, &by_floats, cuts)?;
    }
    Ok(())
}

/// A form over a context cut into slices, with the merge of these or without.
struct Run {
    form: Form,
    kernel: &'static str,
    shape: String,
    state: State,
    recordings: [Recording; 2],
    best: [f64; 2],
    work: Work,
}

/// The buffers that all forms share.
struct Buffers {
    dims: MlaDims,
    attention: GpuAttention,
    merge: Call,
    merged: Range,
    /// Rows of the cache.
    cached: usize,
}

impl Buffers {
    fn new(bench: &Bench, dims: MlaDims) -> Result<Self, GpuError> {
        let cached = if bench.quick { 4096 } else { CACHED };
        let floats = |n: usize| bench.zeros(n as u64 * 4, Role::Floats);
        let [sums, stats] = partial_bytes(dims, 1);
        let partials = [
            bench.zeros(sums, Role::Floats)?,
            bench.zeros(stats, Role::Floats)?,
        ];
        let merged = floats(dims.heads * dims.kv_lora)?;
        Ok(Self {
            dims,
            merge: attention_merge::call(
                (None, false),
                &partials,
                [dims.heads, dims.kv_lora],
                &merged,
                Activation::Floats,
            ),
            attention: GpuAttention {
                form: Form::Vector,
                q_lat: floats(dims.heads * dims.kv_lora)?,
                q_pe: floats(dims.heads * dims.rope)?,
                cache: bench.zeros((cached * dims.cache_row() * 2) as u64, Role::Cache)?,
                dims,
                scale: 1.0,
                partials,
                sequences: None,
            },
            merged,
            cached,
        })
    }

    /// Dispatches of a form, each over `rows` rows of another place in the cache.
    fn calls(&self, form: Form, rows: usize) -> Vec<Call> {
        let row = self.dims.cache_row() * 2;
        let places = (self.cached / rows).min(REPEATS[0]);
        let mut attention = GpuAttention {
            form,
            ..self.attention.clone()
        };
        let over = |place: usize| {
            attention.cache.offset = (place * (self.cached / places) * row) as u64;
            attention.cache.size = (rows * row) as u64;
            choices::attention_call(&attention, rows as u32)
        };
        (0..places).filter_map(over).collect()
    }

    /// The least work of a dispatch over `rows` rows.
    fn work(&self, rows: usize) -> Work {
        let MlaDims { heads, kv_lora, .. } = self.dims;
        let row = self.dims.cache_row();
        Work {
            bytes: (rows * row * 2 + heads * (row + kv_lora) * 4) as u64,
            flops: (2 * rows * heads * (row + kv_lora)) as u64,
        }
    }

    fn release(&self, bench: &Bench) {
        let GpuAttention {
            q_lat,
            q_pe,
            cache,
            partials: [sums, stats],
            ..
        } = &self.attention;
        bench.release([q_lat, q_pe, cache, sums, stats, &self.merged]);
    }
}

/// Tells what each of `forms` takes over contexts of several lengths, as they are cut and into the numbers of slices of `cuts`.
fn measure(bench: &Bench, dims: MlaDims, forms: &[Form], cuts: &[usize]) -> Result<(), GpuError> {
    let buffers = Buffers::new(bench, dims)?;
    let counts: &[usize] = if bench.quick {
        &[1, 575]
    } else {
        &[1, 512, 4096, 32_768]
    };
    for &rows in counts {
        let mut runs = vec![];
        for &form in forms {
            runs.extend(runs_of(bench, &buffers, form, rows, cuts)?);
        }
        time(bench, &mut runs)?;
        for Run {
            form,
            kernel,
            shape,
            best,
            work,
            ..
        } in &runs
        {
            let repeats = repeats(bench);
            let us = (best[1] - best[0]) / (repeats[1] - repeats[0]) as f64;
            bench.tell(kernel, shape, us, *work, &format!("{form:?}"));
        }
    }
    buffers.release(bench);
    Ok(())
}

/// The runs of a form that are wanted.
fn runs_of(
    bench: &Bench,
    buffers: &Buffers,
    form: Form,
    rows: usize,
    cuts: &[usize],
) -> Result<Vec<Run>, GpuError> {
    let heads = buffers.dims.heads;
    let (tile, _) = form.tile(rows);
    let into = |slices: &usize| {
        let slice_rows = rows.div_ceil(tile).div_ceil(*slices) * tile;
        (rows.div_ceil(slice_rows) as u32, slice_rows as u32)
    };
    let own = cut_context(form, bench.gpu.machine, rows, 1, heads);
    let mut all: Vec<_> = cuts.iter().map(into).chain([own]).collect();
    all.sort_unstable();
    all.dedup();
    let mut runs = vec![];
    for (slices, slice_rows) in all {
        let state = State {
            pos: rows as u32 - 1,
            tokens: 1,
            slices,
            slice_rows,
            ..State::default()
        };
        let alone = buffers.calls(form, rows);
        let shape = format!("{heads} heads, {rows} cached rows, {slices} slices");
        let mut kinds = vec![(alone.clone(), shape.clone())];
        if (slices, slice_rows) == own {
            let merged = alone
                .iter()
                .flat_map(|call| [call.clone(), buffers.merge.clone()]);
            kinds.push((merged.collect(), format!("{shape}, merged")));
        }
        for (calls, shape) in kinds {
            let kernel = calls[0].kernel;
            if !bench.wants(kernel, &shape) {
                continue;
            }
            let per = calls.len() / alone.len();
            let [short, long] = repeats(bench).map(|n| {
                let calls = calls.iter().cycle().take(n * per).cloned();
                bench.record(calls.collect(), &state)
            });
            runs.push(Run {
                form,
                kernel,
                shape,
                state,
                recordings: [short?, long?],
                best: [f64::INFINITY; 2],
                work: buffers.work(rows),
            });
        }
    }
    Ok(runs)
}

fn repeats(bench: &Bench) -> [usize; 2] {
    if bench.quick { [2, 6] } else { REPEATS }
}

/// Times all in turns: clocks change.
fn time(bench: &Bench, runs: &mut [Run]) -> Result<(), GpuError> {
    for _ in 0..bench.rounds(ROUNDS) {
        for run in &mut *runs {
            for (recording, best) in run.recordings.iter().zip(&mut run.best) {
                *best = best.min(bench.fastest(recording, &run.state, 1)?);
            }
        }
    }
    Ok(())
}
