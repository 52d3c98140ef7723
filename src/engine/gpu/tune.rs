//! What `tune` asks of the backend: steps recorded with the choices of the moment, and their times.

use super::{GpuBackend, single_step};
use crate::gpu::GpuError;
use crate::gpu::record::{Op, Recording};
use crate::gpu::stamps::{Stamping, Stamps};

/// Replays that are submitted before the host waits: what keeps the GPU busy without piling up.
const AT_ONCE: usize = 64;

impl GpuBackend {
    /// The dispatches of a token up to its logits, with the choices made now.
    ///
    /// # Errors
    /// What recording refuses.
    pub fn step_ops(&self) -> Result<Vec<Op>, GpuError> {
        single_step(&self.model, &self.context, &self.logits)
    }

    /// Slices that the attention of the token at `pos` is cut into.
    pub fn slices(&self, pos: usize) -> u32 {
        self.state(pos, 1).splits
    }

    /// Microseconds on the GPU of each of `steps` for the token at `pos`, replayed in turn `rounds` times: (steps, rounds).
    ///
    /// # Errors
    /// [`GpuError::NoTimestamps`], or what the device reports.
    pub fn time_in_turn(
        &self,
        steps: &[&Recording],
        pos: usize,
        rounds: usize,
    ) -> Result<Vec<Vec<f64>>, GpuError> {
        let gpu = self.gpu();
        let count = steps.len() * rounds;
        let stamps = Stamps::new(gpu, 2 * count)?;
        let state = self.state(pos, 1);
        for i in 0..count {
            let mut encoder = gpu.device.create_command_encoder(&Default::default());
            let stamping = Stamping::Ends(&stamps, 2 * i);
            steps[i % steps.len()].encode_stamped(gpu, &mut encoder, &state, stamping);
            let submission = gpu.queue.submit([encoder.finish()]);
            if i % AT_ONCE == AT_ONCE - 1 {
                gpu.wait(Some(submission))?;
            }
        }
        let times = stamps.read(gpu, 2 * count)?;
        let spans: Vec<_> = times.chunks_exact(2).map(|t| (t[1] - t[0]) / 1e3).collect();
        let of = |step| spans.iter().skip(step).step_by(steps.len()).copied();
        Ok((0..steps.len()).map(|step| of(step).collect()).collect())
    }
}
