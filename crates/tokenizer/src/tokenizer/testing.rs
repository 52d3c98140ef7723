//! The helpers that the tests of this module share.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// The text of a file of the fixtures outside the repository, or nothing (said on stderr) where GLIMT_FIXTURES does not
/// name them.
pub(super) fn fixture(path: &str) -> Option<String> {
    let Some(root) = std::env::var_os("GLIMT_FIXTURES") else {
        eprintln!("skipped: {path} (GLIMT_FIXTURES not set)");
        return None;
    };
    let path = Path::new(&root).join(path);
    Some(std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
}

/// A small random generator (splitmix64), different in every run; failing tests print its seed.
pub(super) struct Random {
    pub(super) seed: u64,
    state: u64,
}

impl Random {
    /// Seeded with the time of day.
    pub(super) fn from_clock() -> Self {
        let seed = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(1, |time| time.as_nanos() as u64);
        Random { seed, state: seed }
    }

    /// A number below `limit`, which is not zero.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % limit as u64) as usize
    }
}
