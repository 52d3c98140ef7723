//! An opened device.

use super::GpuError;
use super::adapter::{self, DeviceChoice};
use super::buffer::{Buffer, Content, Role};
use super::geometry::Choices;
use super::machine::Machine;
use super::numbers::Numbers;
use super::pipeline::Pipelines;
use super::small_halves;
use super::target::Target;
use super::tier::Tier;
use super::tuning;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use wgpu::{Adapter, AdapterInfo, Backend, BufferDescriptor, BufferUsages, Features, Limits};

/// How to open a device.
#[derive(Debug, Clone, Default)]
pub struct GpuOptions {
    /// Which adapter.
    pub device: DeviceChoice,
    /// A tier to force, or the adapter's best.
    pub tier: Option<Tier>,
    /// A lower limit on the bytes of one binding than the adapter's own, to exercise row ranges on small models.
    pub max_binding: Option<u64>,
    /// Whether to use what `glimt tune` found for this device, where it did.
    pub tuned: bool,
    /// Less memory than the adapter's own, to exercise what is refused for the lack of it.
    pub max_memory: Option<u64>,
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
}

/// Cooperative matrices: square ones of f16, multiplied into sums of f32 by a subgroup each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Coop {
    /// Rows and columns of a matrix: 16 (NVIDIA) or 8 (Metal, llvmpipe).
    pub size: u32,
    /// Lanes of a subgroup, of which the device has no others: 32 or 8.
    pub lanes: u32,
}

impl Coop {
    /// The largest that the adapter has with f16 in and f32 out, subgroups of one size (wgpu cannot ask for one) that can wait
    /// for themselves, and the workgroup memory that the kernels use them with.
    pub(super) fn of(adapter: &Adapter) -> Option<Self> {
        let info = adapter.get_info();
        let lanes = match info.backend {
            // wgpu reports a constant 4..64 there; every GPU with such matrices has 32.
            Backend::Metal => 32,
            _ if info.subgroup_min_size == info.subgroup_max_size => info.subgroup_min_size,
            _ => return None,
        };
        let needed = Features::EXPERIMENTAL_COOPERATIVE_MATRIX
            | Features::SHADER_F16
            | Features::SUBGROUP_BARRIER;
        if ![8, 32].contains(&lanes)
            || !adapter.features().contains(needed)
            || adapter.limits().max_compute_workgroup_storage_size < 32 << 10
        {
            return None;
        }
        let has = |size: u32| {
            adapter.cooperative_matrix_properties().iter().any(|p| {
                [p.m_size, p.n_size, p.k_size] == [size; 3]
                    && p.ab_type == wgpu::CooperativeScalarType::F16
                    && p.cr_type == wgpu::CooperativeScalarType::F32
            })
        };
        let size = [16, 8].into_iter().find(|size| has(*size))?;
        Some(Self { size, lanes })
    }
}

/// An opened device: the wgpu handles, what it can do, its compiled pipelines and its error state.
pub struct Gpu {
    /// The wgpu device.
    pub device: wgpu::Device,
    /// Its queue.
    pub queue: wgpu::Queue,
    /// The adapter's name, backend and driver.
    pub info: AdapterInfo,
    /// The limits the device was opened with.
    pub limits: Limits,
    /// The features the device was opened with.
    pub features: Features,
    /// What steps are recorded for.
    pub target: Target,
    /// Bytes of device-local memory, where the backend tells.
    pub memory: Option<u64>,
    /// Whether the tier is only a guess, which loading a model replaces by what it measures
    /// ([`GpuModel::load`](crate::engine::gpu::GpuModel::load)).
    pub(crate) tier_is_open: bool,
    pub(super) pipelines: Arc<Pipelines>,
    /// What is wrong with its timestamps, once that was noticed.
    pub(super) lying_clock: Arc<OnceLock<&'static str>>,
    /// What trials of cooperative matrices found, by what they are for.
    pub(crate) trials: Arc<Mutex<HashMap<String, bool>>>,
    pub(super) numbers: Arc<Numbers>,
    /// Threads of the subgroups that tests emulate, where they do.
    #[cfg(test)]
    pub(crate) waves: Option<u32>,
    fault: Arc<Mutex<Option<GpuError>>>,
    allocated: Arc<AtomicU64>,
}

