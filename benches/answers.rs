//! The cost of a token if the host has to answer every layer. There is a submission for each layer. It leaves a word, and the host reads this
//! word before it submits the next layer. The same dispatches in one submission are timed beside that.

mod common;

use common::Bench;
use glimt::engine::Wait;
use glimt::gpu::buffer::{Buffer, Range, Role};
use glimt::gpu::call::State;
use glimt::gpu::record::Recording;
use glimt::gpu::{GpuError, Most, Step};
use glimt::kernels::mark;
use std::process::ExitCode;
use std::time::Instant;
use wgpu::BufferUsages;

/// Layers with experts, as GLM-4.7-Flash has, and dispatches of a layer that wait for each other.
const LAYERS: usize = 46;
const WAITS: usize = 7;
const ROUNDS: usize = 200;

fn main() -> ExitCode {
    common::main(run)
}

fn run(bench: &Bench) -> Result<(), GpuError> {
    let gpu = &bench.gpu;
    let usage = BufferUsages::STORAGE | BufferUsages::MAP_READ;
    let told = gpu.buffer("answer", 16, usage).wait()?;
    let range = Range::whole(&Buffer::from_made("answer", told.clone(), Role::Words));
    let recorded = |calls: usize| {
        let step = Step::of(Most::token(1), vec![mark::call(&range); calls]);
        Recording::new(gpu, &step).wait()
    };
    let (layer, token) = (recorded(WAITS)?, recorded(LAYERS * WAITS)?);
    let state = State::default();
    let answer = |recording: &Recording| -> Result<u32, GpuError> {
        let submitted = recording.submit(gpu, &state);
        let words: Vec<u32> = gpu.map_read(&told, 16, Some(submitted)).wait()?;
        Ok(words[0])
    };
    let mut best = [f64::INFINITY; 2];
    for _ in 0..bench.rounds(ROUNDS) {
        let began = Instant::now();
        let before = answer(&token)?;
        best[0] = best[0].min(began.elapsed().as_secs_f64() * 1e6);
        let began = Instant::now();
        let mut after = before;
        for _ in 0..LAYERS {
            after = answer(&layer)?;
        }
        best[1] = best[1].min(began.elapsed().as_secs_f64() * 1e6);
        assert_eq!(after, before + (LAYERS * WAITS) as u32, "every layer ran");
    }
    let [whole, cut] = best;
    println!(
        "{LAYERS} layers of {WAITS} dispatches: {whole:.0} us in one submission, {cut:.0} us with an answer of the host to each, {:.1} us an answer",
        (cut - whole) / (LAYERS - 1) as f64
    );
    Ok(())
}
