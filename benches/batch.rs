//! The time of a step of several sequences: whole, with two steps in flight as a server has them, and each kernel in its place.
//!
//! Words of the lines wanted that are numbers are numbers of sequences. `--set then` ends a list of geometries: those behind it are timed
//! afterwards, on the same model.

mod common;

use common::Bench;
use glimt::engine::Sampling;
use glimt::engine::Wait;
use glimt::engine::gpu::GpuModel;
use glimt::engine::gpu::batch::{BATCHES_IN_FLIGHT, BatchStep, BatchToken, GpuBatch};
use glimt::gpu::geometry::{Geometry, Made, Site};
use glimt::gpu::{Gpu, GpuError};
use glimt::kernels::sequences::PAGE;
use glimt::recipes::BatchSizes;
use glimt_measure::bench::Source;
use std::collections::{BTreeMap, VecDeque};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// Steps that are timed, behind some that are not.
const STEPS: u32 = 100;
const WARM_UP: u32 = 10;
/// Rows of each sequence at the first step.
const DEPTH: u32 = 128;

fn main() -> ExitCode {
    common::main(run)
}

fn failed(what: &str, reason: impl ToString) -> GpuError {
    GpuError::Runtime {
        what: what.to_owned(),
        reason: reason.to_string(),
    }
}

fn run(bench: &Bench) -> Result<(), GpuError> {
    let (models, counts): (&[&str], &[u32]) = match bench.quick {
        true => (&["tiny-glm:q4_0"], &[1, 4]),
        false => (
            &["glm-4.7-flash:q4_0", "glm-4.7-flash:q4_k_m"],
            &[1, 2, 4, 8, 16, 32, 64],
        ),
    };
    let (wanted, words): (Vec<_>, Vec<_>) = bench
        .filters()
        .iter()
        .partition(|w| w.parse::<u32>().is_ok());
    let counts: Vec<u32> = match wanted[..] {
        [] => counts.to_vec(),
        _ => wanted.iter().filter_map(|w| w.parse().ok()).collect(),
    };
    for name in models {
        if !words.is_empty() && !words.iter().any(|word| name.contains(word.as_str())) {
            continue;
        }
        let source: Source = name.parse().map_err(|e| failed("the model", e))?;
        let model = source.load().map_err(|e| failed("the model", e))?;
        let vocab = model.config().vocab_size as u32;
        let gpu = Arc::new(bench.gpu.in_tier(bench.gpu.tier));
        let model = Arc::new(GpuModel::load(Arc::clone(&gpu), model, &mut |_, _| {}).wait()?);
        for set in bench.set.split(|one| one == "then") {
            gpu.choices.replace(Made::default());
            println!("{name} {}", set.join(" "));
            timed(&gpu, &model, name, &counts, vocab, set)?;
        }
    }
    Ok(())
}

/// The steps of each number of sequences, in these geometries.
fn timed(
    gpu: &Gpu,
    model: &Arc<GpuModel>,
    name: &str,
    counts: &[u32],
    vocab: u32,
    set: &[String],
) -> Result<(), GpuError> {
    let most = *counts.last().expect("there are some");
    let n_ctx = (DEPTH + WARM_UP + STEPS + 2) as usize;
    let per_sequence = n_ctx.div_ceil(PAGE as usize) as u32;
    let sizes = BatchSizes {
        n_ctx,
        pages: most * per_sequence,
        sequences: most,
        tokens: most,
        chunk: 0,
        drafts: 0,
    };
    let mut batch = GpuBatch::new(Arc::clone(model), sizes).wait()?;
    for sequence in 0..most {
        let pages: Vec<u32> = (0..per_sequence)
            .map(|i| sequence * per_sequence + i)
            .collect();
        batch.write_pages(sequence, 0, &pages);
        let ids: Vec<u32> = (0..DEPTH)
            .map(|i| (sequence * 7919 + i * 131) % vocab)
            .collect();
        batch.write_ids(sequence, 0, &ids);
    }
    for &count in counts {
        for site in batch.sites(count)? {
            choose(gpu, &site, set)?;
        }
    }
    for &count in counts {
        println!(
            "{name} {count} sequences: {:.1} tokens/s",
            count as f64 / whole(&mut batch, count)?
        );
        kernels(&mut batch, count)?;
    }
    Ok(())
}

