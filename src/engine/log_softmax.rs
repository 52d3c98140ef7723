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

#[cfg(test)]
mod tests {
    use super::*;

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
