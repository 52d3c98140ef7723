//! `glimt rm`: removes a model that was fetched.

use clap::Args;

use super::ask;
use super::error::CliError;
use super::output::{bytes, note};
use crate::hub::{Name, Removal, Settings};

const EXAMPLES: &str = "\
Examples:
  glimt rm unsloth/GLM-4.7-Flash-GGUF:Q4_K_M
  glimt rm --yes glm-4.7-flash

It removes models from the cache that Python's huggingface_hub uses, and there only files that nothing else in the cache \
needs. Models of ollama and LM Studio are theirs to remove. Without a quantisation, what was begun in the repository and \
not finished goes too.";

/// Remove a model that was fetched
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Rm {
    /// The name of the model, as `glimt list` shows it, with :QUANTISATION where there are several
    #[arg(value_name = "NAME")]
    name: String,
    /// Fetch or remove without asking
    #[arg(short, long)]
    yes: bool,
}

impl Rm {
    pub(super) fn run(&self) -> Result<(), CliError> {
        let name = Name::parse(&self.name)?;
        let settings = Settings::from_env()?;
        let removal = Removal::plan(&settings, &name)?;
        let what = format!("{} of {}", removal.names.join(", "), removal.repo);
        if !self.yes {
            if !ask::possible() {
                return Err(CliError::NobodyToAsk);
            }
            note(format_args!("{what}: {}", bytes(removal.bytes)));
            if !ask::yes("Remove it?")? {
                note(format_args!("nothing was removed"));
                return Ok(());
            }
        }
        removal.carry_out()?;
        note(format_args!(
            "removed {what}: {} are free again",
            bytes(removal.bytes)
        ));
        Ok(())
    }
}
