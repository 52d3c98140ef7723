//! The choice of experts: probabilities, the best few, their weights (llama-graph.cpp, build_moe_ffn).

use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent};
use crate::model::{Experts, Gating};

/// The smallest positive normal f16: what the sum of the chosen weights is clamped to before dividing, as ggml does.
pub const MIN_WEIGHT_SUM: f32 = 1.0 / 16384.0;

/// Chooses `experts.used` experts per token.
///
/// `logits` is (T, count) and becomes probabilities by softmax or sigmoid; `bias` (count, `exp_probs_b`) is added for
/// the choice only. `ids` (T, used) receives the chosen experts, best first, the lower id first among equals;
/// `weights` (T, used) their unbiased probabilities, divided by their sum if `weights_norm`, times `weights_scale`.
///
/// # Panics
/// If a size does not fit the others.
pub fn router(
    logits: &[f32],
    bias: Option<&[f32]>,
    experts: &Experts,
    n_tokens: usize,
    ids: &mut [u32],
    weights: &mut [f32],
) {
    let (count, used) = (experts.count, experts.used);
    assert!(used <= count, "{used} experts of {count}");
    assert_eq!(
        logits.len(),
        n_tokens * count,
        "router logits of {n_tokens} tokens"
    );
    assert_eq!(
        (ids.len(), weights.len()),
        (n_tokens * used, n_tokens * used),
        "choices of {n_tokens} tokens"
    );
    assert!(
        bias.is_none_or(|bias| bias.len() == count),
        "selection bias of {count} experts"
    );
    for ((logits, ids), weights) in logits
        .chunks_exact(count)
        .zip(ids.chunks_exact_mut(used))
        .zip(weights.chunks_exact_mut(used))
    {
        let probs = probabilities(logits, experts.gating);
        let mut scores = probs.clone();
        if let Some(bias) = bias {
            scores.iter_mut().zip(bias).for_each(|(s, b)| *s += b);
        }
        let mut free = vec![true; count];
        for (id, weight) in ids.iter_mut().zip(weights.iter_mut()) {
            let best = best_free(&scores, &free);
            free[best] = false;
            *id = best as u32;
            *weight = probs[best];
        }
        if experts.weights_norm {
            let sum = weights.iter().sum::<f32>().max(MIN_WEIGHT_SUM);
            weights.iter_mut().for_each(|w| *w /= sum);
        }
        weights.iter_mut().for_each(|w| *w *= experts.weights_scale);
    }
}

fn probabilities(logits: &[f32], gating: Gating) -> Vec<f32> {
    match gating {
        Gating::Sigmoid => logits.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
        Gating::Softmax => {
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let exps: Vec<f32> = logits.iter().map(|x| (x - max).exp()).collect();
            let sum: f32 = exps.iter().sum();
            exps.iter().map(|e| e / sum).collect()
        }
    }
}

/// The free expert of the highest score, the lowest id among equals; NaN is never preferred, yet a choice is always made.
fn best_free(scores: &[f32], free: &[bool]) -> usize {
    let mut best = None;
    for (id, &score) in scores.iter().enumerate() {
        if free[id]
            && best
                .is_none_or(|b: usize| score > scores[b] || (scores[b].is_nan() && !score.is_nan()))
        {
            best = Some(id);
        }
    }
    best.expect("used <= count leaves a free expert")
}

/// The kernel's buffers and sizes.
#[derive(Debug, Clone)]
pub struct GpuRouter<'a> {
    /// The logits, (max_tokens, count) f32, or their partial sums, (partial_sums, max_tokens, count).
    pub logits: Range,
    /// Partial sums of a logit, usually 1.
    pub partial_sums: u32,
    /// `exp_probs_b`, (count), f32.
    pub bias: Option<Range>,
    /// The number of experts, and how they are chosen and weighted.
    pub experts: &'a Experts,
    /// Most tokens of a replay.
    pub max_tokens: u32,
    /// The chosen experts, (max_tokens, used) u32.
    pub ids: Range,
    /// The weights of the chosen experts, (max_tokens, used) f32.
    pub weights: Range,
}

