//! Protects advice: who follows what an error says gets on, and is not refused once more for having followed it.

#![cfg(target_os = "linux")]

use super::device::without_drivers;
use super::{error_line, stderr};

/// The command that an error's advice makes of a command that was refused; `None` where it has no advice about flags.
fn followed(args: &[String], error: &str) -> Option<Vec<String>> {
    let without = |flag: &str| {
        let mut kept = args.to_vec();
        let at = kept.iter().position(|arg| arg == flag)?;
        let takes_value = kept.get(at + 1).is_some_and(|next| !next.starts_with('-'));
        kept.drain(at..=at + usize::from(takes_value));
        Some(kept)
    };
    let flags = [
        "--tier",
        "--precompose",
        "--no-matrices",
        "--serial-passes",
        "--packed-halves",
        "--gpu-memory",
        "--experts",
        "--cpu-share",
        "--parallel",
    ];
    let left_out = flags.iter().find(|flag| {
        let advice = [format!("leave out {flag}"), format!("without {flag}")];
        advice.iter().any(|advice| error.contains(advice))
            || error.starts_with(*flag) && error.contains("leave it out")
    });
    let mut next = match left_out {
        Some(flag) => without(flag).unwrap_or_else(|| panic!("{args:?} has no {flag}: {error}")),
        None => args.to_vec(),
    };
    if error.contains("--device cpu") {
        next = match next.iter().position(|arg| arg == "--device") {
            Some(at) => [&next[..at], &next[at + 2..]].concat(),
            None => next,
        };
        next.extend(["--device".to_owned(), "cpu".to_owned()]);
    }
    (next != args).then_some(next)
}

/// Follows the advice of a command that is refused, on a machine without a GPU. Returned is the last error; empty if it succeeded.
fn follow(args: &[&str]) -> String {
    let mut args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    for step in 0..3 {
        let words: Vec<&str> = args.iter().map(String::as_str).collect();
        let output = without_drivers(&words);
        if output.status.success() {
            return String::new();
        }
        let code = output.status.code();
        let error = error_line(stderr(&output)).to_owned();
        assert!(
            code == Some(1) || step == 0,
            "{args:?} was advised: {error}"
        );
        match followed(&args, &error) {
            Some(next) => args = next,
            None => return error,
        }
    }
    panic!("advice leads on and on: {args:?}");
}

#[test]
fn advice_on_a_machine_without_a_gpu_leads_somewhere() {
    let generate = ["generate", "--raw", "-n", "1", "Once"];
    for flags in [
        &["--device", "0"][..],
        &["--device", "nvidia"],
        &["--tier", "subgroup"],
        &["--precompose", "qk"],
        &["--no-matrices"],
        &["--serial-passes", "on"],
        &["--tier", "plain", "--device", "0"],
        &["--tier", "plain", "--device", "cpu"],
        &["--precompose", "qk", "--device", "cpu"],
        &["--packed-halves", "on", "--device", "cpu"],
        &["--gpu-memory", "1G"],
        &["--gpu-memory", "1G", "--device", "cpu"],
        &["--experts", "file", "--device", "cpu"],
        &["--cpu-share", "2", "--device", "cpu"],
    ] {
        let error = follow(&[&generate[..], flags].concat());
        assert_eq!(error, "", "{flags:?}");
    }
    let bench = ["bench", "-p", "1", "-n", "0", "-r", "1"];
    assert_eq!(follow(&[&bench[..], &["--device", "0"]].concat()), "");
    for flags in [
        &["profile"][..],
        &["profile", "--device", "0"],
        &["tune", "--dry-run"],
        &["tune", "--forget"],
        &["bench", "--synthetic", "tiny:q4_0"],
        &["bench", "--tier", "plain"],
        &["bench", "--parallel", "2"],
    ] {
        let error = follow(flags);
        // There is nothing else that would help.
        assert!(
            error.starts_with("no GPU adapter found: install the driver"),
            "{flags:?}: {error}"
        );
        assert!(!error.contains("--device cpu"), "{flags:?}: {error}");
    }
    for (flags, expected) in [
        (
            &["profile", "--device", "cpu"][..],
            "choose a GPU with --device",
        ),
        (&["tune", "--device", "cpu"], "name a GPU with --device"),
        (
            &["bench", "--synthetic", "tiny:q4_0", "--device", "cpu"],
            "write a file with glimt synth",
        ),
    ] {
        let error = follow(flags);
        assert!(error.contains(expected), "{flags:?}: {error}");
    }
}
