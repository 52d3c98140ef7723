//! The memory of the machine itself.

/// Bytes that are left to the system and to other programs where nothing tells how much they take.
const SYSTEM: u64 = 3 << 30;

/// The memory of a machine, as far as its system tells.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Host {
    /// Bytes in all: the machine's, or what a container leaves of it.
    pub total: Option<u64>,
    /// Bytes that programs can still take.
    pub available: Option<u64>,
}

impl Host {
    /// The memory of this machine.
    pub fn here() -> Self {
        let mut system = sysinfo::System::new();
        system.refresh_memory();
        let total = system.total_memory();
        if total == 0 {
            return Self::default();
        }
        let available = system.available_memory();
        let limits = system.cgroup_limits();
        let limits = limits.map(|limits| (limits.total_memory, limits.rss));
        let (most, taken) = limits.unwrap_or((total, 0));
        Self {
            total: Some(most.min(total)),
            available: Some(available.min(most.saturating_sub(taken))),
        }
    }

    /// The memory of a machine of so many bytes, of which its system takes some.
    pub fn of(total: u64) -> Self {
        Self {
            total: Some(total),
            available: Some(total.saturating_sub(SYSTEM)),
        }
    }

    /// Bytes that experts can take: a tenth is left for what else uses the memory.
    pub fn for_experts(self) -> Option<u64> {
        self.available.map(|available| available - available / 10)
    }

    /// Bytes that a device which shares the memory can be given at most.
    pub fn for_gpu(self) -> Option<u64> {
        self.total.map(|total| total.saturating_sub(SYSTEM))
    }
}

/// `bytes` as `17.2 GiB`, or as MiB where they are few.
pub(super) fn size(bytes: u64) -> String {
    const GIB: u64 = 1 << 30;
    match bytes {
        GIB.. => format!("{:.1} GiB", bytes as f64 / GIB as f64),
        _ => format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_tells_its_memory() {
        let host = Host::here();
        let total = host.total.expect("every system that tests run on tells");
        let available = host.available.expect("it tells that as well");
        assert!((1 << 28..1 << 50).contains(&total), "{total}");
        assert!((1..=total).contains(&available), "{available} of {total}");
    }

    #[test]
    fn some_memory_is_left_to_the_system() {
        let host = Host::of(16 << 30);
        assert_eq!(host.for_gpu(), Some(13 << 30));
        let experts = host.for_experts().expect("it is known");
        assert_eq!(experts, (13 << 30) - (13 << 30) / 10);
        assert_eq!(Host::of(1 << 30).for_experts(), Some(0));
        assert_eq!(Host::default().for_gpu(), None);
    }
}
