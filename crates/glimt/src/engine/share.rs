//! The CPU's share of the experts that a decoded token misses on the GPU: what was asked for, and what a loaded model has.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// The least part of a token's time that a share must save to be taken on its own.
pub(super) const WORTH: f64 = 0.05;

/// The share that is asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CpuShare {
    /// None: the GPU reads all missing experts over the bus.
    #[default]
    Off,
    /// The one with which layers are measured to be the fastest while a model is loaded, if tokens are faster by enough with it.
    Auto,
    /// So many of a token's experts of a layer if all of them are missing, and in proportion if fewer are.
    Experts(u32),
}

impl FromStr for CpuShare {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match (text, text.parse()) {
            ("auto", _) => Ok(Self::Auto),
            ("off", _) | (_, Ok(0)) => Ok(Self::Off),
            (_, Ok(experts)) => Ok(Self::Experts(experts)),
            _ => Err(format!(
                "expected auto, off, or how many of a token's experts the CPU multiplies, such as 2, found {text:?}"
            )),
        }
    }
}

/// The microseconds of a layer's missing experts, measured as steps bring and multiply them: beside what computes, one layer after another.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShareTimes {
    /// Of 0 to all of a token's experts, if the bus brings them and nobody waits for the host.
    pub by_bus: Vec<f64>,
    /// Of 0 to all of a token's experts, if the host answers and multiplies 0 to all of these.
    pub with_host: Vec<Vec<f64>>,
}

/// The slots and experts of a layer, by which misses are computed for experts that are chosen evenly.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layers {
    /// Layers with experts.
    pub count: usize,
    /// Slots of a layer.
    pub slots: usize,
    /// Experts of a layer.
    pub experts: usize,
    /// Experts of a token.
    pub used: usize,
}

impl Layers {
    /// The probability that a token misses so many experts of a layer.
    fn probability(self, misses: usize) -> f64 {
        let (slots, experts, used) = (self.slots.min(self.experts), self.experts, self.used);
        let choose = |n: usize, k: usize| match k <= n {
            true => (0..k).map(|i| (n - i) as f64 / (k - i) as f64).product(),
            false => 0.0,
        };
        choose(slots, used - misses) * choose(experts - slots, misses) / choose(experts, used)
    }

    /// The expected microseconds of a token that the experts of all layers take if the CPU multiplies `share` of those of a layer at most; 0 is no share.
    pub fn expected(self, times: &ShareTimes, share: usize) -> f64 {
        let of_layer = |misses: usize| {
            if share == 0 {
                return times.by_bus[misses];
            }
            times.with_host[misses][split(self.used, share)[misses] as usize]
        };
        let all = (0..=self.used).map(|misses| self.probability(misses) * of_layer(misses));
        self.count as f64 * all.sum::<f64>()
    }

    /// The share that is computed to be the fastest, and the part of a token's time that it saves; a token takes `seconds` without it,
    /// if that is known.
    pub fn best(self, times: &ShareTimes, seconds: Option<f64>) -> (usize, f64) {
        let without = self.expected(times, 0);
        let token = without.max(seconds.unwrap_or(0.0) * 1e6);
        let saved = |share: &usize| (without - self.expected(times, *share)) / token;
        // Slots take new experts only over the bus, so that some of the misses must come that way.
        let most = match self.slots >= self.used {
            true => self.used - 1,
            false => self.used,
        };
        let best = (1..=most).max_by(|a, b| saved(a).total_cmp(&saved(b)));
        match best {
            Some(share) if saved(&share) >= WORTH => (share, saved(&share)),
            best => (0, best.as_ref().map_or(0.0, saved)),
        }
    }
}

/// The experts that the CPU has multiplied for tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct HostWork {
    /// Answers to a layer of a token.
    pub answers: u64,
    /// Experts.
    pub experts: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Seconds in which they were multiplied.
    pub seconds: f64,
}

impl HostWork {
    /// The work since it was `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            answers: self.answers.saturating_sub(before.answers),
            experts: self.experts.saturating_sub(before.experts),
            bytes: self.bytes.saturating_sub(before.bytes),
            seconds: self.seconds - before.seconds,
        }
    }
}

/// Of 0 to `used` missing experts the number that the CPU multiplies, which is `share` if all are missing, and in proportion if fewer are. Half an
/// expert is none.
pub(super) fn split(used: usize, share: usize) -> Vec<u32> {
    let of = |misses: usize| (2 * misses * share + used - 1) / (2 * used.max(1));
    (0..=used).map(|misses| of(misses) as u32).collect()
}

/// The share that the CPU of a loaded model has, or why it has none though one was asked for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Share {
    /// Experts of a layer that the CPU multiplies at most; 0 is no share.
    pub experts: u32,
    /// Experts of a layer that a token uses.
    pub used: u32,
    /// The instructions of the CPU.
    pub instructions: &'static str,
    /// What was measured, if the share was chosen by it.
    pub times: Option<ShareTimes>,
    /// The part of a token's time that the share is measured to save, if it was chosen by that.
    pub saves: Option<f64>,
    /// Why there is no share.
    pub because: Option<String>,
}

