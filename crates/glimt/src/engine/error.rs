//! The errors that can come up between a model file and its answer.

use super::backend::BackendError;
use super::chooser::ChooserError;
use super::draft::DraftError;
use crate::gguf::GgufError;
use crate::gpu::GpuError;
use crate::model::ModelError;
use crate::plural::count;
use crate::tokenizer::TokenizerError;

/// An error of the engine. Messages name what was found, what was expected and what to do.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The container is unreadable or damaged.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The model is none of the supported ones, or lacks something.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The vocabulary or chat template is unusable.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The GPU refused or failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// The backend refused or failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// No token could be chosen.
    #[error(transparent)]
    Chooser(#[from] ChooserError),
    /// Drafts were asked for that cannot be had.
    #[error(transparent)]
    Draft(#[from] DraftError),
    /// A tier of GPU kernels was asked for together with the CPU.
    #[error(
        "tier '{tier}' is a tier of GPU kernels, but the device is the CPU reference; leave out --tier"
    )]
    TierWithoutGpu {
        /// The tier asked for.
        tier: &'static str,
    },
    /// Products of weights were asked for together with several sequences at once.
    #[error(
        "--precompose {choice} makes weights that steps of several sequences do not read; leave it out or use --parallel 1"
    )]
    PrecomposeForMany {
        /// The choice.
        choice: &'static str,
    },
    /// A flag for GPU kernels was given together with the CPU.
    #[error("{flag} chooses among GPU kernels, but the device is the CPU reference; leave it out")]
    FlagWithoutGpu {
        /// The flag.
        flag: &'static str,
    },
    /// A flag about the memory of a GPU was given together with the CPU.
    #[error(
        "{flag} says what of a model lies in the memory of a GPU, but the device is the CPU, which reads all weights from the machine's memory; leave it out"
    )]
    MemoryWithoutGpu {
        /// The flag.
        flag: &'static str,
    },
    /// A GPU is needed for the sake of a flag, and none can be used.
    #[error("{}; or use --device cpu, without {flag} and --gpu-layers", .error.of_gpus_alone())]
    NoGpuForFlag {
        /// The flag.
        flag: &'static str,
        /// Why no GPU can be used.
        error: Box<GpuError>,
    },
    /// More context was asked for than the model was made for.
    #[error(
        "a context of {} was asked for, but the model's is {model}; use -c {model} or less (-c 0 is all of it)",
        count(*asked, "token")
    )]
    ContextTooLong {
        /// The context asked for.
        asked: usize,
        /// The model's context length, from the file.
        model: usize,
    },
    /// The model and the context have no room in memory.
    #[error(transparent)]
    NoRoom(#[from] Box<NoRoom>),
    /// The device has no binding for the cache of so long a context.
    #[error("{reason}; {advice}")]
    ContextUnbound {
        /// A description of the buffer that is too large.
        reason: String,
        /// The longest context that does.
        advice: String,
    },
    /// The prompt does not fit.
    #[error(
        "the prompt has {tokens}{after}, but the context holds {n_ctx}; shorten it{or_more}",
        tokens = count(*prompt, "token"),
        after = match .used { 0 => String::new(), used => format!(" after {used} in the context") },
        or_more = if .n_ctx < .model {
            format!(", or ask for more context with -c (the model's is {model})")
        } else {
            ": this is all the context the model has".to_owned()
        }
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens in the context before it.
        used: usize,
        /// The context's length.
        n_ctx: usize,
        /// The model's context length, from the file.
        model: usize,
    },
    /// The cache that all requests share has no room for the prompt and a token.
    #[error(
        "the prompt has {}, but the cache of all requests holds {rows}; shorten it, or ask for a larger cache with --cache-tokens",
        count(*prompt, "token")
    )]
    CacheTooSmall {
        /// Tokens of the prompt.
        prompt: usize,
        /// Rows of the cache.
        rows: usize,
    },
    /// There is nothing to evaluate.
    #[error("there are no tokens to start from; give at least one")]
    NoTokens,
    /// A token id outside the vocabulary.
    #[error("token {token} does not exist: the vocabulary has {tokens}, 0 to {last}", tokens = count(*vocab, "token"), last = .vocab - 1)]
    UnknownToken {
        /// The id.
        token: u32,
        /// Tokens of the vocabulary.
        vocab: usize,
    },
    /// Cache rows were asked for that are not there.
    #[error("{} of the cache were asked for, but only {cached} are computed; compute the others first, as a prompt", count(*asked, "row"))]
    RowsMissing {
        /// The index after the last row asked for.
        asked: usize,
        /// Rows that are there.
        cached: usize,
    },
    /// Cache rows were given for more tokens than there are.
    #[error("{} of the cache were given for {}; name the tokens first (Session::resume)", count(*rows, "row"), count(*tokens, "token"))]
    RowsWithoutTokens {
        /// Rows that there would be.
        rows: usize,
        /// Tokens of the session.
        tokens: usize,
    },
    /// A conversation needs a chat template.
    #[error(
        "the model's file has no chat template; glimt generate --raw continues a text as it is"
    )]
    NoChatTemplate,
    /// The chat template of the file cannot be read.
    #[error(
        "the model cannot chat, because {reason}; glimt generate --raw continues a text as it is"
    )]
    UnreadableTemplate {
        /// A description of the fault.
        reason: String,
    },
}

/// The error that a model and a context have no room in memory. Sizes have their unit.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "not enough memory: weights of {weights} and a context of {n_ctx} tokens ({cache}) take {needed} in all, \
     {device} has {has}{but}; {advice} (--force tries all the same)"
)]
pub struct NoRoom {
    /// The memory that is needed in all.
    pub needed: String,
    /// The weights.
    pub weights: String,
    /// The context, in tokens.
    pub n_ctx: usize,
    /// The cache of the context.
    pub cache: String,
    /// The device that the model was to run on.
    pub device: String,
    /// The memory there.
    pub has: String,
    /// Why its experts cannot lie elsewhere, as a clause that begins with a comma. It is empty where there is nothing to say.
    pub but: String,
    /// Advice on something smaller that would fit.
    pub advice: String,
}
