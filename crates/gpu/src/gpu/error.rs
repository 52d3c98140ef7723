//! Errors between glimt and a GPU.

use thiserror::Error;

/// The advice that only those can follow who may use the CPU as well.
const OR_CPU: &str = ", or use --device cpu";
/// The advice that only those can follow who choose the context, and the tokens of a prompt that are computed at once.
pub const BY_CONTEXT: &str = " (-c)";
const BY_UBATCH: &str = " (--ubatch)";

/// An error of the GPU layer. Each message names what was found, what was expected and what to do.
#[derive(Debug, Clone, Error)]
pub enum GpuError {
    /// wgpu lists no adapter at all.
    #[error(
        "no GPU adapter found: install the driver of your GPU{OR_CPU} (without a GPU, the software driver that the tests use is enough, and slow: \
         mesa-vulkan-drivers on Debian and Ubuntu)"
    )]
    NoAdapter,
    /// wgpu lists nothing but software, and hardware was asked for.
    #[error(
        "no GPU found, only software adapters ({found}): --device 0 takes the first of them, --device cpu is faster"
    )]
    OnlySoftware {
        /// The adapters there are, with their indices.
        found: String,
    },
    /// The adapter asked for does not exist.
    #[error("no GPU adapter matches --device '{asked}'; found: {found}")]
    AdapterNotFound {
        /// The index or name that was asked for.
        asked: String,
        /// The adapters there are, with their indices.
        found: String,
    },
    /// More than one adapter has the name asked for.
    #[error("'{asked}' matches several adapters: {found}; use more of the name, or the index")]
    AdapterAmbiguous {
        /// The name that was asked for.
        asked: String,
        /// The adapters that match, with their indices.
        found: String,
    },
    /// The tier needs what the adapter does not have, or a kernel for a size of the model.
    #[error("tier '{tier}' is not available on {adapter}: it lacks {missing}; {remedy}")]
    TierUnsupported {
        /// The tier asked for.
        tier: &'static str,
        /// The adapter's name.
        adapter: String,
        /// The missing features or limits.
        missing: String,
        /// The advice to the user.
        remedy: &'static str,
    },
    /// Experts were to lie in host memory, which the shaders of the device do not read.
    #[error(
        "the model's experts cannot lie in host memory for {adapter}: it lacks {missing}; use a smaller quantisation, another GPU, or --device cpu"
    )]
    CannotReadHost {
        /// The adapter's name.
        adapter: String,
        /// The feature or the tier that is missing.
        missing: &'static str,
    },
    /// The CPU was to multiply experts that a token misses, and cannot.
    #[error("--cpu-share {experts} is not possible: {because}; leave it out")]
    CannotShare {
        /// Experts of a layer that were asked for.
        experts: u32,
        /// The reason.
        because: String,
    },
    /// Pairs of halves were asked for, which the adapter cannot multiply.
    #[error("--packed-halves on is not possible on {adapter}: it lacks {missing}; leave it out")]
    CannotPackHalves {
        /// The adapter's name.
        adapter: String,
        /// The missing feature.
        missing: String,
    },
    /// A limit of the adapter is below what the engine needs at least.
    #[error(
        "{adapter} is not usable: {limit} is {found}, glimt needs at least {needed}; choose another --device{OR_CPU}"
    )]
    LimitTooSmall {
        /// The adapter's name.
        adapter: String,
        /// The name of the limit in WebGPU's terms.
        limit: &'static str,
        /// The adapter's limit.
        found: u64,
        /// The least value that works.
        needed: u64,
    },
    /// The driver refused to open the device.
    #[error("{adapter} cannot be opened: {reason}; choose another --device{OR_CPU}")]
    RequestDevice {
        /// The adapter's name.
        adapter: String,
        /// The driver's reason.
        reason: String,
    },
    /// The device has no room.
    #[error(
        "{adapter} is out of memory at {what} ({bytes} bytes; {allocated} bytes were allocated before it): use a smaller model, quantisation or context{BY_CONTEXT}"
    )]
    OutOfMemory {
        /// The adapter's name.
        adapter: String,
        /// The purpose of the memory.
        what: String,
        /// The number of bytes that were asked for.
        bytes: u64,
        /// The number of bytes that the engine had allocated before.
        allocated: u64,
    },
    /// One binding would be larger than the adapter allows and cannot be split.
    #[error("{what} needs {bytes} bytes in one binding, {adapter} allows {limit}: {remedy}")]
    BindingTooLarge {
        /// The purpose of the binding.
        what: String,
        /// The binding's size in bytes.
        bytes: u64,
        /// The adapter's name.
        adapter: String,
        /// `max_storage_buffer_binding_size` of the adapter.
        limit: u64,
        /// The advice to the user.
        remedy: &'static str,
    },
    /// A size that the kernels were not made for.
    #[error(
        "the model's {key} is {found}, the GPU kernels take {supported}: take another model{OR_CPU}"
    )]
    UnsupportedSize {
        /// The metadata key, without the architecture.
        key: &'static str,
        /// The model's value.
        found: usize,
        /// The values that are possible, in words.
        supported: String,
    },
    /// Products of weights that the model does not have or the device has no room for, known before anything is loaded.
    #[error("--precompose {choice} {reason}: use --precompose off")]
    CannotPrecompose {
        /// The choice.
        choice: &'static str,
        /// The reason.
        reason: String,
    },
    /// Times on the GPU were asked for.
    #[error(
        "{adapter} has no timestamps, so times on the GPU cannot be measured: use another adapter or backend"
    )]
    NoTimestamps {
        /// The adapter's name.
        adapter: String,
    },
    /// Times on the GPU were asked for, and what it tells cannot be true.
    #[error(
        "the timestamps of {adapter} are wrong, {found}, so times on the GPU cannot be measured: use another adapter or backend"
    )]
    WrongTimestamps {
        /// The adapter's name.
        adapter: String,
        /// The fault that the timestamps show, such as "all are equal".
        found: &'static str,
    },
    /// The file's weights cannot be read.
    #[error("cannot read the weights: {reason}")]
    ReadWeights {
        /// The tensor, its file, and the system's words.
        reason: String,
    },
    /// A shader template is wrong.
    #[error(
        "shader {kernel}: {reason}; this is a defect of glimt or of the driver, please report it"
    )]
    Shader {
        /// The kernel's name.
        kernel: String,
        /// The fault of the template or of its translation.
        reason: String,
    },
    /// A call does not go with what its kernel declares: a defect of glimt.
    #[error("kernel {kernel}: {what}; this is a defect of glimt, please report it")]
    Interface {
        /// The kernel's name.
        kernel: &'static str,
        /// The mismatch, with the name of the binding or parameter.
        what: String,
    },
    /// wgpu or the driver reported an error while working.
    #[error("GPU error during {what}: {reason}")]
    Runtime {
        /// The operation.
        what: String,
        /// The driver's words.
        reason: String,
    },
    /// Work that the device took and did not do, or did not end.
    #[error(
        "{adapter} did not do all its work: {what} should be {expected} and is {found}; {cause}. Nothing of the answer so far is \
         wrong. Run the command again; if it happens again, compute fewer tokens at once{BY_UBATCH}, use a smaller context{BY_CONTEXT}, \
         or close what else uses the GPU"
    )]
    WorkLost {
        /// The adapter's name.
        adapter: String,
        /// The word that was compared.
        what: String,
        /// The number that went in, or how many passes did.
        expected: u32,
        /// The number that came back; 0 where nothing ever did.
        found: u32,
        /// The cause as far as known.
        cause: &'static str,
    },
    /// The device was lost (removed, reset, or a hung kernel).
    #[error(
        "the GPU was lost: {reason}; nothing of the answer so far is wrong, run the command again"
    )]
    Lost {
        /// The driver's words.
        reason: String,
    },
}

/// The remedy for a tier that was asked for in vain.
pub const ANOTHER_TIER: &str = "use another --tier, or leave it out";

impl GpuError {
    /// Whether the error says that the GPU tells no times, so that the host's clock must.
    pub fn is_of_clock(&self) -> bool {
        matches!(
            self,
            Self::NoTimestamps { .. } | Self::WrongTimestamps { .. }
        )
    }

    /// Whether the error advises to take the CPU.
    pub fn advises_cpu(&self) -> bool {
        self.to_string().contains(OR_CPU)
    }

    /// The error for a command that runs on GPUs alone and chooses its context itself: without advice that it would refuse.
    pub fn of_gpus_alone(&self) -> String {
        let others = [OR_CPU, BY_CONTEXT, BY_UBATCH];
        let text = self.to_string();
        others
            .iter()
            .fold(text, |text, advice| text.replace(advice, ""))
    }

    /// Whether the machine has no GPU.
    pub fn is_no_gpu(&self) -> bool {
        matches!(self, Self::NoAdapter | Self::OnlySoftware { .. })
    }
}
