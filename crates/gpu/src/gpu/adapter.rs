//! Listing and choosing adapters.

use super::behind::Behind;
use super::facts::Facts;
use super::heap::Heap;
use super::machine::Machine;
use super::same::{Shown, gpus, kind, reason};
use super::{Coop, GpuError, Target, Tier};
use serde::Serialize;
use wgpu::{
    Adapter, AdapterInfo, Backends, DeviceType, Features, Instance, InstanceDescriptor,
    InstanceFlags,
};

/// The choice of a device to run on. Nothing is ever replaced silently: what is asked for is used or refused.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The first adapter in the order discrete, integrated, virtual, software.
    #[default]
    Auto,
    /// The CPU reference, no GPU at all.
    Cpu,
    /// The adapter of this index in `glimt devices`.
    Index(usize),
    /// The adapter whose name and backend, such as `NVIDIA H200 (vulkan)`, contain this text, in any case.
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
    /// Bytes of it that others leave to this process, where the backend tells.
    pub free: Option<u64>,
    /// The memory behind it, in which experts can lie.
    pub behind: Behind,
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
    /// Other backends that show this GPU.
    pub others: Vec<OtherBackend>,
    /// Advice to the user on how to get a better tier, where one is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<&'static str>,
    /// The facts by which work is divided on it.
    pub machine: Machine,
    /// The device that steps would be recorded for, if it were opened without options.
    #[serde(skip)]
    pub target: Target,
}

/// A GPU by a backend that is not used unless `--device` names it.
#[derive(Debug, Clone, Serialize)]
pub struct OtherBackend {
    /// vulkan or dx12.
    pub backend: String,
    /// Driver name and version as the backend tells them.
    pub driver: String,
    /// The fastest tier that it can run there.
    pub tier: &'static str,
    /// The reason why it is not used.
    pub reason: String,
}

/// The backends of native builds, and that of a browser.
const BACKENDS: Backends = if cfg!(target_arch = "wasm32") {
    Backends::BROWSER_WEBGPU
} else {
    Backends::VULKAN
        .union(Backends::METAL)
        .union(Backends::DX12)
};

/// A wgpu instance with every native backend, or a browser's, and no validation in the way.
pub(super) fn instance() -> Instance {
    #[cfg(target_arch = "wasm32")]
    super::browser::watch();
    Instance::new(InstanceDescriptor {
        backends: BACKENDS,
        flags: InstanceFlags::empty(),
        ..InstanceDescriptor::new_without_display_handle()
    })
}

/// Every adapter of every backend, and what each tells of itself.
async fn enumerated() -> (Vec<Adapter>, Vec<Facts>) {
    let all = instance().enumerate_adapters(BACKENDS).await;
    let facts = all.iter().map(Facts::from).collect();
    (all, facts)
}

/// Every GPU of the machine, in the order that `--device` indices use.
pub async fn adapters() -> Vec<AdapterSummary> {
    let (all, facts) = enumerated().await;
    let gpus = gpus(&facts);
    let summary = |(index, gpu): (usize, &Shown)| summary(index, &all[gpu.best], gpu, &facts);
    gpus.iter().enumerate().map(summary).collect()
}

/// The adapter that `choice` means, unopened.
///
/// # Errors
/// [`GpuError::NoAdapter`], [`GpuError::OnlySoftware`], or what names no adapter or several.
pub async fn chosen(choice: &DeviceChoice, hardware: bool) -> Result<AdapterSummary, GpuError> {
    let (all, facts) = enumerated().await;
    let gpus = gpus(&facts);
    let (gpu, adapter) = chosen_of(&facts, &gpus, choice, hardware)?;
    Ok(summary(gpu, &all[adapter], &gpus[gpu], &facts))
}

/// The features and limits that the adapter chosen by `choice` lacks for `tier`, in words; empty where it can run it.
///
/// # Errors
/// As for [`chosen`], without [`GpuError::OnlySoftware`].
pub async fn lacks(choice: &DeviceChoice, tier: Tier) -> Result<String, GpuError> {
    Ok(tier.missing(&Facts::from(&choose(choice, false).await?)))
}

