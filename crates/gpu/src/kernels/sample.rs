//! The choice of the next token from one row of logits.

use std::borrow::Cow;
use std::cmp::Ordering;

use super::logit_bias;
use super::sampling::{Sampling, uniform};
use super::sequences::Sequences;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent, Word};

/// The token chosen from `logits` (vocab) under `sampling`.
///
/// `recent` are the tokens the penalties apply to ([`Sampling::recent`]); ids beyond the vocabulary are ignored.
/// `step` selects the draw: the position the chosen token will take.
///
/// Candidates are ranked by logit, the lower id first among equals; NaN counts as negative infinity, but [`all_finite`] tells of it. At temperature 0 the
/// first in rank is taken. Otherwise u is [`uniform`]`(seed, step)` and the answer is the first token in order of ids
/// at which the running sum of `exp((logit - max) / temperature)` over the kept tokens exceeds u times the whole sum.
///
/// # Panics
/// If there are no logits.
pub fn sample(logits: &[f32], recent: &[u32], sampling: &Sampling, step: u64) -> u32 {
    assert!(!logits.is_empty(), "a choice among no tokens");
    let mut penalised = Cow::Borrowed(logits);
    if sampling.penalises() {
        penalise(penalised.to_mut(), recent, sampling);
    }
    let mut candidates: Vec<Candidate> = penalised
        .iter()
        .enumerate()
        .map(|(id, &logit)| Candidate {
            id: id as u32,
            // This turns NaN into negative infinity.
            logit: logit.max(f32::NEG_INFINITY),
        })
        .collect();
    let best = best(&candidates).expect("there is at least one token");
    if sampling.temperature <= 0.0 || best.logit == f32::NEG_INFINITY {
        return best.id;
    }
    top_k(&mut candidates, sampling.top_k as usize);
    top_p(&mut candidates, best.logit, sampling.top_p);
    min_p(&mut candidates, best.logit, sampling.min_p);
    let u = uniform(sampling.seed, step);
    draw(&mut candidates, best, sampling.temperature, u)
}

/// Whether no logit is infinite or NaN, by their bits. A choice from others means nothing.
pub fn all_finite(logits: &[f32]) -> bool {
    let exponent = f32::INFINITY.to_bits();
    logits.iter().all(|l| l.to_bits() & exponent != exponent)
}

/// A token that may be chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Its id.
    pub id: u32,
    /// Its logit.
    pub logit: f32,
}

/// Best first: the greater logit, then the lower id.
pub fn rank(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit
        .partial_cmp(&a.logit)
        .unwrap_or(Ordering::Equal)
        .then(a.id.cmp(&b.id))
}

/// The first in rank.
pub fn best(candidates: &[Candidate]) -> Option<Candidate> {
    candidates.iter().min_by(|a, b| rank(a, b)).copied()
}

/// The penalties of the distinct recent tokens on their logits.
pub fn penalise(logits: &mut [f32], recent: &[u32], sampling: &Sampling) {
    let mut sorted = recent.to_vec();
    sorted.sort_unstable();
    for same in sorted.chunk_by(|a, b| a == b) {
        let Some(logit) = logits.get_mut(same[0] as usize) else {
            continue;
        };
        *logit = if *logit > 0.0 {
            *logit / sampling.repeat_penalty
        } else {
            *logit * sampling.repeat_penalty
        };
        *logit -= same.len() as f32 * sampling.frequency_penalty + sampling.presence_penalty;
    }
}

/// Keeps the `k` first in rank; 0 keeps all.
pub fn top_k(candidates: &mut Vec<Candidate>, k: usize) {
    if k > 0 && k < candidates.len() {
        candidates.select_nth_unstable_by(k - 1, rank);
        candidates.truncate(k);
    }
}

/// Keeps the shortest prefix in rank whose softmax probabilities among the candidates sum to at least p, never none.
fn top_p(candidates: &mut Vec<Candidate>, max: f32, p: f32) {
    if p >= 1.0 {
        return;
    }
    candidates.sort_unstable_by(rank);
    let total: f32 = candidates.iter().map(|c| (c.logit - max).exp()).sum();
    let mut sum = 0.0;
    let reached = candidates.iter().position(|c| {
        sum += (c.logit - max).exp() / total;
        sum >= p
    });
    if let Some(last) = reached {
        candidates.truncate(last + 1);
    }
}

/// Keeps those at least `p` times as probable as the best, whose logit is `max`.
pub fn min_p(candidates: &mut Vec<Candidate>, max: f32, p: f32) {
    if p > 0.0 {
        let least = max + p.min(1.0).ln();
        candidates.retain(|c| c.logit >= least);
    }
}

