//! Compute pipelines: compiled from expanded templates, in parallel, each variant once, cached on disk where Vulkan can.

use super::barriers;
use super::shader::{self, Variant};
use super::tier::MAX_PARAMS;
use super::{Gpu, GpuError, Tier};
use rayon::prelude::*;
use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use wgpu::naga;
use wgpu::{
    BindGroupLayout, BindGroupLayoutEntry, BindingType, BufferBindingType, ComputePipeline,
    Features, ShaderStages,
};

/// How a kernel uses a storage binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Access {
    /// `var<storage, read>`.
    Read,
    /// `var<storage, read_write>`.
    Write,
}

impl Access {
    /// As WGSL says it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "read_write",
        }
    }
}

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

/// Bytes of workgroup memory that a shader declares, as WebGPU counts them.
///
/// # Errors
/// The name of a type without a size.
pub(crate) fn workgroup_memory(module: &naga::Module) -> Result<u32, String> {
    let mut layouter = naga::proc::Layouter::default();
    layouter
        .update(module.to_ctx())
        .map_err(|e| format!("layout: {e}"))?;
    let all = module.global_variables.iter().map(|(_, var)| var);
    let own = all.filter(|var| var.space == naga::AddressSpace::WorkGroup);
    Ok(own
        .map(|var| layouter[var.ty].size.next_multiple_of(16))
        .sum())
}

/// The pipelines of one device.
pub(super) struct Pipelines {
    made: Mutex<HashMap<Spec, Arc<Pipeline>>>,
    layouts: Mutex<HashMap<Vec<Access>, (BindGroupLayout, wgpu::PipelineLayout)>>,
    pub(super) uniform_layout: BindGroupLayout,
    disk: Option<DiskCache>,
}

impl Pipelines {
    pub(super) fn new(device: &wgpu::Device, info: &wgpu::AdapterInfo, features: Features) -> Self {
        let uniform_layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some("params"),
            entries: &[BindGroupLayoutEntry {
                binding: 0,
                visibility: ShaderStages::COMPUTE,
                ty: BindingType::Buffer {
                    ty: BufferBindingType::Uniform,
                    has_dynamic_offset: true,
                    min_binding_size: NonZeroU64::new(MAX_PARAMS as u64),
                },
                count: None,
            }],
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
        }
    }
}

impl Gpu {
    /// The pipelines of `specs`, in the same order; those not made yet are compiled in parallel.
    ///
    /// # Errors
    /// [`GpuError::Shader`] where a template is wrong or the driver refuses it.
    pub async fn pipelines_async(&self, specs: &[&Spec]) -> Result<Vec<Arc<Pipeline>>, GpuError> {
        let missing: Vec<&Spec> = {
            let made = lock(&self.pipelines.made);
            let mut seen = std::collections::HashSet::new();
            specs
                .iter()
                .copied()
                .filter(|s| !made.contains_key(*s) && seen.insert(*s))
                .collect()
        };
        let compiled = missing
            .par_iter()
            .map(|spec| self.compile(spec))
            .collect::<Result<Vec<_>, GpuError>>()?;
        let mut fresh = vec![];
        for (spec, (pipeline, invalid)) in missing.into_iter().zip(compiled) {
            if let Some(error) = invalid.await {
                return Err(refused(spec, error.to_string()));
            }
            fresh.push((spec.clone(), Arc::new(pipeline)));
        }
        let any = !fresh.is_empty();
        let mut made = lock(&self.pipelines.made);
        made.extend(fresh);
        let found = specs.iter().map(|s| made[*s].clone()).collect();
        drop(made);
        if any && let Some(disk) = &self.pipelines.disk {
            disk.save();
        }
        Ok(found)
    }

