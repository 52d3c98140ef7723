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
        /// DeepSeek-Coder-V2-Lite: the sizes of DeepSeek-V2-Lite.
        DeepseekCoderV2Lite = "deepseek-coder-v2-lite",
        /// GLM-4.7-Flash-REAP-23B-A3B: GLM-4.7-Flash with 48 of its experts.
        Glm47FlashReap23b = "glm-4.7-flash-reap-23b",
        /// Moonlight-16B-A3B: 27 layers, 64 experts, sigmoid gating, no q_lora.
        Moonlight16bA3b = "moonlight-16b-a3b",
        /// The text part of Kimi-VL-A3B: the sizes of Moonlight-16B-A3B, a longer context.
        KimiVlA3b = "kimi-vl-a3b",
        /// Kanana-2-30B-A3B: 48 layers, 128 experts, sigmoid gating, no q_lora.
        Kanana2_30bA3b = "kanana-2-30b-a3b",
        /// GigaChat3-10B-A1.8B: 26 layers, 64 experts, sigmoid gating, no q_lora, values of 192 dimensions.
        Gigachat3_10bA18b = "gigachat3-10b-a1.8b",
        /// A few megabytes in the manner of DeepSeek-V2-Lite.
        TinyDs2 = "tiny-ds2",
        /// A few megabytes in the manner of Youtu-LLM-2B.
        TinyYoutu = "tiny-youtu",
        /// A few megabytes in the manner of GLM-4.7-Flash, with all its experts.
        TinyGlm = "tiny-glm",
        /// The smallest: cache rows of 288 instead of 576.
        Tiny = "tiny",
        /// Qwen3-30B-A3B: 48 layers, 128 experts, 8 query heads to a key head, norms of queries and keys.
        Qwen3_30bA3b = "qwen3-30b-a3b",
        /// Qwen2.5-7B: 28 dense layers, 7 query heads to a key head, biases.
        Qwen25_7b = "qwen2.5-7b",
        /// Llama-3.1-8B: 32 dense layers, 4 query heads to a key head; without the factors of its frequencies.
        Llama31_8b = "llama-3.1-8b",
        /// SmolLM2-135M: 30 dense layers, 3 query heads to a key head, tied head.
        Smollm2_135m = "smollm2-135m",
        /// A few megabytes in the manner of Qwen3-30B-A3B.
        TinyQwen3Moe = "tiny-qwen3moe",
        /// A few megabytes in the manner of Qwen3 without experts, with YaRN and 16 query heads to a key head.
        TinyQwen3 = "tiny-qwen3",
        /// A few megabytes in the manner of Qwen2.5, with a tied head.
        TinyQwen2 = "tiny-qwen2",
        /// A few megabytes in the manner of Llama, with 3 query heads to a key head.
        TinyLlama = "tiny-llama",
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
        /// IQ4_XS, head Q6_K.
        Iq4Xs = "iq4_xs",
        /// Q3_K, output of the attention and down projections Q4_K, those of the first sixteenth of the layers Q5_K, head Q6_K.
        Q3KM = "q3_k_m",
        /// Q2_K, down projections and output of the attention Q3_K, head Q6_K.
        Q2K = "q2_k",
        /// Q8_0, tensors of three dimensions MXFP4: the experts, and the heads' matrices.
        Mxfp4Moe = "mxfp4_moe",
        /// IQ3_XXS, output of the attention and embeddings IQ3_S, head Q5_K.
        Iq3Xxs = "iq3_xxs",
        /// IQ2_S, down projections, output of the attention and embeddings IQ3_S, head Q5_K. llama.cpp's quantiser has fewer down
        /// projections in IQ3_S, but publishers have them all.
        Iq2M = "iq2_m",
        /// IQ2_XXS, an eighth of the down projections and embeddings Q2_K, head Q5_K.
        Iq2Xxs = "iq2_xxs",
        /// IQ2_XS, else as `iq2_xxs`.
        Iq2Xs = "iq2_xs",
        /// IQ1_S, an eighth of the down projections and embeddings Q2_K, output of the attention IQ2_XXS, head Q5_K.
        Iq1S = "iq1_s",
        /// IQ1_M, else as `iq1_s`.
        Iq1M = "iq1_m",
    }
}