/// The first in order of ids at which the running sum of weights exceeds `u` times the whole sum. `best` is the first in rank.
pub fn draw(candidates: &mut [Candidate], best: Candidate, temperature: f32, u: f32) -> u32 {
    candidates.sort_unstable_by_key(|c| c.id);
    let weight = |c: &Candidate| ((c.logit - best.logit) / temperature).exp();
    let total: f32 = candidates.iter().map(weight).sum();
    let threshold = u * total;
    let mut sum = 0.0;
    for c in candidates.iter() {
        sum += weight(c);
        if sum > threshold {
            return c.id;
        }
    }
    // u < 1, so the loop ends early unless the rounding of u * total reached total, or total is infinite or NaN.
    best.id
}

/// Threads of a workgroup. The text gives each a token of a slice of the vocabulary.
const WG: usize = 256;

/// Most tokens that the kernels choose among: what they know of each slice fits into workgroup memory.
pub const MAX_VOCAB: usize = 1 << 18;

/// `log_min_p` for "off": so far below any logit that only minus infinity is dropped, whose weight is 0 anyway.
const NO_MIN_P: f32 = -1e30;

/// Where [`State::sampling`](crate::gpu::call::State::sampling) holds the number of the submission.
pub const NUMBER: usize = 9;

/// The words of [`State::sampling`](crate::gpu::call::State::sampling) for a choice with the draw of `step`:
/// 0 temperature, 1 top_k, 2 top_p, 3 ln(min_p), 4 repeat_penalty, 5 repeat_last_n (0 where nothing is penalised),
/// 6 [`uniform`]`(seed, step)`, 7 the step modulo 2^32, told with the result, 8 whether masses of slices are asked for,
/// 9 the number of the submission ([`NUMBER`]), told with the result: 0 here, 10 presence_penalty, 11 frequency_penalty.
///
/// The draw is made here: the step is known when a token is encoded, and host and device cannot disagree about it.
pub fn words(sampling: &Sampling, step: u64) -> [u32; 12] {
    let s = sampling;
    let log_min_p = if s.min_p > 0.0 {
        s.min_p.min(1.0).ln()
    } else {
        NO_MIN_P
    };
    let last_n = if s.penalises() { s.repeat_last_n } else { 0 };
    [
        s.temperature.to_bits(),
        s.top_k,
        s.top_p.to_bits(),
        log_min_p.to_bits(),
        s.repeat_penalty.to_bits(),
        last_n,
        uniform(s.seed, step).to_bits(),
        step as u32,
        u32::from(s.top_p < 1.0 && (s.top_k == 0 || s.top_k as usize > WG)),
        0,
        s.presence_penalty.to_bits(),
        s.frequency_penalty.to_bits(),
    ]
}

