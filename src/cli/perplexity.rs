//! `glimt perplexity`: how surprised a model is by a text, by llama-perplexity's method.

use std::ops::ControlFlow;

use clap::Args;
use serde_json::json;

use super::args::{ContextArgs, EngineArgs, ModelArgs};
use super::error::CliError;
use super::load;
use super::output::{self, note};
use super::text::FileArgs;
use crate::engine::perplexity::Perplexity as Scores;
use crate::gpu::wait::Wait;

/// llama-perplexity's default chunk length.
const DEFAULT_CHUNK: usize = 512;
/// The shortest chunk with a scored token: the first half is context, and the last token predicts nothing.
const LEAST_CHUNK: usize = 3;

const EXAMPLES: &str = "\
Examples:
  glimt perplexity -f tales.txt
  glimt perplexity -m GLM-4.7-Flash-Q4_K_M.gguf -f wiki.test.raw --json

The method is llama-perplexity's, so that the figures compare: the text is cut into consecutive chunks of -c tokens \
(512 by default; an incomplete chunk at the end is left out), and the second half of each is scored. A model that \
begins its texts with a BOS token sees it in place of each chunk's first token. Running values go to standard error.";

/// Measure the perplexity of a text, comparable with llama-perplexity's
#[derive(Args)]
#[command(after_help = EXAMPLES, mut_arg("ctx", chunk_argument))]
pub(super) struct Perplexity {
    #[command(flatten)]
    file: FileArgs,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    ctx: ContextArgs,
    /// Print one JSON object instead of a line of text
    #[arg(long)]
    json: bool,
}

fn chunk_argument(argument: clap::Arg) -> clap::Arg {
    argument
        .help("Tokens of a chunk; 0 is the model's full context [default: 512]")
        .long_help(None)
}

impl Perplexity {
    pub(super) fn run(&self) -> Result<(), CliError> {
        let text = self.file.read()?;
        if text.is_empty() {
            return Err(CliError::EmptyText { what: "text" });
        }
        let ctx = ContextArgs {
            ctx: Some(self.ctx.ctx.unwrap_or(DEFAULT_CHUNK)),
            ..self.ctx.clone()
        };
        let opened = load::open(&self.model, &self.engine, &ctx)?;
        let n_ctx = opened.n_ctx();
        if n_ctx < LEAST_CHUNK {
            return Err(CliError::ChunkTooShort {
                n_ctx,
                least: LEAST_CHUNK,
            });
        }
        let tokens = opened.tokenizer().encode(&text, true)?;
        if tokens.len() < 2 * n_ctx {
            return Err(CliError::TextTooShort {
                tokens: tokens.len(),
                n_ctx,
                needed: 2 * n_ctx,
            });
        }
        let engine = load::weights(opened)?;
        let mut scores = Scores::default();
        let mut session = engine.session().wait()?;
        let chunks = tokens.chunks_exact(n_ctx);
        let count = chunks.len();
        for (i, chunk) in chunks.enumerate() {
            let bar = load::prompt_bar("chunk", n_ctx);
            let on_prompt = &mut |done: usize| {
                bar.at(done as u64);
                ControlFlow::Continue(())
            };
            let added = scores
                .add_chunk_watched(&mut session, chunk, on_prompt)
                .wait();
            bar.end();
            added?;
            note(format_args!(
                "chunk {} of {count}: perplexity {:.4}",
                i + 1,
                scores.perplexity()
            ));
        }
        let (perplexity, error) = (scores.perplexity(), scores.error());
        if self.json {
            return output::json(&json!({
                "perplexity": perplexity,
                "error": error,
                "nll": scores.mean(),
                "tokens": tokens.len(),
                "scored": scores.count(),
                "chunks": count,
                "ctx": n_ctx,
            }));
        }
        output::print(&format!("PPL = {perplexity:.4} +/- {error:.5}\n"))
    }
}
