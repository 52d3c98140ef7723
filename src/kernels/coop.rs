//! What the kernels by cooperative matrices share: their module of matrix types, and the trial that lets a device use them.

use crate::gpu::call::{Call, State};
use crate::gpu::clock;
use crate::gpu::record::Recording;
use crate::gpu::{Gpu, GpuError};
use crate::gpu::{Most, Step};
use wgpu::DeviceType;

/// The shared module with the matrices of so many rows.
pub(super) fn module(size: usize) -> &'static str {
    if size == 16 { "coop16" } else { "coop8" }
}

/// Whether the NMSE that a `trial` of `what` found is within `limit`. wgpu calls such matrices experimental: a device that fails
/// is named in the log and does without.
///
/// # Errors
/// What the device reported, unless it refused the shader.
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

/// What `trial` finds of `what` on a device, which it is asked once: sessions begin often.
///
/// # Errors
/// Those of `trial`.
pub(super) async fn once(
    gpu: &Gpu,
    what: &str,
    trial: impl AsyncFnOnce() -> Result<bool, GpuError>,
) -> Result<bool, GpuError> {
    let trials = || gpu.trials.lock().unwrap_or_else(|e| e.into_inner());
    let known = trials().get(what).copied();
    if let Some(found) = known {
        return Ok(found);
    }
    let found = trial().await?;
    trials().insert(what.to_owned(), found);
    Ok(found)
}

/// Rounds in which a form by matrices and the other one are timed, after one that does not count.
const ROUNDS: usize = 5;

/// Whether `what` is not slower by matrices than in floats on the device: `steps` are the dispatches of a problem of some size by matrices
/// and in floats, whose inputs may be zeros. Some devices have matrices that are slower (Arc A770): such a one is named in the log and
/// does without. On software, which emulates them for the tests' sake, nothing is timed.
///
/// # Errors
/// What the device reports.
pub(super) async fn faster(
    gpu: &Gpu,
    what: &str,
    steps: [&[Call]; 2],
    state: &State,
) -> Result<bool, GpuError> {
    if gpu.info.device_type == DeviceType::Cpu {
        return Ok(true);
    }
    let slower = slower(times(gpu, steps, state).await?);
    if let Some(reason) = &slower {
        left(gpu, what, reason);
    }
    Ok(slower.is_none())
}

/// Microseconds of each of `steps`, the least of several rounds.
///
/// # Errors
/// What the device reports.
pub(super) async fn times(
    gpu: &Gpu,
    steps: [&[Call]; 2],
    state: &State,
) -> Result<[f64; 2], GpuError> {
    let steps = steps.map(|calls| Step::of(Most::of(state), calls.iter().cloned()));
    let matrices = Recording::new_async(gpu, &steps[0]).await?;
    let floats = Recording::new_async(gpu, &steps[1]).await?;
    let steps = [&matrices, &floats];
    clock::in_turn_async(gpu, &steps, state, 1).await?;
    let times = clock::in_turn_async(gpu, &steps, state, ROUNDS).await?;
    let least = |us: &Vec<f64>| us.iter().copied().fold(f64::INFINITY, f64::min);
    Ok([least(&times[0]), least(&times[1])])
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
