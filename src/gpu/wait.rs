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
use super::{DeviceChoice, Gpu, GpuError, GpuOptions, Step, Tier};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;
use wgpu::{PollError, PollType, SubmissionIndex};

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

/// Makes functions that wait: each is said by its signature and the future that it completes.
macro_rules! waits {
    ($($vis:vis fn $name:ident $(<$g:ident: $bound:path>)? ($($args:tt)*) -> $out:ty = $future:expr;)*) => {
        $(
            #[doc = concat!("Waits for `", stringify!($future), "`.")]
            $vis fn $name $(<$g: $bound>)? ($($args)*) -> $out {
                $crate::gpu::wait::complete($future)
            }
        )*
    };
}
pub(crate) use waits;

waits! {
    pub fn adapters() -> Vec<AdapterSummary> = adapter::adapters_async();

    pub fn chosen(choice: &DeviceChoice) -> Result<AdapterSummary, GpuError> = adapter::chosen_async(choice, false);

    pub fn lacks(choice: &DeviceChoice, tier: Tier) -> Result<String, GpuError> = adapter::lacks_async(choice, tier);

    pub fn in_turn(gpu: &Gpu, steps: &[(&Recording, &State)], rounds: usize) -> Result<Vec<Vec<f64>>, GpuError> =
        clock::in_turn_async(gpu, steps, rounds);

    pub(crate) fn repeats(gpu: &Gpu, encode: &mut Encode<'_>) -> Result<usize, GpuError> =
        clock::repeats_async(gpu, encode);

    pub(crate) fn repeated(gpu: &Gpu, encode: &mut Encode<'_>, repeats: usize) -> Result<Duration, GpuError> =
        clock::repeated_async(gpu, encode, repeats);
}

impl Gpu {
    waits! {
        pub fn open(options: &GpuOptions) -> Result<Self, GpuError> = Self::open_async(options);

        pub fn storage(&self, what: &str, bytes: u64, role: Role) -> Result<Buffer, GpuError> =
            self.storage_async(what, bytes, role);

        pub fn realise(&self, buffer: &Buffer) -> Result<(), GpuError> = self.realise_async(buffer);

        pub fn storage_with<T: Content>(&self, what: &str, data: &[T]) -> Result<Buffer, GpuError> =
            self.storage_with_async(what, data);

        pub fn read<T: bytemuck::Pod>(&self, buffer: &Buffer, offset: u64, bytes: u64) -> Result<Vec<T>, GpuError> =
            self.read_async(buffer, offset, bytes);

        pub fn pipelines(&self, specs: &[&Spec]) -> Result<Vec<Arc<Pipeline>>, GpuError> =
            self.pipelines_async(specs);
    }

    /// Waits until `submission`, or everything submitted, is done.
    pub fn wait(&self, submission: Option<SubmissionIndex>) -> Result<(), GpuError> {
        let waited = wait_for(&self.device, submission);
        self.check()?;
        waited.map_err(|e| pending::not_polled(&e))
    }

    /// [`map_read_async`](Self::map_read_async), waited for. Every decoded token comes back this way, so there is no future.
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
}

impl Recording {
    waits! {
        pub fn new(gpu: &Gpu, step: &Step) -> Result<Self, GpuError> = Self::new_async(gpu, step);

        pub fn had_work(&self, gpu: &Gpu, dispatch: usize) -> Result<bool, GpuError> = self.had_work_async(gpu, dispatch);
    }
}

impl Loader<'_> {
    /// [`places`](Self::places), [filled](Self::fill_async) and waited for.
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
    waits! {
        pub fn new(gpu: &Gpu, count: usize) -> Result<Self, GpuError> = Self::new_async(gpu, count);

        pub fn empty_pass(gpu: &Gpu) -> Result<f64, GpuError> = Self::empty_pass_async(gpu);

        pub fn read(&self, gpu: &Gpu, count: usize) -> Result<Vec<f64>, GpuError> = self.read_async(gpu, count);
    }
}
