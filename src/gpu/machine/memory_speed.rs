//! What makers write of the memory of their GPUs. No driver tells it.

/// GB that a device reads in a second by a part of its name, the more special name first. From the makers' data sheets, of the largest
/// kind where chips of one name differ, but for the H200, where a plain read was measured.
const SPEEDS: [(&str, f64); 50] = [
    ("H200", 4550.0),
    ("H100 80GB HBM3", 3350.0),
    ("H100 PCIe", 2000.0),
    ("A100-SXM4-80GB", 2039.0),
    ("A100 80GB PCIe", 1935.0),
    ("A100-SXM4-40GB", 1555.0),
    ("NVIDIA L40", 864.0),
    ("NVIDIA L4", 300.0),
    ("Tesla T4", 320.0),
    ("RTX 5090", 1792.0),
    ("RTX 5080", 960.0),
    ("RTX 5070 Ti", 896.0),
    ("RTX 5070", 672.0),
    ("RTX 4090", 1008.0),
    ("RTX 4080 SUPER", 736.0),
    ("RTX 4080", 717.0),
    ("RTX 4070 Ti SUPER", 672.0),
    ("RTX 4070", 504.0),
    ("RTX 4060 Ti", 288.0),
    ("RTX 4060", 272.0),
    ("RTX 3090 Ti", 1008.0),
    ("RTX 3090", 936.0),
    ("RTX 3060 Ti", 448.0),
    ("RTX 3060", 360.0),
    ("7900 XTX", 960.0),
    ("7900 XT", 800.0),
    ("7800 XT", 624.0),
    ("9070 XT", 640.0),
    ("8060S", 256.0),
    ("A770", 560.0),
    ("B580", 456.0),
    ("X1-85", 135.0),
    ("Apple M1 Ultra", 800.0),
    ("Apple M1 Max", 400.0),
    ("Apple M1 Pro", 200.0),
    ("Apple M1", 68.0),
    ("Apple M2 Ultra", 800.0),
    ("Apple M2 Max", 400.0),
    ("Apple M2 Pro", 200.0),
    ("Apple M2", 100.0),
    ("Apple M3 Ultra", 819.0),
    ("Apple M3 Max", 400.0),
    ("Apple M3 Pro", 150.0),
    ("Apple M3", 100.0),
    ("Apple M4 Max", 546.0),
    ("Apple M4 Pro", 273.0),
    ("Apple M4", 120.0),
    ("Apple M5 Max", 614.0),
    ("Apple M5 Pro", 307.0),
    ("Apple M5", 153.0),
];

/// GB that the device of this name reads in a second as its maker writes; `None` where it is not known here. Memory of laptops is slower
/// than that of cards with the same name.
pub fn memory_speed(name: &str) -> Option<f64> {
    if name.contains("Laptop") {
        return None;
    }
    let named = SPEEDS.iter().find(|(part, _)| name.contains(part));
    named.map(|(_, speed)| *speed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::testing::known::KNOWN;

    #[test]
    fn known_gpus_have_the_speed_that_is_planned_with() {
        for known in &KNOWN {
            let speed = memory_speed(known.name);
            assert_eq!(speed, Some(known.gb_per_s), "{}", known.name);
        }
        for unknown in [
            "llvmpipe (LLVM 15.0.6, 256 bits)",
            "NVIDIA GeForce RTX 4090 Laptop GPU",
        ] {
            assert_eq!(memory_speed(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn no_name_hides_a_more_special_one() {
        for (i, (later, _)) in SPEEDS.iter().enumerate() {
            for (earlier, _) in &SPEEDS[..i] {
                assert!(!later.contains(earlier), "{later} is behind {earlier}");
            }
        }
    }
}
