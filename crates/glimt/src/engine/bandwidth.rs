//! The speed of plain reads from a device's memory and the cost of waiting for a dispatch, which all GB/s and times are held against.

use crate::gpu::buffer::{Range, Role};
use crate::gpu::call::State;
use crate::gpu::clock;
use crate::gpu::record::Recording;
use crate::gpu::wait::Wait;
use crate::gpu::{Gpu, GpuError};
use crate::gpu::{Most, Step};
use crate::kernels::read;

/// Bytes read: far beyond any cache.
const BYTES: u64 = 1 << 30;
/// Bytes read on a software device, whose memory is slow to read.
const SOFTWARE_BYTES: u64 = 64 << 20;
/// Less is no measurement.
const LEAST: u64 = 16 << 20;
/// Reads with each number of loads, the first of which makes the pages resident.
const READS: usize = 6;

/// Bytes per second of reading a large buffer with 16 bytes per load, the best of several reads. The buffer is 1 GiB, or
/// what the device has room for. Times are the GPU's where it has timestamps that can be true, else the host's.
///
/// # Errors
/// [`GpuError::OutOfMemory`] where not even 16 MiB are free, or what the device reports.
pub fn read_bandwidth(gpu: &Gpu) -> Result<f64, GpuError> {
    let software = gpu.info.device_type == wgpu::DeviceType::Cpu;
    let wanted = if software { SOFTWARE_BYTES } else { BYTES };
    let mut bytes = wanted.min(gpu.max_binding).next_power_of_two();
    if bytes > gpu.max_binding {
        bytes /= 2;
    }
    let buffer = loop {
        match gpu.storage("bandwidth", bytes, Role::Words).wait() {
            Err(GpuError::OutOfMemory { .. }) if bytes > LEAST => bytes /= 2,
            other => break other?,
        }
    };
    let data = Range::whole(&buffer);
    let found = Range::whole(&gpu.storage("found", 16, Role::Words).wait()?);
    let mut best = 0.0f64;
    for at_once in read::AT_ONCE {
        // The buffer is zero: what is sought is not there.
        let call = read::call(&data, &found, at_once, 1);
        let read = call.bytes as f64;
        let recording = Recording::new(gpu, &Step::of(Most::token(1), [call])).wait()?;
        best = best.max(read / fastest(gpu, &recording)?);
    }
    gpu.release(&buffer);
    Ok(best)
}

/// Dispatches of a chain.
const CHAIN: usize = 200;

/// Seconds that a dispatch takes which waits for the one before it and does next to nothing: one workgroup reads 32 KiB. The
/// best of several chains of 200 of them.
pub fn dependent_dispatch(gpu: &Gpu) -> Result<f64, GpuError> {
    let at_once = read::AT_ONCE[0];
    let data = gpu
        .storage("chain", read::tile_bytes(at_once), Role::Words)
        .wait()?;
    let found = gpu.storage("found", 16, Role::Words).wait()?;
    // All write the same word, so each waits. What is sought is not there.
    let call = read::call(&Range::whole(&data), &Range::whole(&found), at_once, 1);
    let recording = Recording::new(gpu, &Step::of(Most::token(1), vec![call; CHAIN])).wait()?;
    let best = fastest(gpu, &recording)?;
    gpu.release(&data);
    Ok(best / CHAIN as f64)
}

/// Seconds of the fastest of several replays.
fn fastest(gpu: &Gpu, recording: &Recording) -> Result<f64, GpuError> {
    let times = clock::in_turn(gpu, &[(recording, &State::default())], READS).wait()?;
    let least = times.into_iter().flatten().fold(f64::INFINITY, f64::min);
    Ok(least / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{GpuOptions, Tier};

    #[test]
    fn a_device_reads_at_a_possible_speed_and_gets_its_memory_back() {
        // A device of its own: other tests allocate on the shared ones.
        let gpu = Gpu::open(&GpuOptions {
            tier: Some(Tier::Plain),
            ..Default::default()
        })
        .wait()
        .unwrap();
        let speed = read_bandwidth(&gpu).unwrap();
        assert!((1e8..1e14).contains(&speed), "{speed} bytes/s");
        let waiting = dependent_dispatch(&gpu).unwrap();
        assert!((1e-8..1e-2).contains(&waiting), "{waiting} s");
        // Results, timestamps and the parameters of a chain remain.
        assert!(gpu.allocated() < 64 << 10, "{}", gpu.allocated());
    }
}
