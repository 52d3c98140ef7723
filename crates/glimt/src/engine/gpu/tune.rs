//! Steps for `tune`, recorded with the choices of the moment, and their times.

use super::GpuBackend;
use crate::gpu::GpuError;
use crate::gpu::clock;
use crate::gpu::record::Recording;
use crate::gpu::wait::Wait;
use crate::gpu::{Step, Target};

impl GpuBackend {
    /// The dispatches of a token up to its logits, with the choices made now.
    pub fn token_step(&self) -> Result<Step, GpuError> {
        self.token_step_for(self.gpu())
    }

    /// The dispatches of a token for a device that differs from this one in its tuned numbers.
    pub fn token_step_for(&self, target: &Target) -> Result<Step, GpuError> {
        let batch = &self.batch;
        batch.recipes.token(target, &batch.logits)
    }

    /// Slices that the attention of the token at `pos` is cut into.
    pub fn slices(&self, pos: usize) -> u32 {
        self.state(pos, 1).slices
    }

    /// Microseconds on the GPU of each of `steps` for the token at `pos`, replayed in turn `rounds` times: (steps, rounds); see
    /// [`clock::in_turn`].
    pub fn time_in_turn(
        &self,
        steps: &[&Recording],
        pos: usize,
        rounds: usize,
    ) -> Result<Vec<Vec<f64>>, GpuError> {
        self.model().distrust_slots();
        let state = self.state(pos, 1);
        let steps: Vec<_> = steps.iter().map(|step| (*step, &state)).collect();
        clock::in_turn(self.gpu(), &steps, rounds).wait()
    }
}
