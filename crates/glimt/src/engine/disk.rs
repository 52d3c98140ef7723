//! The disk that a model's file lies on, from which experts come that have no room elsewhere.

use std::fmt;
use std::str::FromStr;
use web_time::Instant;

use rayon::prelude::*;
use serde::Serialize;

use crate::gpu::memory::reading;
use crate::model::Weight;
use crate::quant::repack::Planes;

/// Experts that a measurement reads.
const READS: usize = 48;
/// Seconds of an answer of the host to a layer, beside what it reads. Measured on an H200 by `benches/answers.rs`.
const ANSWER: f64 = 58e-6;

/// How fast experts are read from a disk, by several threads at once, and put into the layout of the device.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Disk {
    /// GB of experts in a second.
    pub gb_per_s: f64,
    /// The origin of the number.
    pub told: Told,
    /// The share of what was read to measure that the system had in memory before; `None` where it does not tell, or nothing was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_memory: Option<f64>,
}

/// The origin of the speed of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// Nothing tells it.
    Assumed,
    /// A flag tells it.
    Given,
    /// Some experts were read from the disk before loading.
    Measured,
    /// Some experts were read, and the system may have had them in memory.
    MeasuredInMemory,
}

impl Disk {
    /// The disk that is assumed where nothing tells it: an SSD by PCIe 3 or faster.
    pub const ASSUMED: Self = Self {
        gb_per_s: 3.0,
        told: Told::Assumed,
        in_memory: None,
    };

    /// The measured speed of reading these weights, by some of their groups in places all over the file. The system is asked to forget them before.
    /// [`ASSUMED`](Self::ASSUMED) where they cannot be read.
    pub(super) fn measured(weights: &[&Weight]) -> Self {
        let some = |read: usize| {
            let weight = weights[read * weights.len() / READS];
            // Neighbours in the list are in different weights, or far from each other.
            (weight, read * 7 % weight.groups)
        };
        if weights.is_empty() || !weights.iter().all(|weight| weight.has_data()) {
            return Self::ASSUMED;
        }
        let kept = (0..READS).map(|read| {
            let (weight, group) = some(read);
            weight.is_kept(group)
        });
        let kept: Option<Vec<bool>> = kept.collect();
        let share = |kept: &Vec<bool>| kept.iter().filter(|kept| **kept).count() as f64;
        let in_memory = kept.as_ref().map(|kept| share(kept) / READS as f64);
        let told = forget((0..READS).map(some));
        let began = Instant::now();
        let bytes = reading(|| {
            let reads = (0..READS).into_par_iter().map(|read| {
                let (weight, group) = some(read);
                let rows = group * weight.rows..(group + 1) * weight.rows;
                let mut scratch = vec![];
                let read = weight.read_rows(rows, &mut scratch).ok()?;
                let planes = Planes::new(weight.ty, weight.rows, weight.cols, read);
                Some(planes.quants.len() + planes.scales.len())
            });
            reads.try_reduce(|| 0, |a, b| Some(a + b))
        });
        let seconds = began.elapsed().as_secs_f64().max(1e-9);
        bytes.map_or(Self::ASSUMED, |bytes| Self {
            gb_per_s: bytes as f64 / seconds * 1e-9,
            told,
            in_memory,
        })
    }

    /// Seconds of a token that reads `bytes` in `layers` layers.
    pub(super) fn seconds(self, bytes: f64, layers: u32) -> f64 {
        bytes / (self.gb_per_s * 1e9) + f64::from(layers) * ANSWER
    }
}

/// Asks the system to forget groups of weights, and tells how they are measured then.
fn forget<'a>(mut groups: impl Iterator<Item = (&'a Weight, usize)> + Clone) -> Told {
    for (weight, group) in groups.clone() {
        weight.let_go(group);
    }
    let Some((weight, group)) = groups.next() else {
        return Told::MeasuredInMemory;
    };
    let told = match weight.is_kept(group) {
        Some(false) => Told::Measured,
        Some(true) | None => Told::MeasuredInMemory,
    };
    // To ask for a byte may bring it, and those beside it.
    weight.let_go(group);
    told
}

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = match self.told {
            Told::Assumed => ", assumed",
            Told::Given => "",
            Told::Measured => ", measured on the disk",
            Told::MeasuredInMemory => ", measured with what the system has in memory",
        };
        write!(f, "{:.1} GB/s{told}", self.gb_per_s)?;
        match self.in_memory {
            Some(share) => write!(
                f,
                "; {:.0}% of what was read had been in memory before",
                100.0 * share
            ),
            None => Ok(()),
        }
    }
}

impl FromStr for Disk {
    type Err = String;

    /// Reads GB per second, such as `3.5`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            Ok(gb_per_s) if gb_per_s > 0.0 && gb_per_s < 1000.0 => Ok(Self {
                gb_per_s,
                told: Told::Given,
                in_memory: None,
            }),
            _ => Err(format!(
                "expected GB that the disk gives in a second, above 0 and below 1000, such as 3.5, found {text:?}"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::GgmlType;

    #[test]
    fn a_disk_is_measured_given_or_assumed() {
        let (groups, rows, cols) = (3, 16, 256);
        let bytes = vec![0u8; groups * rows * GgmlType::Q8_0.row_bytes(cols).expect("it fits")];
        let weight = Weight::from_bytes("experts", GgmlType::Q8_0, groups, rows, cols, bytes);
        let found = Disk::measured(&[&weight]);
        assert!(
            found.told == Told::MeasuredInMemory && found.gb_per_s > 0.0,
            "{found}"
        );
        assert!(
            found
                .to_string()
                .ends_with(" GB/s, measured with what the system has in memory"),
            "{found}"
        );
        let measured = Disk {
            gb_per_s: 2.0,
            told: Told::Measured,
            in_memory: Some(0.25),
        };
        assert_eq!(
            measured.to_string(),
            "2.0 GB/s, measured on the disk; 25% of what was read had been in memory before"
        );
        assert_eq!(Disk::measured(&[]), Disk::ASSUMED);
        assert_eq!(Disk::ASSUMED.to_string(), "3.0 GB/s, assumed");
        let given: Disk = "0.5".parse().expect("it is a speed");
        assert_eq!(given.to_string(), "0.5 GB/s");
        let seconds = given.seconds(1e9, 10);
        assert!((seconds - 2.0 - 10.0 * ANSWER).abs() < 1e-9, "{seconds}");
        for wrong in ["0", "-1", "fast", "1000", "NaN"] {
            let error = wrong.parse::<Disk>().expect_err("it is no speed");
            assert!(error.contains(&format!("found {wrong:?}")), "{error}");
        }
    }
}