impl Gpu {
    /// Opens the adapter that `options.device` means, with all features that the tiers can use and the adapter's limits.
    ///
    /// # Errors
    /// Any of the choosing errors, [`GpuError::TierUnsupported`], [`GpuError::LimitTooSmall`], [`GpuError::RequestDevice`].
    pub async fn open_async(options: &GpuOptions) -> Result<Self, GpuError> {
        let adapter = adapter::choose(&options.device).await?;
        let info = adapter.get_info();
        let tier = options.tier.unwrap_or_else(|| Tier::best(&adapter));
        let missing = tier.missing(&adapter);
        if !missing.is_empty() {
            return Err(GpuError::TierUnsupported {
                tier: tier.name(),
                adapter: info.name,
                missing,
            });
        }
        let limits = match tier {
            Tier::Plain => plain_limits(&adapter.limits()),
            Tier::Subgroup | Tier::Int8 => adapter.limits(),
        };
        check_limits(&info.name, &limits)?;
        let coop = match tier {
            Tier::Subgroup | Tier::Int8 if !options.no_matrices => Coop::of(&adapter),
            _ => None,
        };
        let matrices = if coop.is_some() {
            Features::EXPERIMENTAL_COOPERATIVE_MATRIX | Features::SUBGROUP_BARRIER
        } else {
            Features::empty()
        };
        // What a browser lacks, the plain tier goes without: storage buffers that can be mapped, too.
        let wanted = match tier {
            Tier::Plain => Features::empty(),
            Tier::Subgroup | Tier::Int8 => {
                Features::SUBGROUP
                    | Features::IMMEDIATES
                    | Features::SHADER_F16
                    | Features::MAPPABLE_PRIMARY_BUFFERS
            }
        } | matrices
            | Features::TIMESTAMP_QUERY
            | Features::TIMESTAMP_QUERY_INSIDE_PASSES
            | Features::TIMESTAMP_QUERY_INSIDE_ENCODERS
            | Features::PIPELINE_CACHE;
        let features = adapter.features() & wanted;
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
        let requested = adapter.request_device(&descriptor).await;
        let (device, queue) = requested.map_err(|e| GpuError::RequestDevice {
            adapter: info.name.clone(),
            reason: e.to_string(),
        })?;

        let fault = Arc::new(Mutex::new(None));
        let (on_error, on_lost) = (fault.clone(), fault.clone());
        device.on_uncaptured_error(Arc::new(move |e: wgpu::Error| {
            let reason = e.to_string();
            note(
                &on_error,
                GpuError::Runtime {
                    what: "a GPU operation".to_owned(),
                    reason,
                },
            );
        }));
        device.set_device_lost_callback(move |cause, reason| {
            if cause != wgpu::DeviceLostReason::Destroyed {
                note(&on_lost, GpuError::Lost { reason });
            }
        });
        let max_binding = limits
            .max_storage_buffer_binding_size
            .min(options.max_binding.unwrap_or(u64::MAX));
        let choices = Arc::<Choices>::default();
        if options.tuned {
            match tuning::load(&info) {
                Ok(Some((made, path))) => {
                    log::info!("using the choices in {}", path.display());
                    choices.replace(made);
                }
                Ok(None) => {}
                // They cost only speed.
                Err(e) => log::warn!("not using the choices of glimt tune: {e}"),
            }
        }
        let memory = match (adapter::device_memory(&adapter), options.max_memory) {
            (Some(has), Some(most)) => Some(has.min(most)),
            (has, most) => has.or(most),
        };
        let machine = Machine::new(&info, &limits, features);
        let target = Target {
            name: info.name.clone(),
            tier,
            machine: Machine {
                serial_passes: options.serial_passes.unwrap_or(machine.serial_passes),
                ..machine
            },
            max_binding,
            max_buffer: limits.max_buffer_size,
            offset_alignment: u64::from(limits.min_storage_buffer_offset_alignment).max(16),
            coop,
            packed_halves: false,
            choices,
            asked_to_repeat: options.repeats_work,
        };
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
            tier_is_open,
            pipelines,
            lying_clock: Arc::default(),
            trials: Arc::default(),
            numbers: Arc::default(),
            #[cfg(test)]
            waves: None,
            fault,
            allocated: Arc::default(),
        };
        if tier == Tier::Subgroup || tier_is_open {
            gpu.target.packed_halves = gpu.packs_halves(options.packed_halves, machine).await?;
        }
        Ok(gpu)
    }

    /// Whether halves are multiplied in pairs, as asked or by the kind of device.
    ///
    /// # Errors
    /// [`GpuError::TierUnsupported`] where it is asked for and the device cannot; what the device reports.
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
            return Err(GpuError::TierUnsupported {
                tier: self.tier.name(),
                adapter: self.info.name.clone(),
                missing: format!("{missing}, which --packed-halves on needs"),
            });
        }
        let name = &self.info.name;
        log::warn!(
            "{name}: halves are widened to f32, not multiplied in pairs: it lacks {missing}"
        );
        Ok(false)
    }

    /// The same opened device with the kernels of `tier`: buffers, pipelines, choices and errors are shared. `subgroup` and `int8`
    /// open a device alike, so one can take the place of the other.
    ///
    /// # Panics
    /// If one of the two is `plain`, which opens a device otherwise.
    pub fn in_tier(&self, tier: Tier) -> Self {
        assert!(
            tier == self.tier || ![tier, self.tier].contains(&Tier::Plain),
            "tier {} is opened otherwise than {}",
            self.tier.name(),
            tier.name()
        );
        Self {
            device: self.device.clone(),
            queue: self.queue.clone(),
            info: self.info.clone(),
            limits: self.limits.clone(),
            target: Target {
                tier,
                ..self.target.clone()
            },
            tier_is_open: false,
            pipelines: Arc::clone(&self.pipelines),
            numbers: Arc::clone(&self.numbers),
            lying_clock: Arc::clone(&self.lying_clock),
            trials: Arc::clone(&self.trials),
            fault: Arc::clone(&self.fault),
            allocated: Arc::clone(&self.allocated),
            ..*self
        }
    }

    /// The first error that wgpu or the driver reported since the last call, if any.
    ///
    /// # Errors
    /// That error.
    pub fn check(&self) -> Result<(), GpuError> {
        match self.fault.lock().unwrap_or_else(|e| e.into_inner()).take() {
            Some(fault) => Err(fault),
            None => Ok(()),
        }
    }

    /// Makes a buffer, zeroed by wgpu on first use.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] where the device has no room, [`GpuError::Runtime`] where it refuses.
    pub async fn buffer_async(
        &self,
        what: &str,
        bytes: u64,
        usage: BufferUsages,
    ) -> Result<wgpu::Buffer, GpuError> {
        let buffer = self.make(what, bytes, usage, false).await?;
        self.allocated.fetch_add(buffer.size(), Ordering::Relaxed);
        Ok(buffer)
    }

    /// A buffer to copy from, mapped for writing. It is not counted as [allocated](Gpu::allocated): it does not stay.
    ///
    /// # Errors
    /// As [`Gpu::buffer_async`].
    pub(super) async fn staging_async(
        &self,
        what: &str,
        bytes: u64,
    ) -> Result<wgpu::Buffer, GpuError> {
        let usage = BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC;
        self.make(what, bytes, usage, true).await
    }

    async fn make(
        &self,
        what: &str,
        bytes: u64,
        usage: BufferUsages,
        mapped_at_creation: bool,
    ) -> Result<wgpu::Buffer, GpuError> {
        // wgpu wants copies and clears in steps of 4 bytes, vec4 views steps of 16.
        let size = bytes.next_multiple_of(16).max(16);
        let memory = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let validation = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let buffer = self.device.create_buffer(&BufferDescriptor {
            label: Some(what),
            size,
            usage,
            mapped_at_creation,
        });
        // Both end here: the errors of what comes after are others.
        let (invalid, memory) = (validation.pop(), memory.pop());
        let invalid = invalid.await;
        if memory.await.is_some() {
            return Err(GpuError::OutOfMemory {
                adapter: self.info.name.clone(),
                what: what.to_owned(),
                bytes: size,
                allocated: self.allocated.load(Ordering::Relaxed),
            });
        }
        match invalid {
            Some(e) => Err(GpuError::Runtime {
                what: format!("making the buffer {what}"),
                reason: e.to_string(),
            }),
            None => Ok(buffer),
        }
    }

    /// A buffer that kernels read and write and that can be copied to and from, made at once.
    ///
    /// # Errors
    /// As [`Gpu::buffer_async`].
    pub async fn storage_async(
        &self,
        what: &str,
        bytes: u64,
        role: Role,
    ) -> Result<Buffer, GpuError> {
        let buffer = Buffer::new(what, bytes, role);
        buffer.make_async(self).await?;
        Ok(buffer)
    }

    /// A storage buffer holding `data`.
    ///
    /// # Errors
    /// As [`Gpu::buffer_async`].
    pub async fn storage_with_async<T: Content>(
        &self,
        what: &str,
        data: &[T],
    ) -> Result<Buffer, GpuError> {
        let bytes = size_of_val(data) as u64;
        let buffer = self.storage_async(what, bytes, T::ROLE).await?;
        let bytes = bytemuck::cast_slice(data);
        self.queue.write_buffer(buffer.made(), 0, bytes);
        Ok(buffer)
    }

    /// Bytes of all buffers made so far, staging aside.
    pub fn allocated(&self) -> u64 {
        self.allocated.load(Ordering::Relaxed)
    }

    /// Frees a buffer's memory where it has some, once what was submitted with it is done; it cannot be used again.
    pub fn release(&self, buffer: &Buffer) {
        if buffer.is_made() {
            self.release_made(buffer.made());
        }
    }

    /// As [`release`](Self::release), of a buffer that no step knows.
    pub fn release_made(&self, buffer: &wgpu::Buffer) {
        self.allocated.fetch_sub(buffer.size(), Ordering::Relaxed);
        buffer.destroy();
    }

    /// Counts everything beyond `before` bytes as freed: what was made since [`allocated`](Gpu::allocated) told them was dropped.
    pub(crate) fn count_dropped(&self, before: u64) {
        self.allocated.store(before, Ordering::Relaxed);
    }
}

