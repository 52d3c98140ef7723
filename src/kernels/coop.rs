//! What the kernels by cooperative matrices share: their module of matrix types, and the trial that lets a device use them.

use crate::gpu::{Coop, Gpu, GpuError};

/// What llvmpipe has, which takes a subgroup's barrier for the workgroup's.
pub(super) const LLVMPIPE: Coop = Coop { size: 8, lanes: 8 };

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

/// Tells that `what` takes another form on a device with cooperative matrices, and why.
pub(super) fn left(gpu: &Gpu, what: &str, reason: &str) {
    log::warn!(
        "{}: not using cooperative matrices for {what}: {reason}",
        gpu.info.name
    );
}
