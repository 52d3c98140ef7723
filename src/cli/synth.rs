//! `glimt synth`: a model of real shapes and random weights.

use std::path::PathBuf;

use clap::Args;

use super::error::CliError;
use super::load;
use super::output::{bytes, note};
use crate::plural::count;
use crate::synth::{self, ModelName, Recipe, SynthOptions};

const EXAMPLES: &str = "\
Examples:
  glimt synth tiny-glm q4_k_m tiny.gguf
  glimt synth glm-4.7-flash q4_0 glm.gguf
  glimt synth deepseek-v2-lite q4_k_m short.gguf --layers 4 --seed 7

The file has the tensors, types and metadata of the real model, so that loading and speed can be measured without it; \
its text is noise. A file of the same name is replaced.";

/// Write a model of real shapes with random weights
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Synth {
    /// glm-4.7-flash, deepseek-v2-lite or youtu-llm-2b; small ones in their manner: tiny-glm, tiny-ds2, tiny-youtu, tiny
    model: ModelName,
    #[arg(help = format!("Mix of tensor types, named as llama.cpp's quantiser does: {}", Recipe::ALL.map(Recipe::name).join(", ")))]
    recipe: Recipe,
    /// The file to write
    #[arg(value_name = "OUT.gguf")]
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
}

impl Synth {
    pub(super) fn run(&self) -> Result<(), CliError> {
        let options = SynthOptions {
            layers: self.layers,
            seed: self.seed,
            fused_kv_b: self.fused_kv_b,
        };
        let plan = load::with_bar("writing", |told| {
            synth::write(self.model, self.recipe, &self.out, &options, told)
        })?;
        note(format_args!(
            "wrote {}: {} {}, {} in {}",
            self.out.display(),
            self.model,
            self.recipe,
            bytes(plan.byte_len()),
            count(plan.tensors.len(), "tensor"),
        ));
        Ok(())
    }
}
