//! `glimt synth`: a model of real shapes and random weights.

use std::path::PathBuf;

use clap::Args;

use super::config;
use super::error::CliError;
use super::load;
use super::output::{bytes, note};
use crate::plural::count;
use crate::synth::{self, ModelName, Recipe, SynthError, SynthOptions};

const EXAMPLES: &str = "\
Examples:
  glimt synth tiny-glm q4_k_m tiny.gguf
  glimt synth tiny-glm:q4_k_m tiny.gguf
  glimt synth glm-4.7-flash q4_0 glm.gguf
  glimt synth deepseek-v2-lite q4_k_m short.gguf --layers 4 --seed 7

The file has the tensors, types and metadata of the real model, so that loading and speed can be measured without it; \
its text is noise. A file of the same name is replaced.";

/// Write a model of real shapes with random weights
#[derive(Args)]
#[command(after_help = EXAMPLES, allow_missing_positional = true)]
pub(super) struct Synth {
    #[arg(
        value_parser = named,
        help = format!("The model: {}", ModelName::ALL.map(ModelName::name).join(", ")),
        long_help = format!(
            "The model: {}\n\nThose that begin with tiny are small ones in the manner of others. MODEL:RECIPE names the recipe, too, as for bench --synthetic.",
            ModelName::ALL.map(ModelName::name).join(", ")
        )
    )]
    model: (ModelName, Option<Recipe>),
    #[arg(help = format!("Mix of tensor types, named as llama.cpp's quantiser does: {} [default: q4_k_m]", Recipe::ALL.map(Recipe::name).join(", ")))]
    recipe: Option<Recipe>,
    /// The file to write
    #[arg(value_name = "OUT.gguf", value_parser = out)]
    out: PathBuf,
    /// Number of layers [default: as many as the model has]
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
    /// Seed of the weights
    #[arg(long, value_name = "S", default_value_t = SynthOptions::default().seed)]
    seed: u64,
    /// One attn_kv_b tensor per layer, as files from before 2025 have
    #[arg(long)]
    fused_kv_b: bool,
    /// A prediction layer behind the others, as newer files of GLM-4.7-Flash have
    #[arg(long)]
    mtp: bool,
}

/// Reads `MODEL` or `MODEL:RECIPE`.
fn named(text: &str) -> Result<(ModelName, Option<Recipe>), SynthError> {
    match text.split_once(':') {
        Some((model, recipe)) => Ok((model.parse()?, Some(recipe.parse()?))),
        None => Ok((text.parse()?, None)),
    }
}

/// Reads the name of the file. A recipe there means that the file was left out.
fn out(text: &str) -> Result<PathBuf, String> {
    match text.parse::<Recipe>() {
        Ok(recipe) => Err(format!(
            "this is a recipe; name the file to write behind it, as {recipe}.gguf"
        )),
        Err(_) => Ok(PathBuf::from(text)),
    }
}

impl Synth {
    /// The model and its recipe, which stands in one place alone.
    fn named(&self) -> Result<(ModelName, Recipe), CliError> {
        let (model, by_name) = self.model;
        match (by_name, self.recipe) {
            (Some(by_name), Some(recipe)) => Err(config::wrong(
                format!("{model}:{by_name} {recipe}"),
                "found two recipes, expected one: leave one of them out",
            )),
            (by_name, recipe) => Ok((model, by_name.or(recipe).unwrap_or(Recipe::Q4KM))),
        }
    }

    pub(super) fn run(&self) -> Result<(), CliError> {
        let (model, recipe) = self.named()?;
        let options = SynthOptions {
            layers: self.layers,
            seed: self.seed,
            fused_kv_b: self.fused_kv_b,
            nextn: self.mtp,
        };
        let plan = load::with_bar("writing", |told| {
            synth::write(model, recipe, &self.out, &options, told)
        })?;
        note(format_args!(
            "wrote {}: {} {}, {} in {}",
            self.out.display(),
            model,
            recipe,
            bytes(plan.byte_len()),
            count(plan.tensors.len(), "tensor"),
        ));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_may_have_its_recipe_in_its_name() {
        let read = |text| named(text).map_err(|error| error.to_string());
        assert_eq!(read("tiny-glm"), Ok((ModelName::TinyGlm, None)));
        assert_eq!(
            read("Tiny-GLM:Q4_0"),
            Ok((ModelName::TinyGlm, Some(Recipe::Q4_0)))
        );
        // The names that can be fetched are there, too.
        assert_eq!(read("youtu-llm"), Ok((ModelName::YoutuLlm2b, None)));
        for (wrong, told) in [
            ("nosuch", "glm-4.7-flash"),
            ("tiny:q9", "q4_k_m"),
            ("tiny:", "q4_k_m"),
        ] {
            let error = read(wrong).expect_err(wrong);
            assert!(error.contains(told), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_recipe_is_no_file() {
        assert!(out("q4_k_m").is_err_and(|error| error.contains("name the file")));
        assert_eq!(out("q4_k_m.gguf"), Ok(PathBuf::from("q4_k_m.gguf")));
    }
}
