//! The device of a model, as the options ask for it.

use std::sync::Arc;

use super::share::CpuShare;
use super::{EngineError, EngineOptions, PrecomposeChoice};
use crate::gpu::behind::ExpertsFrom;
use crate::gpu::{self, AdapterSummary, DeviceChoice, Gpu, GpuError, GpuOptions};

/// The device that a model runs on.
pub(super) enum Device {
    /// The CPU reference, and why it was taken if it was not asked for.
    Cpu { because: Option<GpuError> },
    /// A GPU.
    Gpu(Arc<Gpu>),
}

/// The first flag for something that only GPU kernels can do.
fn gpu_flag(options: &GpuOptions, precompose: PrecomposeChoice) -> Option<&'static str> {
    let flags = [
        (options.tier.is_some(), "--tier"),
        (precompose != PrecomposeChoice::Off, "--precompose"),
        (options.no_matrices, "--no-matrices"),
        (options.serial_passes.is_some(), "--serial-passes"),
        (options.packed_halves.is_some(), "--packed-halves"),
        (options.checked, "--checked"),
    ];
    let given = flags.into_iter().find(|(given, _)| *given);
    given.map(|(_, flag)| flag)
}

/// The first flag about what of a model lies in the memory of a GPU.
fn memory_flag(options: &GpuOptions) -> Option<&'static str> {
    let flags = [
        (options.max_memory.is_some(), "--gpu-memory"),
        (options.experts != ExpertsFrom::Auto, "--experts"),
    ];
    let given = flags.into_iter().find(|(given, _)| *given);
    given.map(|(_, flag)| flag)
}

/// Refuses what only a GPU can do.
///
/// # Errors
/// The error that names the first flag for a GPU.
pub fn check_cpu(options: &GpuOptions, precompose: PrecomposeChoice) -> Result<(), EngineError> {
    check_kernels(options, precompose)?;
    match memory_flag(options) {
        Some(flag) => Err(EngineError::MemoryWithoutGpu { flag }),
        None => Ok(()),
    }
}

/// Refuses what only GPU kernels can do.
fn check_kernels(options: &GpuOptions, precompose: PrecomposeChoice) -> Result<(), EngineError> {
    let Some(flag) = gpu_flag(options, precompose) else {
        return Ok(());
    };
    Err(match options.tier {
        Some(tier) => EngineError::TierWithoutGpu { tier: tier.name() },
        None => EngineError::FlagWithoutGpu { flag },
    })
}

/// The GPU that `options` ask for; `None` is the CPU reference.
fn wanted(options: &EngineOptions) -> Result<Option<GpuOptions>, EngineError> {
    if options.gpu.device == DeviceChoice::Cpu {
        check_cpu(&options.gpu, options.precompose)?;
        return match options.cpu_share {
            CpuShare::Off | CpuShare::Auto => Ok(None),
            CpuShare::Experts(_) => Err(EngineError::MemoryWithoutGpu {
                flag: "--cpu-share",
            }),
        };
    }
    let suits_cpu = check_kernels(&options.gpu, options.precompose);
    Ok(Some(GpuOptions {
        // Flags for GPU kernels ask for some adapter, even if it is software.
        hardware: suits_cpu.is_ok(),
        tuned: true,
        ..options.gpu.clone()
    }))
}

/// Why the CPU reference is taken instead of what is wanted, or why that is an error.
fn instead(options: &EngineOptions, error: GpuError) -> Result<GpuError, EngineError> {
    let is_auto = options.gpu.device == DeviceChoice::Auto;
    let flag = gpu_flag(&options.gpu, options.precompose);
    match flag.or_else(|| memory_flag(&options.gpu)) {
        None if is_auto && error.is_no_gpu() => Ok(error),
        Some(flag) if error.advises_cpu() => Err(EngineError::NoGpuForFlag {
            flag,
            error: Box::new(error),
        }),
        _ => Err(error.into()),
    }
}

/// The adapter on which a model would run, unopened; `None` is the CPU reference.
///
/// # Errors
/// The errors of opening a model with these options, as far as they concern the device.
pub async fn adapter(options: &EngineOptions) -> Result<Option<AdapterSummary>, EngineError> {
    let Some(wanted) = wanted(options)? else {
        return Ok(None);
    };
    match gpu::chosen(&wanted.device, wanted.hardware).await {
        Ok(adapter) => Ok(Some(adapter)),
        Err(error) => instead(options, error).map(|_| None),
    }
}

impl Device {
    /// The device that `options` mean.
    pub(super) async fn open(options: &EngineOptions) -> Result<Self, EngineError> {
        let Some(wanted) = wanted(options)? else {
            return Ok(Self::Cpu { because: None });
        };
        match Gpu::open(&wanted).await {
            Ok(gpu) => Ok(Self::Gpu(Arc::new(gpu))),
            Err(error) => instead(options, error).map(|because| Self::Cpu {
                because: Some(because),
            }),
        }
    }
}
