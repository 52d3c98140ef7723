//! Facts from the makers' data sheets of GPUs, which no driver tells.

/// A part of a device's name, its cores, and the GB that it reads in a second, if they are known here.
type Sheet = (&'static str, Option<u32>, Option<f64>);

/// The more special names come first. Cores are streaming multiprocessors of NVIDIA, compute units of AMD, Xe cores of Intel, and GPU
/// cores of Apple. Numbers are those of the makers' data sheets. Where chips of one name differ, they are those of the largest. The speed
/// of the H200 is not from its data sheet, but was measured by a plain read.
const SHEETS: [Sheet; 55] = [
    ("H200", Some(132), Some(4550.0)),
    ("H100 80GB HBM3", Some(132), Some(3350.0)),
    ("H100 PCIe", Some(132), Some(2000.0)),
    ("H100", Some(132), None),
    ("A100-SXM4-80GB", Some(108), Some(2039.0)),
    ("A100 80GB PCIe", Some(108), Some(1935.0)),
    ("A100-SXM4-40GB", Some(108), Some(1555.0)),
    ("A100", Some(108), None),
    ("NVIDIA L40", Some(142), Some(864.0)),
    ("NVIDIA L4", Some(58), Some(300.0)),
    ("Tesla T4", Some(40), Some(320.0)),
    ("RTX 5090", Some(170), Some(1792.0)),
    ("RTX 5080", Some(84), Some(960.0)),
    ("RTX 5070 Ti", None, Some(896.0)),
    ("RTX 5070", None, Some(672.0)),
    ("RTX 4090", Some(128), Some(1008.0)),
    ("RTX 4080 SUPER", Some(76), Some(736.0)),
    ("RTX 4080", Some(76), Some(717.0)),
    ("RTX 4070 Ti SUPER", Some(46), Some(672.0)),
    ("RTX 4070", Some(46), Some(504.0)),
    ("RTX 4060 Ti", Some(24), Some(288.0)),
    ("RTX 4060", Some(24), Some(272.0)),
    ("RTX 3090 Ti", Some(82), Some(1008.0)),
    ("RTX 3090", Some(82), Some(936.0)),
    ("RTX 3080", Some(68), None),
    ("RTX 3060 Ti", Some(28), Some(448.0)),
    ("RTX 3060", Some(28), Some(360.0)),
    ("7900 XTX", Some(96), Some(960.0)),
    ("7900 XT", Some(84), Some(800.0)),
    ("7800 XT", Some(60), Some(624.0)),
    ("9070 XT", Some(64), Some(640.0)),
    ("8060S", Some(40), Some(256.0)),
    ("780M", Some(12), None),
    ("A770", Some(32), Some(560.0)),
    ("B580", Some(20), Some(456.0)),
    ("X1-85", None, Some(135.0)),
    ("Apple M1 Ultra", Some(64), Some(800.0)),
    ("Apple M1 Max", Some(32), Some(400.0)),
    ("Apple M1 Pro", Some(16), Some(200.0)),
    ("Apple M1", Some(8), Some(68.0)),
    ("Apple M2 Ultra", Some(76), Some(800.0)),
    ("Apple M2 Max", Some(38), Some(400.0)),
    ("Apple M2 Pro", Some(19), Some(200.0)),
    ("Apple M2", Some(10), Some(100.0)),
    ("Apple M3 Ultra", Some(80), Some(819.0)),
    ("Apple M3 Max", Some(40), Some(400.0)),
    ("Apple M3 Pro", Some(18), Some(150.0)),
    ("Apple M3", Some(10), Some(100.0)),
    ("Apple M4 Max", Some(40), Some(546.0)),
    ("Apple M4 Pro", Some(20), Some(273.0)),
    ("Apple M4", Some(10), Some(120.0)),
    ("Apple M5 Max", Some(40), Some(614.0)),
    ("Apple M5 Pro", Some(20), Some(307.0)),
    ("Apple M5", Some(10), Some(153.0)),
    // Later chips, and those whose number is not told.
    ("Apple M", Some(10), None),
];

fn sheet(name: &str) -> Option<&'static Sheet> {
    SHEETS.iter().find(|(part, ..)| name.contains(part))
}

/// Cores of the device of this name.
pub(super) fn cores(name: &str) -> Option<u32> {
    sheet(name)?.1
}

/// GB that the device of this name reads in a second as its maker writes; `None` where it is not known here. Memory of laptops is slower
/// than that of cards with the same name.
pub fn memory_speed(name: &str) -> Option<f64> {
    sheet(name).filter(|_| !name.contains("Laptop"))?.2
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