/// What recipes know of a device, the device knows, too.
impl std::ops::Deref for Gpu {
    type Target = Target;

    fn deref(&self) -> &Target {
        &self.target
    }
}

fn note(fault: &Mutex<Option<GpuError>>, error: GpuError) {
    // A lost device explains the errors that follow it, so the first one is kept.
    fault
        .lock()
        .unwrap_or_else(|e| e.into_inner())
        .get_or_insert(error);
}

/// WebGPU's default limits, which every browser gives, except for sizes of memory.
fn plain_limits(adapter: &Limits) -> Limits {
    let default = Limits::default();
    Limits {
        max_buffer_size: adapter.max_buffer_size,
        max_storage_buffer_binding_size: adapter.max_storage_buffer_binding_size,
        ..default
    }
}

fn check_limits(adapter: &str, limits: &Limits) -> Result<(), GpuError> {
    let needs = [
        (
            "max_storage_buffers_per_shader_stage",
            u64::from(limits.max_storage_buffers_per_shader_stage),
            8,
        ),
        (
            "max_compute_invocations_per_workgroup",
            u64::from(limits.max_compute_invocations_per_workgroup),
            256,
        ),
        (
            "max_compute_workgroup_storage_size",
            u64::from(limits.max_compute_workgroup_storage_size),
            16 << 10,
        ),
        (
            "max_storage_buffer_binding_size",
            limits.max_storage_buffer_binding_size,
            128 << 20,
        ),
    ];
    match needs.into_iter().find(|(_, found, needed)| found < needed) {
        Some((limit, found, needed)) => Err(GpuError::LimitTooSmall {
            adapter: adapter.to_owned(),
            limit,
            found,
            needed,
        }),
        None => Ok(()),
    }
}
