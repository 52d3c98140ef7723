//! Log-probabilities from logits, in f64: a vocabulary of 150000 summed in f32 would lose digits.

/// The logarithm of the sum of the exponentials of `logits`; subtracting it from a logit gives the natural
/// logarithm of that token's probability.
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    // The largest is taken out, so that no exponential overflows.
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits
        .iter()
        .map(|&logit| (f64::from(logit) - max).exp())
        .sum();
    max + sum.ln()
}

/// The most best tokens that are kept in order while a row is read.
const FEW: usize = 64;

/// The `most` best tokens of a row of logits with their natural log-probabilities, best first, equal ones by id.
pub fn best(logits: &[f32], most: usize) -> Vec<(u32, f32)> {
    best_of(logits, most, log_sum_exp(logits))
}

/// The result of [`best`] if [`log_sum_exp`] is known.
pub fn best_of(logits: &[f32], most: usize, log_sum: f64) -> Vec<(u32, f32)> {
    let order = |a: &u32, b: &u32| {
        logits[*b as usize]
            .total_cmp(&logits[*a as usize])
            .then(a.cmp(b))
    };
    // Few are kept in order while the row is read, which needs no memory for all.
    let few = |mut kept: Vec<u32>, id: u32| {
        if kept.len() < most || kept.last().is_some_and(|last| order(&id, last).is_lt()) {
            let place = kept.partition_point(|known| order(known, &id).is_lt());
            kept.insert(place, id);
            kept.truncate(most);
        }
        kept
    };
    let all = (0..).take(logits.len());
    let ids: Vec<u32> = match most <= FEW {
        true => all.fold(vec![], few),
        false => {
            let mut ids: Vec<u32> = all.collect();
            if most < ids.len() {
                ids.select_nth_unstable_by(most, order);
                ids.truncate(most);
            }
            ids.sort_unstable_by(order);
            ids
        }
    };
    let log_prob = |id: u32| (f64::from(logits[id as usize]) - log_sum) as f32;
    ids.into_iter().map(|id| (id, log_prob(id))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_come_first_and_equal_ones_by_id() {
        let logits = [0.5, 2.0, -1.0, 2.0, 0.5];
        let ids = |most| -> Vec<u32> {
            let best = best(&logits, most);
            best.into_iter().map(|(id, _)| id).collect()
        };
        for most in 0..=7 {
            assert_eq!(ids(most), [1, 3, 0, 4, 2][..most.min(5)]);
        }
        let all = best(&logits, usize::MAX);
        let sum: f64 = all.iter().map(|(_, p)| f64::from(*p).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
    }

    #[test]
    fn few_and_many_are_the_first_of_all() {
        let mut rng = crate::kernels::testing::Rng::fresh();
        let logits: Vec<f32> = (0..3000).map(|_| rng.below(500) as f32 * 0.25).collect();
        let all = best(&logits, usize::MAX);
        assert!(
            all.is_sorted_by(|(a, x), (b, y)| x > y || x == y && a < b),
            "in order"
        );
        for most in [1, 20, FEW, FEW + 1, 1000] {
            assert_eq!(best(&logits, most), all[..most], "{most}");
        }
    }

    #[test]
    fn probabilities_sum_to_one_far_from_zero() {
        for shift in [0.0, 5000.0, -5000.0] {
            let logits: Vec<f32> = (0..1000).map(|i| shift + (i % 37) as f32 * 0.25).collect();
            let total = log_sum_exp(&logits);
            let sum: f64 = logits
                .iter()
                .map(|&logit| (f64::from(logit) - total).exp())
                .sum();
            assert!((sum - 1.0).abs() < 1e-9, "{sum} at {shift}");
        }
        assert!((log_sum_exp(&[0.0; 8]) - 8f64.ln()).abs() < 1e-12);
    }
}
