//! Programs that are made ready from registries.

use std::process::Command;

use super::path;

/// What `scripts/routers` makes ready.
pub fn made(which: &str) -> String {
    let made = Command::new(path("scripts/routers")).arg(which).output();
    let made = made.expect("the script can be run");
    let told = String::from_utf8_lossy(&made.stderr).into_owned();
    assert!(made.status.success(), "scripts/routers {which}: {told}");
    String::from_utf8_lossy(&made.stdout).trim().to_owned()
}
