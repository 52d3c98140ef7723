//! Engine and Session: a model loaded on a device, and a conversation with it.
//!
//! [`Engine::load`] opens the file, reads the model and puts it on the device; [`Engine::session`] starts a context;
//! [`Session::generate`] continues it. What a device does for a session is a [`backend::Backend`]: [`cpu`] is the
//! reference, [`gpu`] the fast one.

pub mod backend;
pub mod bandwidth;
pub mod cpu;
mod error;
pub mod gpu;
pub mod log_softmax;
mod memory;
pub mod perplexity;
mod random;
pub mod sampling;
mod session;

use std::path::PathBuf;
use std::sync::Arc;

pub use error::EngineError;
pub use gpu::Precomposed;
pub use memory::MemoryPlan;
pub use sampling::Sampling;
pub use session::{GenerateStats, Session, StopReason};

pub use crate::gpu::{DeviceChoice, Tier};
pub use crate::model::PrecomposeChoice;

use crate::gguf::Gguf;
use crate::gpu::{Gpu, GpuError, GpuOptions};
use crate::model::Model;
use crate::model::precompose::DEFAULT_PRECOMPOSE;
use crate::tokenizer::{ChatTemplate, Message, Tokenizer};
use backend::Backend;
use cpu::CpuBackend;
use gpu::{GpuBackend, GpuModel};

/// The model compiled into the program; its origin and licence are in assets/README.md.
static EMBEDDED: &[u8] = include_bytes!("../../assets/tales-q4_k_m.gguf");

/// The context where none is asked for, unless the model's is shorter: a cache for the 200000 tokens of
/// GLM-4.7-Flash would take 10 GiB that most prompts never use.
const DEFAULT_CONTEXT: usize = 4096;

/// Where a model comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// The story teller that is compiled into the program.
    Embedded,
    /// A GGUF file, or the first part of a split one.
    File(PathBuf),
}

impl ModelSource {
    /// Opens the container.
    ///
    /// # Errors
    /// What [`Gguf::open`] refuses.
    pub fn open(&self) -> Result<Gguf, EngineError> {
        Ok(match self {
            Self::Embedded => Gguf::from_static(EMBEDDED, "built-in model")?,
            Self::File(path) => Gguf::open(path)?,
        })
    }
}

/// How to load a model.
#[derive(Debug, Clone, Default)]
pub struct EngineOptions {
    /// On which device.
    pub device: DeviceChoice,
    /// With which kernels; `None` is the fastest tier of the adapter.
    pub tier: Option<Tier>,
    /// Which weights decoding reads composed; `None` is
    /// [`DEFAULT_PRECOMPOSE`](crate::model::precompose::DEFAULT_PRECOMPOSE) on a GPU.
    pub precompose: Option<PrecomposeChoice>,
    /// Context length in tokens; `None` is the model's, at most 4096, and 0 is the model's.
    pub ctx: Option<usize>,
}

/// How far loading is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes of weights on the device.
    pub done: u64,
    /// Bytes of weights in all.
    pub total: u64,
}

/// A model loaded on a device.
pub struct Engine {
    model: Arc<Model>,
    tokenizer: Tokenizer,
    chat_template: Option<ChatTemplate>,
    n_ctx: usize,
    device: Device,
    precomposed: Option<Precomposed>,
}

/// What the model runs on.
enum Device {
    /// The CPU reference; `fallback` where it was not asked for.
    Cpu { fallback: bool },
    /// A GPU with the weights in its memory.
    Gpu(Arc<GpuModel>),
}

impl Engine {
    /// Loads the model from `source`; `progress` is called as its weights reach a GPU. The CPU reads them in place.
    ///
    /// With [`DeviceChoice::Auto`] on a machine without any adapter the CPU reference is used, which
    /// [`is_cpu_fallback`](Self::is_cpu_fallback) tells; any other choice is met or refused.
    ///
    /// # Errors
    /// [`EngineError::Gguf`], [`EngineError::Model`] or [`EngineError::Tokenizer`] for the file,
    /// [`EngineError::ContextTooLong`] or [`EngineError::TierWithoutGpu`],
    /// [`EngineError::PrecomposeWithoutGpu`] for the options, [`EngineError::Gpu`] for the
    /// device.
    pub fn load(
        source: &ModelSource,
        options: &EngineOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, EngineError> {
        let gguf = Arc::new(source.open()?);
        // The model first: of an unknown architecture nothing else need be understood.
        let model = Arc::new(Model::load(Arc::clone(&gguf))?);
        let tokenizer = Tokenizer::from_gguf(&gguf)?;
        let chat_template = ChatTemplate::from_gguf(&gguf)?;
        let n_ctx = context_length(options.ctx, model.config.context_length)?;
        let (device, precomposed) = Device::open(&model, options, n_ctx, progress)?;
        Ok(Self {
            model,
            tokenizer,
            chat_template,
            n_ctx,
            device,
            precomposed,
        })
    }

    /// The model: configuration and weights.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The chat template of the model's file, where it has one.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.chat_template.as_ref()
    }

