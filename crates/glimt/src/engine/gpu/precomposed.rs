//! The choices of `--precompose`, and the outcome.

use crate::model::pairs::Pair;
use std::fmt::Write;

/// `auto` keeps no products whose logits are further off than this: one token that takes another expert gives 1e-3.
const MAX_NMSE: f64 = 5e-3;
/// `auto` keeps none that are not faster by this than what takes less memory: repeated measurements stray as much.
const LEAST_GAIN: f64 = 0.01;

named! {
    /// The choices of `--precompose`.
    #[derive(Default)]
    pub enum PrecomposeChoice {
        /// Measure on this device and this model, and keep what is faster.
        Auto = "auto",
        /// No pair.
        #[default]
        Off = "off",
        /// [`Pair::Qk`].
        Qk = "qk",
        /// [`Pair::Vo`].
        Vo = "vo",
        /// Both pairs.
        Both = "both",
    }
}
use PrecomposeChoice::{Auto, Both, Off, Qk, Vo};

impl PrecomposeChoice {
    /// The pairs that it multiplies, of `Auto` those that it tries.
    pub(super) fn pairs(self) -> &'static [Pair] {
        match self {
            Off => &[],
            Qk => &[Pair::Qk],
            Vo => &[Pair::Vo],
            Both | Auto => &Pair::ALL,
        }
    }
}

impl std::str::FromStr for PrecomposeChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::named(text)
            .ok_or_else(|| format!("unknown choice '{text}', expected auto, qk, vo, both or off"))
    }
}

/// The outcome of `--precompose`.
#[derive(Debug, Clone)]
pub struct Precomposed {
    /// The choice that decoding follows.
    pub kept: PrecomposeChoice,
    /// A line with the choice, its bytes beside the weights of the file, and the times and errors of all that was tried.
    pub line: String,
}

/// A choice that was tried: milliseconds of a token, and the error of its logits relative to those of `off`. The error of random weights is
/// unknown, because their products are random too.
pub(super) struct Trial {
    pub choice: PrecomposeChoice,
    pub ms: f64,
    pub nmse: Option<f64>,
}

/// The choice that `auto` keeps: the fastest of those near enough, unless less memory is as fast.
pub(super) fn fastest(trials: &[Trial]) -> PrecomposeChoice {
    let is_near = |trial: &&Trial| trial.nmse.is_none_or(|nmse| nmse <= MAX_NMSE);
    let near = trials.iter().filter(is_near);
    let best = near.reduce(
        |best, trial| match trial.ms < best.ms * (1.0 - LEAST_GAIN) {
            true => trial,
            false => best,
        },
    );
    best.map_or(Off, |trial| trial.choice)
}

/// The line of an outcome.
pub(super) fn line(kept: PrecomposeChoice, bytes: u64, trials: &[Trial]) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    let mut line =
        format!("precompose: {kept}, {mib:.1} MiB more; ms per token (NMSE of the logits):");
    for Trial { choice, ms, nmse } in trials {
        let nmse = nmse.map_or("unknown".to_owned(), |nmse| format!("{nmse:.1e}"));
        let _ = write!(line, " {choice} {ms:.3} ({nmse})");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_is_kept_and_told_if_it_is_worth_its_memory_and_right() {
        for (ms, last, expected) in [
            ([2.0, 1.8, 1.9, 1.7], 1e-5, Both),
            ([2.0, 1.99, 1.99, 1.985], 1e-5, Off),
            ([2.0, 1.8, 1.79, 1.4], f64::NAN, Qk),
            ([2.0, 1.8, 1.79, 1.4], 6e-3, Qk),
        ] {
            let nmse = [0.0, 1e-5, 1e-5, last].map(Some);
            let trials = [0, 1, 2, 3].map(|i| Trial {
                choice: [Off, Qk, Vo, Both][i],
                ms: ms[i],
                nmse: nmse[i],
            });
            assert_eq!(fastest(&trials), expected, "{ms:?}");
            let told = line(expected, 3 << 19, &trials[..2]);
            let begin = format!("precompose: {expected}, 1.5 MiB more; ms per token (NMSE of the ");
            assert!(told.starts_with(&begin), "{told}");
            assert!(told.contains("off 2.000 (0.0e0) qk 1."), "{told}");
        }
    }
}
