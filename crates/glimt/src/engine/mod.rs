//! Engine and Session: a model loaded on a device, and a conversation with it.
//!
//! [`Engine::open`] loads a model, and [`Engine::chat`] asks it. Step by step, [`Opened::new`] reads the file and opens the device; [`Engine::load`] puts the weights there; [`Engine::session`] starts a
//! context; [`Session::generate`] continues it. What takes time is a
//! future that never blocks: whoever may block calls [`Wait::wait`] of it. [`Engine::open`] and [`Engine::chat`] alone do so themselves. What a device does for a session is a [`backend::Backend`]: [`cpu`] is the
//! reference, [`gpu`] the fast one.

mod apart;
pub mod backend;
#[cfg(not(target_arch = "wasm32"))]
pub mod bandwidth;
mod batch;
#[cfg(not(target_arch = "wasm32"))]
mod beside;
pub mod chooser;
pub mod cpu;
pub mod device;
mod disk;
pub mod draft;
mod elsewhere;
mod ending;
mod error;
pub mod gpu;
mod host;
pub mod log_softmax;
mod many;
pub(crate) mod opened;
mod partly;
pub mod perplexity;
mod predicted;
mod processor;
pub mod random;
pub mod recommended;
mod room;
pub mod saved;
pub mod scheduler;
mod session;
mod share;
#[cfg(test)]
mod testing;
mod turns;
#[cfg(not(target_arch = "wasm32"))]
mod warm;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

pub use crate::kernels::CacheType;
pub use crate::kernels::logit_bias::Biases;
pub use crate::kernels::products::Products;
pub use crate::kernels::sampling::{self, Sampling};
pub use device::adapter;
pub use disk::Disk;
pub use elsewhere::{Memory, Way};
pub use error::{EngineError, NoRoom};
pub use gpu::{MemoryPlan, PrecomposeChoice, Precomposed, TierTrial};
pub use host::Host;
#[cfg(not(target_arch = "wasm32"))]
pub use many::partly_of_many;
pub use opened::Opened;
pub use partly::Partly;
pub use processor::{ComputedShare, Processor};
pub use room::{Holds, Place, Site};
#[cfg(not(target_arch = "wasm32"))]
pub use room::{check_gpu, residence};
pub use saved::{SessionFile, SessionFileError};
pub use session::{GenerateStats, Session, StopReason};
pub use share::{CpuShare, HostWork, Share, ShareTimes};
#[cfg(not(target_arch = "wasm32"))]
pub use warm::KeepWarm;

#[cfg(not(target_arch = "wasm32"))]
pub use crate::gpu::wait::Wait;
pub use crate::gpu::{DeviceChoice, GpuOptions, Tier};

use crate::gguf::Gguf;
use crate::recipes::{BatchSizes, Residence};
use backend::Backend;
use cpu::CpuBackend;
use device::Device;
use draft::DraftOptions;
use gpu::{ExpertTraffic, GpuBackend, GpuModel};
use saved::Identity;

/// The model compiled into the program; its origin and licence are in assets/README.md.
static EMBEDDED: &[u8] = include_bytes!("../../../../assets/tales-q4_k_m.gguf");

/// The context where none is asked for, unless the model's is shorter: a cache for the 200000 tokens of
/// GLM-4.7-Flash would take 10 GiB that most prompts never use.
const DEFAULT_CONTEXT: usize = 4096;

/// The source of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// The story teller that is compiled into the program.
    Embedded,
    /// A GGUF file, or the first shard of a split one.
    File(PathBuf),
}

impl ModelSource {
    /// Whether the model is the story teller, also if it is read from a file.
    pub fn is_built_in(&self) -> bool {
        let Self::File(path) = self else {
            return true;
        };
        let length = std::fs::metadata(path).map(|found| found.len());
        length.is_ok_and(|length| length == EMBEDDED.len() as u64)
            && std::fs::read(path).is_ok_and(|bytes| bytes == EMBEDDED)
    }

    /// Opens the container.
    pub fn open(&self) -> Result<Gguf, EngineError> {
        Ok(match self {
            Self::Embedded => Gguf::from_bytes(EMBEDDED, "built-in model")?,
            Self::File(path) => Gguf::open(path)?,
        })
    }
}

