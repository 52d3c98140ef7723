//! How long a decoded token takes with each choice of composed weights on this device, and how far its logits are off.

use super::recipes::{self, Context, Forms, Given};
use super::weights::GpuModel;
use super::{RESULT, Weights, random, state};
use crate::gpu::GpuError;
use crate::gpu::buffer::{Buffer, Range, Role};
use crate::gpu::record::Recording;
use crate::kernels::sampling::Sampling;
use crate::kernels::{MlaDims, gemm, sample};
use crate::model::precompose::Pairs;
use std::time::{Duration, Instant};

/// Rows of the trial's cache: the steps that are timed begin in its middle.
const ROWS: usize = 512;
/// Tokens whose logits are compared.
const TOKENS: usize = 16;
/// Rounds in which every candidate is timed once; medians are over them. Slow devices do fewer, at least the second.
const ROUNDS: [usize; 2] = [9, 3];
/// Time for all rounds, and for what comes before: clocks rise, pipelines and memory are touched for the first time.
const BUDGET: Duration = Duration::from_millis(2500);
const WARM_UP: Duration = Duration::from_millis(400);

/// A candidate and what was found.
#[derive(Debug, Clone, Copy)]
pub struct Trial {
    /// What decoding read composed.
    pub pairs: Pairs,
    /// Milliseconds per token, the median of the rounds; where it was timed.
    pub ms: Option<f64>,
    /// Error of the logits relative to those without composition: squared differences over squared values.
    pub nmse: f64,
}

/// The step of a candidate.
struct Candidate {
    pairs: Pairs,
    /// One token.
    single: Recording,
    /// One token and the choice of the next.
    decode: Recording,
}

/// Tries `candidates`, whose products the layers of `model` hold; times them where `timed`.
///
/// # Errors
/// No memory, or what the device reports.
pub(super) async fn run(
    model: &GpuModel,
    candidates: &[Pairs],
    timed: bool,
) -> Result<Vec<Trial>, GpuError> {
    let before = model.gpu.allocated();
    let trials = match Lab::new(model).await {
        Ok(lab) => lab.run(candidates, timed).await,
        Err(error) => Err(error),
    };
    // Nothing of it stays.
    model.gpu.count_dropped(before);
    trials
}

/// What the steps of all candidates share.
struct Lab<'a> {
    model: &'a GpuModel,
    context: Context,
    logits: Range,
    rows: usize,
    result: Range,
}

impl<'a> Lab<'a> {
    async fn new(model: &'a GpuModel) -> Result<Self, GpuError> {
        let (gpu, config) = (&model.gpu, &model.model.config);
        let row_bytes = MlaDims::of(config).cache_row() * 2;
        let bound = (gpu.max_binding / row_bytes as u64) as usize;
        let rows = ROWS.min(config.context_length).min(bound);
        let forms = Forms {
            products: gemm::Form::float(gpu),
            ..Forms::tried(gpu, config).await?
        };
        let context = Context::new(gpu, config, forms, rows, 1)?;
        context.history.buffer.make_async(gpu).await?;
        for cache in &context.cache {
            cache.buffer.make_async(gpu).await?;
        }
        // Ids spread over the vocabulary, always the same: Numerical Recipes' generator, of which the upper bits are good.
        let mut word = 0u32;
        let ids: Vec<u32> = (0..rows)
            .map(|_| {
                word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                ((u64::from(word) * config.vocab_size as u64) >> 32) as u32
            })
            .collect();
        gpu.queue
            .write_buffer(context.history.buffer.made(), 0, bytemuck::cast_slice(&ids));
        let logits = Buffer::new("logits", config.vocab_size as u64 * 4, Role::Floats);
        Ok(Self {
            model,
            context,
            logits: Range::whole(&logits),
            rows,
            result: Range::whole(&Buffer::new("ids", RESULT, Role::Words)),
        })
    }

    async fn run(self, candidates: &[Pairs], timed: bool) -> Result<Vec<Trial>, GpuError> {
        let expected = {
            let plain = self.candidate(Pairs::NONE).await?;
            self.all_logits(&plain).await?
        };
        let mut made = vec![];
        for pairs in candidates {
            made.push(self.candidate(*pairs).await?);
        }
        let candidates = made;
        let mut trials = vec![];
        for candidate in &candidates {
            let nmse = match candidate.pairs {
                Pairs::NONE => 0.0,
                _ => nmse(&self.all_logits(candidate).await?, &expected),
            };
            trials.push(Trial {
                pairs: candidate.pairs,
                ms: None,
                nmse,
            });
        }
        // One alone has nothing to be compared with.
        if timed && candidates.len() > 1 {
            let times = self.times(&candidates).await?;
            for (trial, ms) in trials.iter_mut().zip(times) {
                trial.ms = Some(ms);
            }
        }
        Ok(trials)
    }

