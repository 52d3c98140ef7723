//! Waiting for steps of several sequences, for native builds.

use super::{BatchFlight, BatchLanding, BatchStep, BatchToken, GpuBatch};
use crate::engine::gpu::GpuModel;
use crate::gpu::GpuError;
use crate::gpu::call::State;
use crate::gpu::record::Recording;
use crate::gpu::wait::waits;
use crate::models::BatchSizes;
use std::sync::Arc;

impl GpuBatch {
    waits! {
        pub fn new(model: Arc<GpuModel>, sizes: BatchSizes) -> Result<Self, GpuError> =
            Self::new_async(model, sizes);

        pub fn prepare(&mut self, tokens: usize, drawn: usize) -> Result<(), GpuError> =
            self.prepare_async(tokens, drawn);

        pub(super) fn ready(&mut self, tokens: &[BatchToken]) -> Result<Vec<(&Recording, State)>, GpuError> =
            self.ready_async(tokens);

        pub fn submit(&mut self, step: BatchStep<'_>) -> Result<BatchFlight, GpuError> =
            self.submit_async(step);

        pub fn land(&mut self, flight: BatchFlight) -> Result<BatchLanding, GpuError> =
            self.land_async(flight);
    }
}
