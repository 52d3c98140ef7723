//! Waiting for a device, for native builds: the one place of this room that blocks.
//!
//! Everything else in it only asks whether something is there (`pending`). A browser, where nothing may block,
//! goes without this file.

use super::adapter::{self, AdapterSummary};
use super::buffer::{Buffer, Content, Role};
use super::call::State;
use super::clock::{self, Encode};
use super::memory::{GpuWeight, Loader};
use super::pending::{self, Mapping};
use super::pipeline::{Pipeline, Spec};
use super::record::Recording;
use super::stamps::Stamps;
use super::{Gpu, GpuError, GpuOptions, Step};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;
use wgpu::{BufferUsages, PollError, PollType, SubmissionIndex};

/// Wakes a thread that sleeps.
struct Sleeper(Thread);

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks until `future` is there: wherever it stops at a submission, that is waited for.
pub fn complete<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Sleeper(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match pending::noting(|| future.as_mut().poll(&mut context)) {
            (Poll::Ready(result), _) => return result,
            (Poll::Pending, Some(stop)) => stop.passed_by(wait_for),
            (Poll::Pending, None) => thread::park(),
        }
    }
}

/// Waits until `submission`, or everything submitted, is done.
fn wait_for(device: &wgpu::Device, submission: Option<SubmissionIndex>) -> Result<(), PollError> {
    let waited = device.poll(PollType::Wait {
        submission_index: submission,
        timeout: None,
    });
    waited.map(drop)
}

/// Every adapter of the machine, in the order that `--device` indices use.
pub fn adapters() -> Vec<AdapterSummary> {
    complete(adapter::adapters_async())
}

impl Gpu {
    /// [`open_async`](Self::open_async), waited for.
    ///
    /// # Errors
    /// As [`open_async`](Self::open_async).
    pub fn open(options: &GpuOptions) -> Result<Self, GpuError> {
        complete(Self::open_async(options))
    }

    /// Waits until `submission`, or everything submitted, is done.
    ///
    /// # Errors
    /// What the device reported meanwhile.
    pub fn wait(&self, submission: Option<SubmissionIndex>) -> Result<(), GpuError> {
        let waited = wait_for(&self.device, submission);
        self.check()?;
        waited.map_err(|e| pending::not_polled(&e))
    }

    /// [`buffer_async`](Self::buffer_async), waited for.
    ///
    /// # Errors
    /// As [`buffer_async`](Self::buffer_async).
    pub fn buffer(
        &self,
        what: &str,
        bytes: u64,
        usage: BufferUsages,
    ) -> Result<wgpu::Buffer, GpuError> {
        complete(self.buffer_async(what, bytes, usage))
    }

    /// [`storage_async`](Self::storage_async), waited for.
    ///
    /// # Errors
    /// As [`buffer_async`](Self::buffer_async).
    pub fn storage(&self, what: &str, bytes: u64, role: Role) -> Result<Buffer, GpuError> {
        complete(self.storage_async(what, bytes, role))
    }

    /// [`realise_async`](Self::realise_async), waited for.
    ///
    /// # Errors
    /// As [`buffer_async`](Self::buffer_async).
    pub fn realise(&self, buffer: &Buffer) -> Result<(), GpuError> {
        complete(self.realise_async(buffer))
    }

    /// [`storage_with_async`](Self::storage_with_async), waited for.
    ///
    /// # Errors
    /// As [`buffer_async`](Self::buffer_async).
    pub fn storage_with<T: Content>(&self, what: &str, data: &[T]) -> Result<Buffer, GpuError> {
        complete(self.storage_with_async(what, data))
    }

    /// [`read_async`](Self::read_async), waited for.
    ///
    /// # Errors
    /// What the device reports.
    pub fn read<T: bytemuck::Pod>(
        &self,
        buffer: &Buffer,
        offset: u64,
        bytes: u64,
    ) -> Result<Vec<T>, GpuError> {
        complete(self.read_async(buffer, offset, bytes))
    }

