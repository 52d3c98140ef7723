//! The flags that keep an answer to a grammar.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;

use super::error::CliError;
use super::output::note;
use crate::engine::Opened;
use crate::engine::chooser::{Grammar, Language};

/// What an answer has to be.
#[derive(Args)]
pub(super) struct GrammarArgs {
    /// Answer with JSON that a schema accepts: the schema itself, or a file that holds it
    #[arg(long, value_name = "FILE|JSON", conflicts_with = "grammar")]
    json_schema: Option<String>,
    /// Answer with a text of the grammar in a file: GBNF, as llama.cpp has it, or Lark, as llguidance has it
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
        let Some((path, language)) = self.language()? else {
            return Ok(None);
        };
        let grammar = Grammar::new(opened.tokenizer(), language);
        let grammar = grammar.map_err(|source| CliError::Grammar { path, source })?;
        for lost in grammar.not_enforced() {
            note(format_args!("not enforced: {lost}"));
        }
        Ok(Some(grammar))
    }

    /// What is to be answered, and the file or flag that says so.
    fn language(&self) -> Result<Option<(String, Language)>, CliError> {
        if let Some(schema) = &self.json_schema {
            let (text, path) = match schema.trim_start().starts_with('{') {
                true => (schema.clone(), "--json-schema".to_owned()),
                false => {
                    let named = format!(
                        "{schema:?} (--json-schema takes a schema, which begins with {{, or its file)"
                    );
                    (read(Path::new(schema), &named)?, schema.clone())
                }
            };
            return match serde_json::from_str(&text) {
                Ok(schema) => Ok(Some((path, Language::JsonSchema(schema)))),
                Err(source) => Err(CliError::NotJson { path, source }),
            };
        }
        let Some(path) = &self.grammar else {
            return Ok(None);
        };
        let named = path.display().to_string();
        let text = read(path, &named)?;
        Ok(Some((named, Language::of_grammar(text))))
    }
}

/// The text of a file, which errors name so.
fn read(path: &Path, named: &str) -> Result<String, CliError> {
    let mut bytes = vec![];
    let read = File::open(path).and_then(|file| file.take(MOST_BYTES).read_to_end(&mut bytes));
    let path = named.to_owned();
    match read {
        Err(source) => Err(CliError::ReadText { path, source }),
        Ok(_) => String::from_utf8(bytes).map_err(|error| {
            let offset = error.utf8_error().valid_up_to();
            CliError::NotUtf8 { path, offset }
        }),
    }
}
