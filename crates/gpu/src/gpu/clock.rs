//! How long recorded steps take: by the GPU's timestamps, or where it has none or they are wrong by the host's clock over repeated
//! work.

use super::call::State;
use super::record::Recording;
use super::stamps::{Stamping, Stamps};
use super::{Gpu, GpuError};
use web_time::{Duration, Instant};
use wgpu::{CommandEncoder, Features};

/// Replays that are submitted before the host waits: what keeps the GPU busy without piling up.
const AT_ONCE: usize = 64;
/// Work of a submission that the host times at least: submitting and waiting take some 50 us beside it.
const LEAST: Duration = Duration::from_millis(4);
/// The most replays in such a submission.
const MOST_REPEATS: usize = 1024;

/// The clock that tells times on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// The GPU's timestamps.
    Gpu,
    /// The host's clock, over repeated work: the GPU has no timestamps, or they were noticed to be wrong.
    Host,
}

impl Clock {
    /// The clock's name in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Host => "host",
        }
    }

    /// The clock that `gpu` is measured by now. Wrong timestamps are noticed when they are read, so after a measurement this is the
    /// clock that it used.
    pub fn of(gpu: &Gpu) -> Self {
        let has = gpu.features.contains(Features::TIMESTAMP_QUERY);
        if has && gpu.lying_clock.get().is_none() {
            Self::Gpu
        } else {
            Self::Host
        }
    }
}

/// Microseconds of each of `steps` for its state, replayed in turn `rounds` times: (steps, rounds).
///
/// # Errors
/// The error that the device reports. Timestamps that are missing or wrong are none: then the host's clock tells the times ([`Clock::of`]).
pub async fn in_turn(
    gpu: &Gpu,
    steps: &[(&Recording, &State)],
    rounds: usize,
) -> Result<Vec<Vec<f64>>, GpuError> {
    match by_stamps(gpu, steps, rounds).await {
        Err(error) if error.is_of_clock() => by_host(gpu, steps, rounds).await,
        told => told,
    }
}

async fn by_stamps(
    gpu: &Gpu,
    steps: &[(&Recording, &State)],
    rounds: usize,
) -> Result<Vec<Vec<f64>>, GpuError> {
    let count = steps.len() * rounds;
    let stamps = Stamps::new(gpu, 2 * count).await?;
    for i in 0..count {
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let stamping = Stamping::Ends(&stamps, 2 * i);
        let (step, state) = steps[i % steps.len()];
        step.encode_stamped(gpu, &mut encoder, state, stamping);
        gpu.queue.submit([encoder.finish()]);
        if i % AT_ONCE == AT_ONCE - 1 {
            gpu.done().await?;
        }
    }
    let times = stamps.read(gpu, 2 * count).await?;
    let spans: Vec<_> = times.chunks_exact(2).map(|t| (t[1] - t[0]) / 1e3).collect();
    let of = |step| spans.iter().skip(step).step_by(steps.len()).copied();
    Ok((0..steps.len()).map(|step| of(step).collect()).collect())
}

async fn by_host(
    gpu: &Gpu,
    steps: &[(&Recording, &State)],
    rounds: usize,
) -> Result<Vec<Vec<f64>>, GpuError> {
    let mut counts = vec![];
    for (step, state) in steps {
        counts.push(repeats(gpu, &mut times_of(gpu, step, state)).await?);
    }
    let mut times = vec![vec![]; steps.len()];
    for _ in 0..rounds {
        for (((step, state), count), times) in steps.iter().zip(&counts).zip(&mut times) {
            let encode = &mut times_of(gpu, step, state);
            let time = repeated(gpu, encode, *count).await?;
            times.push(time.as_secs_f64() * 1e6);
        }
    }
    Ok(times)
}

/// Encodes a step as many times as it is told.
fn times_of<'a>(
    gpu: &'a Gpu,
    step: &'a Recording,
    state: &'a State,
) -> impl FnMut(&mut CommandEncoder, usize) + use<'a> {
    move |encoder, times| (0..times).for_each(|_| step.encode(gpu, encoder, state))
}

/// Encodes some work as many times as it is told.
pub(crate) type Encode<'a> = dyn FnMut(&mut CommandEncoder, usize) + Send + 'a;

/// Repeats of what `encode` encodes that are worth timing by the host's clock.
pub async fn repeats(gpu: &Gpu, encode: &mut Encode<'_>) -> Result<usize, GpuError> {
    let mut repeats = 1;
    while repeats < MOST_REPEATS && repeated(gpu, encode, repeats).await? * (repeats as u32) < LEAST
    {
        repeats *= 2;
    }
    Ok(repeats)
}

/// The time of one of `repeats` times what `encode` encodes, in one submission.
pub async fn repeated(
    gpu: &Gpu,
    encode: &mut Encode<'_>,
    repeats: usize,
) -> Result<Duration, GpuError> {
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    encode(&mut encoder, repeats);
    let commands = encoder.finish();
    gpu.done().await?;
    let began = Instant::now();
    gpu.queue.submit([commands]);
    gpu.done().await?;
    Ok(began.elapsed() / repeats as u32)
}
