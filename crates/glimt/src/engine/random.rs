//! Random tokens and cache rows, for measuring: at a depth, too, that nobody wants to compute.

use half::f16;

/// `n` values like those of a cache row: latents and keys are normed in many models, so they are of size 1. Always the same.
pub(super) fn cache_values(n: usize) -> Vec<f16> {
    let mut state = 1u64;
    (0..n)
        .map(|_| {
            // Knuth's MMIX generator; uniform in -1.73..1.73 has variance 1.
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            f16::from_f32(((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * 3f32.sqrt())
        })
        .collect()
}

/// `n` ids below `vocab`, always the same.
pub fn random_tokens(n: usize, vocab: usize) -> Vec<u32> {
    let mut state = 0u32;
    (0..n)
        .map(|_| {
            // Numerical Recipes' generator; its upper bits are good enough to spread over experts.
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((u64::from(state) * vocab as u64) >> 32) as u32
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_mean_0_and_variance_1() {
        let values: Vec<f64> = cache_values(100_000).into_iter().map(f64::from).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02);
        assert!(values.iter().all(|v| v.abs() < 1.74));
    }
}