/// The summary of `adapter`, through which the GPU number `index` is used.
fn summary(index: usize, adapter: &Adapter, gpu: &Shown, all: &[Facts]) -> AdapterSummary {
    let facts = Facts::from(adapter);
    let tier = Tier::best(&facts);
    let other = |other: &usize| {
        let other = &all[*other];
        OtherBackend {
            backend: other.info.backend.to_string(),
            driver: driver(&other.info),
            tier: Tier::best(other).name(),
            reason: reason(&all[gpu.best], other),
        }
    };
    let others = gpu.others.iter().map(other).collect();
    let remedy = facts.remedy();
    let (heap, behind) = (Heap::of(adapter), Behind::of(&facts.info));
    let Facts {
        info,
        limits,
        features,
    } = facts;
    let named = [
        (Features::SUBGROUP, "subgroup"),
        (Features::SHADER_F16, "f16"),
        (Features::IMMEDIATES, "immediates"),
        (Features::TIMESTAMP_QUERY, "timestamps"),
        (
            Features::TIMESTAMP_QUERY_INSIDE_PASSES,
            "timestamps-in-pass",
        ),
        (Features::MAPPABLE_PRIMARY_BUFFERS, "mappable-storage"),
        (Features::PIPELINE_CACHE, "pipeline-cache"),
        (
            Features::EXPERIMENTAL_COOPERATIVE_MATRIX,
            "cooperative-matrix",
        ),
    ];
    let machine = Machine::new(&info, &limits, features);
    let coop = tier.has_subgroups().then(|| Coop::of(adapter)).flatten();
    AdapterSummary {
        index,
        machine,
        target: Target {
            reads_host: features.contains(Features::MAPPABLE_PRIMARY_BUFFERS),
            ..Target::of(&info.name, machine, tier, &limits, coop)
        },
        name: info.name.clone(),
        backend: info.backend.to_string(),
        kind: kind(info.device_type).1,
        bus: Some(info.device_pci_bus_id.clone()).filter(|bus| !bus.is_empty()),
        driver: driver(&info),
        tier: tier.name(),
        memory: heap.size,
        free: heap.free,
        behind,
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
        others,
        remedy,
    }
}

fn driver(info: &AdapterInfo) -> String {
    let both = [info.driver.as_str(), info.driver_info.as_str()].join(" ");
    both.trim().to_owned()
}

fn listing<'a>(adapters: impl Iterator<Item = (usize, &'a Facts)>) -> String {
    let names: Vec<_> = adapters
        .map(|(i, adapter)| format!("{i}: {}", adapter.label()))
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
    let (mut all, facts) = enumerated().await;
    let (_, adapter) = chosen_of(&facts, &gpus(&facts), choice, hardware)?;
    Ok(all.swap_remove(adapter))
}

/// The GPU that `choice` means, by its index, and the index of the adapter to use it by.
fn chosen_of(
    all: &[Facts],
    gpus: &[Shown],
    choice: &DeviceChoice,
    hardware: bool,
) -> Result<(usize, usize), GpuError> {
    let Some(first) = gpus.first() else {
        return Err(GpuError::NoAdapter);
    };
    let best = || gpus.iter().map(|gpu| &all[gpu.best]).enumerate();
    let not_found = |asked: &str| GpuError::AdapterNotFound {
        asked: asked.to_owned(),
        found: listing(best()),
    };
    match choice {
        // Software is last in the order.
        DeviceChoice::Auto if hardware && all[first.best].info.device_type == DeviceType::Cpu => {
            Err(GpuError::OnlySoftware {
                found: listing(best()),
            })
        }
        DeviceChoice::Auto => Ok((0, first.best)),
        DeviceChoice::Index(i) => match gpus.get(*i) {
            Some(gpu) => Ok((*i, gpu.best)),
            None => Err(not_found(&i.to_string())),
        },
        DeviceChoice::Cpu => Err(not_found("cpu")),
        DeviceChoice::Name(name) => {
            let wanted = name.to_lowercase();
            let matches = |(_, adapter): &(usize, usize)| {
                all[*adapter].label().to_lowercase().contains(&wanted)
            };
            let best = gpus.iter().enumerate().map(|(i, gpu)| (i, gpu.best));
            let others = gpus.iter().enumerate();
            let others =
                others.flat_map(|(i, gpu)| gpu.others.iter().map(move |other| (i, *other)));
            // Another backend is used only where what is asked for names it.
            let mut hits: Vec<_> = best.filter(matches).collect();
            if hits.is_empty() {
                hits = others.filter(matches).collect();
            }
            match hits.as_slice() {
                [] => Err(not_found(name)),
                [one] => Ok(*one),
                several => Err(GpuError::AdapterAmbiguous {
                    asked: name.clone(),
                    found: listing(several.iter().map(|(i, adapter)| (*i, &all[*adapter]))),
                }),
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
