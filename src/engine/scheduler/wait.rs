//! The work of a scheduler, for native builds: a step waits for the device.

use super::{Scheduler, Told, Work};
use crate::engine::{Engine, EngineError};
use crate::gpu::wait::{complete, waits};

impl<'a> Scheduler<'a> {
    waits! {
        pub fn new(engine: &'a Engine) -> Result<Self, EngineError> = Self::new_async(engine);

        pub fn warm_up(&mut self, told: &mut dyn FnMut(usize, usize)) -> Result<(), EngineError> =
            self.warm_up_async(told);
    }

    /// Does the next piece of work and tells what came of it; without requests nothing. A break for a request cancels it: nothing more
    /// is told of it.
    ///
    /// # Errors
    /// What the device reports where it can compute nothing any more. No request is answered then, and none was told.
    pub fn step(&mut self, told: &mut Told<'_>) -> Result<(), EngineError> {
        match &mut self.work {
            Work::Turns(turns) => turns.step(told),
            Work::Many(many) => complete(many.step(told)),
        }
    }
}
