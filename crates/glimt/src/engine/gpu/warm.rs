//! Keeping what a session needs in the memory of the GPU while nobody asks for anything.
//!
//! Metal takes buffers out of wired memory about a second after the last command buffer that names them, and the next token then waits
//! until they are back (llama.cpp, issue 10119). A command buffer that copies a few bytes of each buffer names them all.

use crate::engine::backend::Touch;
use crate::gpu::Gpu;
use crate::gpu::buffer::Buffer;
use std::sync::Arc;
use wgpu::{Backend, BufferDescriptor, BufferUsages, CommandEncoderDescriptor};

/// Bytes that are copied of each buffer: the least that a copy can have.
const COPIED: u64 = wgpu::COPY_BUFFER_ALIGNMENT;

/// The buffers that a decoded token reads and writes.
struct Warm {
    gpu: Arc<Gpu>,
    buffers: Vec<Buffer>,
    /// Takes the copies.
    copies: wgpu::Buffer,
}

/// A function that touches these buffers, if the device forgets them.
pub(super) fn touch(gpu: &Arc<Gpu>, needed: &[Buffer]) -> Option<Touch> {
    let warm = (gpu.info.backend == Backend::Metal).then(|| Warm::of(gpu, needed))?;
    Some(Box::new(move || warm.touch()))
}

impl Warm {
    fn of(gpu: &Arc<Gpu>, needed: &[Buffer]) -> Self {
        // Buffers that the host maps may not be copied from. They hold a few bytes.
        let copied = |buffer: &&Buffer| buffer.made().usage().contains(BufferUsages::COPY_SRC);
        let buffers: Vec<_> = needed.iter().filter(copied).cloned().collect();
        let copies = gpu.device.create_buffer(&BufferDescriptor {
            label: Some("copies to keep warm"),
            size: COPIED * buffers.len().max(1) as u64,
            usage: BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        Self {
            gpu: Arc::clone(gpu),
            buffers,
            copies,
        }
    }

    /// Submits a copy of each buffer's first bytes, and waits for nothing.
    fn touch(&self) {
        let mut encoder = (self.gpu.device).create_command_encoder(&CommandEncoderDescriptor {
            label: Some("keep warm"),
        });
        for (buffer, at) in self.buffers.iter().zip((0..).step_by(COPIED as usize)) {
            encoder.copy_buffer_to_buffer(buffer.made(), 0, &self.copies, at, COPIED);
        }
        self.gpu.queue.submit([encoder.finish()]);
    }
}

#[cfg(feature = "bench")]
impl super::GpuBackend {
    /// A function that touches all buffers of a decoded token, also on a device that forgets nothing, and how many buffers these are.
    pub fn touch_all(&self) -> (Touch, usize) {
        let warm = Warm::of(&self.batch.model.gpu, &self.batch.token.needed);
        let buffers = warm.buffers.len();
        (Box::new(move || warm.touch()), buffers)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{backend, kept, tokens};
    use super::*;
    use crate::engine::backend::Backend as _;
    use crate::gpu::Tier;
    use crate::gpu::wait::Wait;

    #[test]
    fn all_buffers_of_a_token_are_touched_and_none_is_changed() {
        for tier in [Tier::Plain, Tier::Subgroup] {
            let Some(mut backend) = backend(tier, 64, 32) else {
                continue;
            };
            backend.prefill(&tokens(9), 0).wait().expect("it fits");
            let before = kept(&backend);
            let warm = Warm::of(&backend.batch.model.gpu, &backend.batch.token.needed);
            let bytes: u64 = warm.buffers.iter().map(Buffer::size).sum();
            assert!(bytes >= backend.gpu().allocated() / 2, "{bytes}");
            for _ in 0..3 {
                warm.touch();
            }
            backend.gpu().done().wait().expect("it is done");
            backend.gpu().check().expect("nothing was refused");
            assert_eq!(kept(&backend), before);
            assert!(backend.warm().is_none() || cfg!(target_vendor = "apple"));
        }
    }
}
