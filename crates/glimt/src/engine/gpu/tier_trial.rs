//! The measurement by which the tier of a model was chosen.

use crate::gpu::Tier;
use crate::gpu::clock::Clock;
use std::fmt;

/// The factor that bytes must be faster by: bytes round, floats do not.
const LEAST_GAIN: f64 = 1.01;

/// The times by which a tier was chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TierTrial {
    /// The choice.
    pub tier: Tier,
    /// Tokens of the step that was timed, one of each sequence.
    pub sequences: u32,
    /// Microseconds of the step in `subgroup` and in `int8`.
    pub us: [f64; 2],
    /// The clock that told them.
    pub clock: Clock,
}

impl TierTrial {
    pub(super) fn of(sequences: u32, us: [f64; 2], clock: Clock) -> Self {
        let tier = match us[0] >= us[1] * LEAST_GAIN {
            true => Tier::Int8,
            false => Tier::Subgroup,
        };
        Self {
            tier,
            sequences,
            us,
            clock,
        }
    }
}

impl fmt::Display for TierTrial {
    /// One line: the choice and its reason.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [subgroup, int8] = self.us.map(|us| us / 1e3);
        let host = match self.clock {
            Clock::Gpu => "",
            Clock::Host => " by the host's clock",
        };
        let step = match self.sequences {
            1 => "a token takes".to_owned(),
            n => format!("a step of {n} tokens takes"),
        };
        write!(
            f,
            "tier: {}, measured{host}: {step} {subgroup:.3} ms in subgroup, {int8:.3} ms in int8",
            self.tier.name()
        )
    }
}
