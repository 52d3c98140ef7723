//! `glimt list`: the models on this machine.

use clap::Args;
use serde_json::{Value, json};

use super::error::CliError;
use super::load;
use super::output::{self, bytes, note};
use crate::engine::{EngineError, ModelSource};
use crate::hub::{Found, Settings, stores};
use crate::model::ModelError;

const EXAMPLES: &str = "\
Examples:
  glimt list
  glimt list --json | jq -r '.models[].name'

It shows the models of the cache that Python's huggingface_hub uses, of LM Studio and of ollama. -m takes their names, \
with :QUANTISATION behind them where there are several. Other programs' models are only read. Models that glimt refuses are \
marked with the reason.";

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
        let found = inventory.found.into_iter();
        let found: Vec<_> = found
            .map(|one| {
                let refused = refused(&one);
                (one, refused)
            })
            .collect();
        if self.json {
            let cache = settings.cache.display().to_string();
            let models: Vec<_> = found.iter().map(row).collect();
            return output::json(&json!({ "cache": cache, "models": models }));
        }
        for (repo, begun) in &inventory.begun {
            note(format_args!(
                "begun and not finished: {} of {repo}; glimt pull goes on with it, and glimt rm {repo} removes it",
                bytes(*begun)
            ));
        }
        if found.is_empty() {
            note(format_args!(
                "no model is on this machine; glimt pull --help tells how to fetch one"
            ));
            return Ok(());
        }
        output::page(&table(&found))
    }
}

/// Why a model would not run, in a few words, as far as its file tells without its weights.
fn refused(found: &Found) -> Option<String> {
    if !found.whole {
        return Some("shards are missing".to_owned());
    }
    let source = ModelSource::File(found.files.first()?.clone());
    load::check(&source).err().map(|error| match error {
        EngineError::Model(ModelError::Architecture { found, .. }) => {
            format!("its architecture is {found}")
        }
        // The advice stands behind the first clause.
        other => {
            let all = other.to_string();
            let first = all.split("; ").next().unwrap_or_default();
            first.to_owned()
        }
    })
}

/// A model as JSON. `refused` says why it would not run.
fn row((found, refused): &(Found, Option<String>)) -> Value {
    let files = found.files.iter().map(|file| file.display().to_string());
    json!({
        "name": found.name,
        "quantisation": found.quantisation,
        "bytes": found.bytes,
        "from": found.store.to_string(),
        "whole": found.whole,
        "runs": refused.is_none(),
        "refused": refused,
        "files": files.collect::<Vec<_>>(),
    })
}

/// The models as a table with a head.
fn table(models: &[(Found, Option<String>)]) -> String {
    let wide = models.iter().map(|(found, _)| found.name.chars().count());
    let wide = wide.max();
    let wide = wide.unwrap_or_default().max("model".len());
    let mut text = format!("{:<wide$}  quantisation       size  from\n", "model");
    for (found, refused) in models {
        let quantisation = found.quantisation.as_deref().unwrap_or("-");
        let refused = refused.as_ref().map(|why| format!("  does not run: {why}"));
        let refused = refused.unwrap_or_default();
        let (name, store, size) = (&found.name, found.store, bytes(found.bytes));
        text += &format!("{name:<wide$}  {quantisation:<12} {size:>10}  {store}{refused}\n");
    }
    text
}
