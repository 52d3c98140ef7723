//! Listing and choosing adapters.

use super::machine::Machine;
use super::{Coop, GpuError, Target, Tier};
use serde::Serialize;
use wgpu::{Adapter, Backends, DeviceType, Instance, InstanceDescriptor, InstanceFlags};

/// Which device to run on. Nothing is ever replaced silently: what is asked for is used or refused.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The first adapter in the order discrete, integrated, virtual, software.
    #[default]
    Auto,
    /// The CPU reference, no GPU at all.
    Cpu,
    /// The adapter of this index in `glimt devices`.
    Index(usize),
    /// The adapter whose name contains this text, in any case.
    Name(String),
}

impl std::str::FromStr for DeviceChoice {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match (text, text.parse::<usize>()) {
            // It would match the name of every adapter.
            ("", _) => Err("empty; expected auto, cpu, or the index or name of an adapter"),
            (auto, _) if auto.eq_ignore_ascii_case("auto") => Ok(Self::Auto),
            (cpu, _) if cpu.eq_ignore_ascii_case("cpu") => Ok(Self::Cpu),
            (_, Ok(index)) => Ok(Self::Index(index)),
            _ => Ok(Self::Name(text.to_owned())),
        }
    }
}

/// One adapter as `glimt devices` shows it.
#[derive(Debug, Clone, Serialize)]
pub struct AdapterSummary {
    /// Index for `--device`.
    pub index: usize,
    /// The adapter's name.
    pub name: String,
    /// vulkan, metal or dx12.
    pub backend: String,
    /// discrete, integrated, virtual, software or other.
    pub kind: &'static str,
    /// Where it sits on the PCI bus, such as `0000:01:00.0`, where the backend tells.
    pub bus: Option<String>,
    /// Driver name and version as the backend tells them.
    pub driver: String,
    /// The fastest tier it can run.
    pub tier: &'static str,
    /// Bytes of device-local memory, where the backend tells.
    pub memory: Option<u64>,
    /// `max_buffer_size` in bytes.
    pub max_buffer: u64,
    /// `max_storage_buffer_binding_size` in bytes.
    pub max_binding: u64,
    /// Workgroup memory in bytes.
    pub workgroup_memory: u32,
    /// Threads of a workgroup.
    pub workgroup_threads: u32,
    /// Smallest and largest subgroup size.
    pub subgroup: [u32; 2],
    /// Feature names that kernels can use.
    pub features: Vec<&'static str>,
    /// Cooperative matrices as rows x columns x depth and types, such as `16x16x16 f16 f32`: of the factors, of the sums.
    pub cooperative_matrices: Vec<String>,
    /// What work is divided by.
    pub machine: Machine,
    /// What steps would be recorded for, if it were opened without options.
    #[serde(skip)]
    pub target: Target,
}

/// A wgpu instance with every native backend and no validation in the way.
pub(super) fn instance() -> Instance {
    Instance::new(InstanceDescriptor {
        backends: Backends::VULKAN | Backends::METAL | Backends::DX12,
        flags: InstanceFlags::empty(),
        ..InstanceDescriptor::new_without_display_handle()
    })
}

/// Every adapter in the order of choice: discrete, integrated, virtual, other, software.
pub(super) async fn sorted() -> Vec<Adapter> {
    let backends = Backends::VULKAN | Backends::METAL | Backends::DX12;
    let mut adapters = instance().enumerate_adapters(backends).await;
    adapters.sort_by_key(|a| rank(a.get_info().device_type));
    adapters
}

fn rank(kind: DeviceType) -> u32 {
    match kind {
        DeviceType::DiscreteGpu => 0,
        DeviceType::IntegratedGpu => 1,
        DeviceType::VirtualGpu => 2,
        DeviceType::Other => 3,
        DeviceType::Cpu => 4,
    }
}

fn kind_name(kind: DeviceType) -> &'static str {
    match kind {
        DeviceType::DiscreteGpu => "discrete",
        DeviceType::IntegratedGpu => "integrated",
        DeviceType::VirtualGpu => "virtual",
        DeviceType::Other => "other",
        DeviceType::Cpu => "software",
    }
}

/// Every adapter of the machine, in the order that `--device` indices use.
pub async fn adapters_async() -> Vec<AdapterSummary> {
    sorted()
        .await
        .iter()
        .enumerate()
        .map(|(i, a)| summary(i, a))
        .collect()
}

/// The adapter that `choice` means, unopened.
///
/// # Errors
/// [`GpuError::NoAdapter`], [`GpuError::OnlySoftware`], or what names no adapter or several.
pub async fn chosen_async(
    choice: &DeviceChoice,
    hardware: bool,
) -> Result<AdapterSummary, GpuError> {
    let all = sorted().await;
    let index = chosen_of(&all, choice, hardware)?;
    Ok(summary(index, &all[index]))
}

