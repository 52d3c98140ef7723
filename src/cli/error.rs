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

/// What can be done about a conversation that fills its context.
pub(super) const MORE_ROOM: &str = "/drop forgets the oldest question and its answer, /clear all of them, and glimt chat -c N --session FILE goes \
     on with a longer context";

/// What ends a command early. `Display` is the one sentence printed after `glimt: error:`.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    /// The engine refused or failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// What a device computes is wrong.
    #[error(
        "{device} does not compute what it should: {failed} of {all} failed{kernels}; try another --tier or --device, and send what glimt report \
         writes to those who make glimt"
    )]
    Unverified {
        /// The device's name.
        device: String,
        /// Comparisons that failed.
        failed: usize,
        /// All of them, in words.
        all: String,
        /// The kernels that differ from their twins, in words; empty if all agree.
        kernels: String,
    },
    /// Parts of a report failed.
    #[error("{} of {all} failed: {}; the report tells why", failed.len(), failed.join(", "))]
    Unreported {
        /// Their names.
        failed: Vec<&'static str>,
        /// All of them, in words.
        all: String,
    },
    /// A tier was named for the CPU reference.
    #[error("the CPU reference has no tiers; leave out --tier, or name a GPU with --device")]
    TierOfCpu,
    /// The folder of the page for browsers is none.
    #[error("{path} has no page for browsers: build one by scripts/web, or name its folder")]
    NoPage {
        /// The folder.
        path: String,
    },
    /// A session file was refused, or could not be written.
    #[error(transparent)]
    SessionFile(#[from] SessionFileError),
    /// Another program keeps something else in the session file.
    #[error("the session file {path} holds no conversation of glimt: {source}; name another file")]
    SessionData {
        /// The file.
        path: String,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// A text was to be continued where there are turns.
    #[error(
        "the session file {path} holds a conversation in the chat template; leave out --raw, or name another file"
    )]
    SessionHasTurns {
        /// The file.
        path: String,
    },
    /// A conversation was to be continued where there is a text.
    #[error(
        "the session file {path} holds a text without a chat template; go on with --raw, or name another file"
    )]
    SessionIsRaw {
        /// The file.
        path: String,
    },
    /// The tokenizer refused.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The synthetic model could not be written.
    #[error(transparent)]
    Synth(#[from] SynthError),
    /// The model's file cannot be used, and the reason does not name it.
    #[error("{file}: {reason}")]
    ModelFile {
        /// The file.
        file: String,
        /// What is wrong with it.
        reason: Box<CliError>,
    },
    /// A measurement was refused or failed.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// Nothing was tuned.
    #[error(transparent)]
    Tune(#[from] TuneError),
    /// Choices could not be kept.
    #[error(transparent)]
    Tuning(#[from] TuningError),
    /// A model was not found, fetched or removed.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// A text names neither a file nor a model of this machine.
    #[error(
        "'{text}': there is no such file, and no model of this name is on this machine; {advice}"
    )]
    NoModel {
        /// What was given.
        text: String,
        /// How to get it, or what there is.
        advice: String,
    },
    /// A question was answered with no.
    #[error("{0} was not fetched")]
    NotFetched(String),
    /// Nobody can be asked whether a model may be removed.
    #[error(
        "a model is removed without a question only with --yes; give it, or run this in a terminal"
    )]
    NobodyToAsk,
    /// The config file cannot be read.
    #[error("cannot read the config file {path}: {source}")]
    ReadConfig {
        /// The file.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// The config file or an environment variable says what no flag takes.
    #[error("{origin}: {problem}")]
    Setting {
        /// The file with the line and the key, or the variable.
        origin: String,
        /// What was found and what was expected.
        problem: String,
    },
    /// A file could not be written.
    #[error("cannot write {path}: {source}")]
    WriteFile {
        /// The file.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// More sequences at once than a step has room for, or none.
    #[error("--parallel {found} is not from 1 to {most}")]
    Parallel {
        /// What was asked for.
        found: usize,
        /// The most.
        most: usize,
    },
    /// Rows of several sequences have two formats.
    #[error(
        "--parallel prints a table (-o md) or an object per line (-o jsonl); choose one of them"
    )]
    ParallelFormat,
    /// The CPU reference computes one sequence at a time.
    #[error(
        "--parallel measures steps of several sequences on a GPU; the CPU reference computes one after another: leave out --parallel, or \
         choose a GPU with --device"
    )]
    ParallelOnCpu,
    /// Each GPU of --parallel is to be named.
    #[error("--parallel measures devices that are named: repeat --device instead of giving all")]
    ParallelOnAll,
    /// Bars were asked for below JSON or CSV.
    #[error("--bars stands below a table; leave it out, or use -o md")]
    BarsWithoutTable,
    /// A text file or standard input could not be read.
    #[error("cannot read {path}: {source}")]
    ReadText {
        /// The file, or `standard input`.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// A text file or standard input goes on for too long.
    #[error(
        "{path} has more than {most} bytes, more than the context can hold; give less, or ask for more context with -c"
    )]
    TextTooLong {
        /// The file, or `standard input`.
        path: String,
        /// The most bytes that are read.
        most: u64,
    },
    /// A text file alone has no room in the context.
    #[error(
        "{path} has {}, the context holds {n_ctx}; give less, or ask for more context with -c",
        count(*tokens, "token")
    )]
    FileTooLong {
        /// The file.
        path: String,
        /// Its tokens.
        tokens: usize,
        /// Tokens that the context holds.
        n_ctx: usize,
    },
    /// A text is not UTF-8.
    #[error("{path} is not UTF-8 text (byte {offset} is invalid); convert it first")]
    NotUtf8 {
        /// The file, or `standard input`.
        path: String,
        /// Offset of the first invalid byte.
        offset: usize,
    },
    /// No text was given in any of the possible ways.
    #[error("no {what}: give it as an argument, with -f FILE, or pipe it into standard input")]
    NoText {
        /// `prompt` or `text`.
        what: &'static str,
    },
    /// `perplexity` was given no text.
    #[error("no text: name a file with -f FILE, or pipe the text into standard input")]
    NoFile,
    /// The text is empty where an empty one means nothing.
    #[error("the {what} is empty; give at least one character")]
    EmptyText {
        /// `prompt`, `text` or `file`.
        what: &'static str,
    },
    /// A chunk is so short that nothing of it would be scored.
    #[error(
        "a context of {n_ctx} scores no token: the first half of each chunk is only read; use -c {least} or more"
    )]
    ChunkTooShort {
        /// Chunk length asked for.
        n_ctx: usize,
        /// The shortest one that scores a token.
        least: usize,
    },
    /// A text is too short for the figure asked for.
    #[error(
        "the text has {}, but perplexity with a context of {n_ctx} needs at least {needed} \
         (two chunks); give more text or a smaller -c",
        count(*tokens, "token")
    )]
    TextTooShort {
        /// Tokens of the text.
        tokens: usize,
        /// Chunk length.
        n_ctx: usize,
        /// Tokens that two chunks take.
        needed: usize,
    },
    /// The model had not ended its thoughts, or nothing was left for the answer.
    #[error(
        "no answer: the thoughts took all the room (stopped: {why}); give it more room (-n, -c), end its thoughts \
         with --think-limit N, or use --think off"
    )]
    StillThinking {
        /// What ended it.
        why: String,
    },
    /// The answer ended where its grammar or schema does not.
    #[error("the answer is cut before the grammar ends it ({why}): {advice}")]
    CutAnswer {
        /// What ended it.
        why: String,
        /// What to do.
        advice: &'static str,
    },
    /// A grammar or schema cannot be used.
    #[error("{path}: {source}")]
    Grammar {
        /// The file, or the flag.
        path: String,
        /// What is wrong.
        source: ChooserError,
    },
    /// A JSON schema is no JSON.
    #[error("the JSON schema in {path} is no JSON: {source}")]
    NotJson {
        /// The file, or the flag.
        path: String,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// A sampler was asked for beside Mirostat.
    #[error(
        "with Mirostat {flag} would have no effect: leave it out, or switch Mirostat off with --mirostat 0"
    )]
    SamplerUnused {
        /// What asks for the sampler.
        flag: &'static str,
    },
    /// Standard output failed, for another reason than a closed pipe.
    #[error("cannot write to standard output: {0}")]
    Write(io::Error),
    /// The reader of standard output went away: the command ends, successfully.
    #[error("standard output was closed")]
    BrokenPipe,
    /// Standard input could not be read.
    #[error("cannot read standard input: {0}")]
    Input(io::Error),
    /// A line of a conversation begins with a slash but is no command.
    #[error("there is no command {name}; /help lists them, and // begins a message with a slash")]
    UnknownCommand {
        /// What was typed.
        name: String,
    },
    /// A command needs the name of a file.
    #[error("{command} needs the name of a file, as in {command} notes.txt")]
    NoFileNamed {
        /// The command.
        command: &'static str,
    },
    /// A conversation would replace another one.
    #[error(
        "{path} holds a conversation already; name another file, or go on with that one by /load {path}"
    )]
    HoldsAnother {
        /// The file.
        path: String,
    },
    /// There is no question to answer again.
    #[error("nothing was asked yet")]
    NothingAsked,
    /// A conversation has no room for a message.
    #[error(
        "the context is full: the conversation with this message has {}, the context holds {n_ctx}; {}",
        count(*needed, "token"),
        MORE_ROOM
    )]
    ContextFull {
        /// Tokens of the conversation.
        needed: usize,
        /// Tokens that the context holds.
        n_ctx: usize,
    },
    /// A server could not begin, or failed.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// A server has not answered all that had come.
    #[error("the server has ended before all answers; give them more time with --drain SECONDS")]
    CutAnswers,
    /// A batch was refused, or its answers cannot be kept.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A server could not be measured.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The system gives no threads.
    #[error("the system gives no thread: {0}; use a smaller --concurrency")]
    Threads(io::Error),
    /// Everybody who reaches the machine would be served.
    #[error(
        "{host} can be reached by others, and there is no API key; give one (--api-key-file FILE), or serve everybody (--no-key)"
    )]
    NoKey {
        /// The address.
        host: IpAddr,
    },
    /// Ctrl-C ended the answer.
    #[error("interrupted")]
    Interrupted,
    /// The system gave no way to react to Ctrl-C.
    #[error("cannot install the Ctrl-C handler: {0}")]
    Signal(io::Error),
}

impl CliError {
    /// The same with the name of the model's file, where it tells of this file without naming it.
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

    /// The same for what is measured, which may be no file.
    pub(super) fn in_source(self, source: &Source) -> Self {
        match source {
            Source::Model(model) => self.in_file(model),
            Source::Synthetic(..) => self,
        }
    }

    /// Whether this is about what a model's file holds.
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
