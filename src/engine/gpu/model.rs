//! A model on a device.

use super::random;
use crate::gpu::{Gpu, GpuError, tuning};
use crate::models::{Model, Placed, Weights};
use std::sync::Arc;
pub use tier_trial::TierTrial;

mod tier_trial;

/// A model whose weights are on `gpu`, shared by every session.
pub struct GpuModel {
    /// The device, in the tier that the model decodes in.
    pub gpu: Arc<Gpu>,
    /// The model in the file: its configuration and names.
    pub model: Arc<dyn Model>,
    /// Its weights.
    pub(super) weights: Arc<dyn Weights>,
    /// What was measured while loading to choose the tier; `None` where one was asked for or kept, or the device has no choice.
    pub tier_trial: Option<TierTrial>,
}

impl GpuModel {
    /// Uploads every weight, telling `progress` the bytes done and the bytes in all. The weights of a model without a
    /// file ([`crate::synth::without_matrices`]) are made on the device.
    ///
    /// On a device whose tier was not asked for, the tier is chosen then: the one kept for this device and such a model, else by
    /// measuring, where the device [may run](crate::gpu::Tier::may_be_measured) more than one. So the model's
    /// [`gpu`](Self::gpu) can be in another tier than the one passed.
    ///
    /// # Errors
    /// [`GpuError::UnsupportedSize`], [`GpuError::BindingTooLarge`], [`GpuError::OutOfMemory`],
    /// [`GpuError::ReadWeights`] or what the device reports.
    pub async fn load_async(
        gpu: Arc<Gpu>,
        model: Arc<dyn Model>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, GpuError> {
        Self::load_for_async(gpu, model, 1, progress).await
    }

    /// As [`load_async`](Self::load_async), for steps of a token of each of so many sequences: the tier is chosen for these.
    ///
    /// # Errors
    /// Those of [`load_async`](Self::load_async).
    pub async fn load_for_async(
        gpu: Arc<Gpu>,
        model: Arc<dyn Model>,
        sequences: u32,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, GpuError> {
        let Placed {
            weights,
            loader,
            matrices,
        } = model.place(&gpu)?;
        let total = loader.bytes();
        let told = &mut |done| progress(done, total);
        loader.fill_async(&gpu, &matrices, told).await?;
        if !model.has_data() {
            random::fill_weights(&gpu, &matrices, told).await?;
        }
        gpu.realise_async(&weights.vectors().buffer).await?;
        gpu.check()?;
        let mut model = Self {
            weights: weights.into(),
            tier_trial: None,
            model: Arc::clone(&model),
            gpu,
        };
        if model.gpu.tier_is_open {
            let folder = tuning::folder().ok();
            model.settle_tier(sequences, folder.as_deref()).await?;
        }
        Ok(model)
    }
}
