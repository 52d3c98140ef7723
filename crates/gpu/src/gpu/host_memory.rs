//! Memory of the machine that a buffer of a device is and that the processor reads and writes as well, without a copy.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

/// The memory of a buffer that lies in host memory ([`Buffer::of_host`](super::buffer::Buffer::of_host)). It stays as long as this does, whatever
/// happens to the buffer or to the device.
#[derive(Clone)]
pub struct HostMemory {
    at: *mut u8,
    size: u64,
    /// Keeps the memory.
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the memory belongs to no thread. All accesses are `unsafe`, and their callers prove that they do not race.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// The `size` bytes at `at`.
    ///
    /// # Safety
    /// The bytes are initialised, and may be read and written for as long as `owner` lives.
    #[cfg(not(any(target_arch = "wasm32", target_vendor = "apple")))]
    pub(super) unsafe fn of(at: *mut u8, size: u64, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self {
            at,
            size,
            _owner: owner,
        }
    }

    fn check(&self, range: &Range<u64>) {
        assert!(
            range.start <= range.end && range.end <= self.size,
            "bytes {range:?} of {}",
            self.size
        );
    }

    /// Some of the bytes.
    ///
    /// # Safety
    /// Nothing writes to these bytes while the slice is in use, neither on a device nor on the host.
    ///
    /// # Panics
    /// If the range ends behind the memory.
    pub unsafe fn bytes(&self, range: Range<u64>) -> &[u8] {
        self.check(&range);
        let len = (range.end - range.start) as usize;
        // SAFETY: the range lies within the memory, which lives as long as `self` and is initialised. That nothing writes to it the caller
        // promises.
        unsafe { std::slice::from_raw_parts(self.at.add(range.start as usize), len) }
    }

    /// Writes bytes. Devices see them in what is submitted afterwards.
    ///
    /// # Safety
    /// Nothing else reads or writes these bytes at the same time, neither on a device nor on the host.
    ///
    /// # Panics
    /// If the bytes end behind the memory.
    pub unsafe fn write(&self, offset: u64, bytes: &[u8]) {
        self.check(&(offset..offset + bytes.len() as u64));
        // SAFETY: the bytes lie within the memory. That nothing else accesses it the caller promises, so it does not overlap with `bytes`.
        unsafe {
            let to = self.at.add(offset as usize);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }
}
