//! `glimt list`: the models on this machine.

use clap::Args;
use serde_json::{Value, json};

use super::error::CliError;
use super::output::{self, bytes, note};
use crate::hub::{Found, Settings, stores};

const EXAMPLES: &str = "\
Examples:
  glimt list
  glimt list --json | jq -r '.models[].name'

It shows the models of the cache that Python's huggingface_hub uses, of LM Studio and of ollama. -m takes their names, \
with :QUANTISATION behind them where there are several. Other programs' models are only read.";

/// List the models on this machine
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct List {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl List {
    pub(super) fn run(&self) -> Result<(), CliError> {
        let settings = Settings::from_env()?;
        let inventory = stores::all(&settings);
        for error in &inventory.unread {
            note(format_args!("left out: {error}"));
        }
        if self.json {
            let cache = settings.cache.display().to_string();
            let models: Vec<_> = inventory.found.iter().map(row).collect();
            return output::json(&json!({ "cache": cache, "models": models }));
        }
        for (repo, begun) in &inventory.begun {
            note(format_args!(
                "begun and not finished: {} of {repo}; glimt pull goes on with it, and glimt rm {repo} removes it",
                bytes(*begun)
            ));
        }
        if inventory.found.is_empty() {
            note(format_args!(
                "no model is on this machine; glimt pull --help tells how to fetch one"
            ));
            return Ok(());
        }
        output::page(&table(&inventory.found))
    }
}

/// A model as JSON.
fn row(found: &Found) -> Value {
    let files = found.files.iter().map(|file| file.display().to_string());
    json!({
        "name": found.name,
        "quantisation": found.quantisation,
        "bytes": found.bytes,
        "from": found.store.to_string(),
        "whole": found.whole,
        "files": files.collect::<Vec<_>>(),
    })
}

/// The models as a table with a head.
fn table(models: &[Found]) -> String {
    let wide = models.iter().map(|found| found.name.chars().count()).max();
    let wide = wide.unwrap_or_default().max("model".len());
    let mut text = format!("{:<wide$}  quantisation       size  from\n", "model");
    for found in models {
        let quantisation = found.quantisation.as_deref().unwrap_or("-");
        let missing = match found.whole {
            true => "",
            false => ", shards are missing",
        };
        let (name, store, size) = (&found.name, found.store, bytes(found.bytes));
        text += &format!("{name:<wide$}  {quantisation:<12} {size:>10}  {store}{missing}\n");
    }
    text
}