    /// Context length of sessions, in tokens.
    pub fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// The name of the device.
    pub fn device_name(&self) -> String {
        match &self.device {
            Device::Cpu { .. } => "CPU reference".to_owned(),
            Device::Gpu(weights) => {
                let gpu = &weights.gpu;
                format!(
                    "{} ({}, tier {})",
                    gpu.info.name,
                    gpu.info.backend,
                    gpu.tier.name()
                )
            }
        }
    }

    /// Whether the CPU reference runs because [`DeviceChoice::Auto`] found no GPU adapter.
    pub fn is_cpu_fallback(&self) -> bool {
        matches!(self.device, Device::Cpu { fallback: true })
    }

    /// What became of [`EngineOptions::precompose`]; `None` where it is off.
    pub fn precomposed(&self) -> Option<&Precomposed> {
        self.precomposed.as_ref()
    }

    /// The text of a conversation in the model's chat template, up to where the model's answer begins. `think` turns
    /// the model's thinking on or off, `None` leaves it to the template.
    ///
    /// # Errors
    /// [`EngineError::NoChatTemplate`], or what the template itself refuses, such as a switch for thinking that it
    /// does not have.
    pub fn render_chat(
        &self,
        messages: &[Message],
        think: Option<bool>,
    ) -> Result<String, EngineError> {
        let template = self
            .chat_template
            .as_ref()
            .ok_or(EngineError::NoChatTemplate)?;
        Ok(template.render(messages, true, think)?)
    }

    /// Starts a context, empty.
    ///
    /// # Errors
    /// Where its cache does not fit.
    pub fn session(&self) -> Result<Session<'_>, EngineError> {
        let backend: Box<dyn Backend + '_> = match &self.device {
            Device::Cpu { .. } => Box::new(CpuBackend::new(Arc::clone(&self.model), self.n_ctx)?),
            Device::Gpu(weights) => Box::new(GpuBackend::new(Arc::clone(weights), self.n_ctx)?),
        };
        Ok(Session::new(self, backend))
    }
}

impl Device {
    /// The device that `options` mean, with the model's weights on it, for sessions of `n_ctx` tokens.
    fn open(
        model: &Arc<Model>,
        options: &EngineOptions,
        n_ctx: usize,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<(Self, Option<Precomposed>), EngineError> {
        let tier = options.tier;
        // What the CPU reference cannot do.
        let composing = options
            .precompose
            .filter(|choice| *choice != PrecomposeChoice::Off);
        if options.device == DeviceChoice::Cpu {
            return match (tier, composing) {
                (None, None) => Ok((Self::Cpu { fallback: false }, None)),
                (Some(tier), _) => Err(EngineError::TierWithoutGpu { tier: tier.name() }),
                (None, Some(choice)) => Err(EngineError::PrecomposeWithoutGpu {
                    choice: choice.name(),
                }),
            };
        }
        let device = options.device.clone();
        match Gpu::open(&GpuOptions {
            device,
            tier,
            ..GpuOptions::default()
        }) {
            Ok(gpu) => {
                let told = &mut |done, total| progress(LoadProgress { done, total });
                let choice = options.precompose.unwrap_or(DEFAULT_PRECOMPOSE);
                let gpu = Arc::new(gpu);
                let (weights, precomposed) =
                    GpuModel::load_precomposed(gpu, Arc::clone(model), choice, n_ctx, told)?;
                Ok((Self::Gpu(Arc::new(weights)), precomposed))
            }
            Err(GpuError::NoAdapter)
                if options.device == DeviceChoice::Auto
                    && tier.is_none()
                    && composing.is_none() =>
            {
                Ok((Self::Cpu { fallback: true }, None))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// The context length in tokens for what was asked (`None`: the default, 0: all), of a model made for `model` tokens.
///
/// # Errors
/// [`EngineError::ContextTooLong`].
pub fn context_length(asked: Option<usize>, model: usize) -> Result<usize, EngineError> {
    match asked {
        None => Ok(model.min(DEFAULT_CONTEXT)),
        Some(0) => Ok(model),
        Some(asked) if asked <= model => Ok(asked),
        Some(asked) => Err(EngineError::ContextTooLong { asked, model }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_context_is_the_models_unless_asked_for_less() {
        assert!(matches!(context_length(None, 2048), Ok(2048)));
        assert!(matches!(context_length(None, 202_752), Ok(DEFAULT_CONTEXT)));
        assert!(matches!(context_length(Some(0), 202_752), Ok(202_752)));
        assert!(matches!(context_length(Some(2048), 2048), Ok(2048)));
        let refused = context_length(Some(2049), 2048);
        assert!(matches!(
            refused,
            Err(EngineError::ContextTooLong {
                asked: 2049,
                model: 2048
            })
        ));
    }
}
