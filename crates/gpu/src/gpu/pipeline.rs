//! Compute pipelines: compiled from expanded templates, in parallel, each variant once, cached on disk where Vulkan can.

use super::shader::{Access, Variant};
use super::tier::MAX_PARAMS;
use crate::files;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use web_time::Duration;
use wgpu::{
    BindGroupLayout, BindGroupLayoutEntry, BindingType, BufferBindingType, ComputePipeline,
    Features, ShaderStages,
};

/// Everything that makes a pipeline: a template, its variant, and the access of each binding in order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Spec {
    /// The kernel's name, for messages and profiles.
    pub kernel: &'static str,
    /// The text of `wgsl/<kernel>.wgsl`.
    pub source: &'static str,
    /// Constants, flags and modules.
    pub variant: Variant,
    /// Bindings 0, 1, 2.. of group 0.
    pub access: Vec<Access>,
}

/// A compiled pipeline and the layout its bind groups need.
#[derive(Debug)]
pub struct Pipeline {
    pub(super) pipeline: ComputePipeline,
    pub(super) layout: BindGroupLayout,
}

/// The pipelines of one device.
pub(super) struct Pipelines {
    pub(super) made: Mutex<HashMap<Spec, Arc<Pipeline>>>,
    pub(super) layouts: Mutex<HashMap<Vec<Access>, (BindGroupLayout, wgpu::PipelineLayout)>>,
    pub(super) uniform_layout: BindGroupLayout,
    pub(super) disk: Option<DiskCache>,
    /// Time that compiling took so far.
    pub(super) spent: Mutex<Duration>,
}

impl Pipelines {
    pub(super) fn new(device: &wgpu::Device, info: &wgpu::AdapterInfo, features: Features) -> Self {
        let uniform_layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some("params"),
            entries: &[layout_entry(
                0,
                BufferBindingType::Uniform,
                MAX_PARAMS as u64,
            )],
        });
        let disk = features
            .contains(Features::PIPELINE_CACHE)
            .then(|| DiskCache::open(device, info))
            .flatten();
        Self {
            made: Mutex::default(),
            layouts: Mutex::default(),
            uniform_layout,
            disk,
            spent: Mutex::default(),
        }
    }
}

/// A buffer that kernels bind, of `least` bytes; the place of a uniform's parameters changes from dispatch to dispatch.
pub(super) fn layout_entry(
    binding: u32,
    ty: BufferBindingType,
    least: u64,
) -> BindGroupLayoutEntry {
    BindGroupLayoutEntry {
        binding,
        visibility: ShaderStages::COMPUTE,
        ty: BindingType::Buffer {
            ty,
            has_dynamic_offset: ty == BufferBindingType::Uniform,
            min_binding_size: NonZeroU64::new(least),
        },
        count: None,
    }
}

/// The driver's compiled pipelines, kept in the user's cache folder between runs (Vulkan only).
pub(super) struct DiskCache {
    pub(super) cache: wgpu::PipelineCache,
    path: PathBuf,
}

/// Length of the header before the driver's data: magic, then a hash of the data.
const HEADER: usize = 16;
const MAGIC: &[u8; 8] = b"glimtpc1";

impl DiskCache {
    fn open(device: &wgpu::Device, info: &wgpu::AdapterInfo) -> Option<Self> {
        let key = wgpu::util::pipeline_cache_key(info)?;
        let folder = dirs::cache_dir()?.join("glimt");
        std::fs::create_dir_all(&folder).ok()?;
        let mut hasher = DefaultHasher::new();
        (&info.driver, &info.driver_info, env!("CARGO_PKG_VERSION")).hash(&mut hasher);
        let path = folder.join(format!("{key}-{:016x}", hasher.finish()));
        let data = std::fs::read(&path).ok().and_then(|bytes| {
            let (head, data) = bytes.split_at_checked(HEADER)?;
            (head == header(data)).then(|| data.to_vec())
        });
        // SAFETY: the data came from `get_data` of the same adapter and driver: both are in the file's name, and a file
        // that was cut or changed does not match its hash.
        let cache = unsafe {
            device.create_pipeline_cache(&wgpu::PipelineCacheDescriptor {
                label: Some("glimt"),
                data: data.as_deref(),
                fallback: true,
            })
        };
        Some(Self { cache, path })
    }

    /// Writes the cache; a failure costs only time at the next start.
    pub(super) fn save(&self) {
        let Some(data) = self.cache.get_data() else {
            return;
        };
        let mut bytes = header(&data);
        bytes.extend(data);
        // Two runs at once never mix their halves.
        if let Err(e) = files::replace(&self.path, bytes) {
            log::debug!("pipeline cache not saved: {e}");
        }
    }
}

fn header(data: &[u8]) -> Vec<u8> {
    let mut hasher = DefaultHasher::new();
    data.hash(&mut hasher);
    [MAGIC.as_slice(), &hasher.finish().to_le_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::GpuError;
    use crate::gpu::testing::gpus;
    use crate::gpu::wait::Wait;

    /// A kernel with an array of `words` words in workgroup memory, and a number beside it.
    fn kernel(words: u32) -> Spec {
        Spec {
            kernel: "greedy",
            source: "
#number WORDS
#write y: array<u32>
var<workgroup> some: array<u32, WORDS>;
var<workgroup> one: u32;
@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) t: u32) {
  some[t] = t;
  if (t == 0u) { one = 1u; }
  workgroupBarrier();
  y[t] = some[63u - t] + one;
}",
            variant: Variant::default().number("WORDS", words),
            access: vec![Access::Write],
        }
    }

    #[test]
    fn more_workgroup_memory_than_the_device_has_is_refused() {
        for gpu in gpus() {
            let most = gpu.limits.max_compute_workgroup_storage_size;
            // The number takes 16 bytes.
            let fits = kernel(most / 4 - 4);
            gpu.pipelines(&[&fits])
                .wait()
                .map(drop)
                .unwrap_or_else(|e| panic!("{e}"));
            let error = gpu.pipelines(&[&kernel(most / 4)]).wait().map(drop);
            let Err(GpuError::Shader { kernel, reason }) = error else {
                panic!("{error:?}");
            };
            assert_eq!(kernel, "greedy");
            let expected = format!(
                "{} bytes of workgroup memory, the device has {most}",
                most + 16
            );
            assert_eq!(reason, expected);
        }
    }
}