impl Share {
    /// No share, for this reason.
    pub(super) fn none(because: String) -> Self {
        Self {
            experts: 0,
            used: 0,
            instructions: "",
            times: None,
            saves: None,
            because: Some(because),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { experts, used, .. } = self;
        if *experts == 0 {
            let because = self.because.as_deref().unwrap_or("it would not pay");
            return write!(f, "the CPU multiplies no experts: {because}");
        }
        write!(
            f,
            "the CPU ({}) multiplies {experts} of a token's {used} experts of a layer if all are missing on the GPU, and fewer in proportion",
            self.instructions
        )?;
        if let Some(saves) = self.saves {
            write!(
                f,
                ", measured to save {:.0}% of a token's time",
                100.0 * saves
            )?;
        }
        write!(
            f,
            "; text is not to the bit as without it, and a seed gives the same text only for the same requests since a start with --cpu-share {experts}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An H200 by PCIe 5 x16 with 16 cores, and a card by PCIe 4 x8 with 8.
    fn times(bus: f64, cpu: f64) -> ShareTimes {
        let of_bus = |misses: u32| f64::from(misses) * bus;
        let of_cpu = |experts: u32| 58.0 + f64::from(experts) * cpu;
        let of = |misses: u32| (0..=misses).map(move |n| of_bus(misses - n).max(of_cpu(n)));
        ShareTimes {
            by_bus: (0..=4).map(of_bus).collect(),
            with_host: (0..=4).map(|misses| of(misses).collect()).collect(),
        }
    }

    const GLM: Layers = Layers {
        count: 46,
        slots: 0,
        experts: 64,
        used: 4,
    };

    #[test]
    fn missing_experts_are_split_in_proportion() {
        assert_eq!(split(4, 0), [0, 0, 0, 0, 0]);
        assert_eq!(split(4, 1), [0, 0, 0, 1, 1]);
        assert_eq!(split(4, 2), [0, 0, 1, 1, 2]);
        assert_eq!(split(4, 3), [0, 1, 1, 2, 3]);
        assert_eq!(split(4, 4), [0, 1, 2, 3, 4]);
        for used in 1..=8 {
            for share in 0..=used {
                let split = split(used, share);
                assert_eq!((split[0], split[used]), (0, share as u32));
                assert!(split.iter().zip(0..).all(|(of, misses)| *of <= misses));
            }
        }
    }

    #[test]
    fn misses_are_as_likely_as_by_counting() {
        // Of 4 experts 2 have slots: a token that uses 2 hits both, one or none in 1, 4 and 1 of 6 cases.
        let layers = Layers {
            count: 1,
            slots: 2,
            experts: 4,
            used: 2,
        };
        for (misses, cases) in [1.0, 4.0, 1.0].into_iter().enumerate() {
            let found = layers.probability(misses);
            assert!((found - cases / 6.0).abs() < 1e-12, "{misses}: {found}");
        }
        assert_eq!(GLM.probability(4), 1.0);
        assert_eq!(GLM.probability(3), 0.0);
    }

    #[test]
    fn a_share_is_taken_where_it_pays() {
        let quick = times(111.0, 124.0);
        // All are missing: the bus takes 2 of 4 in 222 us, the CPU the others in 306 instead of 444.
        let (share, saved) = GLM.best(&quick, Some(0.0225));
        assert_eq!(share, 2);
        assert!(
            (saved - 46.0 * (444.0 - 306.0) / 22500.0).abs() < 1e-9,
            "{saved}"
        );
        // A slow bus leaves more to the CPU.
        assert!(GLM.best(&times(440.0, 124.0), None).0 >= 3);
        // With slots one of them comes by the bus, whatever the CPU does.
        let few = Layers { slots: 4, ..GLM };
        assert_eq!(few.best(&times(4400.0, 12.0), None).0, 3);
        assert_eq!(GLM.best(&times(4400.0, 12.0), None).0, 4);
        // Nearly all have slots, so that answers cost more than they save.
        let most = Layers { slots: 56, ..GLM };
        assert_eq!(most.best(&quick, Some(0.006)).0, 0);
        // A CPU that is slower than the bus by much.
        assert_eq!(GLM.best(&times(111.0, 1000.0), None).0, 0);
    }

    #[test]
    fn a_share_is_read_and_told() {
        assert_eq!("auto".parse(), Ok(CpuShare::Auto));
        assert_eq!("off".parse(), Ok(CpuShare::Off));
        assert_eq!("0".parse(), Ok(CpuShare::Off));
        assert_eq!("3".parse(), Ok(CpuShare::Experts(3)));
        for wrong in ["", "on", "-1", "1.5", "half"] {
            let refused = wrong.parse::<CpuShare>().expect_err(wrong);
            assert!(refused.contains("such as 2"), "{refused}");
        }
        let share = Share {
            experts: 2,
            used: 4,
            instructions: "AVX2",
            times: None,
            saves: Some(0.281),
            because: None,
        };
        let told = share.to_string();
        assert!(
            told.contains("2 of a token's 4") && told.contains("28%"),
            "{told}"
        );
        assert!(told.ends_with("--cpu-share 2"), "{told}");
        let none = Share::none("its memory is out of reach".to_owned()).to_string();
        assert!(
            none.ends_with("no experts: its memory is out of reach"),
            "{none}"
        );
    }
}
