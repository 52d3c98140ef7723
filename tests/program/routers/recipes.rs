//! Protects who runs glimt as a service or in a container: the unit and the container file are what their programs take, and leave time for
//! a drain.

use std::process::Command;

use super::others::made;
use super::{file, path};

/// Runs a program that must succeed; what it printed.
fn printed(command: &mut Command) -> String {
    let output = command.output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}; install it"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {told}{text}");
    text + &told
}

/// The number behind `name`.
fn number(text: &str, name: &str) -> u32 {
    let found = text.split(name).nth(1).unwrap_or_else(|| panic!("{name}?"));
    let end = found.find(|c: char| !c.is_ascii_digit());
    let digits = &found[..end.unwrap_or(found.len())];
    digits.parse().unwrap_or_else(|_| panic!("{name}{digits}?"))
}

#[test]
fn a_stop_leaves_time_for_the_drain() {
    let unit = file("examples/glimt.service");
    // A step on the device may take 20 seconds after the drain.
    assert!(number(&unit, "TimeoutStopSec=") > number(&unit, "--drain ") + 20);
    let container = file("Dockerfile");
    let drain = number(&container, "\"--drain\", \"");
    assert!(number(&container, "docker stop --time ") > drain + 20);
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "long: scripts/test --all"]
fn systemd_takes_the_unit_and_finds_it_hardened() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let unit = home.path().join("glimt.service");
    let program = env!("CARGO_BIN_EXE_glimt");
    let text = file("examples/glimt.service").replace("/usr/local/bin/glimt", program);
    std::fs::write(&unit, text).expect("it is writable");
    let analyze = |args: &[&str]| printed(Command::new("systemd-analyze").args(args).arg(&unit));
    // It warns and succeeds where it does not know a name.
    let warned = analyze(&["verify", "--man=no"]);
    assert!(!warned.contains("glimt.service"), "{warned}");
    // 100 is a unit that has nothing of the kind.
    analyze(&["security", "--offline=true", "--no-pager", "--threshold=25"]);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_linter_takes_the_container_file() {
    printed(Command::new(made("hadolint")).arg(path("Dockerfile")));
}