/// The dispatches that choose the token after those of a step, as [`sample`] does up to rounding of sums.
///
/// `logits` is one row, (vocab) f32. `history` holds the ids of all positions, (n_ctx + 1) u32: the last
/// `repeat_last_n` up to position pos + tokens are recent, and the chosen id becomes the one at pos + tokens. Each of
/// `results`, taken by [`State::slot`](crate::gpu::call::State::slot), gets (id, step, number, 1 if not [`all_finite`], else 0). A replay needs
/// [`words`] as its `sampling`, and `pos + tokens <= n_ctx`.
///
/// With `rows` for each token of the replay, `logits` are (tokens, vocab), and each of `results` gets (tokens) of them. Where some row
/// [has biases](crate::gpu::call::When::Biased), they are added to `logits` in place first.
///
/// # Panics
/// If the vocabulary is larger than [`MAX_VOCAB`], or there are no results.
pub fn calls(
    rows: Option<&Rows<'_>>,
    logits: &Range,
    vocab: u32,
    history: &Range,
    results: &[Range],
) -> Vec<Call> {
    let tokens = vocab as usize;
    assert!(
        (1..=MAX_VOCAB).contains(&tokens),
        "a choice among {vocab} tokens, {MAX_VOCAB} at most"
    );
    let most = rows.map_or(1, |rows| u64::from(rows.most));
    let slices = tokens.div_ceil(WG);
    let scratch = |name, words: usize| Range::words(name, words as u64 * most);
    let keys = scratch("sampling keys", slices * WG);
    // Each slice has a record of its maximum, and one of the greatest keys of its quarters.
    let maxima = scratch("sampling maxima", slices * 4);
    let quarters = scratch("sampling quarters", slices * 4);
    let call = |kernel| {
        Call::new(kernel)
            .number("WG", WG as u32)
            .number("VOCAB", vocab)
            .bind("history", history)
            .bind("keys", &keys)
            .bind("maxima", &maxima)
            .bind("quarters", &quarters)
    };
    let sequences = rows.and_then(|rows| rows.sequences);
    let table = rows.filter(|_| sequences.is_some_and(|sequences| !sequences.alone));
    let given = |call: Call, words: &[(&'static str, usize)]| {
        let call = Sequences::bind_history(sequences, call);
        if let Some(rows) = table {
            return call.bind("choices", rows.choices);
        }
        let call = call.word("tokens", Word::Tokens);
        let words = words.iter();
        words.fold(call, |call, (name, i)| call.word(name, Word::Sampling(*i)))
    };
    let extent = match table {
        Some(_) => Extent::Tokens,
        None => Extent::N(1),
    };
    let bias = rows.map(|rows| logit_bias::call(rows.biases, logits, vocab, extent));
    let scan = call("sample_scan")
        .number("LANES", 1)
        .number("SLICES_OF_ROW", slices as u32)
        .bind("logits", logits)
        .grid([Extent::N(slices as u32), extent, Extent::N(1)])
        .with_bytes(u64::from(vocab) * 4);
    let pick = call("sample_pick")
        .flag("PICKS", true)
        .grid([Extent::N(1), extent, Extent::N(1)])
        .number("SLICES", slices as u32)
        // Slices of a thread of the second half.
        .number("PER", slices.div_ceil(WG) as u32)
        .number("LIVE", slices.max(WG) as u32)
        .number("BINS", slices.max(3 * WG) as u32)
        .bind("chosen", results.first().expect("room for a result"))
        .with_alternatives("chosen", results.to_vec());
    let penalties = [
        ("last_n", 5),
        ("penalty", 4),
        ("presence", 10),
        ("frequency", 11),
        ("masses", 8),
    ];
    let choice = [
        ("temperature", 0),
        ("top_k", 1),
        ("top_p", 2),
        ("log_min_p", 3),
        ("uniform_draw", 6),
        ("step", 7),
        ("number", NUMBER),
    ];
    let chosen = [given(scan, &penalties), given(pick, &choice)];
    bias.into_iter().chain(chosen).collect()
}

/// The choices of a token for each of several rows of logits.
#[derive(Debug, Clone)]
pub struct Rows<'a> {
    /// The place of each row's token. The chosen id becomes that behind it. Without it there is one sequence and one row.
    pub sequences: Option<&'a Sequences>,
    /// How each is chosen, (rows, 12) [`words`]. That of a token [alone](Sequences::alone) is in the state of the replay instead.
    pub choices: &'a Range,
    /// Numbers that are added to the logits of each row first, (rows) [`logit_bias::Row`].
    pub biases: &'a Range,
    /// The most rows of a replay.
    pub most: u32,
}

