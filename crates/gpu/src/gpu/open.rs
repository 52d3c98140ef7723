//! Opening a device.

use super::adapter::{self, DeviceChoice};
use super::behind::{Behind, ExpertsFrom};
use super::facts::Facts;
use super::geometry::Choices;
use super::heap::Heap;
use super::machine::Machine;
use super::pipeline::Pipelines;
use super::{ANOTHER_TIER, Coop, Gpu, GpuError, Target, Tier, small_halves, tuning};
use std::sync::{Arc, Mutex};
use wgpu::{Adapter, AdapterInfo, Features, Limits};

/// How to open a device.
#[derive(Debug, Clone, Default)]
pub struct GpuOptions {
    /// The choice of the adapter.
    pub device: DeviceChoice,
    /// Whether [`DeviceChoice::Auto`] must not mean a software adapter: the CPU reference is faster than those.
    pub hardware: bool,
    /// A tier to force, or the adapter's best.
    pub tier: Option<Tier>,
    /// A lower limit on the bytes of one binding than the adapter's own, to exercise row ranges on small models.
    pub max_binding: Option<u64>,
    /// Whether to use what `glimt tune` found for this device, where it did.
    pub tuned: bool,
    /// The most bytes of the device's memory to take; what is free where `None`. Nothing stops a model that is loaded by force.
    pub max_memory: Option<u64>,
    /// The place from which experts are to come that have no room there.
    pub experts: ExpertsFrom,
    /// Whether the workgroups of a decoded token's kernels repeat small work ([`Target::repeats_work`](super::Target::repeats_work)); as `glimt tune` chose or by
    /// what it costs where `None`.
    pub repeats_work: Option<bool>,
    /// Whether halves are multiplied in pairs in tier `subgroup` ([`Activation::Halves`](crate::quant::activation::Activation::Halves)); by the kind of device where `None`
    /// ([`Machine::packed_halves`]), if it keeps halves below the smallest normal one. A device that cannot is refused where it has to.
    pub packed_halves: Option<bool>,
    /// Whether to do without cooperative matrices on a device that has them: prompts and the attention of tokens take their
    /// other forms.
    pub no_matrices: bool,
    /// Whether a decoded token's work that could stand side by side goes into one grid, for devices where every dispatch of a pass
    /// waits for the one before it; by the backend where `None` ([`Machine::serial_passes`]).
    pub serial_passes: Option<bool>,
    /// Whether the driver and the shaders compare each access to a buffer with its end, which glimt's kernels have no need of unless one is
    /// wrong: what is read outside is then zero or something of the buffer, and what is written is lost.
    pub checked: bool,
}

impl Gpu {
    /// Opens the adapter that `options.device` means, with all features that the tiers can use and the adapter's limits.
    ///
    /// # Errors
    /// Any of the choosing errors, [`GpuError::TierUnsupported`], [`GpuError::LimitTooSmall`], [`GpuError::RequestDevice`].
    pub async fn open(options: &GpuOptions) -> Result<Self, GpuError> {
        let adapter = adapter::choose(&options.device, options.hardware).await?;
        let facts = Facts::from(&adapter);
        let tier = tier(options, &facts)?;
        let behind = Behind::of(&facts.info);
        let info = facts.info;
        let limits = match tier.has_subgroups() {
            true => facts.limits,
            false => plain_limits(facts.limits),
        };
        check_limits(&info.name, &limits)?;
        let may_have_matrices = tier.has_subgroups() && !options.no_matrices;
        let coop = may_have_matrices.then(|| Coop::of(&adapter)).flatten();
        let features = facts.features & wanted_features(tier, coop);
        let (device, queue) = request(&adapter, features, &limits, coop, options.checked).await?;
        let fault = Arc::default();
        keep_errors(&device, &fault);
        let memory = [Heap::of(&adapter).usable(), options.max_memory];
        let memory = memory.into_iter().flatten().min();
        let mut machine = Machine::new(&info, &limits, features);
        let choices = match options.tuned {
            true => tuned(&info, &mut machine),
            false => Arc::default(),
        };
        let mut target = Target::of(&info.name, machine, tier, &limits, coop);
        target.max_binding = target
            .max_binding
            .min(options.max_binding.unwrap_or(u64::MAX));
        target.machine.serial_passes = options.serial_passes.unwrap_or(machine.serial_passes);
        target.packed_halves = false;
        target.reads_host = features.contains(Features::MAPPABLE_PRIMARY_BUFFERS);
        target.choices = choices;
        target.asked_to_repeat = options.repeats_work;
        let pipelines = Arc::new(Pipelines::new(&device, &info, features));
        let tier_is_open = options.tier.is_none() && tier.may_be_measured(&info);
        let mut gpu = Self {
            device,
            queue,
            info,
            limits,
            features,
            target,
            memory,
            behind,
            experts: options.experts,
            tier_is_open,
            pipelines,
            lying_clock: Arc::default(),
            trials: Arc::default(),
            numbers: Arc::default(),
            #[cfg(any(test, feature = "testing"))]
            waves: None,
            #[cfg(any(test, feature = "testing"))]
            metal: None,
            #[cfg(any(test, feature = "testing"))]
            locks: None,
            fault,
            allocated: Arc::default(),
            checked: options.checked,
        };
        if tier == Tier::Subgroup || tier_is_open {
            gpu.target.packed_halves = gpu.packs_halves(options.packed_halves, machine).await?;
        }
        Ok(gpu)
    }

