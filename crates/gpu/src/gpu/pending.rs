//! Events of a device that the host awaits, as futures that never block.
//!
//! wgpu tells by callbacks what is done. A browser calls them on its own; elsewhere they run while somebody polls the device or
//! submits to it. A [`Pending`] is there once its callback came, and it has the device polled whenever it is polled itself. So
//! everything made of it goes on by being polled alone. Native builds would rather sleep: `wait` does that for them.

use super::{Gpu, GpuError};
use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use wgpu::{Buffer, BufferUsages, MapMode, PollError, PollType, SubmissionIndex};

/// The state of an awaited callback.
#[derive(Debug, Default)]
enum Told {
    #[default]
    Nothing,
    /// The callback came.
    Here,
    /// The callback came, and the mapping that it was for failed.
    NotMapped,
    /// Somebody waited for the callback in vain.
    Failed(PollError),
}

#[derive(Default)]
struct Shared {
    told: Told,
    waker: Option<Waker>,
}

/// Whether something that a device was asked for is there. Clones tell of the same thing.
#[derive(Clone, Default)]
pub struct Arrival(Arc<Mutex<Shared>>);

impl Arrival {
    /// The arrival of a mapping of the first `bytes` of `buffer`, which is asked for now.
    pub fn of_mapping(buffer: &Buffer, mode: MapMode, bytes: u64) -> Self {
        let arrival = Self::default();
        let arrive = arrival.clone();
        buffer.map_async(mode, ..bytes, move |mapped| {
            arrive.tell(mapped.map_or(Told::NotMapped, |()| Told::Here));
        });
        arrival
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn tell(&self, told: Told) {
        let mut shared = self.shared();
        shared.told = told;
        let waker = shared.waker.take();
        drop(shared);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether a callback came, or waiting for it failed.
    pub fn is_here(&self) -> bool {
        !matches!(self.shared().told, Told::Nothing)
    }

    /// Whether a mapping came to nothing.
    fn is_unmapped(&self) -> bool {
        matches!(self.shared().told, Told::NotMapped)
    }

    /// The result of the wait, if there is one; else `waker` is woken when there is.
    fn look(&self, waker: &Waker) -> Option<Result<(), GpuError>> {
        let mut shared = self.shared();
        match &shared.told {
            Told::Nothing => shared.waker = Some(waker.clone()),
            Told::Here | Told::NotMapped => return Some(Ok(())),
            Told::Failed(error) => return Some(Err(not_polled(error))),
        }
        None
    }
}

/// The error of a device that could not be polled.
pub(super) fn not_polled(error: &PollError) -> GpuError {
    GpuError::Runtime {
        what: "waiting for the GPU".to_owned(),
        reason: error.to_string(),
    }
}

/// Something that will be there once a submission is done.
pub struct Pending<'a> {
    gpu: &'a Gpu,
    submission: Option<SubmissionIndex>,
    arrival: Arrival,
}

impl Future for Pending<'_> {
    type Output = Result<(), GpuError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let look = || match (self.gpu.check(), self.arrival.look(context.waker())) {
            (Err(fault), _) => Poll::Ready(Err(fault)),
            (Ok(()), Some(come)) => Poll::Ready(come),
            (Ok(()), None) => Poll::Pending,
        };
        let found = look();
        if found.is_ready() || note(&self) {
            return found;
        }
        let polled = self.gpu.device.poll(PollType::Poll);
        match (look(), polled) {
            (Poll::Pending, Err(error)) => Poll::Ready(Err(not_polled(&error))),
            (Poll::Pending, Ok(_)) => {
                // A browser wakes by the callback. Elsewhere nobody may poll the device before this is polled again.
                #[cfg(not(target_family = "wasm"))]
                context.waker().wake_by_ref();
                Poll::Pending
            }
            (found, _) => found,
        }
    }
}

/// The arrival that a future waits for, with its device and submission.
pub(super) struct Stop {
    device: wgpu::Device,
    submission: Option<SubmissionIndex>,
    arrival: Arrival,
}

impl Stop {
    /// Has `wait` wait for the submission, or for everything submitted: what the future stopped at is there then.
    #[cfg_attr(
        target_family = "wasm",
        expect(dead_code, reason = "a browser has no thread that waits")
    )]
    pub(super) fn passed_by(
        self,
        wait: impl FnOnce(&wgpu::Device, Option<SubmissionIndex>) -> Result<(), PollError>,
    ) {
        let told = match wait(&self.device, self.submission) {
            // Another thread may have polled the device and not called this callback yet.
            Ok(()) if self.arrival.is_here() => return,
            Ok(()) => Told::Here,
            Err(error) => Told::Failed(error),
        };
        self.arrival.tell(told);
    }
}

thread_local! {
    /// The notes of what the futures of a thread stop at, while somebody asks for them.
    static NOTES: RefCell<Option<Option<Stop>>> = const { RefCell::new(None) };
    /// Whether futures may block meanwhile.
    static MAY_BLOCK: Cell<bool> = const { Cell::new(false) };
}

/// Polls a future by `poll`, and tells what it stopped at. It does not poll the device then: that is the caller's to do.
#[cfg_attr(
    target_family = "wasm",
    expect(dead_code, reason = "a browser has no thread that waits")
)]
pub(super) fn noting<T>(poll: impl FnOnce() -> Poll<T>) -> (Poll<T>, Option<Stop>) {
    let outer = (NOTES.replace(Some(None)), MAY_BLOCK.replace(true));
    let polled = poll();
    MAY_BLOCK.set(outer.1);
    (polled, NOTES.replace(outer.0).flatten())
}

