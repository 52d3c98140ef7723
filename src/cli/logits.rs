//! `glimt logits`: the log-probabilities of the next token at every position of a text.

use std::io::{self, BufWriter, Write};
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::str::FromStr;

use clap::Args;
use serde::Serialize;

use super::args::{ContextArgs, EngineArgs, ModelArgs};
use super::error::CliError;
use super::text::{self, TextArgs};
use super::{load, output};
use crate::engine::log_softmax;

const EXAMPLES: &str = "\
Examples:
  glimt logits \"Once upon a time\" --top 3
  glimt logits -m GLM-4.7-Flash-Q4_K_M.gguf --tokens 151331,151333,9707 --top all --device cpu

One JSON object per line and position: {\"pos\":0,\"token\":1,\"top\":[[id,logprob],...]}. The list tells what the \
model expects after that token: best first, equal ones by id, natural logarithms.";

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
    #[arg(long, value_name = "K", default_value = "20")]
    top: Top,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    ctx: ContextArgs,
}

/// The value of `--top`.
#[derive(Clone, Copy)]
enum Top {
    Count(NonZeroUsize),
    All,
}

impl FromStr for Top {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "all" => Ok(Self::All),
            _ => text
                .parse()
                .map(Self::Count)
                .map_err(|_| "must be a number above 0, or all"),
        }
    }
}

/// A line of the output.
#[derive(Serialize)]
struct Position {
    pos: usize,
    token: u32,
    top: Vec<(u32, f32)>,
}

impl Logits {
    pub(super) fn run(&self) -> Result<(), CliError> {
        let input = match self.tokens.is_empty() {
            true => Some(self.text.input("text")?),
            false => None,
        };
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
        let mut out = BufWriter::new(io::stdout().lock());
        let mut written = Ok(());
        engine.session()?.logits(&tokens, 0, &mut |pos, logits| {
            let line = Position {
                pos,
                token: tokens[pos],
                top: best(logits, self.top),
            };
            written = output::json_line(&mut out, &line);
            match written {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        })?;
        written?;
        out.flush().map_err(output::write_error)
    }
}

/// The best tokens of a row of logits with their natural log-probabilities, best first, equal ones by id.
fn best(logits: &[f32], top: Top) -> Vec<(u32, f32)> {
    let log_sum = log_softmax::log_sum_exp(logits);
    let mut ids: Vec<u32> = (0..).take(logits.len()).collect();
    let order = |a: &u32, b: &u32| {
        logits[*b as usize]
            .total_cmp(&logits[*a as usize])
            .then(a.cmp(b))
    };
    if let Top::Count(count) = top
        && count.get() < ids.len()
    {
        ids.select_nth_unstable_by(count.get(), order);
        ids.truncate(count.get());
    }
    ids.sort_unstable_by(order);
    let log_prob = |id: u32| (f64::from(logits[id as usize]) - log_sum) as f32;
    ids.into_iter().map(|id| (id, log_prob(id))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_come_first_and_equal_ones_by_id() {
        let logits = [0.5, 2.0, -1.0, 2.0, 0.5];
        let ids = |top| {
            best(&logits, top)
                .into_iter()
                .map(|(id, _)| id)
                .collect::<Vec<_>>()
        };
        assert_eq!(ids(Top::All), [1, 3, 0, 4, 2]);
        for count in 1..=7 {
            let top = Top::Count(NonZeroUsize::new(count).unwrap());
            assert_eq!(ids(top), [1, 3, 0, 4, 2][..count.min(5)]);
        }
        let sum: f64 = best(&logits, Top::All)
            .iter()
            .map(|(_, p)| f64::from(*p).exp())
            .sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
    }

    #[test]
    fn top_takes_a_count_or_all() {
        assert!(matches!("all".parse(), Ok(Top::All)));
        assert!(matches!("7".parse(), Ok(Top::Count(n)) if n.get() == 7));
        assert!("0".parse::<Top>().is_err());
        assert!("-1".parse::<Top>().is_err());
        assert!("some".parse::<Top>().is_err());
    }
}
