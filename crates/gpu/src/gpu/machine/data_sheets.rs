//! Facts from the makers' data sheets of GPUs, which no driver tells.

use super::Profile::{self, Amd, Apple, Intel, Nvidia, Other};

/// A part of a device's name, its maker, its cores, and the GB that it reads in a second, if they are known here.
type Sheet = (&'static str, Profile, Option<u32>, Option<f64>);

/// The more special names come first. Cores are streaming multiprocessors of NVIDIA, compute units of AMD, Xe cores of Intel, and GPU
/// cores of Apple. Numbers are those of the makers' data sheets. Where chips of one name differ, they are those of the largest. The speed
/// of the H200 is not from its data sheet, but was measured by a plain read.
const SHEETS: [Sheet; 55] = [
    ("H200", Nvidia, Some(132), Some(4550.0)),
    ("H100 80GB HBM3", Nvidia, Some(132), Some(3350.0)),
    ("H100 PCIe", Nvidia, Some(132), Some(2000.0)),
    ("H100", Nvidia, Some(132), None),
    ("A100-SXM4-80GB", Nvidia, Some(108), Some(2039.0)),
    ("A100 80GB PCIe", Nvidia, Some(108), Some(1935.0)),
    ("A100-SXM4-40GB", Nvidia, Some(108), Some(1555.0)),
    ("A100", Nvidia, Some(108), None),
    ("NVIDIA L40", Nvidia, Some(142), Some(864.0)),
    ("NVIDIA L4", Nvidia, Some(58), Some(300.0)),
    ("Tesla T4", Nvidia, Some(40), Some(320.0)),
    ("RTX 5090", Nvidia, Some(170), Some(1792.0)),
    ("RTX 5080", Nvidia, Some(84), Some(960.0)),
    ("RTX 5070 Ti", Nvidia, None, Some(896.0)),
    ("RTX 5070", Nvidia, None, Some(672.0)),
    ("RTX 4090", Nvidia, Some(128), Some(1008.0)),
    ("RTX 4080 SUPER", Nvidia, Some(76), Some(736.0)),
    ("RTX 4080", Nvidia, Some(76), Some(717.0)),
    ("RTX 4070 Ti SUPER", Nvidia, Some(46), Some(672.0)),
    ("RTX 4070", Nvidia, Some(46), Some(504.0)),
    ("RTX 4060 Ti", Nvidia, Some(24), Some(288.0)),
    ("RTX 4060", Nvidia, Some(24), Some(272.0)),
    ("RTX 3090 Ti", Nvidia, Some(82), Some(1008.0)),
    ("RTX 3090", Nvidia, Some(82), Some(936.0)),
    ("RTX 3080", Nvidia, Some(68), None),
    ("RTX 3060 Ti", Nvidia, Some(28), Some(448.0)),
    ("RTX 3060", Nvidia, Some(28), Some(360.0)),
    ("7900 XTX", Amd, Some(96), Some(960.0)),
    ("7900 XT", Amd, Some(84), Some(800.0)),
    ("7800 XT", Amd, Some(60), Some(624.0)),
    ("9070 XT", Amd, Some(64), Some(640.0)),
    ("8060S", Amd, Some(40), Some(256.0)),
    ("780M", Amd, Some(12), None),
    ("A770", Intel, Some(32), Some(560.0)),
    ("B580", Intel, Some(20), Some(456.0)),
    ("X1-85", Other, None, Some(135.0)),
    ("Apple M1 Ultra", Apple, Some(64), Some(800.0)),
    ("Apple M1 Max", Apple, Some(32), Some(400.0)),
    ("Apple M1 Pro", Apple, Some(16), Some(200.0)),
    ("Apple M1", Apple, Some(8), Some(68.0)),
    ("Apple M2 Ultra", Apple, Some(76), Some(800.0)),
    ("Apple M2 Max", Apple, Some(38), Some(400.0)),
    ("Apple M2 Pro", Apple, Some(19), Some(200.0)),
    ("Apple M2", Apple, Some(10), Some(100.0)),
    ("Apple M3 Ultra", Apple, Some(80), Some(819.0)),
    ("Apple M3 Max", Apple, Some(40), Some(400.0)),
    ("Apple M3 Pro", Apple, Some(18), Some(150.0)),
    ("Apple M3", Apple, Some(10), Some(100.0)),
    ("Apple M4 Max", Apple, Some(40), Some(546.0)),
    ("Apple M4 Pro", Apple, Some(20), Some(273.0)),
    ("Apple M4", Apple, Some(10), Some(120.0)),
    ("Apple M5 Max", Apple, Some(40), Some(614.0)),
    ("Apple M5 Pro", Apple, Some(20), Some(307.0)),
    ("Apple M5", Apple, Some(10), Some(153.0)),
    // Later chips, and those whose number is not told.
    ("Apple M", Apple, Some(10), None),
];

/// Parts of the names of devices, beside those of Apple, that share the memory of the host.
const INTEGRATED: [&str; 3] = ["8060S", "780M", "X1-85"];

fn sheet(name: &str) -> Option<&'static Sheet> {
    SHEETS.iter().find(|(part, ..)| name.contains(part))
}

/// Cores of the device of this name.
pub(in crate::gpu) fn cores(name: &str) -> Option<u32> {
    sheet(name)?.2
}

/// The maker of the device of this name; `None` where it is not known here.
pub fn maker(name: &str) -> Option<Profile> {
    Some(sheet(name)?.1)
}

/// The parts of names that are known here.
pub fn known() -> impl Iterator<Item = &'static str> {
    SHEETS.iter().map(|(part, ..)| *part)
}

/// Whether the device of this name shares the memory of the host, as far as is known here.
pub fn is_integrated(name: &str) -> bool {
    maker(name) == Some(Apple) || INTEGRATED.iter().any(|part| name.contains(part))
}

/// GB that the device of this name reads in a second as its maker writes; `None` where it is not known here. Memory of laptops is slower
/// than that of cards with the same name.
pub fn memory_speed(name: &str) -> Option<f64> {
    sheet(name).filter(|_| !name.contains("Laptop"))?.3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_devices_have_no_sheet() {
        for unknown in [
            "llvmpipe (LLVM 15.0.6, 256 bits)",
            "NVIDIA GeForce RTX 4090 Laptop GPU",
        ] {
            assert_eq!(memory_speed(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn no_name_hides_a_more_special_one() {
        for (i, (later, ..)) in SHEETS.iter().enumerate() {
            for (earlier, ..) in &SHEETS[..i] {
                assert!(!later.contains(earlier), "{later} is behind {earlier}");
            }
        }
    }
}