/// Has a site take the geometry of the last of `set` whose words are in its key.
fn choose(gpu: &Gpu, site: &Site, set: &[String]) -> Result<(), GpuError> {
    for one in set {
        let wrong = || {
            failed(
                "--set",
                format!("{one} is no KEY=lanes,tile,at_once,unroll"),
            )
        };
        let (key, numbers) = one.rsplit_once('=').ok_or_else(wrong)?;
        let numbers: Vec<u32> = numbers.split(',').filter_map(|n| n.parse().ok()).collect();
        let [lanes, tile, at_once, unroll] = numbers[..] else {
            return Err(wrong());
        };
        let geometry = Geometry {
            lanes,
            tile,
            at_once,
            unroll,
        };
        if site.key().contains(key) && site.allows(&geometry, gpu.machine) {
            gpu.choices.set(site, geometry);
        }
    }
    Ok(())
}

fn tokens(count: u32, position: u32) -> Vec<BatchToken> {
    let token = |sequence| BatchToken { sequence, position };
    (0..count).map(token).collect()
}

/// Seconds of a step of `count` tokens.
fn whole(batch: &mut GpuBatch, count: u32) -> Result<f64, GpuError> {
    batch.prepare(count as usize, count as usize).wait()?;
    let mut flying = VecDeque::new();
    let mut began = Instant::now();
    for step in 0..WARM_UP + STEPS {
        if step == WARM_UP {
            while let Some(flight) = flying.pop_front() {
                batch.land(flight).wait().map_err(|e| failed("a step", e))?;
            }
            began = Instant::now();
        }
        let tokens = tokens(count, DEPTH + step - 1);
        let choices = vec![Sampling::GREEDY; tokens.len()];
        let step = BatchStep {
            tokens: &tokens,
            choices: &choices,
            biases: &[],
            logits: &[],
            predictions: &[],
        };
        flying.push_back(batch.submit(step).wait()?);
        if flying.len() == BATCHES_IN_FLIGHT {
            let first = flying.pop_front().expect("there is one");
            batch.land(first).wait().map_err(|e| failed("a step", e))?;
        }
    }
    while let Some(flight) = flying.pop_front() {
        batch.land(flight).wait().map_err(|e| failed("a step", e))?;
    }
    Ok(began.elapsed().as_secs_f64() / f64::from(STEPS))
}

/// Prints what each kernel takes of a step.
fn kernels(batch: &mut GpuBatch, count: u32) -> Result<(), GpuError> {
    let mut sums: BTreeMap<String, (u32, f64, u64)> = BTreeMap::new();
    const ROUNDS: u32 = 3;
    for round in 0..=ROUNDS {
        let timed = match batch.time_dispatches(&tokens(count, DEPTH)) {
            Err(error) if error.is_of_clock() => return Ok(()),
            timed => timed?,
        };
        if round == 0 {
            continue;
        }
        for (taken, [begin, end]) in timed {
            let sum = sums.entry(taken.about.label.clone()).or_default();
            sum.0 += 1;
            sum.1 += (end - begin) / 1000.0;
            sum.2 = taken.bytes;
        }
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
    for (label, (calls, us, bytes)) in sums {
        let each = us / f64::from(calls);
        let gb = bytes as f64 / each / 1000.0;
        println!(
            "  {:9.1} us in {:3}, {each:7.2} us each, {gb:6.0} GB/s  {label}",
            us / f64::from(ROUNDS),
            calls / ROUNDS
        );
    }
    Ok(())
}
