//! Protects servers behind what exists: routers from public registries keep users served while servers are killed and drained, and the
//! files that say how to run glimt are what their programs take.

mod cluster;
mod load;
mod metrics;
mod process;
mod recipes;
mod router;
mod server;

use std::time::{Duration, Instant};

use crate::others;

/// Waits until something holds.
fn until(what: &str, seconds: u64, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(seconds);
    while !holds() {
        assert!(Instant::now() < end, "never within {seconds} s: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The path of a file of this repository.
fn path(name: &str) -> String {
    format!("{}/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// The text of a file of this repository.
fn file(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}