    /// Whether halves are multiplied in pairs, as asked or by the kind of device.
    ///
    /// # Errors
    /// [`GpuError::CannotPackHalves`] where it is asked for and the device cannot; what the device reports.
    async fn packs_halves(&self, asked: Option<bool>, machine: Machine) -> Result<bool, GpuError> {
        if !asked.unwrap_or(machine.packed_halves) {
            return Ok(false);
        }
        let objection = match self.features.contains(Features::SHADER_F16) {
            true => small_halves::objection(self).await?,
            false => Some("f16 in shaders".to_owned()),
        };
        let Some(missing) = objection else {
            return Ok(true);
        };
        if asked.is_some() {
            return Err(GpuError::CannotPackHalves {
                adapter: self.info.name.clone(),
                missing,
            });
        }
        let name = &self.info.name;
        log::warn!(
            "{name}: halves are widened to f32, not multiplied in pairs: it lacks {missing}"
        );
        Ok(false)
    }
}

/// The tier that is asked for, or the best one.
///
/// # Errors
/// [`GpuError::TierUnsupported`] where the adapter lacks something for it.
fn tier(options: &GpuOptions, facts: &Facts) -> Result<Tier, GpuError> {
    let tier = options.tier.unwrap_or_else(|| Tier::best(facts));
    let missing = tier.missing(facts);
    if !missing.is_empty() {
        return Err(GpuError::TierUnsupported {
            tier: tier.name(),
            adapter: facts.info.name.clone(),
            missing,
            remedy: ANOTHER_TIER,
        });
    }
    if let (Tier::Plain, None, Some(remedy)) = (tier, options.tier, facts.remedy()) {
        log::warn!("{}: {remedy}", facts.label());
    }
    Ok(tier)
}

/// The features that a tier and these matrices can use.
fn wanted_features(tier: Tier, coop: Option<Coop>) -> Features {
    let mut wanted = Features::TIMESTAMP_QUERY
        | Features::TIMESTAMP_QUERY_INSIDE_PASSES
        | Features::TIMESTAMP_QUERY_INSIDE_ENCODERS
        | Features::PIPELINE_CACHE;
    // The plain tier asks for nothing that a browser lacks, so it goes without storage buffers that can be mapped, too.
    if tier.has_subgroups() {
        wanted |= Features::SUBGROUP
            | Features::IMMEDIATES
            | Features::SHADER_F16
            | Features::MAPPABLE_PRIMARY_BUFFERS;
    }
    if coop.is_some() {
        wanted |= Features::EXPERIMENTAL_COOPERATIVE_MATRIX | Features::SUBGROUP_BARRIER;
    }
    wanted
}