/// Most experts of the kernel: a thread each.
pub const MAX_EXPERTS: usize = 256;

/// Values from the logits of one token of a batch to those of the next. Products of a batch leave whole vec4.
pub fn logit_stride(experts: &Experts) -> u32 {
    (experts.count as u32).next_multiple_of(4)
}

/// Logits (T, experts) as products of a batch leave them: (T, [`logit_stride`]), with NaN behind those of each token.
pub fn strided(logits: &[f32], experts: &Experts) -> Vec<f32> {
    let behind = vec![f32::NAN; logit_stride(experts) as usize - experts.count];
    let rows = logits.chunks(experts.count);
    rows.flat_map(|row| [row, &behind])
        .flatten()
        .copied()
        .collect()
}

/// `call` with what `router_choice` knows of a model's experts and reads: the logits, and a bias for the choice where there is one.
pub(super) fn choice(call: Call, experts: &Experts, logits: &Range, bias: Option<&Range>) -> Call {
    call.number("EXPERTS", experts.count as u32)
        .number("USED", experts.used as u32)
        .flag("SIGMOID", experts.gating == Gating::Sigmoid)
        .flag("BIAS", bias.is_some())
        .flag("NORM", experts.weights_norm)
        .bind("logits", logits)
        .bind_some("bias", bias)
}

/// Panics if there are more than [`MAX_EXPERTS`] experts, or fewer than are chosen.
pub(super) fn check(experts: &Experts) {
    let (count, used) = (experts.count, experts.used);
    assert!(
        (1..=count).contains(&used) && count <= MAX_EXPERTS,
        "the router chooses {used} of {count} experts, at most of {MAX_EXPERTS}"
    );
}