#[cfg(test)]
mod gpu_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::Rng;

    const PLAIN: Sampling = Sampling {
        temperature: 1.0,
        ..Sampling::GREEDY
    };

    /// How often each token is drawn in n steps.
    fn counts(logits: &[f32], recent: &[u32], sampling: &Sampling, n: u64) -> Vec<f64> {
        let mut counts = vec![0.0; logits.len()];
        for step in 0..n {
            counts[sample(logits, recent, sampling, step) as usize] += 1.0 / n as f64;
        }
        counts
    }

    #[test]
    fn greedy_takes_the_best_and_the_lower_id_among_equals() {
        assert_eq!(sample(&[0.0, 3.0, -1.0, 3.0], &[], &Sampling::GREEDY, 0), 1);
        assert_eq!(
            sample(&[f32::NAN, -5.0, f32::NAN], &[], &Sampling::GREEDY, 0),
            1
        );
        assert_eq!(
            sample(&[f32::NAN; 3], &[], &PLAIN, 0),
            0,
            "nothing but NaN is still an answer in range"
        );
    }

    #[test]
    fn draws_follow_the_tempered_distribution() {
        let mut rng = Rng::fresh();
        let logits = rng.normals(12);
        for temperature in [0.5f32, 1.0, 2.0] {
            let found = counts(
                &logits,
                &[],
                &Sampling {
                    temperature,
                    seed: rng.bits(),
                    ..PLAIN
                },
                20_000,
            );
            let exps: Vec<f64> = logits
                .iter()
                .map(|l| f64::from(l / temperature).exp())
                .collect();
            let total: f64 = exps.iter().sum();
            for (id, e) in exps.iter().enumerate() {
                // Six standard deviations of a frequency in 20000 draws.
                let (p, n) = (e / total, 20_000.0f64);
                assert!(
                    (found[id] - p).abs() < 6.0 * (p * (1.0 - p) / n).sqrt() + 1e-4,
                    "{id} at {temperature}"
                );
            }
        }
    }

    #[test]
    fn the_first_id_whose_running_sum_exceeds_the_draw() {
        let mut rng = Rng::fresh();
        let logits = [0.0f32; 10];
        for step in 0..100 {
            let sampling = Sampling {
                seed: rng.bits(),
                ..PLAIN
            };
            let expected = (uniform(sampling.seed, step) * 10.0) as u32;
            assert_eq!(sample(&logits, &[], &sampling, step), expected);
        }
    }

    fn kept(logits: &[f32], sampling: &Sampling) -> Vec<u32> {
        let found = counts(
            logits,
            &[],
            &Sampling {
                temperature: 50.0,
                ..*sampling
            },
            4000,
        );
        (0..logits.len() as u32)
            .filter(|id| found[*id as usize] > 0.0)
            .collect()
    }

    #[test]
    fn top_k_keeps_the_best_and_the_lower_ids_among_equals() {
        let logits = [1.0, 2.0, 2.0, 2.0, 0.0, 5.0];
        assert_eq!(kept(&logits, &Sampling { top_k: 3, ..PLAIN }), [1, 2, 5]);
        assert_eq!(kept(&logits, &Sampling { top_k: 1, ..PLAIN }), [5]);
        assert_eq!(
            kept(&logits, &Sampling { top_k: 99, ..PLAIN }),
            [0, 1, 2, 3, 4, 5]
        );
    }

    #[test]
    fn top_p_and_min_p_see_probabilities_before_the_temperature() {
        let logits = [0.5f32, 0.3, 0.15, 0.05].map(f32::ln);
        let top_p = |top_p| kept(&logits, &Sampling { top_p, ..PLAIN });
        assert_eq!(top_p(0.49), [0], "the token that reaches p is kept");
        assert_eq!(top_p(0.6), [0, 1]);
        assert_eq!(top_p(0.9), [0, 1, 2]);
        assert_eq!(top_p(0.0), [0], "never none");
        let min_p = |min_p| kept(&logits, &Sampling { min_p, ..PLAIN });
        assert_eq!(min_p(0.25), [0, 1, 2]);
        assert_eq!(min_p(0.5), [0, 1]);
        assert_eq!(min_p(2.0), [0], "never none");
        let both = Sampling {
            top_k: 2,
            top_p: 0.6,
            ..PLAIN
        };
        let what = "top-p counts what top-k left: 0.5 / 0.8 reaches 0.6";
        assert_eq!(kept(&logits, &both), [0], "{what}");
    }

    #[test]
    fn presence_counts_once_and_frequency_each_time() {
        let greedy = |logits: &[f32], recent: &[u32], presence_penalty, frequency_penalty| {
            let sampling = Sampling {
                presence_penalty,
                frequency_penalty,
                ..Sampling::GREEDY
            };
            sample(logits, recent, &sampling, 0)
        };
        assert_eq!(greedy(&[2.0, 1.6], &[0], 0.5, 0.0), 1);
        assert_eq!(greedy(&[2.0, 1.4], &[0, 0, 0], 0.5, 0.0), 0, "once");
        assert_eq!(greedy(&[2.0, 1.4], &[0], 0.0, 0.5), 0);
        assert_eq!(greedy(&[2.0, 1.4], &[0, 9, 0], 0.0, 0.5), 1, "each time");
        assert_eq!(greedy(&[2.0, 2.4], &[0], -0.5, 0.0), 0, "a reward");
        let both = Sampling {
            repeat_penalty: 2.0,
            presence_penalty: 0.25,
            ..Sampling::GREEDY
        };
        let what = "the repeat penalty comes first: 2 / 2 - 0.25";
        assert_eq!(sample(&[2.0, 0.74], &[0], &both, 0), 0, "{what}");
        assert_eq!(sample(&[2.0, 0.76], &[0], &both, 0), 1, "{what}");
    }

    #[test]
    fn the_penalty_falls_once_on_each_recent_token() {
        let greedy = |logits: &[f32], recent: &[u32], repeat_penalty| {
            sample(
                logits,
                recent,
                &Sampling {
                    repeat_penalty,
                    ..Sampling::GREEDY
                },
                0,
            )
        };
        assert_eq!(
            greedy(&[2.0, 1.9], &[0], 1.1),
            1,
            "a positive logit is divided"
        );
        assert_eq!(
            greedy(&[-1.0, -1.05], &[0], 1.1),
            1,
            "a negative one multiplied"
        );
        assert_eq!(
            greedy(&[2.0, 1.7], &[0, 0, 0], 1.1),
            0,
            "three times is as once"
        );
        assert_eq!(
            greedy(&[2.0, 1.9], &[0, 7_000_000], 1.0),
            0,
            "1 is off, foreign ids are ignored"
        );
        assert_eq!(greedy(&[2.0, 1.9], &[7_000_000], 1.5), 0);
    }
}
