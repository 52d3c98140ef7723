//! Several sequences at once, in llama-batched-bench's terms: so many prompts of one length, and then so many tokens of each.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::run::{backend_name, driver};
use super::source::describe;
use super::{BenchError, Source, build};
use crate::engine::backend::BackendError;
use crate::engine::gpu::GpuModel;
use crate::engine::gpu::batch::{BATCHES_IN_FLIGHT, BatchFlight, BatchStep, BatchToken, GpuBatch};
use crate::engine::random::random_tokens;
use crate::engine::{Partly, Serving, check_gpu, partly_of_many};
use crate::gpu::wait::Wait;
use crate::gpu::{Gpu, GpuOptions};
use crate::kernels::sampling::Sampling;
use crate::kernels::sequences::PAGE;
use crate::models::Model;
use crate::recipes::BatchSizes;

/// The most sequences.
pub const MOST_PARALLEL: usize = Serving::MOST as usize;

/// The measurements to make.
#[derive(Debug, Clone)]
pub struct ParallelOptions {
    /// The model.
    pub source: Source,
    /// The GPU and its kernels.
    pub gpu: GpuOptions,
    /// Whether to load a model that has no room in memory, as far as anything tells.
    pub force: bool,
    /// Hears of a model whose experts have no room on the GPU.
    pub on_partly: fn(&Partly),
    /// Tokens of each prompt, of which each is measured.
    pub prompts: Vec<usize>,
    /// Tokens of each answer, likewise.
    pub generations: Vec<usize>,
    /// Sequences at once, likewise.
    pub parallel: Vec<usize>,
}

/// A result, with llama-batched-bench's names and glimt's own behind them.
#[derive(Debug, Clone, Serialize)]
pub struct ParallelRow {
    /// Commit of the build.
    pub build_commit: &'static str,
    /// The adapter's name.
    pub gpu_info: String,
    /// The adapter's driver.
    pub driver: String,
    /// Vulkan, Metal or DX12.
    pub backends: String,
    /// Tier of the kernels.
    pub tier: &'static str,
    /// The model's name.
    pub model_type: String,
    /// Tokens of each prompt.
    pub pp: usize,
    /// Tokens of each answer.
    pub tg: usize,
    /// Sequences.
    pub pl: usize,
    /// Rows of the cache that they need.
    pub n_kv: usize,
    /// Seconds for all prompts.
    pub t_pp: f64,
    /// Tokens of prompts per second.
    pub speed_pp: f64,
    /// Seconds for all answers.
    pub t_tg: f64,
    /// Tokens of answers per second, in sum.
    pub speed_tg: f64,
    /// Seconds for both.
    pub t: f64,
    /// Tokens per second of both.
    pub speed: f64,
    /// Experts of a layer that the last step of the answers touched, on average over the layers that tell; none without experts.
    pub experts: Option<f64>,
}

/// Measures every combination and tells `on_row`; `on_load` is told the bytes of weights done and in all.
///
/// # Errors
/// Any [`BenchError`].
pub fn parallel(
    options: &ParallelOptions,
    on_load: &mut (dyn FnMut(u64, u64) + Send),
    on_row: &mut dyn FnMut(&ParallelRow) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    on_gpu(options, on_load, on_row).map_err(BenchError::of_gpus_alone)
}