/// The device of an adapter and its queue.
async fn request(
    adapter: &Adapter,
    features: Features,
    limits: &Limits,
    coop: Option<Coop>,
    checked: bool,
) -> Result<(wgpu::Device, wgpu::Queue), GpuError> {
    let experimental_features = if coop.is_some() {
        // SAFETY: wgpu warns that experimental features may misbehave. Only cooperative matrices are asked for: their
        // kernels index within their buffers like all others, and a trial compares their results before they are used.
        unsafe { wgpu::ExperimentalFeatures::enabled() }
    } else {
        wgpu::ExperimentalFeatures::disabled()
    };
    let descriptor = wgpu::DeviceDescriptor {
        label: Some("glimt"),
        required_features: features,
        required_limits: limits.clone(),
        memory_hints: wgpu::MemoryHints::Performance,
        experimental_features,
        ..Default::default()
    };
    device_of(adapter, &descriptor, checked)
        .await
        .map_err(|reason| GpuError::RequestDevice {
            adapter: Facts::from(adapter).info.name,
            reason,
        })
}

/// The device that is described.
///
/// # Errors
/// The driver's reason.
async fn device_of(
    adapter: &Adapter,
    descriptor: &wgpu::DeviceDescriptor<'_>,
    checked: bool,
) -> Result<(wgpu::Device, wgpu::Queue), String> {
    #[cfg(not(any(target_arch = "wasm32", target_vendor = "apple")))]
    if !checked && let Some(opened) = super::vulkan::open(adapter, descriptor) {
        return opened;
    }
    #[cfg(any(target_arch = "wasm32", target_vendor = "apple"))]
    let _ = checked;
    let requested = adapter.request_device(descriptor).await;
    requested.map_err(|e| e.to_string())
}

/// Has `fault` keep the first error that the device reports.
fn keep_errors(device: &wgpu::Device, fault: &Arc<Mutex<Option<GpuError>>>) {
    let (on_error, on_lost) = (fault.clone(), fault.clone());
    device.on_uncaptured_error(Arc::new(move |e: wgpu::Error| {
        let error = GpuError::Runtime {
            what: "a GPU operation".to_owned(),
            reason: e.to_string(),
        };
        note(&on_error, error);
    }));
    device.set_device_lost_callback(move |cause, reason| {
        if cause != wgpu::DeviceLostReason::Destroyed {
            note(&on_lost, GpuError::Lost { reason });
        }
    });
}

/// Keeps the first error.
fn note(fault: &Mutex<Option<GpuError>>, error: GpuError) {
    // A lost device explains the errors that follow it.
    let mut fault = fault.lock().unwrap_or_else(|e| e.into_inner());
    fault.get_or_insert(error);
}

/// The choices of `glimt tune` for a device; its numbers replace those of `machine`.
fn tuned(info: &AdapterInfo, machine: &mut Machine) -> Arc<Choices> {
    let choices = Arc::<Choices>::default();
    match tuning::load(info) {
        Ok(Some((made, path))) => {
            log::info!("using the choices in {}", path.display());
            match machine.tuned.with(&made.numbers) {
                Ok(tuned) => machine.tuned = tuned,
                Err(e) => log::warn!("{}: {e}", path.display()),
            }
            choices.replace(made);
        }
        Ok(None) => {}
        // They cost only speed.
        Err(e) => log::warn!("not using the choices of glimt tune: {e}"),
    }
    choices
}

/// WebGPU's default limits, which every browser gives, except for sizes of memory.
fn plain_limits(adapter: Limits) -> Limits {
    Limits {
        max_buffer_size: adapter.max_buffer_size,
        max_storage_buffer_binding_size: adapter.max_storage_buffer_binding_size,
        ..Limits::default()
    }
}

fn check_limits(adapter: &str, limits: &Limits) -> Result<(), GpuError> {
    let needs = Limits {
        max_storage_buffers_per_shader_stage: 8,
        max_compute_invocations_per_workgroup: 256,
        max_compute_workgroup_storage_size: 16 << 10,
        max_storage_buffer_binding_size: 128 << 20,
        ..limits.clone()
    };
    let mut checked = Ok(());
    needs.check_limits_with_fail_fn(limits, true, |limit, needed, found| {
        checked = Err(GpuError::LimitTooSmall {
            adapter: adapter.to_owned(),
            limit,
            found,
            needed,
        });
    });
    checked
}
