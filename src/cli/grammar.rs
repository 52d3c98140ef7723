//! The flags that keep an answer to a grammar.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use clap::Args;

use super::error::CliError;
use crate::engine::chooser::{Grammar, Language};
use crate::engine::{EngineError, Opened};

/// What an answer has to be.
#[derive(Args)]
pub(super) struct GrammarArgs {
    /// Answer with JSON that a schema accepts: the schema itself, or a file that holds it
    #[arg(long, value_name = "FILE|JSON", conflicts_with = "grammar")]
    json_schema: Option<String>,
    /// Answer with a text of the grammar in a file, which is in the variant of Lark that llguidance reads
    #[arg(long, alias = "grammar-file", value_name = "FILE")]
    grammar: Option<PathBuf>,
}

/// More is no grammar that anyone wrote.
const MOST_BYTES: u64 = 16 << 20;

impl GrammarArgs {
    /// The flag that was given.
    pub(super) fn flag(&self) -> Option<&'static str> {
        match (&self.json_schema, &self.grammar) {
            (Some(_), _) => Some("--json-schema"),
            (None, Some(_)) => Some("--grammar"),
            (None, None) => None,
        }
    }

    /// The grammar for the tokens of a model.
    ///
    /// # Errors
    /// What reading the file gave, [`CliError::NotJson`], or what the grammar is refused for.
    pub(super) fn grammar(&self, opened: &Opened) -> Result<Option<Grammar>, CliError> {
        let Some(language) = self.language()? else {
            return Ok(None);
        };
        let grammar = Grammar::new(opened.tokenizer(), language);
        Ok(Some(grammar.map_err(EngineError::from)?))
    }

    fn language(&self) -> Result<Option<Language>, CliError> {
        if let Some(schema) = &self.json_schema {
            let (text, path) = match schema.trim_start().starts_with('{') {
                true => (schema.clone(), "--json-schema".to_owned()),
                false => (read(schema.into())?, schema.clone()),
            };
            let schema = serde_json::from_str(&text);
            let schema = schema.map_err(|source| CliError::NotJson { path, source })?;
            return Ok(Some(Language::JsonSchema(schema)));
        }
        let Some(path) = &self.grammar else {
            return Ok(None);
        };
        Ok(Some(Language::Lark(read(path.clone())?)))
    }
}

/// The text of a file.
fn read(path: PathBuf) -> Result<String, CliError> {
    let mut bytes = vec![];
    let read = File::open(&path).and_then(|file| file.take(MOST_BYTES).read_to_end(&mut bytes));
    let path = path.display().to_string();
    match read {
        Err(source) => Err(CliError::ReadText { path, source }),
        Ok(_) => String::from_utf8(bytes).map_err(|error| {
            let offset = error.utf8_error().valid_up_to();
            CliError::NotUtf8 { path, offset }
        }),
    }
}
