//! An opened device.

use super::behind::{Behind, ExpertsFrom};
use super::buffer::{Buffer, Content, Role};
use super::host_memory::HostMemory;
use super::pipeline::Pipelines;
use super::{GpuError, Target, Tier};
use numbers::Numbers;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use wgpu::{AdapterInfo, BufferDescriptor, BufferUsages, Features, Limits};

mod compile;
mod numbers;

/// An opened device: the wgpu handles, what it can do, its compiled pipelines and its error state. Clones share all of it.
#[derive(Clone)]
pub struct Gpu {
    /// The wgpu device.
    pub device: wgpu::Device,
    /// The device's queue.
    pub queue: wgpu::Queue,
    /// The adapter's name, backend and driver.
    pub info: AdapterInfo,
    /// The limits the device was opened with.
    pub limits: Limits,
    /// The features the device was opened with.
    pub features: Features,
    /// The device as recipes know it, which steps are recorded for.
    pub target: Target,
    /// Bytes of device-local memory that may be taken: those that were free when it was opened, or fewer if so was asked. `None` where
    /// nothing tells.
    pub memory: Option<u64>,
    /// The memory behind it, in which experts can lie.
    pub behind: Behind,
    /// The place from which experts are to come that have no room on the device.
    pub experts: ExpertsFrom,
    /// Whether the tier is only a guess, which loading a model replaces by what it measures
    /// (`GpuModel::load`).
    pub tier_is_open: bool,
    pub(super) pipelines: Arc<Pipelines>,
    /// The fault of its timestamps, once one was noticed.
    pub(super) lying_clock: Arc<OnceLock<&'static str>>,
    /// The results of trials of cooperative matrices, by the names of the trials.
    pub(crate) trials: Arc<Mutex<HashMap<String, bool>>>,
    pub(super) numbers: Arc<Numbers>,
    /// Threads of the subgroups that tests emulate, where they do.
    #[cfg(any(test, feature = "testing"))]
    pub waves: Option<u32>,
    /// How tests run its kernels as Metal's source on the CPU, where they do.
    #[cfg(any(test, feature = "testing"))]
    pub metal: Option<super::testing::metal::Math>,
    /// The largest buffer in host memory that tests let it make, where they do.
    #[cfg(any(test, feature = "testing"))]
    pub locks: Option<u64>,
    pub(super) fault: Arc<Mutex<Option<GpuError>>>,
    pub(super) allocated: Arc<AtomicU64>,
    /// Whether its shaders have checks ([`GpuOptions::checked`](super::GpuOptions::checked)).
    pub(super) checked: bool,
}

/// Bytes in whose multiples buffers are made: the longest line of a cache that is known.
const LINE: u64 = 256;

