//! Cases of the choice of the next token: the best one with penalties, and drawn ones. Both kernels of a choice run in turn.

use super::Case;
use super::lab::{Compared, Lab, state};
use crate::gpu::GpuError;
use crate::gpu::call::State;
use crate::kernels::sample::{calls, sample, words};
use crate::kernels::sampling::Sampling;

fn compare(lab: &Lab<'_>, vocab: usize, sampling: Sampling) -> Result<Vec<Compared>, GpuError> {
    let (logits, pos, n_ctx) = (lab.distinct(vocab), 30, 40);
    let mut history = lab.ids(n_ctx + 1, vocab);
    let sampling = Sampling {
        seed: lab.below(1 << 30) as u64,
        ..sampling
    };
    let step = (pos + 1) as u64;
    let id = sample(&logits, sampling.recent(&history[..=pos]), &sampling, step);
    let (ids, result) = (lab.given(&history), lab.words(4));
    let logits = lab.given(&logits);
    let calls = calls(
        None,
        &logits,
        vocab as u32,
        &ids,
        std::slice::from_ref(&result),
    );
    let state = State {
        sampling: words(&sampling, step),
        ..state(1, pos)
    };
    lab.run(calls, state)?;
    history[pos + 1] = id;
    Ok(vec![
        lab.same(&result, &[id, step as u32, 0, 0])?,
        lab.same(&ids, &history)?,
    ])
}

pub(crate) fn cases() -> Vec<Case> {
    let drawn = Sampling {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.05,
        ..Sampling::GREEDY
    };
    let penalised = Sampling {
        repeat_penalty: 1.3,
        presence_penalty: 0.5,
        frequency_penalty: 0.25,
        ..Sampling::GREEDY
    };
    let case = |(sampling, name)| {
        let vocab = 1000;
        let case = Case::new(format!("{name} of {vocab}"), move |lab| {
            compare(lab, vocab, sampling)
        });
        case.verified()
    };
    [(penalised, "best, penalties"), (drawn, "drawn")]
        .map(case)
        .into()
}