fn summary(index: usize, adapter: &Adapter) -> AdapterSummary {
    let info = adapter.get_info();
    let limits = adapter.limits();
    let features = adapter.features();
    let named = [
        (wgpu::Features::SUBGROUP, "subgroup"),
        (wgpu::Features::SHADER_F16, "f16"),
        (wgpu::Features::IMMEDIATES, "immediates"),
        (wgpu::Features::TIMESTAMP_QUERY, "timestamps"),
        (
            wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES,
            "timestamps-in-pass",
        ),
        (wgpu::Features::MAPPABLE_PRIMARY_BUFFERS, "mappable-storage"),
        (wgpu::Features::PIPELINE_CACHE, "pipeline-cache"),
        (
            wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX,
            "cooperative-matrix",
        ),
    ];
    let tier = Tier::best(adapter);
    let machine = Machine::new(&info, &limits, features);
    AdapterSummary {
        index,
        machine,
        target: Target {
            max_binding: limits.max_storage_buffer_binding_size,
            max_buffer: limits.max_buffer_size,
            offset_alignment: u64::from(limits.min_storage_buffer_offset_alignment).max(16),
            coop: match tier {
                Tier::Plain => None,
                Tier::Subgroup | Tier::Int8 => Coop::of(adapter),
            },
            ..Target::new(&info.name, machine, tier)
        },
        name: info.name.clone(),
        backend: info.backend.to_string(),
        kind: kind_name(info.device_type),
        bus: Some(info.device_pci_bus_id.clone()).filter(|bus| !bus.is_empty()),
        driver: [info.driver.as_str(), info.driver_info.as_str()]
            .join(" ")
            .trim()
            .to_owned(),
        tier: tier.name(),
        memory: device_memory(adapter),
        max_buffer: limits.max_buffer_size,
        max_binding: limits.max_storage_buffer_binding_size,
        workgroup_memory: limits.max_compute_workgroup_storage_size,
        workgroup_threads: limits.max_compute_invocations_per_workgroup,
        subgroup: [info.subgroup_min_size, info.subgroup_max_size],
        features: named
            .iter()
            .filter(|(f, _)| features.contains(*f))
            .map(|(_, n)| *n)
            .collect(),
        cooperative_matrices: adapter
            .cooperative_matrix_properties()
            .iter()
            .map(|p| {
                let [ab, cr] = [p.ab_type, p.cr_type].map(|t| format!("{t:?}").to_lowercase());
                format!("{}x{}x{} {ab} {cr}", p.m_size, p.n_size, p.k_size)
            })
            .collect(),
    }
}

/// Bytes of the largest device-local heap on Vulkan, or those that Metal recommends to use at most; `None` on backends that do not tell.
pub(super) fn device_memory(adapter: &Adapter) -> Option<u64> {
    // SAFETY: the handles borrowed from `as_hal` are only read, and only while `adapter` lives.
    #[cfg(not(any(target_os = "macos", target_os = "ios")))]
    unsafe {
        let hal = adapter.as_hal::<wgpu::hal::api::Vulkan>()?;
        let instance = hal.shared_instance().raw_instance();
        let memory = instance.get_physical_device_memory_properties(hal.raw_physical_device());
        let heaps = memory.memory_heaps_as_slice();
        // Bit 0 of VkMemoryHeapFlags is DEVICE_LOCAL.
        heaps
            .iter()
            .filter(|h| h.flags.as_raw() & 1 != 0)
            .map(|h| h.size)
            .max()
    }
    #[cfg(any(target_os = "macos", target_os = "ios"))]
    {
        use objc2_metal::MTLDevice;
        // SAFETY: the handle borrowed from `as_hal` is only read, and only while `adapter` lives.
        let hal = unsafe { adapter.as_hal::<wgpu::hal::api::Metal>() }?;
        Some(hal.raw_device().recommendedMaxWorkingSetSize())
    }
}

fn listing<'a>(adapters: impl Iterator<Item = (usize, &'a Adapter)>) -> String {
    let names: Vec<_> = adapters
        .map(|(i, a)| format!("{i}: {} ({})", a.get_info().name, a.get_info().backend))
        .collect();
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}

/// The adapter that `choice` means. [`DeviceChoice::Cpu`] is not a GPU and is the caller's to handle.
///
/// # Errors
/// [`GpuError::NoAdapter`], [`GpuError::AdapterNotFound`] or [`GpuError::AdapterAmbiguous`]. [`GpuError::OnlySoftware`] if `hardware` is
/// asked for and [`DeviceChoice::Auto`] would mean software.
pub(super) async fn choose(choice: &DeviceChoice, hardware: bool) -> Result<Adapter, GpuError> {
    let mut all = sorted().await;
    let index = chosen_of(&all, choice, hardware)?;
    Ok(all.swap_remove(index))
}

/// Which of all adapters `choice` means.
fn chosen_of(all: &[Adapter], choice: &DeviceChoice, hardware: bool) -> Result<usize, GpuError> {
    if all.is_empty() {
        return Err(GpuError::NoAdapter);
    }
    let not_found = |asked: &str| GpuError::AdapterNotFound {
        asked: asked.to_owned(),
        found: listing(all.iter().enumerate()),
    };
    Ok(match choice {
        // Software is last in the order.
        DeviceChoice::Auto if hardware && all[0].get_info().device_type == DeviceType::Cpu => {
            return Err(GpuError::OnlySoftware {
                found: listing(all.iter().enumerate()),
            });
        }
        DeviceChoice::Auto => 0,
        DeviceChoice::Index(i) if *i < all.len() => *i,
        DeviceChoice::Index(i) => return Err(not_found(&i.to_string())),
        DeviceChoice::Cpu => return Err(not_found("cpu")),
        DeviceChoice::Name(name) => {
            let wanted = name.to_lowercase();
            let hits: Vec<_> = all
                .iter()
                .enumerate()
                .filter(|(_, a)| a.get_info().name.to_lowercase().contains(&wanted))
                .collect();
            match hits.as_slice() {
                [] => return Err(not_found(name)),
                [(i, _)] => *i,
                several => {
                    return Err(GpuError::AdapterAmbiguous {
                        asked: name.clone(),
                        found: listing(several.iter().copied()),
                    });
                }
            }
        }
    })
}