/// Whether this thread waits for the future that it polls (`wait`), so that a future may also block it by other means. A browser and an
/// event loop never do.
pub fn may_block() -> bool {
    MAY_BLOCK.get()
}

/// Polls a future by `poll`, which may not block even where a thread waits for it: the caller wants what comes of it before its end.
pub fn giving_way<T>(poll: impl FnOnce() -> T) -> T {
    let outer = MAY_BLOCK.replace(false);
    let polled = poll();
    MAY_BLOCK.set(outer);
    polled
}

/// Notes what is not there yet; whether anybody asked for it.
fn note(pending: &Pending<'_>) -> bool {
    NOTES.with_borrow_mut(|notes| {
        let Some(note) = notes else { return false };
        *note = Some(Stop {
            device: pending.gpu.device.clone(),
            submission: pending.submission.clone(),
            arrival: pending.arrival.clone(),
        });
        true
    })
}

/// A mapping of the first bytes of a buffer for the host to read, undone when it is dropped.
pub(super) struct Mapping<'a> {
    buffer: &'a Buffer,
    bytes: u64,
    arrival: Arrival,
}

impl<'a> Mapping<'a> {
    /// Asks for it.
    pub(super) fn begin(buffer: &'a Buffer, bytes: u64) -> Self {
        Self {
            buffer,
            bytes,
            arrival: Arrival::of_mapping(buffer, MapMode::Read, bytes),
        }
    }

    /// Puts the bytes, once they are there, in place of what `found` holds, whose memory is used again.
    ///
    /// # Errors
    /// [`GpuError::Runtime`] where the buffer could not be mapped.
    fn read_into<T: bytemuck::Pod>(self, found: &mut Vec<T>) -> Result<(), GpuError> {
        let view = self.buffer.slice(..self.bytes).get_mapped_range();
        let view = view.map_err(|e| GpuError::Runtime {
            what: "reading back".to_owned(),
            reason: e.to_string(),
        })?;
        found.resize(view.len().div_ceil(size_of::<T>()), T::zeroed());
        bytemuck::cast_slice_mut::<T, u8>(found)[..view.len()].copy_from_slice(&view);
        Ok(())
    }
}

impl Drop for Mapping<'_> {
    fn drop(&mut self) {
        if !self.arrival.is_unmapped() {
            self.buffer.unmap();
        }
    }
}

impl Gpu {
    /// A future of `arrival`, which is there once `submission`, or everything submitted, is done.
    pub fn pending(&self, submission: Option<SubmissionIndex>, arrival: &Arrival) -> Pending<'_> {
        Pending {
            gpu: self,
            submission,
            arrival: arrival.clone(),
        }
    }

    /// A future that ends when everything submitted before is done.
    pub fn done(&self) -> impl Future<Output = Result<(), GpuError>> + use<'_> {
        let arrival = Arrival::default();
        let arrive = arrival.clone();
        self.queue
            .on_submitted_work_done(move || arrive.tell(Told::Here));
        self.pending(None, &arrival)
    }

    /// Maps a MAP_READ buffer after `submission` (or everything submitted), copies its first `bytes` and unmaps it.
    pub async fn map_read<T: bytemuck::Pod>(
        &self,
        buffer: &Buffer,
        bytes: u64,
        submission: Option<SubmissionIndex>,
    ) -> Result<Vec<T>, GpuError> {
        let mut found = vec![];
        self.map_read_into(buffer, bytes, submission, &mut found)
            .await?;
        Ok(found)
    }

    /// Reads like [`map_read`](Self::map_read), into the memory of `found`, whose values it replaces.
    ///
    /// # Errors
    /// The error that the device reports. Then `found` holds what it held.
    pub async fn map_read_into<T: bytemuck::Pod>(
        &self,
        buffer: &Buffer,
        bytes: u64,
        submission: Option<SubmissionIndex>,
        found: &mut Vec<T>,
    ) -> Result<(), GpuError> {
        let mapping = Mapping::begin(buffer, bytes);
        self.pending(submission, &mapping.arrival).await?;
        mapping.read_into(found)
    }

    /// Copies `bytes` bytes from `offset` of `buffer` to the host, through a staging buffer.
    pub async fn read<T: bytemuck::Pod>(
        &self,
        buffer: &super::buffer::Buffer,
        offset: u64,
        bytes: u64,
    ) -> Result<Vec<T>, GpuError> {
        self.read_each(&[(buffer, offset)], bytes).await
    }

    /// Copies `bytes` bytes from each of some buffers at an offset to the host, one after the other.
    pub async fn read_each<T: bytemuck::Pod>(
        &self,
        places: &[(&super::buffer::Buffer, u64)],
        bytes: u64,
    ) -> Result<Vec<T>, GpuError> {
        let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
        let all = bytes * places.len() as u64;
        let staging = self.buffer("readback", all, usage).await?;
        let mut encoder = self.device.create_command_encoder(&Default::default());
        for ((buffer, offset), to) in places.iter().zip((0..).step_by(bytes as usize)) {
            encoder.copy_buffer_to_buffer(buffer.made(), *offset, &staging, to, bytes);
        }
        self.queue.submit([encoder.finish()]);
        let data = self.map_read(&staging, all, None).await?;
        self.release_made(&staging);
        Ok(data)
    }
}