    /// A pipeline, and what the device has against it.
    fn compile(
        &self,
        spec: &Spec,
    ) -> Result<(Pipeline, impl Future<Output = Option<wgpu::Error>> + use<>), GpuError> {
        let vulkan = self.info.backend == wgpu::Backend::Vulkan;
        // Elsewhere a way out of some subgroups before a barrier may be refused.
        let fetches = vulkan && self.tier != Tier::Plain;
        #[cfg(test)]
        let fetches = fetches && self.waves.is_none();
        let variant = spec.variant.clone().flag(shader::FETCHES, fetches);
        let source = shader::expand(spec.kernel, spec.source, &variant, self.tier)?.text;
        #[cfg(test)]
        let source = match self.waves {
            Some(size) => super::waves::emulated(&source, size),
            None => source,
        };
        let refused = |reason| refused(spec, reason);
        let mut module = naga::front::wgsl::parse_str(&source)
            .map_err(|e| refused(e.emit_to_string(&source)))?;
        if vulkan {
            barriers::order_workgroup_memory(&mut module);
        }
        // wgpu 30 leaves this to the driver, and one was seen never to come back.
        let (needs, has) = (
            workgroup_memory(&module).map_err(refused)?,
            self.limits.max_compute_workgroup_storage_size,
        );
        #[cfg(test)]
        let has = has + self.waves.map_or(0, |_| super::waves::ROOM);
        if needs > has {
            let reason = format!("{needs} bytes of workgroup memory, the device has {has}");
            return Err(refused(reason));
        }
        let (layout, pipeline_layout) = self.layout(&spec.access);
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let descriptor = wgpu::ShaderModuleDescriptor {
            label: Some(spec.kernel),
            source: wgpu::ShaderSource::Naga(Cow::Owned(module)),
        };
        // SAFETY: unchecked shaders must not index out of bounds, loop forever or divide by zero. Every kernel declares how far it
        // reaches into each binding, and `interface::resolve` lets no step be recorded whose buffers are shorter, for the largest
        // replay; loops count up to parameters; no kernel divides by a variable.
        let module = unsafe {
            self.device
                .create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked())
        };
        let pipeline = self
            .device
            .create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(spec.kernel),
                layout: Some(&pipeline_layout),
                module: &module,
                entry_point: Some("main"),
                compilation_options: wgpu::PipelineCompilationOptions {
                    zero_initialize_workgroup_memory: false,
                    ..Default::default()
                },
                cache: self.pipelines.disk.as_ref().map(|d| &d.cache),
            });
        Ok((Pipeline { pipeline, layout }, scope.pop()))
    }

    fn layout(&self, access: &[Access]) -> (BindGroupLayout, wgpu::PipelineLayout) {
        let mut layouts = lock(&self.pipelines.layouts);
        layouts
            .entry(access.to_vec())
            .or_insert_with(|| self.make_layout(access))
            .clone()
    }

    fn make_layout(&self, access: &[Access]) -> (BindGroupLayout, wgpu::PipelineLayout) {
        let entries: Vec<_> = (0..)
            .zip(access)
            .map(|(binding, a)| BindGroupLayoutEntry {
                binding,
                visibility: ShaderStages::COMPUTE,
                ty: BindingType::Buffer {
                    ty: BufferBindingType::Storage {
                        read_only: *a == Access::Read,
                    },
                    has_dynamic_offset: false,
                    min_binding_size: NonZeroU64::new(16),
                },
                count: None,
            })
            .collect();
        let layout = self
            .device
            .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
                label: None,
                entries: &entries,
            });
        let plain = self.tier == Tier::Plain;
        let groups = [Some(&layout), Some(&self.pipelines.uniform_layout)];
        let pipeline_layout = self
            .device
            .create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: None,
                bind_group_layouts: if plain { &groups } else { &groups[..1] },
                immediate_size: if plain { 0 } else { MAX_PARAMS as u32 },
            });
        (layout, pipeline_layout)
    }
}

/// The error of a kernel that cannot be compiled.
fn refused(spec: &Spec, reason: String) -> GpuError {
    GpuError::Shader {
        kernel: spec.kernel.to_owned(),
        reason,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// The driver's compiled pipelines, kept in the user's cache folder between runs (Vulkan only).
struct DiskCache {
    cache: wgpu::PipelineCache,
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
    fn save(&self) {
        let Some(data) = self.cache.get_data() else {
            return;
        };
        let mut bytes = header(&data);
        bytes.extend(data);
        // A file of its own per process, then renamed: two runs at once never mix their halves.
        let part = self.path.with_extension(std::process::id().to_string());
        let written =
            std::fs::write(&part, bytes).and_then(|()| std::fs::rename(&part, &self.path));
        if let Err(e) = written {
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
    use crate::gpu::testing::gpus;

    /// A kernel with an array of so many words in workgroup memory, and a number beside it.
    fn kernel(words: u32) -> Spec {
        Spec {
            kernel: "greedy",
            source: "
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
                .map(drop)
                .unwrap_or_else(|e| panic!("{e}"));
            let error = gpu.pipelines(&[&kernel(most / 4)]).map(drop);
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