fn on_gpu(
    options: &ParallelOptions,
    on_load: &mut (dyn FnMut(u64, u64) + Send),
    on_row: &mut dyn FnMut(&ParallelRow) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    let model = options.source.load()?;
    let most = |numbers: &[usize]| numbers.iter().max().copied().unwrap_or(0);
    let n_ctx = most(&options.prompts) + most(&options.generations) + 1;
    let limit = model.config().context_length;
    if n_ctx > limit {
        return Err(BenchError::ContextTooLong {
            test: "--parallel".to_owned(),
            needed: n_ctx,
            model: limit,
        });
    }
    let sequences = most(&options.parallel);
    let gpu = Arc::new(
        Gpu::open(&GpuOptions {
            tuned: true,
            ..options.gpu.clone()
        })
        .wait()?,
    );
    let pages = sequences * n_ctx.div_ceil(PAGE as usize);
    let mut partly = None;
    if !options.force && check_gpu(&gpu, &*model, pages * PAGE as usize, None)?.is_some() {
        partly = partly_of_many(&gpu, &*model, n_ctx, sequences as u32, pages as u32)?;
    }
    partly.as_ref().map(options.on_partly);
    let at_once = partly.as_ref().and_then(|partly| partly.at_once);
    let most_at_once = at_once.unwrap_or(u32::MAX);
    let loaded = GpuModel::load_for(
        gpu,
        Arc::clone(&model),
        Partly::residence_of(partly.as_ref()),
        sequences as u32,
        on_load,
    )
    .wait()?;
    let weights = Arc::new(loaded);
    let sizes = BatchSizes {
        n_ctx,
        pages: pages as u32,
        sequences: sequences as u32,
        tokens: weights.batch_tokens(Serving::MOST).min(most_at_once),
        chunk: 0,
        drafts: 0,
    };
    let mut run = Run {
        batch: GpuBatch::new(Arc::clone(&weights), sizes).wait()?,
        vocab: model.config().vocab_size,
        flying: VecDeque::new(),
    };
    run.assign_pages();
    let gpu = &weights.gpu;
    for &pl in &options.parallel {
        for &pp in &options.prompts {
            for &tg in &options.generations {
                // Compiling does not count, so a short run goes ahead.
                run.measure(pl, pp, tg.min(4))?;
                let (prompts, answers) = run.measure(pl, pp, tg)?;
                let experts = run.batch.experts_touched(pl)?;
                let row = row(gpu, &*model, [pl, pp, tg], [prompts, answers], experts);
                on_row(&row)?;
            }
        }
    }
    Ok(())
}

fn row(
    gpu: &Gpu,
    model: &dyn Model,
    [pl, pp, tg]: [usize; 3],
    times: [Duration; 2],
    experts: Option<f64>,
) -> ParallelRow {
    let [t_pp, t_tg] = times.map(|time| time.as_secs_f64());
    let speed = |tokens: usize, seconds: f64| tokens as f64 / seconds.max(1e-9);
    ParallelRow {
        build_commit: build::COMMIT,
        gpu_info: gpu.info.name.clone(),
        driver: driver(gpu),
        backends: backend_name(gpu.info.backend),
        tier: gpu.tier.name(),
        model_type: describe(model),
        pp,
        tg,
        pl,
        n_kv: pl * (pp + tg),
        t_pp,
        speed_pp: speed(pl * pp, t_pp),
        t_tg,
        speed_tg: speed(pl * tg, t_tg),
        t: t_pp + t_tg,
        speed: speed(pl * (pp + tg), t_pp + t_tg),
        experts,
    }
}

/// Sequences in a batch, each with pages of its own.
struct Run {
    batch: GpuBatch,
    vocab: usize,
    /// The steps in flight, with the position of the first token of each.
    flying: VecDeque<(BatchFlight, usize)>,
}

impl Run {
    fn assign_pages(&mut self) {
        let each = self.batch.pages_per_sequence() as u32;
        for sequence in 0..self.batch.sizes().sequences {
            let first = sequence * each;
            let pages: Vec<u32> = (first..first + each).collect();
            self.batch.write_pages(sequence, 0, &pages);
        }
    }

