//! `glimt list`: the models on this machine.

use std::fmt::Write;

use clap::Args;
use serde::Serialize;

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

#[derive(Serialize)]
struct Report {
    /// The folder that `glimt pull` fetches into.
    cache: String,
    models: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    name: String,
    quantisation: Option<String>,
    bytes: u64,
    from: String,
    /// Whether no shard is missing.
    whole: bool,
    files: Vec<String>,
}

impl From<Found> for Row {
    fn from(found: Found) -> Self {
        Self {
            name: found.name,
            quantisation: found.quantisation,
            bytes: found.bytes,
            from: found.store.to_string(),
            whole: found.whole,
            files: found
                .files
                .iter()
                .map(|file| file.display().to_string())
                .collect(),
        }
    }
}

impl List {
    pub(super) fn run(&self) -> Result<(), CliError> {
        let settings = Settings::from_env()?;
        let inventory = stores::all(&settings);
        for error in &inventory.unread {
            note(format_args!("left out: {error}"));
        }
        let models: Vec<Row> = inventory.found.into_iter().map(Row::from).collect();
        let cache = settings.cache.display().to_string();
        if self.json {
            return output::json(&Report { cache, models });
        }
        for (repo, begun) in &inventory.begun {
            note(format_args!(
                "begun and not finished: {} of {repo}; glimt pull goes on with it, and glimt rm {repo} removes it",
                bytes(*begun)
            ));
        }
        if models.is_empty() {
            note(format_args!(
                "no model is on this machine; glimt pull --help tells how to fetch one"
            ));
            return Ok(());
        }
        output::page(&table(&models))
    }
}

/// The rows below their heads. Writing into a `String` cannot fail.
fn table(models: &[Row]) -> String {
    let wide = models.iter().map(|row| row.name.chars().count()).max();
    let wide = wide.unwrap_or_default().max("model".len());
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{:<wide$}  {:<12} {:>10}  from",
        "model", "quantisation", "size"
    );
    for row in models {
        let quantisation = row.quantisation.as_deref().unwrap_or("-");
        let missing = if row.whole {
            ""
        } else {
            ", shards are missing"
        };
        let _ = writeln!(
            text,
            "{:<wide$}  {quantisation:<12} {:>10}  {}{missing}",
            row.name,
            bytes(row.bytes),
            row.from
        );
    }
    text
}
