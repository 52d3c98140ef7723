//! Buffers in memory of the host that glimt owns. wgpu frees what it owns when a device is lost, though the processor may be reading it.

use std::sync::Arc;

use ash::vk::{self, MemoryPropertyFlags as Flags};
use wgpu::hal::vulkan::{Api, Buffer};
use wgpu::{BufferDescriptor, BufferUsages};

use crate::gpu::host_memory::HostMemory;

/// A buffer and its memory, which are freed at the end.
struct Owned {
    /// Keeps the device that `raw` is.
    _device: wgpu::Device,
    raw: ash::Device,
    buffer: vk::Buffer,
    memory: vk::DeviceMemory,
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: both were made by this device, which `_device` keeps, or are null. wgpu and the host have dropped their shares, and wgpu does so
        // when the device no longer uses the buffer.
        unsafe {
            self.raw.destroy_buffer(self.buffer, None);
            self.raw.free_memory(self.memory, None);
        }
    }
}

/// The type of memory that the processor reads through its caches and that needs no flushing, not the device's own where there is a choice.
fn memory_type(all: &vk::PhysicalDeviceMemoryProperties, allowed: u32) -> Option<u32> {
    let wanted = Flags::HOST_VISIBLE | Flags::HOST_COHERENT | Flags::HOST_CACHED;
    let of_host = |types: &vk::MemoryType| types.property_flags == wanted;
    let of_both = |types: &vk::MemoryType| types.property_flags == wanted | Flags::DEVICE_LOCAL;
    let types = || {
        let types = all.memory_types_as_slice().iter().zip(0u32..);
        types.filter(|(_, i)| allowed >> i & 1 == 1)
    };
    let found = types().find(|(ty, _)| of_host(ty));
    let found = found.or_else(|| types().find(|(ty, _)| of_both(ty)));
    found.map(|(_, i)| i)
}

/// A buffer of `size` bytes that kernels bind and copies reach, and its memory. `None` where the device is not Vulkan's, or has no memory of the
/// kind.
///
/// # Errors
/// The error that the driver reports.
pub(in crate::gpu) fn buffer(
    device: &wgpu::Device,
    what: &str,
    size: u64,
) -> Option<Result<(wgpu::Buffer, HostMemory), vk::Result>> {
    // SAFETY: the handle is used only while `device` lives. Nothing of it is destroyed.
    let hal = unsafe { device.as_hal::<Api>() }?;
    let mut owned = Owned {
        _device: device.clone(),
        raw: hal.raw_device().clone(),
        buffer: vk::Buffer::null(),
        memory: vk::DeviceMemory::null(),
    };
    let instance = hal.shared_instance().raw_instance();
    // SAFETY: the physical device is of this instance.
    let all = unsafe { instance.get_physical_device_memory_properties(hal.raw_physical_device()) };
    drop(hal);
    let raw = owned.raw.clone();
    let uses = vk::BufferUsageFlags::STORAGE_BUFFER
        | vk::BufferUsageFlags::TRANSFER_SRC
        | vk::BufferUsageFlags::TRANSFER_DST;
    let info = vk::BufferCreateInfo::default().size(size).usage(uses);
    // SAFETY: the device lives, and `info` needs no feature.
    match unsafe { raw.create_buffer(&info, None) } {
        Ok(buffer) => owned.buffer = buffer,
        Err(e) => return Some(Err(e)),
    }
    // SAFETY: the buffer is the device's.
    let needs = unsafe { raw.get_buffer_memory_requirements(owned.buffer) };
    let index = memory_type(&all, needs.memory_type_bits)?;
    Some(map(owned, index, needs.size).map(|(owned, at)| {
        let owned = Arc::new(owned);
        // SAFETY: the `size` bytes there are mapped until `owned` is dropped. A system gives a process memory that is initialised.
        let memory = unsafe { HostMemory::of(at, size, owned.clone()) };
        let buffer = owned.buffer;
        // SAFETY: `owned` keeps the buffer until wgpu calls back.
        let hal = unsafe { Buffer::from_raw_externally_owned(buffer, Box::new(|| drop(owned))) };
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        let described = BufferDescriptor {
            label: Some(what),
            size,
            usage,
            mapped_at_creation: false,
        };
        // SAFETY: the buffer was made by this device with this size and these uses, and is initialised.
        let buffer = unsafe { device.create_buffer_from_hal::<Api>(hal, &described) };
        (buffer, memory)
    }))
}

/// Gives a buffer `bytes` of memory of a type, and maps it.
fn map(mut owned: Owned, index: u32, bytes: u64) -> Result<(Owned, *mut u8), vk::Result> {
    let info = vk::MemoryAllocateInfo::default()
        .allocation_size(bytes)
        .memory_type_index(index);
    let raw = owned.raw.clone();
    // SAFETY: the type is one of the device's and suits the buffer, which has no memory yet. The host may map the type, and nobody has mapped
    // this memory. It stays mapped until it is freed.
    let at = unsafe {
        owned.memory = raw.allocate_memory(&info, None)?;
        raw.bind_buffer_memory(owned.buffer, owned.memory, 0)?;
        raw.map_memory(owned.memory, 0, vk::WHOLE_SIZE, Default::default())?
    };
    Ok((owned, at.cast()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_the_host_is_preferred_and_memory_without_caches_refused() {
        let visible = Flags::HOST_VISIBLE | Flags::HOST_COHERENT;
        let types = |flags: &[Flags]| {
            let mut all = vk::PhysicalDeviceMemoryProperties {
                memory_type_count: flags.len() as u32,
                ..Default::default()
            };
            for (ty, flags) in all.memory_types.iter_mut().zip(flags) {
                ty.property_flags = *flags;
            }
            all
        };
        let both = visible | Flags::HOST_CACHED | Flags::DEVICE_LOCAL;
        let of_host = visible | Flags::HOST_CACHED;
        let all = types(&[Flags::DEVICE_LOCAL, both, visible, of_host]);
        assert_eq!(memory_type(&all, !0), Some(3));
        assert_eq!(memory_type(&all, 0b0111), Some(1));
        assert_eq!(memory_type(&all, 0b0101), None);
    }
}
