//! `glimt profile`: where the time of a token, of a step with drafts or of a prompt goes.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::args::{CacheArgs, EngineArgs, MeasuredArgs, ShareArgs};
use super::draft::DraftArgs;
use super::error::CliError;
use super::load;
use super::output::{self, note};
use super::picture::Picture;
use crate::bench::Drafting;
use crate::engine::draft::DraftSource;
use crate::plural::count;
use crate::profile::{self, ProfileOptions, Subject};
use crate::recipes::MAX_CHUNK;

const EXAMPLES: &str = "\
Examples:
  glimt profile
  glimt profile --synthetic glm-4.7-flash:q4_0 -d 4096 --svg token.svg
  glimt profile -m GLM-4.7-Flash-Q4_K_M.gguf -o json > profile.json
  glimt profile --synthetic glm-4.7-flash:q4_0 --prompt 2048 -d 4096
  glimt profile --synthetic glm-4.7-flash:q4_k_m --draft mtp --draft-max 2

Real decode steps, or with --prompt the computation of a prompt, are timed on the GPU, with a timestamp between any \
two dispatches where the adapter allows that, else (and with --passes) with a pass for each dispatch, from which the \
time of an empty pass is subtracted. The head of the output tells what the same takes without, so that the cost of \
measuring is seen. The cache below the depth holds random rows.

A dispatch's time includes the wait for those before it. Dependent dispatches wait for the one before; others run \
beside them. The floor of a call is its bytes at the speed of a plain read of a large buffer on the same device, and \
what a dispatch costs that waits for the one before, both measured at the start.

Bytes are those of weights and cache that must be read; GB/s are 10^9 bytes, and peak is that plain read. TFLOP/s, of \
prompts, are 10^12 floating-point operations: two for each weight used and token, and in attention those of the rows \
that a token sees. What is repeated for each block of the context counts, and is timed, as often.

With --draft mtp or ngram, steps of a token and --draft-max drafts behind it (3 where nothing is said) are timed instead, all of which are taken as accepted, and a table tells what each part of such a step takes.";

/// Time every kernel of a decoded token or of a prompt on the GPU
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Profile {
    #[command(flatten)]
    model: MeasuredArgs,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    share: ShareArgs,
    #[command(flatten)]
    draft: DraftArgs,
    /// Tokens to time, or with --draft steps; medians are over them
    #[arg(short = 'n', long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u16).range(1..=1000))]
    tokens: u16,
    /// Instead of decoded tokens, time the computation of a prompt of so many random tokens
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with_all = ["tokens", "svg", "draft", "draft_max", "draft_model"])]
    prompt: Option<u32>,
    /// Times that the prompt is computed; medians are over them
    #[arg(short = 'r', long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000), requires = "prompt")]
    repetitions: u16,
    /// Tokens of the prompt computed at once; also -ub [default: 2048, on software 512, or what its bindings have room for]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CHUNK)), requires = "prompt")]
    ubatch: Option<u32>,
    /// Tokens in the context before them
    #[arg(short = 'd', long, value_name = "N", default_value_t = 0)]
    depth: usize,
    /// Format of the result on standard output
    #[arg(short = 'o', long, value_name = "FORMAT", default_value = "md")]
    output: Format,
    /// Also draw the timeline of one token into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Give each dispatch a pass of its own even where timestamps between dispatches are possible
    #[arg(long)]
    passes: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Tables in Markdown.
    Md,
    /// One JSON object.
    Json,
}

impl Profile {
    /// The measurement that begins once the model is loaded, in words.
    fn measures(&self) -> String {
        let depth = self.depth;
        match self.prompt {
            None => {
                let what = match self.draft.options().source {
                    DraftSource::Off => "decoded token",
                    _ => "step",
                };
                let what = count(usize::from(self.tokens), what);
                format!("timing the kernels of {what} at a depth of {depth}")
            }
            Some(tokens) => format!(
                "timing the kernels of a prompt of {} at a depth of {depth}, {}",
                count(tokens as usize, "token"),
                count(usize::from(self.repetitions), "time")
            ),
        }
    }

    pub(super) fn run(&self) -> Result<(), CliError> {
        let options = ProfileOptions {
            source: self.model.source()?,
            gpu: self.engine.device.options(),
            precompose: self.engine.precompose.choice.unwrap_or_default(),
            cache_type: self.cache.cache_type,
            cpu_share: self.share.asked(),
            force: self.model.force,
            on_partly: load::partly,
            draft: Drafting {
                options: self.draft.options(),
                model: self.draft.model()?,
                ..Drafting::default()
            },
            subject: match self.prompt {
                None => Subject::Tokens(usize::from(self.tokens)),
                Some(tokens) => Subject::Prompt {
                    tokens: tokens as usize,
                    chunk: self.ubatch,
                    repetitions: usize::from(self.repetitions),
                },
            },
            depth: self.depth,
            passes: self.passes,
        };
        let picture = self.svg.as_deref().map(Picture::begin).transpose()?;
        let mut measures = Some(self.measures());
        let profiled = load::with_bar("loading", |told| {
            profile::run(&options, &mut |done, total| {
                told(done, total);
                if let Some(measures) = measures.take_if(|_| done >= total) {
                    note(format_args!("{measures}"));
                }
            })
        });
        let profile = profiled.map_err(|error| CliError::from(error).in_source(&options.source))?;
        if let Some(trial) = &profile.head.tier_trial {
            note(format_args!("{trial}"));
        }
        if let Some(precomposed) = &profile.head.precompose {
            note(format_args!("{precomposed}"));
        }
        if let Some(share) = &profile.head.cpu_share {
            note(format_args!("{share}"));
        }
        if let Some(picture) = picture {
            picture.finish(&profile::svg(&profile), "timeline of one token")?;
        }
        match self.output {
            Format::Md => output::page(&profile::markdown(&profile)),
            Format::Json => output::json(&profile),
        }
    }
}
