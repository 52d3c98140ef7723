//! The common parts of kernels by cooperative matrices: their module of matrix types, and the trial that lets a device use them.

use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, State};
use crate::gpu::record::Recording;
use crate::gpu::{Gpu, GpuError, Most, Step, clock};
use std::pin::Pin;
use wgpu::DeviceType;

/// The shared module with matrices of `size` rows.
pub(super) fn module(size: usize) -> &'static str {
    if size == 16 { "coop16" } else { "coop8" }
}

/// Whether the NMSE that a `trial` of `what` found is within `limit`. wgpu calls such matrices experimental: a device that fails
/// is named in the log and does without.
pub(super) fn agrees(
    gpu: &Gpu,
    what: &str,
    limit: f64,
    trial: Result<f64, GpuError>,
) -> Result<bool, GpuError> {
    let reason = match trial {
        Ok(error) if error <= limit => return Ok(true),
        Ok(error) => format!("an NMSE of {error:.1e}, limit {limit:.0e}"),
        Err(e @ GpuError::Shader { .. }) => e.to_string(),
        Err(e) => return Err(e),
    };
    left(gpu, what, &reason);
    Ok(false)
}

/// The future verdict of a trial.
pub(super) type Verdict<'a> = Pin<Box<dyn Future<Output = Result<bool, GpuError>> + Send + 'a>>;

/// The verdict of `trial` on `what`, which runs once for a device, since sessions begin often.
pub(super) async fn once(
    gpu: &Gpu,
    what: &str,
    trial: impl Future<Output = Result<bool, GpuError>>,
) -> Result<bool, GpuError> {
    let trials = || gpu.trials.lock().unwrap_or_else(|e| e.into_inner());
    let known = trials().get(what).copied();
    if let Some(found) = known {
        return Ok(found);
    }
    let found = trial.await?;
    trials().insert(what.to_owned(), found);
    Ok(found)
}

/// Rounds in which a form by matrices and the other one are timed, after one that does not count.
const ROUNDS: usize = 5;

/// A problem that a device computes twice, by matrices and in floats. Nothing of it is made before it is recorded.
pub(super) struct Trial<F> {
    /// The words of its replays.
    pub state: State,
    /// Values that it results in, f32.
    pub values: usize,
    /// The problem's dispatches, by matrices or not. The range is where they leave the results.
    pub calls: F,
}

impl<F: Fn(bool, &Range) -> Vec<Call>> Trial<F> {
    /// The NMSE of the results by matrices against those in floats.
    pub async fn nmse(&self, gpu: &Gpu) -> Result<f64, GpuError> {
        let recorded = self.recorded(gpu).await?;
        let mut found: Vec<Vec<f32>> = vec![];
        for (way, Range { buffer, size, .. }) in recorded.ways.iter().zip(&recorded.results) {
            way.submit(gpu, &self.state);
            found.push(gpu.read(buffer, 0, *size).await?);
        }
        let squares = |values: &[f32]| values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        let [matrices, floats] = [&found[0], &found[1]];
        let errors: Vec<_> = floats.iter().zip(matrices).map(|(a, b)| a - b).collect();
        Ok(squares(&errors) / squares(floats))
    }

    /// Whether `what` is not slower by matrices than in floats. Some devices have matrices that are slower (Arc A770): such a one is named
    /// in the log and does without. On software, which emulates them for the tests' sake, nothing is timed.
    pub async fn is_faster(&self, gpu: &Gpu, what: &str) -> Result<bool, GpuError> {
        if gpu.info.device_type == DeviceType::Cpu {
            return Ok(true);
        }
        let slower = slower(self.times(gpu).await?);
        if let Some(reason) = &slower {
            left(gpu, what, reason);
        }
        Ok(slower.is_none())
    }

    /// Microseconds by matrices and in floats, the least of several rounds.
    pub async fn times(&self, gpu: &Gpu) -> Result<[f64; 2], GpuError> {
        let recorded = self.recorded(gpu).await?;
        let ways = recorded.ways.iter().map(|way| (way, &self.state));
        let ways: Vec<_> = ways.collect();
        clock::in_turn(gpu, &ways, 1).await?;
        let times = clock::in_turn(gpu, &ways, ROUNDS).await?;
        let least = |us: &Vec<f64>| us.iter().copied().fold(f64::INFINITY, f64::min);
        Ok([least(&times[0]), least(&times[1])])
    }

    /// The problem's dispatches as recordings.
    async fn recorded<'g>(&self, gpu: &'g Gpu) -> Result<Recorded<'g>, GpuError> {
        let results = ["matrices", "floats"].map(|way| Range::floats(way, self.values as u64));
        let step = |i: usize| Step::of(Most::of(&self.state), (self.calls)(i == 0, &results[i]));
        let steps = [step(0), step(1)];
        let mut recorded = Recorded {
            gpu,
            steps,
            results,
            ways: vec![],
        };
        for i in 0..2 {
            let way = Recording::new(gpu, &recorded.steps[i]).await?;
            recorded.ways.push(way);
        }
        Ok(recorded)
    }
}

/// The recordings of both ways, by matrices first. Dropping the trial frees their buffers.
struct Recorded<'g> {
    gpu: &'g Gpu,
    steps: [Step; 2],
    results: [Range; 2],
    ways: Vec<Recording>,
}

impl Drop for Recorded<'_> {
    fn drop(&mut self) {
        for buffer in self.steps[0].then(&self.steps[1].calls).buffers() {
            self.gpu.release(buffer);
        }
    }
}

/// A maker of a number of values between minus and plus a scale, always the same (the linear congruence of Numerical Recipes).
pub(super) fn made_up() -> impl FnMut(usize, f32) -> Vec<f32> {
    let mut state = 1u32;
    move |n, scale| {
        let mut value = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..n).map(|_| value() * scale).collect()
    }
}

/// Why matrices are left, if they take longer than floats.
fn slower([matrices, floats]: [f64; 2]) -> Option<String> {
    (matrices > floats).then(|| {
        format!("they are slower than floats, {matrices:.0} us where these take {floats:.0}")
    })
}

/// Tells that `what` takes another form on a device with cooperative matrices, and why.
pub(super) fn left(gpu: &Gpu, what: &str, reason: &str) {
    log::warn!(
        "{}: not using cooperative matrices for {what}: {reason}",
        gpu.info.name
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_that_are_slower_than_floats_are_left() {
        assert_eq!(slower([10.0, 40.0]), None);
        assert_eq!(slower([40.0, 40.0]), None);
        let reason = slower([41.0, 40.0]).expect("they are slower");
        assert!(
            reason.contains("41 us") && reason.contains("40"),
            "{reason}"
        );
    }
}