impl Recipe {
    /// The type of most tensors.
    fn base(self) -> GgmlType {
        match self {
            Recipe::Q4_0 => GgmlType::Q4_0,
            Recipe::Q4KM | Recipe::Q4KS => GgmlType::Q4_K,
            Recipe::Q5KM => GgmlType::Q5_K,
            Recipe::Q6K => GgmlType::Q6_K,
            Recipe::Q8_0 | Recipe::Mxfp4Moe => GgmlType::Q8_0,
            Recipe::F16 => GgmlType::F16,
            Recipe::Iq4Xs => GgmlType::IQ4_XS,
            Recipe::Q3KM => GgmlType::Q3_K,
            Recipe::Q2K => GgmlType::Q2_K,
            Recipe::Iq3Xxs => GgmlType::IQ3_XXS,
            Recipe::Iq2M => GgmlType::IQ2_S,
            Recipe::Iq2Xxs => GgmlType::IQ2_XXS,
            Recipe::Iq2Xs => GgmlType::IQ2_XS,
            Recipe::Iq1S => GgmlType::IQ1_S,
            Recipe::Iq1M => GgmlType::IQ1_M,
        }
    }

    /// The type of the down projections of a layer.
    fn down(self, layer: usize, layers: usize) -> GgmlType {
        match self {
            Recipe::Q4KM | Recipe::Q5KM if uses_more_bits(layer, layers) => GgmlType::Q6_K,
            Recipe::Iq2M => GgmlType::IQ3_S,
            Recipe::Iq2Xxs | Recipe::Iq2Xs | Recipe::Iq1S | Recipe::Iq1M if layer < layers / 8 => {
                GgmlType::Q2_K
            }
            Recipe::Q3KM if layer < layers / 16 => GgmlType::Q5_K,
            Recipe::Q3KM => GgmlType::Q4_K,
            Recipe::Q2K => GgmlType::Q3_K,
            _ => self.base(),
        }
    }

    /// The type of a layer's values: some have more bits, as down projections do.
    fn values(self, layer: usize, layers: usize) -> GgmlType {
        match self {
            Recipe::Q4KM | Recipe::Q5KM => self.down(layer, layers),
            _ => self.base(),
        }
    }

    /// The type of the attention's output.
    fn attention_output(self) -> GgmlType {
        match self {
            Recipe::Iq3Xxs | Recipe::Iq2M => GgmlType::IQ3_S,
            Recipe::Iq1S | Recipe::Iq1M => GgmlType::IQ2_XXS,
            Recipe::Q3KM => GgmlType::Q4_K,
            Recipe::Q2K => GgmlType::Q3_K,
            _ => self.base(),
        }
    }

    /// The type of the embeddings, if they are not the head, too.
    fn embeddings(self) -> GgmlType {
        match self {
            Recipe::Iq3Xxs | Recipe::Iq2M => GgmlType::IQ3_S,
            Recipe::Iq2Xxs | Recipe::Iq2Xs | Recipe::Iq1S | Recipe::Iq1M => GgmlType::Q2_K,
            _ => self.base(),
        }
    }

    /// The type of the output head.
    fn head(self) -> GgmlType {
        match self {
            Recipe::F16 | Recipe::Q8_0 | Recipe::Mxfp4Moe => self.base(),
            Recipe::Iq3Xxs
            | Recipe::Iq2M
            | Recipe::Iq2Xxs
            | Recipe::Iq2Xs
            | Recipe::Iq1S
            | Recipe::Iq1M => GgmlType::Q5_K,
            _ => GgmlType::Q6_K,
        }
    }

