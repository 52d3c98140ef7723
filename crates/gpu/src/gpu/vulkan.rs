//! What wgpu does not do with Vulkan: asking for the memory that is free, and opening a device whose driver does not compare each access to
//! a buffer with the end of its binding.
//!
//! [`interface`](super::interface) has compared them when a step was recorded, so that glimt's kernels need no comparison of their own. wgpu
//! asks every driver for them (`robustBufferAccess`), and NVIDIA's spends two instructions on each load.

pub(super) mod host;

use ash::ext::{memory_budget, pipeline_robustness, robustness2};
use ash::vk;
use wgpu::hal::vulkan::Api;
use wgpu::{Adapter, DeviceDescriptor};

/// The queue family that wgpu uses.
const FAMILY: u32 = 0;

/// The device and queue that [`Adapter::request_device`] gives, but for the driver's comparisons. `None` if the adapter is not Vulkan's.
///
/// # Errors
/// The error that the driver reports.
pub(super) fn open(
    adapter: &Adapter,
    descriptor: &DeviceDescriptor<'_>,
) -> Option<Result<(wgpu::Device, wgpu::Queue), String>> {
    let features = descriptor.required_features;
    // SAFETY: the handle is used only while `adapter` lives. None of its objects is destroyed here.
    let hal = unsafe { adapter.as_hal::<Api>() }?;
    let mut extensions = hal.required_device_extensions(features);
    // The extension stays, as wgpu wants it. Without its features it has no effect.
    let with_features: Vec<_> = extensions
        .iter()
        .copied()
        .filter(|&name| name != robustness2::NAME)
        .collect();
    let mut wanted = hal.physical_device_features(&with_features, features);
    let core = wanted.get_core().robust_buffer_access(false);
    // Without this extension NVIDIA's driver compares although nobody asks for it (580.159.04).
    let mut robustness =
        vk::PhysicalDevicePipelineRobustnessFeaturesEXT::default().pipeline_robustness(true);
    let can_choose = hal
        .physical_device_capabilities()
        .supports_extension(pipeline_robustness::NAME);
    let mut info = vk::DeviceCreateInfo::default();
    if can_choose {
        extensions.push(pipeline_robustness::NAME);
        info = info.push_next(&mut robustness);
    }
    let names: Vec<_> = extensions.iter().map(|name| name.as_ptr()).collect();
    let queues = [vk::DeviceQueueCreateInfo::default()
        .queue_family_index(FAMILY)
        .queue_priorities(&[1.0])];
    let info = wanted
        .add_to_device_create(
            info.queue_create_infos(&queues)
                .enabled_extension_names(&names),
        )
        .enabled_features(&core);
    let instance = hal.shared_instance().raw_instance();
    // SAFETY: the physical device is the adapter's, which supports these extensions and features. All that `info` points to lives until
    // the call returns.
    let raw = unsafe { instance.create_device(hal.raw_physical_device(), &info, None) };
    // SAFETY: the device was made by this adapter, with these extensions and this queue family. It has all features that wgpu wants but the
    // comparisons. wgpu needs those for untrusted shaders only, and glimt has none (`device/compile.rs`). wgpu alone destroys the device.
    let opened = raw.map_err(|e| e.to_string()).and_then(|raw| unsafe {
        let limits = &descriptor.required_limits;
        let hints = &descriptor.memory_hints;
        hal.device_from_raw(raw, None, &extensions, features, limits, hints, FAMILY, 0)
            .map_err(|e| e.to_string())
    });
    drop(hal);
    // SAFETY: `opened` is the adapter's own, with the features and limits of `descriptor`.
    Some(opened.and_then(|opened| unsafe {
        adapter
            .create_device_from_hal(opened, descriptor)
            .map_err(|e| e.to_string())
    }))
}

/// Bytes of the largest heap that is local to the device, and of it those that are free, if the driver tells. `None` if the adapter is not
/// Vulkan's.
pub(super) fn heap(adapter: &Adapter) -> Option<(u64, Option<u64>)> {
    // SAFETY: the handle is used only while `adapter` lives. Nothing is made or destroyed.
    let hal = unsafe { adapter.as_hal::<Api>() }?;
    let (shared, known) = (hal.shared_instance(), hal.physical_device_capabilities());
    let versions = [
        shared.instance_api_version(),
        known.properties().api_version,
    ];
    // Software takes its memory from the host, which has other uses for it from one moment to the next.
    let tells = versions
        .iter()
        .all(|version| *version >= vk::API_VERSION_1_1)
        && known.supports_extension(memory_budget::NAME)
        && known.properties().device_type != vk::PhysicalDeviceType::CPU;
    let (instance, device) = (shared.raw_instance(), hal.raw_physical_device());
    let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut all = vk::PhysicalDeviceMemoryProperties2::default();
    if tells {
        all = all.push_next(&mut budget);
        // SAFETY: the device is the adapter's, of a version that has the function, and has the extension of `budget`.
        unsafe { instance.get_physical_device_memory_properties2(device, &mut all) };
    } else {
        // SAFETY: the device is the adapter's.
        all.memory_properties = unsafe { instance.get_physical_device_memory_properties(device) };
    }
    let memory = all.memory_properties;
    let heaps = memory.memory_heaps_as_slice().iter().enumerate();
    let local = heaps.filter(|(_, heap)| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
    let (index, heap) = local.max_by_key(|(_, heap)| heap.size)?;
    let free = || budget.heap_budget[index].saturating_sub(budget.heap_usage[index]);
    // A driver that tells nothing leaves the zero.
    Some((heap.size, tells.then(free).filter(|free| *free > 0)))
}
