//! `glimt tokenize`: what a model's tokenizer makes of a text.

use clap::Args;
use serde_json::json;

use super::args::ModelArgs;
use super::error::CliError;
use super::output;
use super::piece::Piece;
use super::text::{self, TextArgs};
use crate::engine::ModelSource;
use crate::tokenizer::Tokenizer;

const EXAMPLES: &str = "\
Examples:
  glimt tokenize \"Once upon a time\"
  glimt tokenize -m GLM-4.7-Flash-Q4_K_M.gguf --json \"<|user|>Hello<|assistant|>\"

Special tokens in the text are taken as such. A token that begins the text in this model (BOS) is included. The file \
needs no weights: a vocabulary is enough. A token that is only a part of a character has its bytes: as \"\\xf0\\x9f\", or \
as [240,159] in JSON.";

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

impl Tokenize {
    pub(super) fn run(&self) -> Result<(), CliError> {
        let text = self.text.input("text")?.read(text::MAX_BYTES)?;
        let source = self.model.source()?;
        let tokenizer = vocabulary(&source).map_err(|error| error.in_file(&source))?;
        let ids = tokenizer.encode(&text, true)?;
        let pieces = ids.iter().map(|&id| Piece::of(&tokenizer, id));
        let pieces: Vec<_> = pieces.collect();
        if self.json {
            return output::json(&json!({ "ids": ids, "pieces": pieces }));
        }
        let line = |(id, piece): (&u32, &Piece)| format!("{id:>7}  {piece}\n");
        let lines: String = ids.iter().zip(&pieces).map(line).collect();
        output::print(&lines)
    }
}

/// The vocabulary of a file.
fn vocabulary(source: &ModelSource) -> Result<Tokenizer, CliError> {
    Ok(Tokenizer::from_gguf(&source.open()?)?)
}
