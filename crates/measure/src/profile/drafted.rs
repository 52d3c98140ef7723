//! Steps with drafts: what each part takes, and what a whole step takes beside a token without drafts.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Instant;

use super::summary::{Measured, Work, median};
use super::{REPETITIONS, watched};
use crate::bench::{BenchError, Drafting};
use crate::engine::backend::Backend;
use crate::engine::draft::{Acceptance, DraftSource, Drafter, Drafts, Proposal, Verified};
use crate::engine::gpu::GpuBackend;
use crate::engine::gpu::measure::DraftedPart;
use crate::engine::gpu::measure::Separation;
use crate::engine::{EngineError, Sampling};
use crate::gpu::wait::Wait;

/// The drafts of a step where nobody says how many.
const USUAL: usize = 3;

/// The drafts of each step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Each {
    pub(super) drafts: usize,
    /// Whether the prediction layer makes them.
    pub(super) predicted: bool,
}

/// The drafts of a step that are asked for, 0 where there are none.
pub(super) fn most(asked: &Drafting) -> usize {
    match asked.options.source {
        DraftSource::Off => 0,
        _ => asked.options.most.unwrap_or(USUAL),
    }
}

/// The drafts of each step as far as the device has them; `None` where none are asked for.
///
/// # Errors
/// [`EngineError::Draft`] where they cannot be had.
pub(super) fn of(asked: &Drafting, backend: &GpuBackend) -> Result<Option<Each>, BenchError> {
    let means = backend.draft_means();
    let known = Drafts::new(&asked.options, &means).map_err(EngineError::from)?;
    let predicted = means.predicts && asked.options.source != DraftSource::Ngram;
    let drafts = most(asked).min(means.most);
    let drafts = match predicted {
        true => drafts.min(backend.most_predicted()),
        false => drafts,
    };
    let each = Each { drafts, predicted };
    Ok(known.filter(|_| drafts > 0).map(|_| each))
}

/// Drafts so many in every step, and takes all of them as accepted.
struct All(Each);

impl Drafter for All {
    fn propose(&mut self, _: &[u32], most: usize) -> Proposal {
        let Each { drafts, predicted } = self.0;
        match (drafts.min(most), predicted) {
            (0, _) => Proposal::None,
            (number, true) => Proposal::Predict(number),
            (number, false) => Proposal::Ids(vec![0; number]),
        }
    }

    fn accepted(&mut self, drafts: &[u32], _: &[u32]) -> usize {
        drafts.len()
    }

    fn acceptance(&mut self, drafts: usize) -> Acceptance {
        Acceptance::Fixed(drafts)
    }

    fn verified(&mut self, _: &Verified) {}
}

/// Microseconds of a step while generating `steps` of them behind the first `first` rows of the cache, without drafts where there are none.
fn step_us(
    backend: &mut GpuBackend,
    first: usize,
    steps: usize,
    each: Option<Each>,
) -> Result<f64, BenchError> {
    let context = vec![0; first];
    let mut time = || -> Result<f64, BenchError> {
        backend.prefill(&context[first - 1..], first - 1).wait()?;
        let mut began = None;
        let on_token = &mut |_| {
            began.get_or_insert_with(Instant::now);
            ControlFlow::Continue(())
        };
        let sampling = &Sampling::GREEDY;
        let limit = 1 + steps * (1 + each.map_or(0, |each| each.drafts));
        match each {
            None => backend.decode(&context, sampling, limit, on_token),
            Some(each) => {
                let drafter = &mut All(each);
                backend
                    .decode_drafted(&context, sampling, limit, drafter, on_token)
                    .wait()?;
                return Ok(began.map_or(0.0, |began| began.elapsed().as_secs_f64()));
            }
        }
        .wait()?;
        Ok(began.map_or(0.0, |began| began.elapsed().as_secs_f64()))
    };
    time()?;
    let times = (0..REPETITIONS).map(|_| Ok(time()? * 1e6 / steps as f64));
    Ok(median(times.collect::<Result<_, BenchError>>()?))
}

/// The name of a part of a step with so many drafts.
fn name(part: DraftedPart, drafts: usize) -> String {
    let rows = drafts + 1;
    match part {
        DraftedPart::Layer(0) => format!("prediction layer, {rows} rows behind draft 1"),
        DraftedPart::Layer(number) => format!("prediction layer, draft {}", number + 1),
        DraftedPart::Draft(number) => format!("head and choice of draft {}", number + 1),
        DraftedPart::Rows => format!("model, {rows} rows"),
        DraftedPart::Choices => format!("heads and choices of {rows} rows"),
    }
}

/// Times `steps` steps with drafts behind `depth` rows of the cache.
pub(super) fn steps(
    backend: &mut GpuBackend,
    (depth, steps): (usize, usize),
    each: Each,
    separation: Separation,
) -> Result<Measured, BenchError> {
    let first = depth.max(1);
    let token_us = step_us(backend, first, steps, None)?;
    let step_us = step_us(backend, first, steps, Some(each))?;
    let Each { drafts, predicted } = each;
    let mut timed = |run: usize| {
        let last = first - 1 + run * (drafts + 1);
        backend.time_drafted(last, drafts, predicted, separation)
    };
    // The first one pays for whatever the driver does once.
    timed(0)?;
    let middle = timed(steps / 2)?;
    let (mut step, mut parts) = (vec![], Vec::<(String, usize)>::new());
    for (part, taken, _) in middle {
        step.push(taken);
        let name = name(part, drafts);
        match parts.last_mut().filter(|(last, _)| *last == name) {
            Some((_, end)) => *end = step.len(),
            None => parts.push((name, step.len())),
        }
    }
    let (times, traffic) = watched(backend, steps, |backend| {
        let times = (0..steps).map(|run| {
            let last = first - 1 + run * (drafts + 1);
            let timed = backend.time_drafted(last, drafts, predicted, separation)?;
            Ok(timed)
        });
        times.collect::<Result<Vec<_>, BenchError>>()
    })?;
    // Where the context needs more dispatches than in the middle, a step is left out.
    let same = |timed: &Vec<(DraftedPart, _, [f64; 2])>| timed.len() == step.len();
    let times = times.into_iter().filter(same);
    let times = times.map(|timed| timed.into_iter().map(|(.., times)| times).collect());
    Ok(Measured {
        work: Work::Drafted {
            steps,
            draft: match predicted {
                true => DraftSource::Mtp.name(),
                false => DraftSource::Ngram.name(),
            },
            drafts,
            step_us,
            token_us,
        },
        times: times.collect(),
        step,
        alone: BTreeMap::new(),
        traffic,
        parts,
    })
}
