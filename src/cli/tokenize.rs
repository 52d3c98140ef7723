//! `glimt tokenize`: what a model's tokenizer makes of a text.

use std::fmt::Write;

use clap::Args;
use serde::Serialize;

use super::args::ModelArgs;
use super::error::CliError;
use super::output;
use super::text::{self, TextArgs};
use crate::engine::ModelSource;
use crate::tokenizer::Tokenizer;

const EXAMPLES: &str = "\
Examples:
  glimt tokenize \"Once upon a time\"
  glimt tokenize -m GLM-4.7-Flash-Q4_K_M.gguf --json \"<|user|>Hello<|assistant|>\"

Special tokens in the text are taken as such. A token that begins the text in this model (BOS) is included. The file \
needs no weights: a vocabulary is enough.";

/// Show the tokens of a text
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Tokenize {
    #[command(flatten)]
    text: TextArgs,
    #[command(flatten)]
    model: ModelArgs,
    /// Print one JSON object, {"ids":[...],"pieces":[...]}
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Tokens {
    ids: Vec<u32>,
    pieces: Vec<String>,
}

impl Tokenize {
    pub(super) fn run(&self) -> Result<(), CliError> {
        let text = self.text.input("text")?.read(text::MAX_BYTES)?;
        let source = self.model.source()?;
        let tokenizer = vocabulary(&source).map_err(|error| error.in_file(&source))?;
        let ids = tokenizer.encode(&text, true)?;
        let pieces = ids.iter().map(|&id| tokenizer.piece(id)).collect();
        let tokens = Tokens { ids, pieces };
        if self.json {
            return output::json(&tokens);
        }
        let mut lines = String::new();
        for (id, piece) in tokens.ids.iter().zip(&tokens.pieces) {
            // Quoted, so that blanks and line breaks are seen.
            let _ = writeln!(lines, "{id:>7}  {piece:?}");
        }
        output::print(&lines)
    }
}

/// The vocabulary of a file.
fn vocabulary(source: &ModelSource) -> Result<Tokenizer, CliError> {
    Ok(Tokenizer::from_gguf(&source.open()?)?)
}