    async fn candidate(&self, pairs: Pairs) -> Result<Candidate, GpuError> {
        let (gpu, model) = (&self.model.gpu, self.model);
        let weights = Weights {
            pairs,
            ..model.weights.clone()
        };
        let given = Given {
            weights: &weights,
            ..model.given(&self.context)
        };
        let single = recipes::token(given, &self.logits)?;
        let vocab = model.model.config.vocab_size as u32;
        let results = [self.result.clone()];
        let choose = sample::calls(&self.logits, vocab, &self.context.history, &results);
        let decode = single.then(&choose);
        Ok(Candidate {
            pairs,
            single: Recording::new_async(gpu, &single).await?,
            decode: Recording::new_async(gpu, &decode).await?,
        })
    }

    /// The logits after each of the first tokens.
    async fn all_logits(&self, candidate: &Candidate) -> Result<Vec<f32>, GpuError> {
        let gpu = &self.model.gpu;
        let mut all = vec![];
        for pos in 0..TOKENS.min(self.rows) {
            let state = state(&self.context, self.model, pos, 1);
            candidate.single.submit(gpu, &state);
            let logits = &self.logits;
            let logits = gpu.read_async::<f32>(&logits.buffer, logits.offset, logits.size);
            all.extend(logits.await?);
        }
        Ok(all)
    }

    /// Milliseconds per token of each candidate.
    async fn times(&self, candidates: &[Candidate]) -> Result<Vec<f64>, GpuError> {
        let gpu = &self.model.gpu;
        let row_bytes = MlaDims::of(&self.model.model.config).cache_row() as u64 * 2;
        random::fill_cache(gpu, &self.context.cache, self.rows as u64, row_bytes).await?;
        // Interleaved, so that no candidate has the higher clocks.
        let most = (self.rows / 2).max(1);
        let (began, mut steps, mut slowest) = (Instant::now(), 1, Duration::ZERO);
        loop {
            for candidate in candidates {
                slowest = slowest.max(self.time(candidate, steps).await? / steps as u32);
            }
            if began.elapsed() >= WARM_UP {
                break;
            }
            steps = (2 * steps).min(most);
            slowest = Duration::ZERO;
        }
        let turn = BUDGET.as_secs_f64() / (ROUNDS[0] * candidates.len().max(1)) as f64;
        let in_turn = turn / slowest.as_secs_f64().max(1e-9);
        let steps = (in_turn as usize).clamp(1, most);
        let rounds = ((ROUNDS[0] as f64 * in_turn) as usize).clamp(ROUNDS[1], ROUNDS[0]);
        let mut times = vec![vec![]; candidates.len()];
        for round in 0..rounds {
            for i in 0..candidates.len() {
                // Each is first as often as the others.
                let i = (i + round) % candidates.len();
                let time = self.time(&candidates[i], steps).await?;
                times[i].push(time.as_secs_f64() * 1e3 / steps as f64);
            }
        }
        Ok(times.into_iter().map(median).collect())
    }

    /// The time of `steps` tokens, one after the other.
    async fn time(&self, candidate: &Candidate, steps: usize) -> Result<Duration, GpuError> {
        let gpu = &self.model.gpu;
        let began = Instant::now();
        let first = self.rows / 2;
        for pos in first..first + steps {
            let mut state = state(&self.context, self.model, pos, 1);
            state.sampling = sample::words(&Sampling::GREEDY, (pos + 1) as u64);
            candidate.decode.submit(gpu, &state);
        }
        gpu.done_async().await?;
        Ok(began.elapsed())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn nmse(found: &[f32], expected: &[f32]) -> f64 {
    let (mut error, mut size) = (0.0, 0.0);
    for (a, b) in found.iter().zip(expected) {
        error += f64::from(a - b).powi(2);
        size += f64::from(*b).powi(2);
    }
    if error == 0.0 { 0.0 } else { error / size }
}