/// The dispatch.
///
/// # Panics
/// If there are more than [`MAX_EXPERTS`] experts, or fewer than are chosen.
pub fn call(b: &GpuRouter<'_>) -> Call {
    check(b.experts);
    let experts = b.experts;
    let summed = b.partial_sums > 1;
    choice(Call::new("router"), experts, &b.logits, b.bias.as_ref())
        .number("WG", experts.count.next_power_of_two().max(64) as u32)
        .number("LANES", 1)
        .word("scale", experts.weights_scale)
        .word_some("partial_sums", summed.then_some(b.partial_sums))
        .word_some(
            "partial_stride",
            summed.then_some(b.max_tokens * experts.count as u32),
        )
        .bind("ids", &b.ids)
        .bind("weights", &b.weights)
        .grid([Extent::Tokens, Extent::N(1), Extent::N(1)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::testing::{assert_refused, gpus};
    use crate::kernels::cases::router::cases;
    use crate::kernels::testing::{Rng, agree_everywhere, assert_close};

    fn experts(
        count: usize,
        used: usize,
        gating: Gating,
        weights_norm: bool,
        weights_scale: f32,
    ) -> Experts {
        Experts {
            count,
            used,
            shared_count: 1,
            feed_forward_length: 32,
            gating,
            weights_norm,
            weights_scale,
        }
    }

    /// The definition, in f64, by sorting; nothing where two scores are so near that f32 may swap them.
    fn exact(logits: &[f32], bias: Option<&[f32]>, e: &Experts) -> Option<(Vec<u32>, Vec<f64>)> {
        let logits: Vec<f64> = logits.iter().map(|x| f64::from(*x)).collect();
        let sum: f64 = logits.iter().map(|x| x.exp()).sum();
        let prob = |i: usize| match e.gating {
            Gating::Sigmoid => 1.0 / (1.0 + (-logits[i]).exp()),
            Gating::Softmax => logits[i].exp() / sum,
        };
        let score = |i: usize| prob(i) + bias.map_or(0.0, |b| f64::from(b[i]));
        let mut order: Vec<usize> = (0..e.count).collect();
        order.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
        let near = |pair: &[usize]| score(pair[0]) - score(pair[1]) < 1e-6;
        if order[..e.count.min(e.used + 1)].windows(2).any(near) {
            return None;
        }
        order.truncate(e.used);
        let total: f64 = order.iter().map(|&i| prob(i)).sum();
        let scale = f64::from(e.weights_scale) / if e.weights_norm { total } else { 1.0 };
        Some((
            order.iter().map(|&i| i as u32).collect(),
            order.iter().map(|&i| prob(i) * scale).collect(),
        ))
    }

    #[test]
    fn both_gatings_with_and_without_bias_and_norm() {
        let mut rng = Rng::fresh();
        for (gating, with_bias, norm, scale) in [
            (Gating::Sigmoid, true, true, 1.8),
            (Gating::Softmax, false, false, 1.0),
            (Gating::Sigmoid, false, false, 2.5),
            (Gating::Softmax, true, true, 16.0),
        ] {
            let e = experts(64, 6, gating, norm, scale);
            let logits = rng.normals(5 * 64);
            let bias = with_bias.then(|| rng.normals(64));
            let (mut ids, mut weights) = (vec![0; 30], vec![0.0; 30]);
            router(&logits, bias.as_deref(), &e, 5, &mut ids, &mut weights);
            for t in 0..5 {
                let Some((expected_ids, expected)) =
                    exact(&logits[t * 64..][..64], bias.as_deref(), &e)
                else {
                    eprintln!("token {t} has two equal scores");
                    continue;
                };
                assert_eq!(ids[t * 6..][..6], expected_ids, "token {t}, {gating:?}");
                assert_close(&weights[t * 6..][..6], &expected, 1e-12, "weights");
            }
        }
    }

    #[test]
    fn equal_scores_go_to_the_lower_id() {
        let e = experts(6, 3, Gating::Sigmoid, true, 1.0);
        let (mut ids, mut weights) = ([9; 3], [0.0; 3]);
        router(
            &[0.5, 1.0, 1.0, 0.5, 1.0, 1.0],
            None,
            &e,
            1,
            &mut ids,
            &mut weights,
        );
        assert_eq!(ids, [1, 2, 4]);
        assert_eq!(weights, [1.0 / 3.0; 3]);
    }

    #[test]
    fn vanishing_weights_are_divided_by_the_clamp() {
        let e = experts(4, 2, Gating::Sigmoid, true, 1.0);
        let (mut ids, mut weights) = ([0; 2], [0.0; 2]);
        router(&[-20.0; 4], None, &e, 1, &mut ids, &mut weights);
        let prob = 1.0 / (1.0 + 20f32.exp());
        assert_eq!(weights, [prob / MIN_WEIGHT_SUM; 2]);
    }

    #[test]
    fn not_a_number_still_chooses_different_experts() {
        let e = experts(4, 3, Gating::Sigmoid, false, 1.0);
        let (mut ids, mut weights) = ([0; 3], [0.0; 3]);
        router(
            &[f32::NAN, f32::NAN, 1.0, f32::NAN],
            None,
            &e,
            1,
            &mut ids,
            &mut weights,
        );
        assert_eq!(ids, [2, 0, 1]);
    }

    #[test]
    fn the_kernel_chooses_what_its_twin_chooses() {
        agree_everywhere(gpus(), |_| cases());
    }

    #[test]
    fn buffers_that_do_not_fit_are_refused() {
        let e = experts(64, 4, Gating::Sigmoid, true, 1.0);
        let call = |logits, ids| {
            call(&GpuRouter {
                logits: Range::floats("logits", logits),
                partial_sums: 3,
                bias: Some(Range::floats("bias", 64)),
                experts: &e,
                max_tokens: 5,
                ids,
                weights: Range::floats("weights", 5 * 4),
            })
        };
        let ids = Range::words("ids", 5 * 4);
        let logits = 3 * 5 * 64;
        assert_refused(&[call(logits - 4, ids.clone())], 5, "router", "logits");
        assert_refused(&[call(logits, ids)], 6, "router", "logits");
        let floats = Range::floats("ids", 5 * 4);
        assert_refused(&[call(logits, floats)], 5, "router", "ids");
    }
}
