//! The reasons why a measurement is refused.

use crate::engine::EngineError;
use crate::engine::backend::BackendError;
use crate::gguf::GgufError;
use crate::gpu::{self, GpuError};
use crate::model::ModelError;
use crate::plural::count;
use crate::synth::SynthError;

/// An error of `bench`, `profile` or `verify`. Messages name what was found, what was expected and what to do.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The model's file, its device or its context.
    #[error("{}", without_context(.0))]
    Engine(#[from] EngineError),
    /// The device, where nothing else can do it.
    #[error("{}", .0.of_gpus_alone())]
    OnGpusAlone(Box<GpuError>),
    /// The synthetic model.
    #[error(transparent)]
    Synth(#[from] SynthError),
    /// A test needs more context than the model was made for.
    #[error(
        "{test} needs a context of {}, but the model's is {model}; use fewer tokens, or a smaller depth",
        count(*needed, "token")
    )]
    ContextTooLong {
        /// The test's name.
        test: String,
        /// Tokens it needs.
        needed: usize,
        /// The model's context length.
        model: usize,
    },
    /// A text to follow that ends too early.
    #[error(
        "the text of --text has {}, but the longest test needs {needed}; give a longer one, or fewer tokens with -p, -n and -d",
        count(*found, "token")
    )]
    ShortText {
        /// Tokens of the text.
        found: usize,
        /// Tokens that are needed.
        needed: usize,
    },
    /// Nothing is to be measured.
    #[error("every test was turned off: give -p, -n or -pg something above 0")]
    NoTests,
    /// Nothing is to be measured on.
    #[error("no adapter of this machine can run what was asked for; glimt devices lists them")]
    NoDevices,
    /// A model without a file runs on GPUs only.
    #[error(
        "--synthetic makes the weights on a GPU and has none for the CPU reference; write a file with glimt synth"
    )]
    SyntheticOnCpu,
    /// A trace of choices of experts that cannot be replayed.
    #[error("--routing: {0}")]
    Routing(String),
    /// `profile` looks into a GPU.
    #[error("the CPU reference has no kernels to profile; choose a GPU with --device")]
    ProfileOnCpu,
}

/// A refusal of the engine, told to somebody who has no flag for the context.
fn without_context(error: &EngineError) -> String {
    error.to_string().replace(gpu::error::BY_CONTEXT, "")
}

impl BenchError {
    /// This error without the advice to take the CPU, for measurements that refuse the CPU.
    pub(crate) fn of_gpus_alone(self) -> Self {
        match self {
            Self::Engine(EngineError::Gpu(error)) => Self::OnGpusAlone(Box::new(error)),
            Self::Engine(EngineError::Backend(BackendError::Gpu(error))) => {
                Self::OnGpusAlone(error)
            }
            other => other,
        }
    }
}

macro_rules! through_engine {
    ($($error:ty),*) => {
        $(impl From<$error> for BenchError {
            fn from(error: $error) -> Self {
                Self::Engine(error.into())
            }
        })*
    };
}
through_engine!(BackendError, GgufError, GpuError, ModelError);
