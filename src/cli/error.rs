//! Why a command failed, and with which exit code.

use std::io;
use std::net::IpAddr;

use super::batch_error::BatchError;
use super::bench_serve_error::LoadError;
use crate::bench::{BenchError, Source};
use crate::engine::chooser::ChooserError;
use crate::engine::{EngineError, ModelSource, SessionFileError};
use crate::gpu::tuning::TuningError;
use crate::hub::HubError;
use crate::plural::count;
use crate::server::ServerError;
use crate::synth::SynthError;
use crate::tokenizer::TokenizerError;
use crate::tune::TuneError;

/// The exit code after Ctrl-C: 128 + SIGINT, as shells report it.
pub(super) const EXIT_INTERRUPTED: u8 = 130;

/// The advice about a conversation that fills its context.
pub(super) const MORE_ROOM: &str = "/drop forgets the oldest question and its answer, /clear all of them, and /set ctx N (at the start -c N) takes a longer context";

/// An error that ends a command early. `Display` is the one sentence printed after `glimt: error:`.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(
        "{device} does not compute what it should: {failed} of {all} failed{kernels}; try another --tier or --device, and send what glimt report \
         writes to those who make glimt"
    )]
    Unverified {
        device: String,
        failed: usize,
        /// The number of all comparisons, in words.
        all: String,
        /// The kernels that differ from their twins, in words; empty if all agree.
        kernels: String,
    },
    #[error("{} of {all} failed: {}; the report tells why", failed.len(), failed.join(", "))]
    Unreported {
        failed: Vec<&'static str>,
        /// The number of all parts, in words.
        all: String,
    },
    #[error("the CPU reference has no tiers; leave out --tier, or name a GPU with --device")]
    TierOfCpu,
    #[error("{path} has no page for browsers: build one by scripts/web, or name its folder")]
    NoPage { path: String },
    #[error(transparent)]
    SessionFile(#[from] SessionFileError),
    #[error("the session file {path} holds no conversation of glimt: {source}; name another file")]
    SessionData {
        path: String,
        source: serde_json::Error,
    },
    #[error(
        "the session file {path} holds a conversation in the chat template; leave out --raw, or name another file"
    )]
    SessionHasTurns { path: String },
    #[error(
        "the session file {path} holds a text without a chat template; go on with --raw, or name another file"
    )]
    SessionIsRaw { path: String },
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Synth(#[from] SynthError),
    /// The model's file cannot be used, and the reason does not name it.
    #[error("cannot use {file}: {reason}")]
    ModelFile { file: String, reason: Box<CliError> },
    #[error(transparent)]
    Bench(#[from] BenchError),
    #[error(transparent)]
    Tune(#[from] TuneError),
    #[error(transparent)]
    Tuning(#[from] TuningError),
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error(
        "no model '{text}': there is no such file, and no model of this name is on this machine; {advice}"
    )]
    NoModel { text: String, advice: String },
    /// The name of a model that only this program makes.
    #[error(
        "no model '{model}': it is a synthetic one; glimt bench --synthetic {model}:{recipe} measures it, and glimt synth {model} {recipe} \
         OUT.gguf writes its file"
    )]
    OnlySynthetic { model: &'static str, recipe: String },
    /// A model that is offered and would not run.
    #[error("{model} was not fetched, since glimt does not run it: {reason}")]
    WouldNotRun { model: String, reason: String },
    #[error("{0} was not fetched")]
    NotFetched(String),
    #[error(
        "a model is removed without a question only with --yes; give it, or run this in a terminal"
    )]
    NobodyToAsk,
    #[error("cannot read the config file {path}: {source}")]
    ReadConfig { path: String, source: io::Error },
    /// The config file or an environment variable says what no flag takes.
    #[error("{origin}: {problem}")]
    Setting {
        /// The file with the line and the key, or the variable.
        origin: String,
        problem: String,
    },
    #[error("cannot write {path}: {source}")]
    WriteFile { path: String, source: io::Error },
    #[error("--parallel {found} is not from 1 to {most}")]
    Parallel { found: usize, most: usize },
    #[error(
        "--parallel prints a table (-o md) or an object per line (-o jsonl); choose one of them"
    )]
    ParallelFormat,
    #[error(
        "--parallel measures steps of several sequences on a GPU; leave it out, or choose a GPU with --device"
    )]
    ParallelOnCpu,
    #[error("--parallel measures devices that are named: repeat --device instead of giving all")]
    ParallelOnAll,
    #[error("--bars stands below a table; leave it out, or use -o md")]
    BarsWithoutTable,
    #[error("cannot read {path}: {source}")]
    ReadText {
        /// The file, or `standard input`.
        path: String,
        source: io::Error,
    },
    #[error("{path} has more than {most} bytes, more than can be read; give less{advice}")]
    TextTooLong {
        path: String,
        most: u64,
        advice: &'static str,
    },
    #[error(
        "{path} has {}, the context holds {n_ctx}; give less, or ask for more context with -c",
        count(*tokens, "token")
    )]
    FileTooLong {
        path: String,
        tokens: usize,
        n_ctx: usize,
    },
    #[error("{path} is not UTF-8 text (byte {offset} is invalid); convert it first")]
    NotUtf8 { path: String, offset: usize },
    #[error("no {what}: give it as an argument, with -f FILE, or pipe it into standard input")]
    NoText {
        /// `prompt` or `text`.
        what: &'static str,
    },
    /// `perplexity` was given no text.
    #[error("no text: name a file with -f FILE, or pipe the text into standard input")]
    NoFile,
    #[error("the {what} is empty; give at least one character")]
    EmptyText {
        /// `prompt`, `text` or `file`.
        what: &'static str,
    },
    #[error(
        "a context of {n_ctx} scores no token: the first half of each chunk is only read; use -c {least} or more"
    )]
    ChunkTooShort { n_ctx: usize, least: usize },
    #[error(
        "the text has {}, but perplexity with a context of {n_ctx} needs at least {needed} \
         (two chunks); give more text or a smaller -c",
        count(*tokens, "token")
    )]
    TextTooShort {
        tokens: usize,
        n_ctx: usize,
        needed: usize,
    },
    #[error(
        "no answer: the thoughts took all the room (stopped: {why}); give it more room (-n, -c), end its thoughts \
         with --think-limit N, or use --think off"
    )]
    StillThinking { why: String },
    #[error("the answer is cut before the grammar ends it ({why}): {advice}")]
    CutAnswer { why: String, advice: &'static str },
    #[error("{path}: {source}")]
    Grammar {
        /// The file, or the flag.
        path: String,
        source: ChooserError,
    },
    #[error("the JSON schema in {path} is no JSON: {source}")]
    NotJson {
        /// The file, or the flag.
        path: String,
        source: serde_json::Error,
    },
    #[error(
        "with Mirostat {flag} would have no effect: leave it out, or switch Mirostat off with --mirostat 0"
    )]
    SamplerUnused { flag: &'static str },
    /// Standard output failed, for another reason than a closed pipe.
    #[error("cannot write to standard output: {0}")]
    Write(io::Error),
    /// The reader of standard output went away: the command ends, successfully.
    #[error("standard output was closed")]
    BrokenPipe,
    #[error("cannot read standard input: {0}")]
    Input(io::Error),
    #[error("there is no command {name}; /help lists them, and // begins a message with a slash")]
    UnknownCommand { name: String },
    #[error("{command} needs the name of a file, as in {command} notes.txt")]
    NoFileNamed { command: &'static str },
    #[error(
        "{path} holds a conversation already; name another file, or go on with that one by /load {path}"
    )]
    HoldsAnother { path: String },
    #[error(
        "nothing here takes a text for the clipboard: install wl-copy, xclip or xsel, or use a terminal that knows OSC 52 and no more than 74000 \
         bytes"
    )]
    NoClipboard,
    #[error("nothing was asked yet")]
    NothingAsked,
    #[error(
        "the context is full: the conversation with this message has {}, the context holds {n_ctx}; {}",
        count(*needed, "token"),
        MORE_ROOM
    )]
    ContextFull { needed: usize, n_ctx: usize },
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error("the server has ended before all answers; give them more time with --drain SECONDS")]
    CutAnswers,
    #[error(transparent)]
    Batch(#[from] BatchError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("the system gives no threads to compute with: {0}; use a smaller --threads")]
    Pool(rayon::ThreadPoolBuildError),
    #[error("the system gives no thread: {0}; use a smaller --concurrency")]
    Threads(io::Error),
    #[error(
        "{host} can be reached by others, and there is no API key; give one (--api-key-file FILE), or serve everybody (--no-key)"
    )]
    NoKey { host: IpAddr },
    /// Ctrl-C ended the answer.
    #[error("interrupted")]
    Interrupted,
    #[error("cannot install the Ctrl-C handler: {0}")]
    Signal(io::Error),
}

