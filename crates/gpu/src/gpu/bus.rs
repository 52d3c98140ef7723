//! The bus between a device and the memory of the host, over which shaders read experts that have no room on the device.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::Serialize;
use wgpu::AdapterInfo;

/// The part of a bus's speed that shaders reach: measured on an H200 by PCIe 5 x16, which is 63.0 GB/s and gave 50.5.
const REACHED: f64 = 0.8;
/// The folder where Linux tells of devices.
const DEVICES: &str = "/sys/bus/pci/devices";
/// Gigatransfers per second of a lane, by generations of PCIe from the first.
const TRANSFERS: [f64; 6] = [2.5, 5.0, 8.0, 16.0, 32.0, 64.0];

/// A PCIe bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Bus {
    /// The generation of PCIe, from 1 to 6.
    pub generation: u8,
    /// Lanes.
    pub lanes: u8,
    /// Whether nothing tells the bus, so that a usual one is assumed.
    pub assumed: bool,
}

impl Bus {
    /// The bus that is assumed where nothing tells it: that of most cards that are sold.
    pub const ASSUMED: Self = Self {
        generation: 4,
        lanes: 16,
        assumed: true,
    };

    /// The bus of an adapter.
    pub fn of(info: &AdapterInfo) -> Self {
        let address = &info.device_pci_bus_id;
        let told = (!address.is_empty()).then(|| told(&Path::new(DEVICES).join(address)));
        told.flatten().unwrap_or(Self::ASSUMED)
    }

    /// GB that the bus carries in a second, as its specification has it.
    fn rated(self) -> f64 {
        let index = usize::from(self.generation).clamp(1, TRANSFERS.len()) - 1;
        // The first two generations send 10 bits for a byte, later ones 130 for 16. The sixth has no such cost.
        let share = match self.generation {
            ..=2 => 0.8,
            3..=5 => 128.0 / 130.0,
            6.. => 1.0,
        };
        TRANSFERS[index] / 8.0 * share * f64::from(self.lanes)
    }

    /// GB of host memory that shaders read in a second.
    pub fn gb_per_s(self) -> f64 {
        REACHED * self.rated()
    }
}

impl fmt::Display for Bus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let assumed = if self.assumed { ", assumed" } else { "" };
        write!(f, "PCIe {} x{}{assumed}", self.generation, self.lanes)
    }
}

impl FromStr for Bus {
    type Err = String;

    /// Reads a generation and lanes, such as `4x16`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let numbers = text.split_once('x');
        let numbers = numbers.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        match numbers {
            Some((generation @ 1..=6, lanes @ (1 | 2 | 4 | 8 | 16))) => Ok(Self {
                generation,
                lanes,
                assumed: false,
            }),
            _ => Err(format!(
                "expected a generation of PCIe from 1 to 6 and 1, 2, 4, 8 or 16 lanes, such as 4x16, found {text:?}"
            )),
        }
    }
}

/// The slowest of the links from a device to the processor, as Linux tells them. An idle device lowers the speed of its link, so the speed
/// is the lowest that an end of one can have at most, and the lanes are those in use.
fn told(device: &Path) -> Option<Bus> {
    let device = device.canonicalize().ok()?;
    let links = device.ancestors().map_while(link);
    links.min_by(|a, b| a.rated().total_cmp(&b.rated()))
}

/// The link of a device or a bridge.
fn link(device: &Path) -> Option<Bus> {
    let read = |name: &str| std::fs::read_to_string(device.join(name)).ok();
    let speed = read("max_link_speed")?;
    let speed: f64 = speed.split_whitespace().next()?.parse().ok()?;
    let generation = TRANSFERS.iter().position(|known| *known == speed)? + 1;
    let lanes: u8 = read("current_link_width")?.trim().parse().ok()?;
    (1..=32).contains(&lanes).then_some(Bus {
        generation: generation as u8,
        lanes,
        assumed: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bus_is_as_fast_as_was_measured() {
        let speed = |text: &str| text.parse::<Bus>().expect("it is a bus").gb_per_s();
        for (bus, expected) in [
            ("5x16", 50.4),
            ("4x16", 25.2),
            ("4x8", 12.6),
            ("3x16", 12.6),
            ("2x4", 1.6),
        ] {
            let found = speed(bus);
            assert!((found - expected).abs() < 0.05, "{bus}: {found}");
        }
        assert_eq!(Bus::ASSUMED.to_string(), "PCIe 4 x16, assumed");
    }

    #[test]
    fn what_is_no_bus_is_refused() {
        for wrong in [
            "", "4", "x16", "4x", "0x16", "7x16", "4x3", "4x32", "4x16x1", "-4x16", "4 x 16",
            "pcie",
        ] {
            let refused = wrong.parse::<Bus>().expect_err(wrong);
            assert!(refused.contains("such as 4x16"), "{refused}");
        }
    }

    #[test]
    fn the_slowest_link_up_to_the_processor_counts() {
        let folder = tempfile::tempdir().expect("there is room");
        let card = folder.path().join("0000:00:01.0/0000:01:00.0/0000:02:00.0");
        std::fs::create_dir_all(&card).expect("there is room");
        let write = |device: &Path, speed: &str, lanes: &str| {
            std::fs::write(device.join("max_link_speed"), speed).expect("there is room");
            std::fs::write(device.join("current_link_width"), lanes).expect("there is room");
        };
        let bus = |generation, lanes| Bus {
            generation,
            lanes,
            assumed: false,
        };
        assert_eq!(told(&card), None);
        write(&card, "32.0 GT/s PCIe\n", "16\n");
        assert_eq!(told(&card), Some(bus(5, 16)));
        let bridge = card.parent().expect("it has one");
        write(bridge, "16.0 GT/s PCIe\n", "8\n");
        assert_eq!(told(&card), Some(bus(4, 8)));
        let root = bridge.parent().expect("it has one");
        write(root, "8.0 GT/s PCIe\n", "8\n");
        assert_eq!(told(&card), Some(bus(3, 8)));
        // Virtual machines tell of no speed.
        write(&card, "Unknown\n", "0\n");
        assert_eq!(told(&card), None);
    }
}