    /// The type of a tensor with this name and these dimensions, in GGUF order, in a model of `layers` layers. `tied` says whether the head
    /// is the embedding.
    pub(super) fn of_tensor(self, name: &str, dims: &[u64], layers: usize, tied: bool) -> GgmlType {
        let layer = name
            .strip_prefix("blk.")
            .and_then(|rest| rest.split_once('.'));
        let (layer, part) = match layer {
            Some((number, part)) => (number.parse().unwrap_or_default(), part),
            None => (0, name),
        };
        let ty = match part {
            _ if dims.len() < 2 => return GgmlType::F32,
            "ffn_gate_inp.weight" => return GgmlType::F32,
            "token_embd.weight" if !tied => self.embeddings(),
            "token_embd.weight" | "output.weight" => self.head(),
            "attn_output.weight" => self.attention_output(),
            "attn_v.weight" => self.values(layer, layers),
            _ if part.starts_with("ffn_down") => self.down(layer, layers),
            _ => self.base(),
        };
        self.fitting(ty, dims)
    }

    /// The type instead of `ty` of a tensor with these dimensions, in GGUF order. llama.cpp's quantiser takes another one where rows are no
    /// whole superblocks.
    fn fitting(self, ty: GgmlType, dims: &[u64]) -> GgmlType {
        if self == Recipe::Mxfp4Moe && ty == self.base() && dims.len() == 3 {
            return GgmlType::MXFP4;
        }
        let fits = |ty: &GgmlType| dims[0].is_multiple_of(ty.block_len() as u64);
        let other = match ty {
            ty if fits(&ty) => ty,
            GgmlType::Q2_K | GgmlType::Q3_K => GgmlType::Q4_0,
            GgmlType::Q4_K => GgmlType::Q5_0,
            GgmlType::Q5_K => GgmlType::Q5_1,
            GgmlType::Q6_K => GgmlType::Q8_0,
            _ => GgmlType::IQ4_NL,
        };
        Some(other).filter(fits).unwrap_or(GgmlType::F16)
    }
}

