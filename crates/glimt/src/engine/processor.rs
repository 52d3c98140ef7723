//! The processor of a machine that is planned for: the share of missing experts that should pay, computed and not measured.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use super::share::{Layers, ShareTimes};
use crate::gpu::bus::Bus;

/// Microseconds of an answer of the host to a layer in a whole token. Computed from tokens of an H200 with a share and without one
/// (benches/results/h200-2026-11-27-beyond.txt).
const ANSWER: f64 = 95.0;

/// How fast a processor multiplies experts in its memory, while a bus reads others from there.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Processor {
    /// GB of experts in a second.
    pub gb_per_s: f64,
    /// Whether nothing tells it, so that a usual one is assumed.
    pub assumed: bool,
}

impl Processor {
    /// The processor that is assumed where nothing tells it. It has 8 cores, each as fast as one of 16 that multiplied 32 GB in a second beside an
    /// H200 by PCIe 5 x16. So many fit its tokens with shares of 1 to 4 experts best.
    pub const ASSUMED: Self = Self {
        gb_per_s: 16.0,
        assumed: true,
    };

    /// The times of a layer's experts of so many bytes. The host's answer delays all of a layer, and then the bus and the processor work at once.
    fn times(self, used: usize, bytes: f64, bus: Bus) -> ShareTimes {
        let [of_bus, of_cpu] = [bus.gb_per_s(), self.gb_per_s].map(|speed| bytes / speed / 1e3);
        let of = |misses: usize, own: usize| {
            let [bus, cpu] = [(misses - own) as f64 * of_bus, own as f64 * of_cpu];
            ANSWER + bus.max(cpu)
        };
        ShareTimes {
            by_bus: (0..=used).map(|misses| misses as f64 * of_bus).collect(),
            with_host: (0..=used)
                .map(|misses| (0..=misses).map(|own| of(misses, own)).collect())
                .collect(),
        }
    }

    /// The share of such layers that should be the fastest, if it saves enough of a token that takes `seconds` without one.
    pub(super) fn share(
        self,
        layers: Layers,
        bytes: f64,
        bus: Bus,
        seconds: f64,
    ) -> Option<ComputedShare> {
        let times = self.times(layers.used, bytes, bus);
        let (experts, saves) = layers.best(&times, Some(seconds));
        (experts > 0).then(|| ComputedShare {
            experts: experts as u32,
            tokens_per_s: 1.0 / (seconds * (1.0 - saves)),
            processor: self,
        })
    }
}

impl fmt::Display for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let assumed = if self.assumed { ", assumed" } else { "" };
        write!(f, "{} GB/s{assumed}", self.gb_per_s)
    }
}

impl FromStr for Processor {
    type Err = String;

    /// Reads GB per second, such as `16`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            Ok(gb_per_s) if gb_per_s > 0.0 && gb_per_s < 10_000.0 => Ok(Self {
                gb_per_s,
                assumed: false,
            }),
            _ => Err(format!(
                "expected GB of experts that the CPU multiplies in a second, above 0 and below 10000, such as 16, found {text:?}"
            )),
        }
    }
}

/// A share of missing experts that should pay.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ComputedShare {
    /// Experts of a layer that the CPU multiplies if all of a token's are missing.
    pub experts: u32,
    /// Tokens per second, computed for experts that are chosen evenly.
    pub tokens_per_s: f64,
    /// The speed of the processor.
    pub processor: Processor,
}

impl fmt::Display for ComputedShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            experts,
            tokens_per_s,
            processor,
        } = self;
        let digits = usize::from(*tokens_per_s < 10.0);
        write!(
            f,
            "{tokens_per_s:.digits$} tokens/s, computed, with --cpu-share {experts} and a CPU that multiplies {processor}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GLM: Layers = Layers {
        count: 46,
        slots: 0,
        experts: 64,
        used: 4,
    };
    /// Bytes of an expert of GLM-4.7-Flash in Q4_K_M, on average.
    const EXPERT: f64 = 5.6e6;

    fn bus(text: &str) -> Bus {
        text.parse().expect("it is a bus")
    }

    #[test]
    fn computed_tokens_are_near_those_that_were_measured() {
        let cpu: Processor = "32".parse().expect("it is a speed");
        let times = cpu.times(4, EXPERT, bus("5x16"));
        // An H200 by PCIe 5 x16 (benches/results/h200-2026-11-27-beyond.txt): slots, tokens/s without a share, and with 1 to 4 experts.
        for (slots, without, measured) in [
            (56, 193.1, [104.9, 94.9, 80.1, 75.0]),
            (39, 94.5, [73.2, 68.4, 54.0, 46.2]),
            (24, 64.9, [60.2, 62.5, 45.0, 34.3]),
            (0, 42.8, [47.1, 41.9, 37.4, 24.2]),
        ] {
            let layers = Layers { slots, ..GLM };
            for (measured, share) in measured.into_iter().zip(1..) {
                let more = layers.expected(&times, share) - layers.expected(&times, 0);
                let computed = 1e6 / (1e6 / without + more);
                let ratio: f64 = computed / measured;
                assert!((0.8..1.25).contains(&ratio), "{slots}, {share}: {computed}");
            }
        }
    }

    #[test]
    fn a_share_pays_where_the_bus_is_slow() {
        let share =
            |layers, text, seconds| Processor::ASSUMED.share(layers, EXPERT, bus(text), seconds);
        // 2 of 4 experts over PCIe 3 x8 take 1778 us, of 3556, while the CPU multiplies the others in 700.
        let found = share(Layers { slots: 0, ..GLM }, "3x8", 0.18).expect("it pays");
        assert_eq!(found.experts, 3);
        // One takes the bus 889 us, and three the CPU 1050 beside an answer of 95.
        let saved = 46.0 * (4.0 * 888.6 - 1145.0) * 1e-6;
        let expected = 1.0 / (0.18 - saved);
        assert!(
            (found.tokens_per_s / expected - 1.0).abs() < 0.01,
            "{} for {expected}",
            found.tokens_per_s
        );
        assert!(share(Layers { slots: 22, ..GLM }, "4x8", 0.066).is_some());
        assert_eq!(share(Layers { slots: 22, ..GLM }, "5x16", 0.0154), None);
        assert_eq!(share(Layers { slots: 60, ..GLM }, "4x16", 0.0075), None);
        let told = found.to_string();
        assert!(
            told.ends_with(
                " tokens/s, computed, with --cpu-share 3 and a CPU that multiplies 16 GB/s, assumed"
            ),
            "{told}"
        );
    }

    #[test]
    fn speeds_that_mean_nothing_are_refused() {
        for wrong in ["0", "-1", "fast", "10000", "NaN", ""] {
            let refused = wrong.parse::<Processor>().expect_err(wrong);
            assert!(refused.contains("such as 16"), "{refused}");
        }
    }
}
