//! The rotation table: cosine and sine of every position and pair, with YaRN's frequencies and magnitude.

use super::config::{Config, Yarn};

/// Builds the table that rotates queries and keys.
///
/// Pairs are interleaved: pair `i` of a head's rope part are its elements `2i` and `2i + 1`. YaRN is that of ggml
/// (ggml/src/ggml-cpu/ops.cpp, `rope_yarn`; ggml/src/ggml.c, `ggml_rope_yarn_corr_dims`), computed in 64 bits.
#[derive(Debug, Clone, Copy)]
pub struct RopeTable;

impl RopeTable {
    /// `[cos, sin]` times the magnitude, laid out (n_ctx, rope / 2).
    pub fn build(config: &Config, n_ctx: usize) -> Vec<[f32; 2]> {
        let frequencies = frequencies(config);
        let magnitude = config.rope.magnitude();
        let mut table = Vec::with_capacity(n_ctx * frequencies.len());
        for position in 0..n_ctx {
            for frequency in &frequencies {
                let (sin, cos) = (position as f64 * frequency).sin_cos();
                table.push([(cos * magnitude) as f32, (sin * magnitude) as f32]);
            }
        }
        table
    }
}

/// Radians per position of each pair.
fn frequencies(config: &Config) -> Vec<f64> {
    let dims = config.qk_rope_head_dim;
    let base = f64::from(config.rope.freq_base);
    let ramp = config
        .rope
        .yarn
        .as_ref()
        .map(|yarn| (yarn, correction_range(yarn, dims, base)));
    let frequency = |pair: usize| {
        let extrapolated = base.powf(-2.0 * pair as f64 / dims as f64);
        let Some((yarn, (low, high))) = ramp else {
            return extrapolated;
        };
        // 1 for the fast pairs, which keep their frequency; 0 for the slow ones, which are stretched by the factor.
        let keep = 1.0 - ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
        extrapolated * (keep + (1.0 - keep) / f64::from(yarn.factor))
    };
    (0..dims / 2).map(frequency).collect()
}

/// Between which pairs the blend from kept to stretched frequencies runs.
fn correction_range(yarn: &Yarn, dims: usize, base: f64) -> (f64, f64) {
    // The pair that makes `rotations` turns in the original context.
    let pair = |rotations: f32| {
        let wavelength =
            yarn.original_context_length as f64 / (f64::from(rotations) * std::f64::consts::TAU);
        dims as f64 * wavelength.ln() / (2.0 * base.ln())
    };
    let low = pair(yarn.beta_fast).floor().max(0.0);
    let high = pair(yarn.beta_slow).ceil().min(dims as f64 - 1.0);
    (low, high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::tests::deepseek_v2_lite;

    /// YaRN as the paper's reference code writes it (jquesnelle/yarn, LlamaYaRNScaledRotaryEmbedding): inverse
    /// frequencies of both kinds, blended by a mask over the pairs.
    fn reference(
        dims: usize,
        base: f64,
        factor: f64,
        original: f64,
        fast: f64,
        slow: f64,
    ) -> Vec<f64> {
        let find = |rotations: f64| {
            dims as f64 * (original / (rotations * 2.0 * std::f64::consts::PI)).ln()
                / (2.0 * base.ln())
        };
        let low = find(fast).floor().max(0.0);
        let high = find(slow).ceil().min(dims as f64 - 1.0);
        (0..dims / 2)
            .map(|i| {
                let extrapolation = 1.0 / base.powf((2 * i) as f64 / dims as f64);
                let interpolation = extrapolation / factor;
                let linear = (i as f64 - low) / (high - low);
                let mask = 1.0 - linear.clamp(0.0, 1.0);
                interpolation * (1.0 - mask) + extrapolation * mask
            })
            .collect()
    }

    #[test]
    fn frequencies_of_deepseek_v2_lite() {
        let config = deepseek_v2_lite();
        let found = frequencies(&config);
        let expected = reference(64, 1e4, 40.0, 4096.0, 32.0, 1.0);
        assert_eq!(found.len(), 32);
        for (a, b) in found.iter().zip(&expected) {
            assert!((a / b - 1.0).abs() < 1e-12, "{a} {b}");
        }
        // floor(64 ln(4096 / 64 pi) / (2 ln 1e4)) = 10 and ceil(64 ln(4096 / 2 pi) / (2 ln 1e4)) = 23.
        let yarn = config.rope.yarn.as_ref().unwrap();
        assert_eq!(correction_range(yarn, 64, 1e4), (10.0, 23.0));
        let plain = |pair: i32| 1e4f64.powf(f64::from(-2 * pair) / 64.0);
        assert!((found[10] / plain(10) - 1.0).abs() < 1e-12);
        assert!((found[23] / (plain(23) / 40.0) - 1.0).abs() < 1e-12);
        assert!(found[11] < plain(11) && found[22] > plain(22) / 40.0);
    }

    #[test]
    fn the_table_holds_angles_of_every_position() {
        let mut config = deepseek_v2_lite();
        config.rope.attn_factor = 0.75;
        let n_ctx = 300;
        let table = RopeTable::build(&config, n_ctx);
        let frequencies = reference(64, 1e4, 40.0, 4096.0, 32.0, 1.0);
        assert_eq!(table.len(), n_ctx * 32);
        assert_eq!(table[0], [0.75, 0.0]);
        for position in [1, 17, 299] {
            for (pair, frequency) in frequencies.iter().enumerate() {
                let angle = position as f64 * frequency;
                let [cos, sin] = table[position * 32 + pair];
                assert!((f64::from(cos) - 0.75 * angle.cos()).abs() < 1e-7);
                assert!((f64::from(sin) - 0.75 * angle.sin()).abs() < 1e-7);
            }
        }
    }

    #[test]
    fn without_yarn_the_base_alone_counts() {
        let mut config = deepseek_v2_lite();
        config.rope.yarn = None;
        config.rope.freq_base = 1e6;
        let table = RopeTable::build(&config, 3);
        // Pair 16 of 32 at base 1e6 turns by 1e-3 per position.
        let [cos, sin] = table[2 * 32 + 16];
        assert!(
            (f64::from(cos) - 2e-3f64.cos()).abs() < 1e-7
                && (f64::from(sin) - 2e-3f64.sin()).abs() < 1e-9
        );
        assert!((f64::from(table[32][1]) - 1f64.sin()).abs() < 1e-7);
    }
}
