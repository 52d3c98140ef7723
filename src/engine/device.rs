//! What a model runs on, as the options ask for it.

use std::sync::Arc;

use super::{EngineError, EngineOptions, PrecomposeChoice};
use crate::gpu::{DeviceChoice, Gpu, GpuError, GpuOptions};

/// What a model runs on.
pub(super) enum Device {
    /// The CPU reference, and why it was taken if it was not asked for.
    Cpu { because: Option<GpuError> },
    /// A GPU.
    Gpu(Arc<Gpu>),
}

/// Refuses what only GPU kernels can do.
pub(crate) fn check_cpu(
    options: &GpuOptions,
    precompose: Option<PrecomposeChoice>,
) -> Result<(), EngineError> {
    let flags = [
        (options.no_matrices, "--no-matrices"),
        (options.serial_passes.is_some(), "--serial-passes"),
        (options.packed_halves.is_some(), "--packed-halves"),
    ];
    let flag = flags.into_iter().find(|(given, _)| *given);
    let composing = precompose.filter(|choice| *choice != PrecomposeChoice::Off);
    Err(match (options.tier, composing, flag) {
        (None, None, None) => return Ok(()),
        (Some(tier), ..) => EngineError::TierWithoutGpu { tier: tier.name() },
        (None, Some(choice), _) => EngineError::PrecomposeWithoutGpu {
            choice: choice.name(),
        },
        (None, None, Some((_, flag))) => EngineError::FlagWithoutGpu { flag },
    })
}

impl Device {
    /// The device that `options` mean.
    pub(super) async fn open(options: &EngineOptions) -> Result<Self, EngineError> {
        let suits_cpu = check_cpu(&options.gpu, options.precompose);
        if options.gpu.device == DeviceChoice::Cpu {
            return suits_cpu.map(|()| Self::Cpu { because: None });
        }
        let wanted = GpuOptions {
            // Flags for GPU kernels ask for some adapter, even if it is software.
            hardware: suits_cpu.is_ok(),
            tuned: true,
            ..options.gpu.clone()
        };
        match Gpu::open_async(&wanted).await {
            Ok(gpu) => Ok(Self::Gpu(Arc::new(gpu))),
            Err(no_gpu)
                if no_gpu.is_no_gpu()
                    && wanted.device == DeviceChoice::Auto
                    && suits_cpu.is_ok() =>
            {
                Ok(Self::Cpu {
                    because: Some(no_gpu),
                })
            }
            Err(error) => Err(error.into()),
        }
    }
}
