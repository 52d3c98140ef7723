//! Flags that several commands share, each defined once.

use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};

use clap::Args;

use super::error::CliError;
use crate::bench::Source;
use crate::engine::{DeviceChoice, ModelSource, PrecomposeChoice, Tier};
use crate::models::MAX_CHUNK;

/// Which model.
#[derive(Args)]
pub(super) struct ModelArgs {
    /// GGUF file of the model (of a split model: its first shard) [default: the built-in story teller]
    #[arg(short, long, value_name = "FILE", env = "GLIMT_MODEL")]
    model: Option<PathBuf>,
}

impl ModelArgs {
    /// The file named, or the model compiled into the program.
    pub(super) fn source(&self) -> ModelSource {
        self.model.as_ref().map_or(ModelSource::Embedded, |file| {
            ModelSource::File(file.clone())
        })
    }
}

/// Which model to measure.
#[derive(Args)]
pub(super) struct MeasuredArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Measure random weights of real shapes, made on the device without a file: a model and a recipe of glimt synth,
    /// such as glm-4.7-flash:q4_0; not together with -m or GLIMT_MODEL
    #[arg(long, value_name = "MODEL:RECIPE", conflicts_with = "model")]
    synthetic: Option<Source>,
}

impl MeasuredArgs {
    /// What the flags name.
    pub(super) fn source(&self) -> Source {
        match &self.synthetic {
            Some(synthetic) => synthetic.clone(),
            None => Source::Model(self.model.source()),
        }
    }
}

/// Which device, and how to use it.
#[derive(Args)]
pub(super) struct DeviceArgs {
    /// Where to run: auto (the best GPU), cpu (the reference implementation), or the index or part of the name of an
    /// adapter as `glimt devices` lists them
    #[arg(
        long,
        value_name = "DEVICE",
        env = "GLIMT_DEVICE",
        default_value = "auto"
    )]
    pub(super) device: DeviceChoice,
    /// Force a tier of GPU kernels: plain, subgroup or int8 (activations rounded to bytes) [default: subgroup where the
    /// adapter runs it, or int8 where that is measured to be at least 10% faster]
    #[arg(long, value_name = "TIER")]
    pub(super) tier: Option<Tier>,
    #[command(flatten)]
    pub(super) matrices: MatricesArgs,
    #[command(flatten)]
    pub(super) serial: SerialArgs,
    #[command(flatten)]
    pub(super) halves: HalvesArgs,
}

/// Where and how to run, and which weights decoding reads composed.
#[derive(Args)]
pub(super) struct EngineArgs {
    #[command(flatten)]
    pub(super) device: DeviceArgs,
    #[command(flatten)]
    pub(super) precompose: PrecomposeArgs,
}

/// Whether kernels may use cooperative matrices.
#[derive(Args)]
pub(super) struct MatricesArgs {
    /// Do without cooperative matrices, on GPUs that have them: to compare, or where a driver's are wrong
    #[arg(long = "no-matrices")]
    pub(super) off: bool,
}

/// Whether dispatches wait for each other in any case.
#[derive(Args)]
pub(super) struct SerialArgs {
    /// Generate for GPUs where every dispatch waits for the one before it: fewer dispatches, with work that could stand side by
    /// side in one grid [default: on by Metal, else off]
    #[arg(long = "serial-passes", value_name = "on|off", value_parser = clap::builder::BoolishValueParser::new(), hide_possible_values = true)]
    pub(super) serial_passes: Option<bool>,
}

/// How halves are multiplied.
#[derive(Args)]
pub(super) struct HalvesArgs {
    /// In tier subgroup, multiply activations in pairs of f16 (on), or each widened to f32 (off), which is more exact [default: on
    /// for GPUs of NVIDIA, AMD and Apple, else off]
    #[arg(long = "packed-halves", value_name = "on|off", value_parser = clap::builder::BoolishValueParser::new(), hide_possible_values = true)]
    pub(super) packed: Option<bool>,
}

/// Which weights decoding reads composed.
#[derive(Args)]
pub(super) struct PrecomposeArgs {
    /// Multiply weights that follow one another at load, for fewer but larger steps while generating: qk (query
    /// projection and attn_k_b), vo (attn_v_b and attn_output), both, off, or auto (measure and keep the fastest); prompts
    /// never use them [default: off]
    #[arg(long = "precompose", value_name = "WHICH")]
    pub(super) choice: Option<PrecomposeChoice>,
}

/// How much context.
#[derive(Args)]
pub(super) struct ContextArgs {
    /// Context length in tokens; 0 is the model's full context [default: the model's, at most 4096; for an answer of the
    /// built-in model 1024]
    #[arg(short = 'c', long, alias = "ctx-size", value_name = "N")]
    pub(super) ctx: Option<usize>,
    /// Tokens of a prompt that the GPU computes at once, at most; more take more memory [default: 2048, on software 512, or
    /// what its bindings have room for]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CHUNK)))]
    pub(super) ubatch: Option<u32>,
}

impl ContextArgs {
    /// What answers of `source` take, where nothing else is asked for: the built-in model was trained on 1024 tokens and rambles
    /// behind them, though its file says 2048.
    pub(super) fn for_answers(&self, source: &ModelSource) -> Self {
        let own_default = match source {
            ModelSource::Embedded => Some(1024),
            ModelSource::File(_) => None,
        };
        Self {
            ctx: self.ctx.or(own_default),
            ubatch: self.ubatch,
        }
    }
}

/// A text file.
#[derive(Args)]
pub(super) struct FileArgs {
    /// Read the text from a file (- is standard input); one line break at its end is dropped
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
}

impl FileArgs {
    /// The text of the file, or what is piped into standard input.
    ///
    /// # Errors
    /// [`CliError::NoFile`] where there is neither, or what reading gave.
    pub(super) fn read(&self) -> Result<String, CliError> {
        read_file_or_pipe(self.file.as_deref())?.ok_or(CliError::NoFile)
    }
}

/// A text: argument, file or standard input.
#[derive(Args)]
pub(super) struct TextArgs {
    /// The text [default: standard input, where it is no terminal]
    #[arg(conflicts_with = "file")]
    text: Option<String>,
    #[command(flatten)]
    file: FileArgs,
}

impl TextArgs {
    /// The text; `what` names it in errors.
    ///
    /// # Errors
    /// [`CliError::NoText`] where none is given in any way, or what reading gave.
    pub(super) fn read(&self, what: &'static str) -> Result<String, CliError> {
        match &self.text {
            Some(text) => Ok(text.clone()),
            None => read_file_or_pipe(self.file.file.as_deref())?.ok_or(CliError::NoText { what }),
        }
    }
}

/// The text of `file`, or of standard input where that is no terminal; `None` where there is neither.
fn read_file_or_pipe(file: Option<&Path>) -> Result<Option<String>, CliError> {
    let mut bytes = Vec::new();
    let (path, read) = match file {
        Some(path) if path != Path::new("-") => {
            let read = std::fs::read(path).map(|content| bytes = content);
            (path.display().to_string(), read)
        }
        None if io::stdin().is_terminal() => return Ok(None),
        _ => {
            let read = io::stdin().lock().read_to_end(&mut bytes).map(drop);
            ("standard input".to_owned(), read)
        }
    };
    if let Err(source) = read {
        return Err(CliError::ReadText { path, source });
    }
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        CliError::NotUtf8 { path, offset }
    })?;
    // Editors and `echo` end a file with a line break that is no part of the text; llama.cpp drops it too.
    if text.ends_with('\n') {
        text.pop();
    }
    Ok(Some(text))
}
