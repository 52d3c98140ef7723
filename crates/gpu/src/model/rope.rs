//! The rotation table: cosine and sine of every position and pair, with YaRN's frequencies and magnitude.

use super::ModelError;
use super::keys::Keys;
use serde::Serialize;

/// The converter writes `yarn_log_multiplier` as 0.1 times the model's `mscale_all_dim` (llama.cpp, pull 17945).
const YARN_LOG_MULTIPLIER_FACTOR: f64 = 0.1;

/// Constants of the rotary position embedding.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RopeConfig {
    /// `rope.freq_base`: the wavelength of pair `i` is `2 pi freq_base^(2i/dims)` positions.
    pub freq_base: f32,
    /// `rope.scaling.attn_factor`, a factor on the rotated vectors and, squared, on the scores; 1 in all known files.
    pub attn_factor: f32,
    /// Context extension by YaRN, if the model has it.
    pub yarn: Option<Yarn>,
}

/// Constants of YaRN (Peng et al. 2023, arXiv 2309.00071).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Yarn {
    /// The factor by which the context is longer than the original one.
    pub factor: f32,
    /// The context length the frequencies were made for.
    pub original_context_length: usize,
    /// The model's `mscale_all_dim`: `rope.scaling.yarn_log_multiplier` without the converter's factor 0.1.
    pub log_multiplier: f64,
    /// Rotations in the original context above which a pair keeps its frequency.
    pub beta_fast: f32,
    /// Rotations in the original context below which a pair is interpolated.
    pub beta_slow: f32,
}

impl RopeConfig {
    /// The constants of a file.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] for other scalings than YaRN, [`ModelError::Invalid`], [`ModelError::Gguf`].
    pub(crate) fn read(keys: &Keys<'_>) -> Result<Self, ModelError> {
        let freq_base = keys.positive("rope.freq_base", Some(10_000.0))?;
        if freq_base <= 1.0 {
            return Err(keys.invalid("rope.freq_base", freq_base, "more than 1".to_owned()));
        }
        let attn_factor = keys.positive("rope.scaling.attn_factor", Some(1.0))?;
        // llama.cpp reads a missing type as "linear" and a missing factor as 1, which together scale nothing.
        let kind = keys.str("rope.scaling.type")?.unwrap_or("linear");
        let factor = match keys.float_or("rope.scaling.factor", 0.0)? {
            0.0 => keys.float_or("rope.scale_linear", 0.0)?,
            factor => factor,
        };
        let factor = if factor == 0.0 { 1.0 } else { factor };
        let yarn = match kind {
            "none" => None,
            "linear" if factor == 1.0 => None,
            "linear" => {
                let found = format!("linear with factor {factor}");
                return Err(keys.unsupported("rope.scaling.type", found, "none, yarn".to_owned()));
            }
            "yarn" => Some(read_yarn(keys, factor)?),
            other => {
                return Err(keys.unsupported("rope.scaling.type", other, "none, yarn".to_owned()));
            }
        };
        Ok(RopeConfig {
            freq_base,
            attn_factor,
            yarn,
        })
    }

    /// The factor of cosines and sines. llama.cpp calls it `attn_factor`, once the division of
    /// src/llama-context.cpp and the multiplication of ggml's `rope_yarn` have cancelled each other.
    pub fn magnitude(&self) -> f64 {
        let yarn = match &self.yarn {
            // mscale / mscale_all_dim, which DeepSeek's configurations set to the same value.
            Some(yarn) if yarn.log_multiplier != 0.0 => 1.0,
            Some(yarn) => 1.0 + 0.1 * f64::from(yarn.factor).ln(),
            None => 1.0,
        };
        f64::from(self.attn_factor) * yarn
    }
}

fn read_yarn(keys: &Keys<'_>, factor: f32) -> Result<Yarn, ModelError> {
    if !(1.0..=1e6).contains(&factor) {
        return Err(keys.invalid("rope.scaling.factor", factor, "1 to 1000000".to_owned()));
    }
    // llama.cpp does not read these two for deepseek2; values other than 1 would be computed differently by each engine.
    for name in [
        "rope.scaling.yarn_ext_factor",
        "rope.scaling.yarn_attn_factor",
    ] {
        let found = keys.float_or(name, 1.0)?;
        if found != 1.0 {
            return Err(keys.unsupported(name, found, "1".to_owned()));
        }
    }
    let original = "rope.scaling.original_context_length";
    let original_context_length = match keys.count(original)? {
        Some(_) => keys.size(original)?,
        None => keys.size("context_length")?,
    };
    let beta_fast = keys.positive("rope.scaling.yarn_beta_fast", Some(32.0))?;
    let beta_slow = keys.positive("rope.scaling.yarn_beta_slow", Some(1.0))?;
    if beta_fast <= beta_slow {
        let expected = format!("more than the {beta_slow} of yarn_beta_slow");
        return Err(keys.invalid("rope.scaling.yarn_beta_fast", beta_fast, expected));
    }
    let log_multiplier = f64::from(keys.float_or("rope.scaling.yarn_log_multiplier", 0.0)?);
    Ok(Yarn {
        factor,
        original_context_length,
        log_multiplier: log_multiplier / YARN_LOG_MULTIPLIER_FACTOR,
        beta_fast,
        beta_slow,
    })
}