impl From<&str> for ModelSource {
    fn from(path: &str) -> Self {
        Self::File(path.into())
    }
}

impl From<&Path> for ModelSource {
    fn from(path: &Path) -> Self {
        Self::File(path.into())
    }
}

impl From<PathBuf> for ModelSource {
    fn from(path: PathBuf) -> Self {
        Self::File(path)
    }
}

/// The options for loading a model.
#[derive(Debug, Clone, Default)]
pub struct EngineOptions {
    /// The device and the kernels. Without a tier it is the one that suits adapter and model, by measuring where both
    /// tiers with subgroups can run. The results of `glimt tune` are used in any case.
    pub gpu: GpuOptions,
    /// The weights of which a GPU gets products besides.
    pub precompose: PrecomposeChoice,
    /// How a CPU multiplies.
    pub cpu_products: Products,
    /// The CPU's share of experts that decoded tokens miss on a GPU.
    pub cpu_share: CpuShare,
    /// Context length in tokens; 0 is the model's. `None` is the model's, at most 4096, or if it may think 32768, as far as there is
    /// memory.
    pub ctx: Option<usize>,
    /// The type of the cache. `None` is f16, or q8_0 where the device has room for more of the model so ([`Opened::chosen_cache`] tells).
    pub cache_type: Option<CacheType>,
    /// Whether answers are asked for that may begin with thoughts, if the model's template knows them.
    pub may_think: bool,
    /// Whether marks of turns, calls and thoughts are also read in what users and tools say, and not only in what the chat template writes.
    pub parse_special: bool,
    /// Whether to load a model that has no room in memory, as far as anything tells.
    pub force: bool,
    /// The most tokens of a prompt that a GPU computes at once; `None` is 2048, on software 512, or what its
    /// bindings have room for.
    pub ubatch: Option<u32>,
    /// The number of sequences that a [scheduler](scheduler::Scheduler) answers at once; `None` is one.
    pub serving: Option<Serving>,
    /// The drafts that answers may take: whether the model's prediction layer is loaded.
    pub draft: DraftOptions,
    /// The file of the prediction layer, where it is not the model's own.
    pub draft_model: Option<ModelSource>,
}

/// The number of sequences that a scheduler answers at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Serving {
    /// Sequences at once, up to [`Serving::MOST`]; `None` is as many on a GPU, and 8 on the CPU, where more are hardly faster.
    pub parallel: Option<u32>,
    /// Rows of the cache that they share; `None` is what they need at most, as far as there is memory.
    pub cache_tokens: Option<usize>,
}

impl Serving {
    /// The most sequences at once: each needs a token in a step.
    pub const MOST: u32 = 64;
}

/// How far loading is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes of weights on the device.
    pub done: u64,
    /// Bytes of weights in all.
    pub total: u64,
}

/// A model loaded on a device; what holds of it before ([`Opened`]) holds on. Clones share it, as its sessions do.
#[derive(Clone)]
pub struct Engine(Arc<Loaded>);

/// A model on a device, which an engine and its sessions share.
pub(crate) struct Loaded {
    opened: Opened,
    /// The weights on the GPU, if one is used.
    weights: Option<Arc<GpuModel>>,
    /// The identity of the model, once it was asked for.
    identity: OnceLock<Identity>,
}

impl std::ops::Deref for Engine {
    type Target = Opened;

    fn deref(&self) -> &Opened {
        &self.0.opened
    }
}