    /// The times of `pl` prompts of `pp` tokens, and of `tg` tokens after each.
    fn measure(
        &mut self,
        pl: usize,
        pp: usize,
        tg: usize,
    ) -> Result<(Duration, Duration), BenchError> {
        for sequence in 0..pl {
            let ids = random_tokens(pp * (sequence + 1), self.vocab);
            self.batch
                .write_ids(sequence as u32, 0, &ids[pp * sequence..]);
        }
        let began = Instant::now();
        let tokens = |sequence: usize| {
            (0..pp).map(move |position| BatchToken {
                sequence: sequence as u32,
                position: position as u32,
            })
        };
        let all: Vec<_> = (0..pl).flat_map(tokens).collect();
        for chunk in all.chunks(self.batch.sizes().tokens as usize) {
            let is_last = |token: &&BatchToken| token.position as usize + 1 == pp;
            let (drawn, others): (Vec<&BatchToken>, Vec<_>) = chunk.iter().partition(is_last);
            let order: Vec<_> = drawn.iter().chain(&others).map(|token| **token).collect();
            self.step(&order, drawn.len())?;
        }
        self.land_all()?;
        let prompts = began.elapsed();
        let began = Instant::now();
        for step in 0..tg {
            let token = |sequence: usize| BatchToken {
                sequence: sequence as u32,
                position: (pp + step) as u32,
            };
            let tokens: Vec<_> = (0..pl).map(token).collect();
            self.step(&tokens, pl)?;
        }
        self.land_all()?;
        Ok((prompts, began.elapsed()))
    }

    fn step(&mut self, tokens: &[BatchToken], drawn: usize) -> Result<(), BenchError> {
        let choices = vec![Sampling::GREEDY; drawn];
        let step = BatchStep {
            tokens,
            choices: &choices,
            biases: &[],
            logits: &[],
            predictions: &[],
        };
        let position = tokens[0].position as usize;
        let flight = self.batch.submit(step).wait()?;
        self.flying.push_back((flight, position));
        if self.flying.len() == BATCHES_IN_FLIGHT {
            self.land()?;
        }
        Ok(())
    }

    fn land(&mut self) -> Result<(), BenchError> {
        if let Some((first, position)) = self.flying.pop_front() {
            let landing = self.batch.land(first).wait()?;
            if landing.broken.contains(&true) {
                return Err(BackendError::NotFinite { position }.into());
            }
        }
        Ok(())
    }

    fn land_all(&mut self) -> Result<(), BenchError> {
        while !self.flying.is_empty() {
            self.land()?;
        }
        Ok(())
    }
}

/// The columns of a table, and which of them have room in 80 characters, with their widths there.
const COLUMNS: [(&str, Option<usize>); 13] = [
    ("model", None),
    ("tier", Some(8)),
    ("PP", Some(5)),
    ("TG", Some(5)),
    ("B", Some(3)),
    ("N_KV", Some(7)),
    ("T_PP s", None),
    ("S_PP t/s", Some(9)),
    ("T_TG s", None),
    ("S_TG t/s", Some(9)),
    ("T s", None),
    ("S t/s", Some(9)),
    ("experts", None),
];

/// A line of a table: all cells, or those with room in 80 characters.
fn cells(all: [String; COLUMNS.len()], narrow: bool) -> String {
    let each = COLUMNS.iter().zip(all);
    let shown = each.filter_map(|((_, width), cell)| match (narrow, width) {
        (false, _) => Some(cell),
        (true, Some(width)) => Some(format!("{cell:>width$}")),
        (true, None) => None,
    });
    format!("| {} |\n", shown.collect::<Vec<_>>().join(" | "))
}

/// The head of a table of rows, and its line of dashes.
pub fn head(narrow: bool) -> String {
    let names = COLUMNS.map(|(name, _)| name.to_owned());
    let dashes = COLUMNS.map(|(_, width)| match (narrow, width) {
        (true, Some(width)) => "-".repeat(width - 1) + ":",
        _ => "---:".to_owned(),
    });
    cells(names, narrow) + &cells(dashes, narrow)
}

/// A row of the table.
pub fn line(row: &ParallelRow, narrow: bool) -> String {
    let all = [
        row.model_type.clone(),
        row.tier.to_owned(),
        row.pp.to_string(),
        row.tg.to_string(),
        row.pl.to_string(),
        row.n_kv.to_string(),
        format!("{:.3}", row.t_pp),
        format!("{:.2}", row.speed_pp),
        format!("{:.3}", row.t_tg),
        format!("{:.2}", row.speed_tg),
        format!("{:.3}", row.t),
        format!("{:.2}", row.speed),
        row.experts.map_or("-".to_owned(), |n| format!("{n:.1}")),
    ];
    cells(all, narrow)
}
