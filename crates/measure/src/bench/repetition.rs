//! One repetition of a test.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::drafted::BenchDrafts;
use super::{BenchError, Test};
use crate::engine::backend::Backend;
use crate::engine::random::random_tokens;
use crate::engine::{Sampling, Wait};

/// The choice of a generation's tokens: greedy, or for a draw other than 0 any tokens of the vocabulary alike often. Greedy tokens of random
/// weights repeat each other, and then experts that have slots are chosen more often than others.
pub(crate) fn tokens_of(draw: u64) -> Sampling {
    Sampling {
        temperature: if draw > 0 { 1e4 } else { 0.0 },
        seed: draw,
        ..Sampling::GREEDY
    }
}

/// The time of one repetition, whose tokens `sampling` chooses. Of a generation, it begins when the first token is known, which is chosen from logits that
/// are there, and ends with the last: each token in it was computed.
pub(crate) fn measure(
    backend: &mut dyn Backend,
    test: &Test,
    vocab: usize,
    sampling: &Sampling,
) -> Result<Duration, BenchError> {
    measure_drafted(backend, test, vocab, sampling, None)
}

/// The time of one repetition like [`measure`], with drafts if there are some.
pub(super) fn measure_drafted(
    backend: &mut dyn Backend,
    test: &Test,
    vocab: usize,
    sampling: &Sampling,
    mut drafts: Option<&mut BenchDrafts>,
) -> Result<Duration, BenchError> {
    let prompt = test.prompt.max(1);
    let context = test.depth.max(prompt - test.prompt) + test.prompt;
    let forced = drafts.as_mut().and_then(|drafts| drafts.begin());
    let tokens = match forced.and_then(|text| text.get(context - prompt..context)) {
        Some(tokens) => tokens.to_vec(),
        None => random_tokens(prompt, vocab),
    };
    let began = Instant::now();
    backend.prefill(&tokens, context - prompt).wait()?;
    if test.generate == 0 {
        return Ok(began.elapsed());
    }
    // Ids at the depth are looked at only to repeat less, which `sampling` does not ask for, and by n-grams.
    let ids = [vec![0; context - prompt], tokens].concat();
    let mut times = Vec::with_capacity(test.generate + 1);
    let limit = test.generate + 1;
    let on_token = &mut |_| {
        times.push(Instant::now());
        ControlFlow::Continue(())
    };
    match drafts {
        Some(drafts) => backend.decode_drafted(&ids, sampling, limit, drafts, on_token),
        None => backend.decode(&ids, sampling, limit, on_token),
    }
    .wait()?;
    let (Some(&first), Some(&last)) = (times.first(), times.last()) else {
        return Ok(Duration::ZERO);
    };
    Ok(last - if test.prompt > 0 { began } else { first })
}