impl Engine {
    /// Loads the weights of `opened`; `progress` is called as they reach a GPU. The CPU reads them in place.
    ///
    /// # Errors
    /// [`EngineError::Gpu`].
    pub async fn load(
        mut opened: Opened,
        progress: &mut (dyn FnMut(LoadProgress) + Send),
    ) -> Result<Self, EngineError> {
        let weights = match &opened.device {
            Device::Cpu { .. } => None,
            Device::Gpu(gpu) => {
                let told = &mut |done, total| progress(LoadProgress { done, total });
                let (gpu, model) = (Arc::clone(gpu), Arc::clone(&opened.model));
                let residence = Partly::residence_of(opened.partly());
                let mut weights = match opened.batch_sizes() {
                    Some(BatchSizes {
                        sequences: sequences @ 2..,
                        ..
                    }) => GpuModel::load_for(gpu, model, residence, sequences, told).await?,
                    _ => {
                        let (choice, n_ctx) = (opened.precompose, opened.n_ctx());
                        GpuModel::load_precomposed(gpu, model, residence, choice, n_ctx, told)
                            .await?
                    }
                };
                match (opened.cpu_share, opened.batch_sizes()) {
                    (CpuShare::Off, _) => {}
                    (_, Some(_)) => {
                        let because = "it has a share for one sequence alone";
                        weights.share = Some(Share::none(because.to_owned()));
                    }
                    (asked, None) => {
                        let seconds = opened.partly().map(|partly| 1.0 / partly.tokens_per_s);
                        weights.share_with_cpu(asked, seconds).await?;
                    }
                }
                Some(Arc::new(weights))
            }
        };
        if let Some(weights) = &weights {
            // In the tier that loading settled for.
            opened.device = Device::Gpu(Arc::clone(&weights.gpu));
        }
        Ok(Self(Arc::new(Loaded {
            opened,
            weights,
            identity: OnceLock::new(),
        })))
    }

    /// The identity of the model, which is read when it is first asked for.
    fn identity(&self) -> Result<&Identity, EngineError> {
        if let Some(identity) = self.0.identity.get() {
            return Ok(identity);
        }
        let identity = Identity::of(self)?;
        Ok(self.0.identity.get_or_init(|| identity))
    }

    /// The outcome of [`EngineOptions::precompose`]; `None` where it is off.
    pub fn precomposed(&self) -> Option<&Precomposed> {
        self.0.weights.as_ref()?.precomposed.as_ref()
    }

    /// The CPU's share of missing experts, if [`EngineOptions::cpu_share`] asks for one and experts lie in host memory.
    pub fn cpu_share(&self) -> Option<&Share> {
        self.0.weights.as_ref()?.share.as_ref()
    }

    /// The traffic of experts that lie in host memory, of all that was computed with the engine; `None` where they have no slots.
    ///
    /// # Errors
    /// The error that the device reports.
    pub async fn expert_traffic(&self) -> Result<Option<ExpertTraffic>, EngineError> {
        match &self.0.weights {
            Some(weights) => Ok(weights.expert_traffic().await?),
            None => Ok(None),
        }
    }

    /// The measurement by which the tier was chosen; `None` where [`EngineOptions::gpu`] names one, an earlier measurement is kept, or the
    /// device has no choice.
    pub fn tier_trial(&self) -> Option<&TierTrial> {
        self.0.weights.as_ref()?.tier_trial.as_ref()
    }

    /// Loads a model with the usual options: a file by its path, or [`ModelSource::Embedded`]. [`Opened::new`] and [`load`](Self::load)
    /// do the same step by step. This waits until it is loaded.
    ///
    /// # Errors
    /// The errors of [`Opened::new`] and [`load`](Self::load).
    #[cfg(not(target_arch = "wasm32"))]
    pub fn open(source: impl Into<ModelSource>) -> Result<Self, EngineError> {
        let opened = Opened::new(&source.into(), &EngineOptions::default()).wait()?;
        Self::load(opened, &mut |_| {}).wait()
    }

    /// Starts a context, empty.
    ///
    /// # Errors
    /// The error that its cache does not fit, or that drafts are asked for that cannot be had.
    pub async fn session(&self) -> Result<Session, EngineError> {
        let n_ctx = self.n_ctx();
        let backend: Box<dyn Backend> = match &self.0.weights {
            None => {
                let (model, products) =
                    (Arc::clone(&self.0.opened.model), self.0.opened.cpu_products);
                Box::new(CpuBackend::new(model, products, n_ctx)?)
            }
            Some(weights) => {
                let brings = weights.residence != Residence::Whole;
                let drafts = self.draft.most(brings);
                let (weights, chunk) = (Arc::clone(weights), self.ubatch);
                let mut backend = GpuBackend::with_drafts(weights, n_ctx, chunk, drafts).await?;
                backend.compile_drafts()?;
                Box::new(backend)
            }
        };
        Session::new(self.clone(), backend)
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
