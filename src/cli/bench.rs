//! `glimt bench`: speed in llama-bench's terms.

use std::io;
use std::ops::ControlFlow;

use clap::Args;

use super::args::{KernelArgs, MeasuredArgs, PrecomposeArgs};
use super::error::CliError;
use super::load;
use super::output::{note, write_error};
use crate::bench::{self, BenchOptions, Event, Format, Where, Writer};
use crate::engine::Tier;
use crate::models::MAX_CHUNK;

const EXAMPLES: &str = "\
Examples:
  glimt bench
  glimt bench -m GLM-4.7-Flash-Q4_0.gguf -p 512,2048 -n 128 -d 0,4096
  glimt bench --synthetic glm-4.7-flash:q4_0 -p 0 -d 0,4096,32768
  glimt bench --synthetic tiny:q4_0 --device all --tier plain --tier subgroup -o jsonl

Tests, flags and columns are llama-bench's: pp is processing a prompt, tg generating one token after the other, @ d is \
the depth of context before that; t/s is the mean of the repetitions and their standard deviation. A run that is not \
counted comes first. Tokens are random, nothing is read or written as text, no token ends a generation; choosing the \
next token (greedily, on the device) is part of its time.

The cache below a depth is filled with random rows instead of computed ones: attention takes the same time over them, \
and a depth of 32768 needs no wait.

Behind llama-bench's columns stand, for tg: GB/s, the bytes that a token must read times the tokens per second, in \
10^9 bytes; these bytes are the planes of all weights that the dispatches of a token read (of experts, those that are \
used), plus (position + 1) cache rows per layer. Of peak: relative to a plain read of a large buffer, measured on each \
device before the model is loaded. Dispatches per token, and how many of them are dependent: wait for the one before. \
Host ms: what encoding and submitting a token takes the CPU. GPU idle: the share of the time between the first and the \
last token in which no step ran, from timestamps in a run of its own; where these are missing or wrong, from a step \
repeated by the host's clock (field clock).

For pp, longest ms: what the longest submission took. A prompt is cut into submissions of about 100 ms each, so that a \
display on the same device stays alive; one layer is the first of a session.";

/// Measure a model's speed, in llama-bench's tests and columns
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Bench {
    #[command(flatten)]
    model: MeasuredArgs,
    /// Tokens of prompts; 0 is off [default: 512]
    #[arg(short = 'p', long = "n-prompt", value_name = "N,..", value_parser = numbers)]
    prompts: Vec<Numbers>,
    /// Tokens to generate; 0 is off [default: 128]
    #[arg(short = 'n', long = "n-gen", value_name = "N,..", value_parser = numbers)]
    generations: Vec<Numbers>,
    /// A prompt of P tokens and N generated ones, timed together; also -pg
    #[arg(long = "pg", value_name = "P,N", value_parser = bench::pair)]
    pairs: Vec<(usize, usize)>,
    /// Depths: tokens in the context before each test [default: 0]
    #[arg(short = 'd', long = "n-depth", value_name = "N,..", value_parser = numbers)]
    depths: Vec<Numbers>,
    /// Repetitions of each test
    #[arg(short = 'r', long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    repetitions: u16,
    /// Format of the results on standard output
    #[arg(short = 'o', long, value_name = "FORMAT", default_value = "md")]
    output: Format,
    /// Where to run: as for generate, or all for every GPU; may be repeated [default: auto]
    #[arg(long = "device", value_name = "DEVICE", env = "GLIMT_DEVICE")]
    devices: Vec<Where>,
    /// A tier of GPU kernels; may be repeated [default: subgroup where the adapter runs it, or int8 where that is measured to
    /// be at least 10% faster]
    #[arg(long = "tier", value_name = "TIER")]
    tiers: Vec<Tier>,
    #[command(flatten)]
    kernels: KernelArgs,
    #[command(flatten)]
    precompose: PrecomposeArgs,
    /// Tokens of a prompt computed at once; also -ub [default: 2048, on software 512, or what its
    /// bindings have room for]
    #[arg(long = "ubatch", value_name = "N,..", value_parser = ubatch)]
    chunks: Vec<Chunks>,
}

/// The numbers of one flag; a type of its own, since clap takes a bare list for several values.
#[derive(Clone)]
struct Numbers(Vec<usize>);

fn numbers(text: &str) -> Result<Numbers, String> {
    bench::counts(text).map(Numbers)
}

/// The values of one `--ubatch`.
#[derive(Clone)]
struct Chunks(Vec<u32>);

fn ubatch(text: &str) -> Result<Chunks, String> {
    bench::counts(text)?
        .into_iter()
        .map(|n| match n {
            1.. if n <= MAX_CHUNK as usize => Ok(n as u32),
            _ => Err(format!("{n} is not from 1 to {MAX_CHUNK}")),
        })
        .collect::<Result<_, _>>()
        .map(Chunks)
}

fn all(flags: &[Numbers], default: usize) -> Vec<usize> {
    if flags.is_empty() {
        return vec![default];
    }
    flags.iter().flat_map(|n| n.0.iter().copied()).collect()
}

impl Bench {
    pub(super) fn run(&self) -> Result<(), CliError> {
        let options = BenchOptions {
            source: self.model.source(),
            tests: bench::tests(
                &all(&self.prompts, 512),
                &all(&self.generations, 128),
                &self.pairs,
                &all(&self.depths, 0),
            )?,
            devices: match self.devices.as_slice() {
                [] => vec![Where::Device(Default::default())],
                some => some.to_vec(),
            },
            tiers: self.tiers.clone(),
            gpu: self.kernels.options(),
            precompose: self.precompose.choice,
            chunks: self
                .chunks
                .iter()
                .flat_map(|c| c.0.iter().copied())
                .collect(),
            repetitions: usize::from(self.repetitions),
        };
        // The head is written with the first row, so that a refusal leaves standard output empty.
        let mut writer: Option<Writer<io::Stdout>> = None;
        let mut failed = None;
        let bar = load::progress_bar("loading");
        bench::run(&options, &mut |event| {
            let mut written = Ok(());
            match event {
                Event::Loading(done, total) => load::told(&bar)(done, total),
                Event::Loaded => bar.finish_and_clear(),
                Event::Tier(trial) => note(format_args!("{trial}")),
                Event::Precomposed(precomposed) => note(format_args!("{precomposed}")),
                Event::Skipped(reason) => note(format_args!("left out: {reason}")),
                Event::Row(row) => {
                    written = match &mut writer {
                        Some(writer) => writer.row(row),
                        none => Writer::new(io::stdout(), self.output)
                            .and_then(|new| none.insert(new).row(row)),
                    }
                }
            }
            match written {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        match (failed, writer) {
            (Some(error), _) => Err(write_error(error)),
            (None, Some(writer)) => writer.finish().map_err(write_error),
            (None, None) => Ok(()),
        }
    }
}
