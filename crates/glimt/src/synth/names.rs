//! The models and recipes by name.

use std::str::FromStr;

use super::SynthError;
use crate::aliases::ALIASES;
use crate::quant::GgmlType;

named! {
    /// A model whose shapes are known.
    pub enum ModelName {
        /// GLM-4.7-Flash: 47 layers, 64 experts, sigmoid gating.
        Glm47Flash = "glm-4.7-flash",
        /// DeepSeek-V2-Lite: 27 layers, 64 experts, softmax gating, YaRN, no q_lora.
        DeepseekV2Lite = "deepseek-v2-lite",
        /// Youtu-LLM-2B: 32 dense layers, tied head.
        YoutuLlm2b = "youtu-llm-2b",
        /// A few megabytes in the manner of DeepSeek-V2-Lite.
        TinyDs2 = "tiny-ds2",
        /// A few megabytes in the manner of Youtu-LLM-2B.
        TinyYoutu = "tiny-youtu",
        /// A few megabytes in the manner of GLM-4.7-Flash, with all its experts.
        TinyGlm = "tiny-glm",
        /// The smallest: cache rows of 288 instead of 576.
        Tiny = "tiny",
    }
}

impl FromStr for ModelName {
    type Err = SynthError;

    /// The model with this name in any capitals, or the one of which `name` is another short name.
    fn from_str(name: &str) -> Result<Self, SynthError> {
        let lower = name.to_ascii_lowercase();
        let of = |alias: &str| ALIASES.iter().find(|(one, _)| *one == alias);
        let same = || {
            let (_, repo) = of(&lower)?;
            let mut names = ALIASES.iter().filter(|(_, other)| other == repo);
            names.find_map(|(other, _)| Self::named(other))
        };
        Self::named(&lower)
            .or_else(same)
            .ok_or_else(|| unknown("synthetic model", name, &Self::ALL.map(Self::name)))
    }
}

named! {
    /// A mix of tensor types, named as llama.cpp's quantiser names it.
    pub enum Recipe {
        /// Q4_0, head Q6_K.
        Q4_0 = "q4_0",
        /// Q4_K, half of the down projections and the head Q6_K.
        Q4KM = "q4_k_m",
        /// Q4_K, head Q6_K.
        Q4KS = "q4_k_s",
        /// Q5_K, half of the down projections and the head Q6_K.
        Q5KM = "q5_k_m",
        /// Q6_K.
        Q6K = "q6_k",
        /// Q8_0.
        Q8_0 = "q8_0",
        /// F16.
        F16 = "f16",
    }
}

impl Recipe {
    /// The type of most tensors.
    pub(super) fn base(self) -> GgmlType {
        match self {
            Recipe::Q4_0 => GgmlType::Q4_0,
            Recipe::Q4KM | Recipe::Q4KS => GgmlType::Q4_K,
            Recipe::Q5KM => GgmlType::Q5_K,
            Recipe::Q6K => GgmlType::Q6_K,
            Recipe::Q8_0 => GgmlType::Q8_0,
            Recipe::F16 => GgmlType::F16,
        }
    }

    /// The type of the down projections that deserve more bits.
    pub(super) fn high(self) -> GgmlType {
        match self {
            Recipe::Q4KM | Recipe::Q5KM => GgmlType::Q6_K,
            _ => self.base(),
        }
    }

    /// The type of the output head.
    pub(super) fn head(self) -> GgmlType {
        match self {
            Recipe::F16 | Recipe::Q8_0 => self.base(),
            _ => GgmlType::Q6_K,
        }
    }
}

impl FromStr for Recipe {
    type Err = SynthError;

    fn from_str(name: &str) -> Result<Self, SynthError> {
        Self::named(&name.to_ascii_lowercase())
            .ok_or_else(|| unknown("recipe", name, &Self::ALL.map(Self::name)))
    }
}

fn unknown(what: &'static str, found: &str, known: &[&str]) -> SynthError {
    SynthError::Unknown {
        what,
        found: found.to_owned(),
        known: known.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_errors_list_the_choices() {
        for model in ModelName::ALL {
            assert_eq!(model.to_string().parse::<ModelName>().unwrap(), model);
        }
        for recipe in Recipe::ALL {
            assert_eq!(recipe.to_string().parse::<Recipe>().unwrap(), recipe);
        }
        let message = "glm".parse::<ModelName>().unwrap_err().to_string();
        assert!(
            message.contains("\"glm\"") && message.contains("glm-4.7-flash, deepseek-v2-lite"),
            "{message}"
        );
        let message = "Q4".parse::<Recipe>().unwrap_err().to_string();
        assert!(
            message.contains("\"Q4\"") && message.contains("q4_0, q4_k_m"),
            "{message}"
        );
        assert_eq!("Q4_K_M".parse::<Recipe>().unwrap(), Recipe::Q4KM);
    }

    #[test]
    fn short_names_mean_the_same_model_as_for_the_hub() {
        for (alias, repo) in ALIASES {
            let model: ModelName = alias.parse().unwrap();
            let names = ALIASES.iter().filter(|(_, other)| *other == repo);
            let names: Vec<_> = names.map(|(name, _)| *name).collect();
            assert!(names.contains(&model.name()), "{alias} is {model}");
        }
        let real = ModelName::ALL.map(ModelName::name);
        for name in real.iter().filter(|name| !name.starts_with("tiny")) {
            assert!(ALIASES.iter().any(|(alias, _)| alias == name), "{name}");
        }
        assert_eq!(
            "GLM-4.7-Flash".parse::<ModelName>().unwrap(),
            ModelName::Glm47Flash
        );
    }
}