impl Gpu {
    /// This opened device with the kernels of `tier`: buffers, pipelines, choices and errors are shared. `subgroup` and `int8`
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
        let mut gpu = self.clone();
        gpu.target.tier = tier;
        gpu.tier_is_open = false;
        gpu
    }

    /// Whether the parameters of kernels are immediates. Otherwise they are uniforms, as in a browser and in tier `plain`.
    pub(super) fn has_immediates(&self) -> bool {
        self.features.contains(Features::IMMEDIATES)
    }

    /// The first error that wgpu or the driver reported since the last call, if any.
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
    pub async fn buffer(
        &self,
        what: &str,
        bytes: u64,
        usage: BufferUsages,
    ) -> Result<wgpu::Buffer, GpuError> {
        let buffer = self.make(what, bytes, usage, false).await?;
        self.allocated.fetch_add(buffer.size(), Ordering::Relaxed);
        Ok(buffer)
    }

    /// Makes a buffer like [`buffer`](Self::buffer), but not counted as [allocated](Gpu::allocated), for what does not stay.
    pub(super) async fn make(
        &self,
        what: &str,
        bytes: u64,
        usage: BufferUsages,
        mapped_at_creation: bool,
    ) -> Result<wgpu::Buffer, GpuError> {
        // wgpu wants copies and clears in steps of 4 bytes, vec4 views steps of 16. Whole lines of the second-level cache keep each buffer at
        // the beginning of one, where buffers lie next to each other in memory.
        let size = bytes.next_multiple_of(LINE).max(LINE);
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
            return Err(self.no_memory(what, size));
        }
        match invalid {
            Some(e) => Err(GpuError::Runtime {
                what: format!("making the buffer {what}"),
                reason: e.to_string(),
            }),
            None => Ok(buffer),
        }
    }

    /// A buffer in memory of the host that the processor reaches; `None` where the backend has no way to it.
    #[cfg(not(any(target_arch = "wasm32", target_vendor = "apple")))]
    fn make_of_host(
        &self,
        what: &str,
        bytes: u64,
    ) -> Result<Option<(wgpu::Buffer, HostMemory)>, GpuError> {
        use ash::vk::Result as Error;
        let size = bytes.next_multiple_of(LINE).max(LINE);
        let made = super::vulkan::host::buffer(&self.device, what, size);
        made.transpose().map_err(|e| match e {
            Error::ERROR_OUT_OF_HOST_MEMORY | Error::ERROR_OUT_OF_DEVICE_MEMORY => {
                self.no_memory(what, size)
            }
            e => GpuError::Runtime {
                what: format!("making the buffer {what}"),
                reason: e.to_string(),
            },
        })
    }

    #[cfg(any(target_arch = "wasm32", target_vendor = "apple"))]
    fn make_of_host(
        &self,
        _: &str,
        _: u64,
    ) -> Result<Option<(wgpu::Buffer, HostMemory)>, GpuError> {
        Ok(None)
    }

    fn no_memory(&self, what: &str, bytes: u64) -> GpuError {
        GpuError::OutOfMemory {
            adapter: self.info.name.clone(),
            what: what.to_owned(),
            bytes,
            allocated: self.allocated.load(Ordering::Relaxed),
        }
    }

    /// A buffer that kernels read and write and that can be copied to and from, made at once.
    pub async fn storage(&self, what: &str, bytes: u64, role: Role) -> Result<Buffer, GpuError> {
        let buffer = Buffer::new(what, bytes, role);
        self.realise(&buffer).await?;
        Ok(buffer)
    }

    /// Makes a buffer of a step, with what it begins with, unless that was done.
    ///
    /// # Errors
    /// The errors of [`buffer`](Self::buffer), and [`GpuError::Runtime`] for the place of weights that stay in a file.
    pub async fn realise(&self, buffer: &Buffer) -> Result<(), GpuError> {
        if buffer.is_made() {
            return Ok(());
        }
        let (name, size, usage) = (buffer.name(), buffer.size(), buffer.usage());
        if buffer.is_file() {
            return Err(GpuError::Runtime {
                what: format!("making the buffer {name}"),
                reason: "its bytes stay in the file of the model".to_owned(),
            });
        }
        #[cfg(any(test, feature = "testing"))]
        if buffer.is_host() && self.locks.is_some_and(|most| size > most) {
            return Err(self.no_memory(name, size));
        }
        let made = match buffer.is_host() {
            true => match self.make_of_host(name, size)? {
                Some((made, memory)) => {
                    buffer.lies_in(memory);
                    made
                }
                None => self.make(name, size, usage, false).await?,
            },
            false => self.buffer(name, size, usage).await?,
        };
        if let Some(contents) = buffer.contents() {
            self.queue.write_buffer(&made, 0, contents);
        }
        buffer.is_now(made);
        Ok(())
    }

    /// A storage buffer holding `data`.
    pub async fn storage_with<T: Content>(
        &self,
        what: &str,
        data: &[T],
    ) -> Result<Buffer, GpuError> {
        let bytes = size_of_val(data) as u64;
        let buffer = self.storage(what, bytes, T::ROLE).await?;
        let bytes = bytemuck::cast_slice(data);
        self.queue.write_buffer(buffer.made(), 0, bytes);
        Ok(buffer)
    }

    /// Bytes of all buffers made so far on the device, without staging and without buffers in host memory ([`Buffer::is_host`]).
    pub fn allocated(&self) -> u64 {
        self.allocated.load(Ordering::Relaxed)
    }

    /// Frees a buffer's memory where it has some, once what was submitted with it is done; it cannot be used again.
    pub fn release(&self, buffer: &Buffer) {
        match buffer.is_made() {
            true if buffer.is_host() => buffer.made().destroy(),
            true => self.release_made(buffer.made()),
            false => {}
        }
    }

    /// Takes a buffer that no step knows off the count of [allocated](Gpu::allocated) bytes, and frees it.
    pub fn release_made(&self, buffer: &wgpu::Buffer) {
        self.allocated.fetch_sub(buffer.size(), Ordering::Relaxed);
        buffer.destroy();
    }

    /// Counts everything beyond `before` bytes as freed: what was made since [`allocated`](Gpu::allocated) told them was dropped.
    pub fn count_dropped(&self, before: u64) {
        self.allocated.store(before, Ordering::Relaxed);
    }
}

/// All that recipes know of a device can be read from the opened device.
impl std::ops::Deref for Gpu {
    type Target = Target;

    fn deref(&self) -> &Target {
        &self.target
    }
}