impl CliError {
    /// Makes the error of a file that cannot be read. `path` may also be `standard input`.
    pub(super) fn unread(path: impl ToString) -> impl Fn(io::Error) -> Self {
        move |source| {
            let path = path.to_string();
            Self::ReadText { path, source }
        }
    }

    /// This error with the name of the model's file, where it tells of this file without naming it.
    pub(super) fn in_file(self, source: &ModelSource) -> Self {
        let ModelSource::File(path) = source else {
            return self;
        };
        let file = path.display().to_string();
        match self.is_of_file() && !self.to_string().contains(&file) {
            true => Self::ModelFile {
                file,
                reason: Box::new(self),
            },
            false => self,
        }
    }

    /// This error with the name of the file that is measured. A synthetic model has no file.
    pub(super) fn in_source(self, source: &Source) -> Self {
        match source {
            Source::Model(model) => self.in_file(model),
            Source::Synthetic(..) => self,
        }
    }

    /// Whether the error is about what a model's file holds.
    fn is_of_file(&self) -> bool {
        match self {
            Self::Tokenizer(_) => true,
            Self::Engine(error)
            | Self::Bench(BenchError::Engine(error))
            | Self::Tune(TuneError::Model(BenchError::Engine(error))) => matches!(
                error,
                EngineError::Gguf(_) | EngineError::Model(_) | EngineError::Tokenizer(_)
            ),
            _ => false,
        }
    }

    /// 2 for wrong usage, 130 after Ctrl-C, 1 for everything else that failed.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::ReadConfig { .. }
            | Self::SessionHasTurns { .. }
            | Self::SessionIsRaw { .. }
            | Self::Setting { .. }
            | Self::NoText { .. }
            | Self::NoFile
            | Self::TierOfCpu
            | Self::NobodyToAsk
            | Self::Hub(HubError::Name { .. } | HubError::Variable { .. } | HubError::Token(_))
            | Self::EmptyText { .. }
            | Self::ChunkTooShort { .. }
            | Self::BarsWithoutTable
            | Self::Parallel { .. }
            | Self::ParallelFormat
            | Self::ParallelOnCpu
            | Self::ParallelOnAll
            | Self::NoKey { .. }
            | Self::Batch(BatchError::SameFile { .. })
            | Self::SamplerUnused { .. }
            | Self::Bench(
                BenchError::NoTests | BenchError::SyntheticOnCpu | BenchError::ProfileOnCpu,
            )
            | Self::Tune(TuneError::OnCpu | TuneError::NothingToTune { .. }) => 2,
            Self::Interrupted => EXIT_INTERRUPTED,
            Self::BrokenPipe => 0,
            _ => 1,
        }
    }
}
