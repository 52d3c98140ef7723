//! How fast a token should be decoded on a device, computed from its plan.
//!
//! A token takes the time of its waits, and that of reading its bytes or of its arithmetic, whichever is longer:
//!
//! `seconds = waits * (wait + fill) + max(bytes / memory speed, multiplications * steps / lane operations a second)`
//!
//! `wait` is what a dispatch costs that waits for another ([`Machine::wait_ns`](crate::gpu::machine::Machine::wait_ns)). `fill` is the time
//! until the memory is busy again, and until the last workgroup has ended. `steps` are the operations of a lane for each multiplication of a
//! weight. `fill`, the steps and the lane operations stand with the [machine](crate::gpu::machine), which tells where they come from.
//! `glimt report` holds what a device was measured at against it.

use crate::gpu::machine::{FILL, FLOAT_STEPS, PACKED_STEPS, PLAIN_STEPS};
use crate::gpu::record::works;
use crate::gpu::{GpuError, Target};
use crate::quant::activation::Activation;

use super::Plan;

/// The position of the token: in the middle of the 128 tokens that `glimt bench` generates.
const POSITION: usize = 64;

/// The cost of one decoded token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expected {
    /// Dispatches of the token.
    pub dispatches: usize,
    /// Dispatches that wait for the one before.
    pub waits: usize,
    /// Bytes of weights and cache rows that it reads.
    pub bytes: u64,
    /// Seconds of its waits.
    waiting: f64,
    /// Seconds of its arithmetic.
    computing: f64,
}

impl Expected {
    /// The expected cost of a token of the planned session.
    ///
    /// # Errors
    /// The errors of recording the step.
    pub fn of(target: &Target, plan: &Plan) -> Result<Self, GpuError> {
        let (_, token) = &plan.steps[0];
        let works = works(token, &plan.state(target, POSITION))?;
        let mut levels: Vec<usize> = works.iter().map(|work| work.level).collect();
        levels.dedup();
        let machine = target.machine;
        let waits = match machine.serial_passes {
            true => works.len(),
            false => levels.len(),
        };
        let flops: u64 = works.iter().map(|work| work.flops).sum();
        let steps = match target.activation() {
            Activation::Bytes | Activation::Halves { packed: true } => PACKED_STEPS,
            Activation::Halves { packed: false } => FLOAT_STEPS,
            Activation::Floats => PLAIN_STEPS,
        };
        let lanes = machine.profile.lane_operations() * f64::from(machine.cores) * 1e9;
        Ok(Self {
            dispatches: works.len(),
            waits,
            bytes: works.iter().map(|work| work.bytes).sum(),
            waiting: waits as f64 * (f64::from(machine.wait_ns) * 1e-9 + FILL),
            computing: flops as f64 / 2.0 * steps / lanes,
        })
    }

    /// Tokens per second if the memory gives `gb_per_s` GB per second.
    pub fn tokens_per_s(&self, gb_per_s: f64) -> f64 {
        1.0 / self.seconds(gb_per_s)
    }

    /// The cost of this token with the dispatches and the waits of `other`.
    pub fn with_waits_of(self, other: &Self) -> Self {
        Self {
            dispatches: other.dispatches,
            waits: other.waits,
            waiting: other.waiting,
            ..self
        }
    }

    /// Seconds of a token if the memory gives `gb_per_s` GB per second.
    pub fn seconds(&self, gb_per_s: f64) -> f64 {
        let reading = self.bytes as f64 / (gb_per_s * 1e9);
        self.waiting + reading.max(self.computing)
    }
}

#[cfg(test)]
impl Expected {
    /// A token that reads nothing and waits for so many seconds.
    pub fn of_waiting(waiting: f64) -> Self {
        Self {
            dispatches: 1,
            waits: 1,
            bytes: 0,
            waiting,
            computing: 0.0,
        }
    }
}