/// The table that rotates queries and keys: `[cos, sin]` of `dims` rotated values times the magnitude, laid out (n_ctx, dims / 2).
///
/// Pairs are interleaved: pair `i` of a head's rope part are its elements `2i` and `2i + 1`. YaRN is that of ggml
/// (ggml/src/ggml-cpu/ops.cpp, `rope_yarn`; ggml/src/ggml.c, `ggml_rope_yarn_corr_dims`), computed in 64 bits.
pub fn rope_table(config: &RopeConfig, dims: usize, n_ctx: usize) -> Vec<[f32; 2]> {
    rope_table_by(config, dims, None, n_ctx)
}

/// The table of [`rope_table`], with the frequency of each pair divided by its factor, if there are any (dims / 2): `rope_freqs.weight` of Llama 3.
///
/// # Panics
/// If there are factors of another number.
pub fn rope_table_by(
    config: &RopeConfig,
    dims: usize,
    factors: Option<&[f32]>,
    n_ctx: usize,
) -> Vec<[f32; 2]> {
    let mut frequencies = frequencies(config, dims);
    if let Some(factors) = factors {
        assert_eq!(factors.len(), frequencies.len(), "factors of frequencies");
        let pairs = frequencies.iter_mut().zip(factors);
        pairs.for_each(|(frequency, factor)| *frequency /= f64::from(*factor));
    }
    let magnitude = config.magnitude();
    let mut table = Vec::with_capacity(n_ctx * frequencies.len());
    for position in 0..n_ctx {
        for frequency in &frequencies {
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            table.push([(cos * magnitude) as f32, (sin * magnitude) as f32]);
        }
    }
    table
}

/// Radians per position of each pair.
fn frequencies(config: &RopeConfig, dims: usize) -> Vec<f64> {
    let base = f64::from(config.freq_base);
    let ramp = config
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

/// The pairs between which the blend from kept to stretched frequencies runs.
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

    /// The rotation of DeepSeek-V2-Lite, which rotates 64 values of a head.
    fn deepseek_v2_lite() -> RopeConfig {
        RopeConfig {
            freq_base: 1e4,
            attn_factor: 1.0,
            yarn: Some(Yarn {
                factor: 40.0,
                original_context_length: 4096,
                log_multiplier: 0.707,
                beta_fast: 32.0,
                beta_slow: 1.0,
            }),
        }
    }

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
        let found = frequencies(&config, 64);
        let expected = reference(64, 1e4, 40.0, 4096.0, 32.0, 1.0);
        assert_eq!(found.len(), 32);
        for (a, b) in found.iter().zip(&expected) {
            assert!((a / b - 1.0).abs() < 1e-12, "{a} {b}");
        }
        // floor(64 ln(4096 / 64 pi) / (2 ln 1e4)) = 10 and ceil(64 ln(4096 / 2 pi) / (2 ln 1e4)) = 23.
        let yarn = config.yarn.as_ref().unwrap();
        assert_eq!(correction_range(yarn, 64, 1e4), (10.0, 23.0));
        let plain = |pair: i32| 1e4f64.powf(f64::from(-2 * pair) / 64.0);
        assert!((found[10] / plain(10) - 1.0).abs() < 1e-12);
        assert!((found[23] / (plain(23) / 40.0) - 1.0).abs() < 1e-12);
        assert!(found[11] < plain(11) && found[22] > plain(22) / 40.0);
    }

    #[test]
    fn the_table_holds_angles_of_every_position() {
        let mut config = deepseek_v2_lite();
        config.attn_factor = 0.75;
        let n_ctx = 300;
        let table = rope_table(&config, 64, n_ctx);
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
    fn factors_divide_the_frequencies_of_their_pairs() {
        let mut config = deepseek_v2_lite();
        config.yarn = None;
        let factors: Vec<f32> = (0..32).map(|pair| 1.0 + pair as f32 / 4.0).collect();
        let plain = rope_table(&config, 64, 9);
        let divided = rope_table_by(&config, 64, Some(&factors), 9);
        assert_eq!(divided[..32], plain[..32], "position 0 has no angle");
        // Factor 2 at pair 4: position 8 turns as position 4 does without.
        assert_eq!(divided[8 * 32 + 4], plain[4 * 32 + 4]);
        assert_eq!(divided[8 * 32], plain[8 * 32]);
    }

    #[test]
    fn without_yarn_the_base_alone_counts() {
        let mut config = deepseek_v2_lite();
        config.yarn = None;
        config.freq_base = 1e6;
        let table = rope_table(&config, 64, 3);
        // Pair 16 of 32 at base 1e6 turns by 1e-3 per position.
        let [cos, sin] = table[2 * 32 + 16];
        assert!(
            (f64::from(cos) - 2e-3f64.cos()).abs() < 1e-7
                && (f64::from(sin) - 2e-3f64.sin()).abs() < 1e-9
        );
        assert!((f64::from(table[32][1]) - 1f64.sin()).abs() < 1e-7);
    }
}
