//! The device's tuned numbers, measured: each halved and doubled, where a decoded token's step then is another one.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{Bench, FoundNumber, MARGIN, ROUNDS};
use crate::gpu::machine::Tunables;
use crate::gpu::pipeline::Spec;
use crate::gpu::record::Recording;
use crate::gpu::wait::Wait;
use crate::gpu::{GpuError, Step, Target};

/// A device with another value of a number, and the step of a token that this makes.
struct Candidate {
    value: u32,
    target: Target,
    step: Recording,
}

impl Bench {
    /// Measures each number in turn, with the choices made before and the numbers found so far, until `time` is over.
    pub(super) fn numbers(&self, time: Duration) -> Result<Vec<FoundNumber>, GpuError> {
        let began = Instant::now();
        let mut target = Target::clone(&self.gpu);
        let mut found = vec![];
        for (name, default) in target.machine.tuned.by_name() {
            if began.elapsed() >= time {
                break;
            }
            let others = self.others(&target, &name, default)?;
            if others.is_empty() {
                continue;
            }
            let step = Recording::new(&self.gpu, &self.backend.token_step_for(&target)?).wait()?;
            let steps = [&step].into_iter().chain(others.iter().map(|c| &c.step));
            let steps: Vec<_> = steps.collect();
            let mut times = self.medians(&steps, self.depth, ROUNDS)?.into_iter();
            let default_us = times.next().expect("of the default");
            let best = times.zip(others).min_by(|a, b| a.0.total_cmp(&b.0));
            let (best_us, best) = best.expect("one other at least");
            let faster = best_us < default_us * (1.0 - MARGIN);
            found.push(FoundNumber {
                name,
                default,
                chosen: if faster { best.value } else { default },
                default_us,
                chosen_us: if faster { best_us } else { default_us },
            });
            if faster {
                target = best.target;
            }
        }
        Ok(found)
    }

    /// The device with half and with twice the number, where it may be that and the step is another one.
    fn others(
        &self,
        target: &Target,
        name: &str,
        default: u32,
    ) -> Result<Vec<Candidate>, GpuError> {
        let specs = |step: &Step| -> Result<Vec<Spec>, GpuError> {
            Ok(step.resolve()?.into_iter().map(|call| call.spec).collect())
        };
        let usual = specs(&self.backend.token_step_for(target)?)?;
        let mut others = vec![];
        for value in [default / 2, default * 2] {
            let values = BTreeMap::from([(name.to_owned(), value)]);
            let Ok(tuned) = target.machine.tuned.with(&values) else {
                continue;
            };
            let target = with(target, tuned);
            // A value by which the kernels' limits allow no step is none to choose.
            let Ok(step) = self.backend.token_step_for(&target) else {
                continue;
            };
            if specs(&step)? != usual {
                others.push(Candidate {
                    value,
                    step: Recording::new(&self.gpu, &step).wait()?,
                    target,
                });
            }
        }
        Ok(others)
    }
}

/// A copy of the device with other numbers.
pub(super) fn with(target: &Target, tuned: Tunables) -> Target {
    let mut target = target.clone();
    target.machine.tuned = tuned;
    target
}
