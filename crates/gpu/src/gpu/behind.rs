//! The memory behind that of a device: what experts can lie in that have no room on the device.

use super::bus::Bus;
use super::tier::Tier;
use serde::Serialize;
use wgpu::{Backend, DeviceType, Features};

use super::facts::Facts;

/// The memory that shaders can read beside the device's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Behind {
    /// The memory of the host, over a bus.
    Host(Bus),
    /// None, because the device shares the memory of the host: what it may take of it is all that there is.
    Unified,
    /// None, because kernels of tier `plain` read no memory of the host.
    Plain,
    /// None, because a browser gives shaders no memory of the host.
    Browser,
    /// None, because the driver gives shaders no memory of the host.
    Unmapped,
}

impl Behind {
    /// The memory behind that of a device, for kernels of `tier`.
    pub fn of(facts: &Facts, tier: Tier) -> Self {
        match facts.info.device_type {
            _ if facts.info.backend == Backend::BrowserWebGpu => Self::Browser,
            DeviceType::IntegratedGpu => Self::Unified,
            _ if !tier.has_subgroups() => Self::Plain,
            _ if !facts.features.contains(Features::MAPPABLE_PRIMARY_BUFFERS) => Self::Unmapped,
            _ => Self::Host(Bus::of(&facts.info)),
        }
    }

    /// Why experts must lie on the device, as a clause; `None` where they need not.
    pub fn objection(self) -> Option<&'static str> {
        match self {
            Self::Host(_) => None,
            Self::Unified => Some("the device has no memory but its share of the machine's"),
            Self::Plain => Some("kernels of tier plain read no experts from the machine's memory"),
            Self::Browser => Some("a browser lets no shader read the machine's memory"),
            Self::Unmapped => Some("the driver lets no shader read the machine's memory"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::adapter::testing::adapter;
    use crate::gpu::machine::NVIDIA;

    #[test]
    fn experts_lie_in_the_hosts_memory_where_shaders_can_read_it() {
        let mut facts = adapter("a card", Backend::Vulkan, NVIDIA, true);
        assert_eq!(Behind::of(&facts, Tier::Int8), Behind::Unmapped);
        facts.features |= Features::MAPPABLE_PRIMARY_BUFFERS;
        let found = Behind::of(&facts, Tier::Subgroup);
        assert_eq!(found, Behind::Host(Bus::ASSUMED));
        assert_eq!(found.objection(), None);
        assert_eq!(Behind::of(&facts, Tier::Plain), Behind::Plain);
        facts.info.device_type = DeviceType::IntegratedGpu;
        assert_eq!(Behind::of(&facts, Tier::Int8), Behind::Unified);
        facts.info.backend = Backend::BrowserWebGpu;
        let found = Behind::of(&facts, Tier::Subgroup);
        assert_eq!(found, Behind::Browser);
        assert!(found.objection().is_some_and(|why| why.contains("browser")));
    }
}
