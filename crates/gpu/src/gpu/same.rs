//! Adapters that are the same GPU: Windows shows each GPU by Vulkan and by DX12.

use wgpu::{Backend, DeviceType};

use super::Tier;
use super::facts::Facts;

/// A GPU as one or several backends show it, by indices of their adapters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// The adapter that is used unless another is asked for.
    pub best: usize,
    /// The adapters of other backends that show this GPU.
    pub others: Vec<usize>,
}

/// The GPUs that these adapters show, in the order of choice: discrete, integrated, virtual, other, software.
pub fn gpus(all: &[Facts]) -> Vec<Shown> {
    let mut gpus: Vec<Vec<usize>> = vec![];
    for (index, adapter) in all.iter().enumerate() {
        let same = |gpu: &Vec<usize>| gpu.iter().all(|other| is_same(&all[*other], adapter));
        // Where no bus tells equal cards apart, every backend is taken to list them in the same order.
        match gpus.iter_mut().find(|gpu| same(gpu)) {
            Some(gpu) => gpu.push(index),
            None => gpus.push(vec![index]),
        }
    }
    let mut gpus: Vec<Shown> = gpus.into_iter().map(|gpu| shown(all, gpu)).collect();
    gpus.sort_by_key(|gpu| kind(all[gpu.best].info.device_type));
    gpus
}

/// Whether two adapters are one GPU by two backends, as far as can be told.
fn is_same(a: &Facts, b: &Facts) -> bool {
    let (a, b) = (&a.info, &b.info);
    let buses = [&a.device_pci_bus_id, &b.device_pci_bus_id];
    let on_one_bus = buses[0] == buses[1] || buses.iter().any(|bus| bus.is_empty());
    a.backend != b.backend
        && a.vendor != 0
        && (a.vendor, a.device) == (b.vendor, b.device)
        && on_one_bus
}

/// The better tier wins. Where both run the same one, Vulkan does: it has cooperative matrices, and keeps what it has compiled.
fn shown(all: &[Facts], mut gpu: Vec<usize>) -> Shown {
    gpu.sort_by_key(|index| {
        let adapter = &all[*index];
        let is_vulkan = adapter.info.backend == Backend::Vulkan;
        std::cmp::Reverse((Tier::best(adapter), is_vulkan))
    });
    Shown {
        best: gpu.remove(0),
        others: gpu,
    }
}

/// Why the adapter `other` of a GPU is not used, and what would make it better, if that is known.
pub fn reason(best: &Facts, other: &Facts) -> String {
    let tiers = [Tier::best(best), Tier::best(other)];
    let why = match tiers[0] == tiers[1] {
        false => format!("it lacks {}", tiers[0].missing(other)),
        true => format!(
            "it runs the same tier, and {} has matrices and keeps what it compiles",
            best.info.backend
        ),
    };
    format!("tier {}; {why}", tiers[1].name())
}

/// The place of a kind of adapter in the order of choice, and its name.
pub fn kind(of: DeviceType) -> (u32, &'static str) {
    match of {
        DeviceType::DiscreteGpu => (0, "discrete"),
        DeviceType::IntegratedGpu => (1, "integrated"),
        DeviceType::VirtualGpu => (2, "virtual"),
        DeviceType::Other => (3, "other"),
        DeviceType::Cpu => (4, "software"),
    }
}

#[cfg(test)]
mod tests;