    /// [`map_read_async`](Self::map_read_async), waited for. Every decoded token comes back this way, so there is no future.
    ///
    /// # Errors
    /// What the device reports.
    pub fn map_read<T: bytemuck::Pod>(
        &self,
        buffer: &wgpu::Buffer,
        bytes: u64,
        submission: Option<SubmissionIndex>,
    ) -> Result<Vec<T>, GpuError> {
        let mapping = Mapping::begin(buffer, bytes);
        self.wait(submission)?;
        mapping.read()
    }

    /// [`pipelines_async`](Self::pipelines_async), waited for.
    ///
    /// # Errors
    /// As [`pipelines_async`](Self::pipelines_async).
    pub fn pipelines(&self, specs: &[&Spec]) -> Result<Vec<Arc<Pipeline>>, GpuError> {
        complete(self.pipelines_async(specs))
    }
}

impl Recording {
    /// [`new_async`](Self::new_async), waited for.
    ///
    /// # Errors
    /// As [`new_async`](Self::new_async).
    pub fn new(gpu: &Gpu, step: &Step) -> Result<Self, GpuError> {
        complete(Self::new_async(gpu, step))
    }

    /// [`had_work_async`](Self::had_work_async), waited for.
    ///
    /// # Errors
    /// What the device reports.
    pub fn had_work(&self, gpu: &Gpu, dispatch: usize) -> Result<bool, GpuError> {
        complete(self.had_work_async(gpu, dispatch))
    }
}

impl Loader<'_> {
    /// [`places`](Self::places), [filled](Self::fill_async) and waited for.
    ///
    /// # Errors
    /// As [`fill_async`](Self::fill_async).
    pub fn load(
        self,
        gpu: &Gpu,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Vec<GpuWeight>, GpuError> {
        let places = self.places();
        complete(self.fill_async(gpu, &places, progress))?;
        Ok(places)
    }
}

impl Stamps {
    /// [`new_async`](Self::new_async), waited for.
    ///
    /// # Errors
    /// As [`new_async`](Self::new_async).
    pub fn new(gpu: &Gpu, count: usize) -> Result<Self, GpuError> {
        complete(Self::new_async(gpu, count))
    }

    /// [`empty_pass_async`](Self::empty_pass_async), waited for.
    ///
    /// # Errors
    /// As [`empty_pass_async`](Self::empty_pass_async).
    pub fn empty_pass(gpu: &Gpu) -> Result<f64, GpuError> {
        complete(Self::empty_pass_async(gpu))
    }

    /// [`read_async`](Self::read_async), waited for.
    ///
    /// # Errors
    /// As [`read_async`](Self::read_async).
    pub fn read(&self, gpu: &Gpu, count: usize) -> Result<Vec<f64>, GpuError> {
        complete(self.read_async(gpu, count))
    }
}

/// [`clock::in_turn_async`], waited for.
///
/// # Errors
/// As [`clock::in_turn_async`].
pub fn in_turn(
    gpu: &Gpu,
    steps: &[&Recording],
    state: &State,
    rounds: usize,
) -> Result<Vec<Vec<f64>>, GpuError> {
    complete(clock::in_turn_async(gpu, steps, state, rounds))
}

/// [`clock::repeats_async`], waited for.
///
/// # Errors
/// What the device reports.
pub(crate) fn repeats(gpu: &Gpu, encode: &mut Encode<'_>) -> Result<usize, GpuError> {
    complete(clock::repeats_async(gpu, encode))
}

/// [`clock::repeated_async`], waited for.
///
/// # Errors
/// What the device reports.
pub(crate) fn repeated(
    gpu: &Gpu,
    encode: &mut Encode<'_>,
    repeats: usize,
) -> Result<Duration, GpuError> {
    complete(clock::repeated_async(gpu, encode, repeats))
}
