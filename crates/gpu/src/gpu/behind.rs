//! The memory behind that of a device: what experts can lie in that have no room on the device.

use super::bus::Bus;
use super::machine;
use serde::Serialize;
use wgpu::{AdapterInfo, Backend, DeviceType};

/// The memory that shaders can read beside the device's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Behind {
    /// The memory of the host, over a bus.
    Host(Bus),
    /// None, because the device shares the memory of the host: what it may take of it is all that there is.
    Unified,
    /// None, because a browser gives shaders no memory of the host.
    Browser,
}

impl Behind {
    /// The memory behind that of a device.
    pub fn of(info: &AdapterInfo) -> Self {
        match (info.backend, info.device_type) {
            (Backend::BrowserWebGpu, _) => Self::Browser,
            (_, DeviceType::IntegratedGpu) => Self::Unified,
            _ => Self::Host(Bus::of(info)),
        }
    }

    /// The memory behind that of a device of this name, which lies on `bus` if it is a card.
    pub fn named(name: &str, bus: Bus) -> Self {
        match machine::is_integrated(name) {
            true => Self::Unified,
            false => Self::Host(bus),
        }
    }
}

/// The place from which experts are to come that have no room on the device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ExpertsFrom {
    /// The memory of the host where it has room and shaders read it, else the file.
    #[default]
    Auto,
    /// The memory of the host alone.
    Host,
    /// The file.
    File,
}

impl ExpertsFrom {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Host, Self::File];

    /// The name in flags.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Host => "host",
            Self::File => "file",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cards_have_the_hosts_memory_behind_their_own() {
        let of = |kind, backend| Behind::of(&AdapterInfo::new(kind, backend));
        let card = of(DeviceType::DiscreteGpu, Backend::Vulkan);
        assert_eq!(card, Behind::Host(Bus::ASSUMED));
        let shared = of(DeviceType::IntegratedGpu, Backend::Metal);
        assert_eq!(shared, Behind::Unified);
        let browser = of(DeviceType::IntegratedGpu, Backend::BrowserWebGpu);
        assert_eq!(browser, Behind::Browser);
        let bus = "5x16".parse().expect("it is a bus");
        for (name, expected) in [
            ("NVIDIA GeForce RTX 4070", Behind::Host(bus)),
            ("Apple M4 Pro", Behind::Unified),
            ("AMD Radeon 780M", Behind::Unified),
        ] {
            assert_eq!(Behind::named(name, bus), expected, "{name}");
        }
    }
}