/// Whether a layer's down projections have more bits: the first and last eighth of the layers and every third between
/// (llama.cpp `llama-quant.cpp`, `use_more_bits`).
fn uses_more_bits(layer: usize, layers: usize) -> bool {
    layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2
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
    use crate::synth::{Plan, SynthOptions};

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
    fn recipes_of_small_files_mix_types() {
        use GgmlType::{
            IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, IQ4_NL, MXFP4, Q2_K, Q4_0, Q8_0,
        };
        for (recipe, base, first_down, last_down, output, embeddings) in [
            (Recipe::Iq3Xxs, IQ3_XXS, IQ3_XXS, IQ3_XXS, IQ3_S, IQ3_S),
            (Recipe::Iq2M, IQ2_S, IQ3_S, IQ3_S, IQ3_S, IQ3_S),
            (Recipe::Iq2Xxs, IQ2_XXS, Q2_K, IQ2_XXS, IQ2_XXS, Q2_K),
            (Recipe::Iq2Xs, IQ2_XS, Q2_K, IQ2_XS, IQ2_XS, Q2_K),
            (Recipe::Iq1S, IQ1_S, Q2_K, IQ1_S, IQ2_XXS, Q2_K),
            (Recipe::Iq1M, IQ1_M, Q2_K, IQ1_M, IQ2_XXS, Q2_K),
        ] {
            assert_eq!(recipe.base(), base);
            let down = [recipe.down(4, 47), recipe.down(5, 47)];
            assert_eq!(down, [first_down, last_down], "{recipe}");
            assert_eq!(recipe.attention_output(), output);
            assert_eq!(
                (recipe.embeddings(), recipe.head()),
                (embeddings, GgmlType::Q5_K)
            );
            assert_eq!(recipe.fitting(base, &[192, 512, 20]), IQ4_NL);
            assert_eq!(recipe.fitting(base, &[1536, 2048, 64]), base);
            assert_eq!(recipe.fitting(Q2_K, &[1408, 2048]), Q4_0);
        }
        let moe = Recipe::Mxfp4Moe;
        assert_eq!(moe.fitting(moe.base(), &[1536, 2048, 64]), MXFP4);
        assert_eq!(moe.fitting(moe.base(), &[2048, 1536]), Q8_0);
    }

    #[test]
    fn the_name_of_a_tensor_tells_its_type() {
        use GgmlType::{F32, IQ4_XS, Q2_K, Q3_K, Q4_0, Q4_K, Q5_K, Q6_K};
        let of = |recipe: Recipe, name: &str| {
            recipe.of_tensor(name, &[2048, 64], 47, name.starts_with("token"))
        };
        for (recipe, name, expected) in [
            (Recipe::Q3KM, "blk.1.ffn_down_exps.weight", Q5_K),
            (Recipe::Q3KM, "blk.2.ffn_down.weight", Q4_K),
            (Recipe::Q3KM, "blk.2.attn_output.weight", Q4_K),
            (Recipe::Q3KM, "blk.2.ffn_up_exps.weight", Q3_K),
            (Recipe::Q3KM, "blk.2.ffn_gate_inp.weight", F32),
            (Recipe::Q2K, "blk.46.ffn_down_shexp.weight", Q3_K),
            (Recipe::Q2K, "blk.46.attn_q_a.weight", Q2_K),
            (Recipe::Iq4Xs, "blk.46.ffn_down_shexp.weight", IQ4_XS),
            (Recipe::Iq4Xs, "output.weight", Q6_K),
            (Recipe::Iq1M, "token_embd.weight", Q5_K),
        ] {
            assert_eq!(of(recipe, name), expected, "{recipe} {name}");
        }
        let vector = Recipe::Q2K.of_tensor("blk.0.exp_probs_b.bias", &[64], 47, false);
        assert_eq!(vector, F32);
        let narrow = Recipe::Q3KM.of_tensor("blk.0.attn_k_b.weight", &[192, 512, 20], 47, false);
        assert_eq!(narrow, Q4_0);
        let odd = Recipe::Q8_0.of_tensor("blk.0.attn_q.weight", &[40, 512], 47, false);
        assert_eq!(odd, GgmlType::F16);
    }

    #[test]
    fn a_model_of_30_billion_weights_fits_16_gb() {
        let plan = Plan::new(
            ModelName::Glm47Flash,
            Recipe::Iq2M,
            &SynthOptions::default(),
        );
        let bytes = plan.unwrap().byte_len();
        assert!((10_500_000_000..11_000_000_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn cousins_are_as_large_as_their_published_files() {
        // Sizes that others tell of files, in bytes, and by how much such a size is rounded. Metadata takes about 6 MB of them.
        const GIB: f64 = 1_073_741_824.0;
        for (model, recipe, published, rounded) in [
            (
                ModelName::Gigachat3_10bA18b,
                Recipe::F16,
                21_356_264_448.0,
                0.0,
            ),
            (
                ModelName::Gigachat3_10bA18b,
                Recipe::Q4KM,
                6_474_702_976.0,
                0.0,
            ),
            (
                ModelName::Glm47FlashReap23b,
                Recipe::F16,
                42.85 * GIB,
                0.005 * GIB,
            ),
            (
                ModelName::Glm47FlashReap23b,
                Recipe::Q8_0,
                22.78 * GIB,
                0.005 * GIB,
            ),
            (ModelName::Kanana2_30bA3b, Recipe::Q4KM, 18.6e9, 5e7),
        ] {
            let plan = Plan::new(model, recipe, &SynthOptions::default()).unwrap();
            let left = published - plan.byte_len() as f64;
            let allowed = 5e6 - rounded..1.2e7 + rounded;
            assert!(allowed.contains(&left), "{model} {recipe}: {left} left");
        }
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
