//! The memory of a device: its size, and the part of it that is free.

use wgpu::Adapter;

/// The memory of a device, as far as its backend tells.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Heap {
    /// Bytes in all: on Vulkan of the largest heap that is local to the device, on Metal those that it recommends to use at most.
    pub(super) size: Option<u64>,
    /// Bytes that this process can take, beside what others have taken. Vulkan tells them by VK_EXT_memory_budget, DX12 by DXGI.
    pub(super) free: Option<u64>,
}

impl Heap {
    /// Bytes that can be taken, as far as anything tells.
    pub(super) fn usable(self) -> Option<u64> {
        self.free.or(self.size)
    }

    /// The memory of an adapter.
    pub(super) fn of(adapter: &Adapter) -> Self {
        told(adapter).unwrap_or_default()
    }
}

#[cfg(not(any(target_arch = "wasm32", target_vendor = "apple")))]
fn told(adapter: &Adapter) -> Option<Heap> {
    #[cfg(windows)]
    if let Some(heap) = by_dxgi(adapter) {
        return Some(heap);
    }
    let (size, free) = super::vulkan::heap(adapter)?;
    Some(Heap {
        size: Some(size),
        free,
    })
}

#[cfg(windows)]
fn by_dxgi(adapter: &Adapter) -> Option<Heap> {
    // SAFETY: the handle borrowed from `as_hal` is only read, and only while `adapter` lives.
    let hal = unsafe { adapter.as_hal::<wgpu::hal::api::Dx12>() }?;
    let mut told = Default::default();
    // SAFETY: `told` outlives the call. The default group is the memory of the device itself.
    unsafe {
        hal.as_raw()
            .QueryVideoMemoryInfo(0, Default::default(), &raw mut told)
    }
    .ok()?;
    Some(Heap {
        size: None,
        free: Some(told.Budget.saturating_sub(told.CurrentUsage)),
    })
}

#[cfg(target_vendor = "apple")]
fn told(adapter: &Adapter) -> Option<Heap> {
    use objc2_metal::MTLDevice;
    // SAFETY: the handle borrowed from `as_hal` is only read, and only while `adapter` lives.
    let hal = unsafe { adapter.as_hal::<wgpu::hal::api::Metal>() }?;
    Some(Heap {
        size: Some(hal.raw_device().recommendedMaxWorkingSetSize()),
        free: None,
    })
}

/// `None`: no browser tells its memory.
#[cfg(target_arch = "wasm32")]
fn told(_: &Adapter) -> Option<Heap> {
    None
}
