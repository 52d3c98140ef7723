//! Numbers of submissions: each goes to the device with its work and comes back with the result.
//!
//! A driver may drop work without an error. On Metal a command buffer that failed counts as completed, and wgpu makes one of
//! every compute pass. Then the memory for the result holds what was there before, and its number tells.

use super::{Gpu, GpuError};
use std::sync::atomic::{AtomicU64, Ordering};

/// The next number of a device.
#[derive(Default)]
pub(crate) struct Numbers {
    next: AtomicU64,
    /// A submission whose work is left out, for tests; 0 is none.
    #[cfg(any(test, feature = "testing"))]
    left_out: std::sync::atomic::AtomicU32,
}

/// Numbers in a row.
#[derive(Debug, Clone, Copy)]
pub struct Reserved(u64);

impl Reserved {
    /// The number at index `i`: never 0, which is what memory begins with.
    pub fn number(self, i: usize) -> u32 {
        // It fits 32 bits: the remainder is at most 2^32 - 2.
        ((self.0 + i as u64) % u64::from(u32::MAX)) as u32 + 1
    }
}

impl Gpu {
    /// Takes `count` numbers, none of which came among the 2^32 - 2 before it.
    pub fn reserve_numbers(&self, count: usize) -> Reserved {
        Reserved(self.numbers.next.fetch_add(count as u64, Ordering::Relaxed))
    }

    /// Submits the work of this number.
    pub fn submit_numbered(
        &self,
        commands: wgpu::CommandBuffer,
        number: u32,
    ) -> wgpu::SubmissionIndex {
        #[cfg(not(any(test, feature = "testing")))]
        let _ = number;
        #[cfg(any(test, feature = "testing"))]
        if self.numbers.left_out.load(Ordering::SeqCst) == number {
            return self.queue.submit([]);
        }
        self.queue.submit([commands])
    }

    /// Submits the work of this number in two parts.
    pub fn submit_both_numbered(
        &self,
        first: Option<wgpu::CommandBuffer>,
        commands: wgpu::CommandBuffer,
        number: u32,
    ) -> wgpu::SubmissionIndex {
        if let Some(first) = first {
            self.queue.submit([first]);
        }
        self.submit_numbered(commands, number)
    }

    /// Has the work of the `i`th submission from now on left out.
    #[cfg(any(test, feature = "testing"))]
    pub fn leave_out(&self, i: usize) {
        let next = Reserved(self.numbers.next.load(Ordering::SeqCst));
        let left_out = next.number(i);
        self.numbers.left_out.store(left_out, Ordering::SeqCst);
    }

    /// The error for work that did not leave `expected` behind: what the device reported, or that it reported nothing.
    pub fn work_lost(&self, what: String, expected: u32, found: u32) -> GpuError {
        if let Err(reported) = self.check() {
            return reported;
        }
        let cause = match self.info.backend {
            wgpu::Backend::Metal => {
                "macOS ends work that keeps the display waiting or for which there is no memory, and Metal's errors do not reach glimt"
            }
            _ => "the driver reported no error",
        };
        GpuError::WorkLost {
            adapter: self.info.name.clone(),
            what,
            expected,
            found,
            cause,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_a_row_skip_zero() {
        let near = Reserved(u64::from(u32::MAX) - 2);
        let numbers: Vec<_> = (0..4).map(|i| near.number(i)).collect();
        assert_eq!(numbers, [u32::MAX - 1, u32::MAX, 1, 2]);
    }
}
