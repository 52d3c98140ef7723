//! `glimt logits`: the log-probabilities of the next token at every position of a text.

use std::io::{self, BufWriter, IsTerminal, Write};

use clap::Args;
use serde::Serialize;

use super::args::{ContextArgs, EngineArgs, ModelArgs};
use super::error::CliError;
use super::piece::Piece;
use super::text::{self, TextArgs};
use super::{load, output, run};
use crate::engine::log_softmax;
use crate::gpu::wait::Wait;

const EXAMPLES: &str = "\
Examples:
  glimt logits \"Once upon a time\" --top 3
  glimt logits -m GLM-4.7-Flash-Q4_K_M.gguf --tokens 151331,151333,9707 --top all --device cpu

One JSON object per line and position: {\"pos\":0,\"token\":1,\"text\":\"Once\",\"top\":[[id,logprob],...],\"texts\":[\" upon\",...]}. \
The lists tell what the model expects after that token: best first, equal ones by id, natural logarithms. A token that is \
only a part of a character has the list of its bytes as its text. With --top all there are no texts of the best: glimt \
tokenize and the ids tell them.";

/// Print the most probable next tokens at every position of a text
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Logits {
    #[command(flatten)]
    text: TextArgs,
    /// Token ids instead of a text, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with_all = ["text", "file"])]
    tokens: Vec<u32>,
    /// How many tokens to print at each position: a number, or all
    #[arg(long, value_name = "K", default_value = "20", value_parser = top)]
    top: usize,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    ctx: ContextArgs,
}

/// Reads the value of `--top`: a count, or `all`.
fn top(text: &str) -> Result<usize, &'static str> {
    match (text, text.parse()) {
        ("all", _) => Ok(usize::MAX),
        (_, Ok(count @ 1..)) => Ok(count),
        _ => Err("must be a number above 0, or all"),
    }
}

/// A line of the output.
#[derive(Serialize)]
struct Position {
    pos: usize,
    token: u32,
    text: Piece,
    top: Vec<(u32, f32)>,
    /// The texts of `top`, unless that is the whole vocabulary.
    #[serde(skip_serializing_if = "Option::is_none")]
    texts: Option<Vec<Piece>>,
}

impl Logits {
    pub(super) fn run(&mut self) -> Result<(), CliError> {
        let is_text = self.tokens.is_empty();
        let input = is_text.then(|| self.text.input("text")).transpose()?;
        self.engine.be_exact();
        let opened = load::open(&self.model, &self.engine, &self.ctx)?;
        let tokens = match input {
            Some(input) => {
                let text = input.read(text::most_bytes(opened.n_ctx()))?;
                if text.is_empty() {
                    return Err(CliError::EmptyText { what: "text" });
                }
                opened.tokenizer().encode(&text, true)?
            }
            None => self.tokens.clone(),
        };
        opened.check_tokens(&tokens, 0)?;
        let engine = load::weights(opened)?;
        let mut out = BufWriter::new(io::stdout());
        // In a terminal the lines themselves show how far it is, from the first one on.
        let is_seen = io::stdout().is_terminal();
        let bar = load::prompt_bar("logits", tokens.len());
        let mut written = Ok(());
        engine
            .session()
            .wait()?
            .logits(&tokens, 0, &mut |pos, logits| {
                let piece = |token| Piece::of(engine.tokenizer(), token);
                let top = log_softmax::best(logits, self.top);
                let texts = || top.iter().map(|(token, _)| piece(*token)).collect();
                let line = Position {
                    pos,
                    token: tokens[pos],
                    text: piece(tokens[pos]),
                    texts: (self.top < usize::MAX).then(texts),
                    top,
                };
                match is_seen {
                    true => bar.end(),
                    false => bar.at(pos as u64 + 1),
                }
                written = output::json_line(&mut out, &line);
                if is_seen && written.is_ok() {
                    written = out.flush().map_err(output::write_error);
                }
                run::flow(written.is_ok())
            })
            .wait()?;
        bar.end();
        written?;
        out.flush().map_err(output::write_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn top_takes_a_count_or_all() {
        assert_eq!(top("all"), Ok(usize::MAX));
        assert_eq!(top("7"), Ok(7));
        for wrong in ["0", "-1", "some"] {
            assert!(top(wrong).is_err(), "{wrong}");
        }
    }
}
