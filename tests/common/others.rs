//! Programs that are made ready from registries.

use std::process::Command;

/// The path of what `scripts/others` makes ready.
pub fn made(which: &str) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/others");
    let made = Command::new(script).arg(which).output();
    let made = made.expect("the script can be run");
    let told = String::from_utf8_lossy(&made.stderr).into_owned();
    assert!(made.status.success(), "scripts/others {which}: {told}");
    String::from_utf8_lossy(&made.stdout).trim().to_owned()
}
