//! The flags that keep an answer to a grammar.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use clap::Args;

use super::error::CliError;
use super::output::note;
use crate::engine::Opened;
use crate::engine::chooser::{Grammar, Language};

/// The flags that say what an answer has to be.
#[derive(Args, Clone, Default)]
pub(super) struct GrammarArgs {
    /// Answer with JSON that this schema accepts
    ///
    /// It is the schema itself, or a file that holds it.
    #[arg(
        long,
        value_name = "SCHEMA",
        conflicts_with = "grammar",
        allow_hyphen_values = true
    )]
    pub(super) json_schema: Option<String>,
    /// Answer with a text of a grammar: the grammar itself, or a file that holds it
    ///
    /// It is GBNF, as llama.cpp has it, or Lark, as llguidance has it. What has a rule with ::= or several lines is a grammar, and
    /// anything else the name of a file.
    #[arg(
        long,
        alias = "grammar-file",
        value_name = "FILE|TEXT",
        hide_short_help = true,
        allow_hyphen_values = true
    )]
    pub(super) grammar: Option<String>,
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
    /// An error of reading the file, [`CliError::NotJson`], or the refusal of the grammar.
    pub(super) fn grammar(&self, opened: &Opened) -> Result<Option<Grammar>, CliError> {
        let Some((path, language)) = self.language()? else {
            return Ok(None);
        };
        let grammar = opened.grammar(language);
        let grammar = grammar.map_err(|source| CliError::Grammar { path, source })?;
        for lost in grammar.not_enforced() {
            note(format_args!("not enforced: {lost}"));
        }
        Ok(Some(grammar))
    }

    /// The language of the answer, and the file or flag that gives it.
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
        let Some(grammar) = &self.grammar else {
            return Ok(None);
        };
        if grammar.contains("::=") || grammar.trim().contains('\n') {
            let language = Language::of_grammar(grammar.clone());
            return Ok(Some(("--grammar".to_owned(), language)));
        }
        let named = format!(
            "{grammar:?} (--grammar takes a grammar, which has a rule with ::= or several lines, or its file)"
        );
        let text = read(Path::new(grammar), &named)?;
        Ok(Some((grammar.clone(), Language::of_grammar(text))))
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
