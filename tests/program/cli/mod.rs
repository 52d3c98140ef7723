//! Protects the program as a user meets it: output, errors, exit codes. Nearly everything runs on the CPU reference and the built-in
//! model, so that no adapter and no file is needed.

mod advice;
mod batch;
#[cfg(unix)]
mod chat;
mod config;
mod cut;
mod damage;
mod device;
mod drafts;
mod generate;
mod grammars;
mod habits;
mod help;
#[cfg(unix)]
mod manners;
mod measure;
mod memory;
mod not_finite;
mod partly;
mod pictures;
mod pipes;
#[cfg(target_os = "linux")]
mod ray;
mod refusals;
mod report;
mod reports;
mod sampling;
mod sessions;
#[cfg(unix)]
mod talk;
mod templates;
#[cfg(unix)]
mod terminal;
mod thinking;
mod tune;
#[cfg(unix)]
mod waiting;

use std::process::{Command, Output, Stdio};

use glimt::engine::{DeviceChoice, Engine, EngineOptions, GpuOptions, ModelSource, Opened, Wait};
use serde_json::Value;

use crate::edited::{self, EMBEDDED, write};
#[cfg(target_os = "linux")]
use crate::others;
use crate::testing as random;

/// The built-in model on the CPU reference.
fn engine() -> Engine {
    let options = EngineOptions {
        gpu: GpuOptions {
            device: DeviceChoice::Cpu,
            ..GpuOptions::default()
        },
        ..EngineOptions::default()
    };
    let opened = Opened::new(&ModelSource::Embedded, &options)
        .wait()
        .expect("the built-in model opens");
    Engine::load(opened, &mut |_| {})
        .wait()
        .expect("the built-in model loads")
}

/// The binary without the caller's settings and with nothing on standard input.
fn glimt(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_glimt"));
    command
        .args(args)
        .env_remove("GLIMT_MODEL")
        .env_remove("GLIMT_DEVICE")
        .env_remove("RUST_LOG")
        .env_remove("RUST_BACKTRACE")
        .env("GLIMT_CONFIG", "")
        .stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    glimt(args)
        .output()
        .expect("the binary was built with this test")
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).expect("the answer is UTF-8")
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).expect("messages are UTF-8")
}

/// Runs a command that must succeed and returns its standard output.
fn text(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    stdout(&output).to_owned()
}

/// Runs a command that must fail with `code`, with nothing on standard output; returns the message.
fn failure(args: &[&str], code: i32) -> String {
    let output = run(args);
    assert_eq!(
        output.status.code(),
        Some(code),
        "{args:?}: {}",
        stderr(&output)
    );
    assert_eq!(stdout(&output), "", "{args:?}");
    stderr(&output).to_owned()
}

/// The line after `glimt: error: `, which must be the only one with an error.
fn error_line(message: &str) -> &str {
    let mut errors = message
        .lines()
        .filter_map(|line| line.strip_prefix("glimt: error: "));
    let error = errors
        .next()
        .unwrap_or_else(|| panic!("no error in: {message}"));
    assert_eq!(errors.next(), None, "more than one error");
    assert!(
        !message.contains("panicked") && !message.contains("backtrace"),
        "{message}"
    );
    error
}

fn json(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in: {line}"))
}

/// Greedy and raw on the CPU: the same text every time.
const GREEDY: [&str; 6] = ["generate", "--device", "cpu", "--raw", "--temp", "0"];

fn greedy(rest: &[&str]) -> Vec<String> {
    GREEDY
        .iter()
        .chain(rest)
        .map(|argument| (*argument).to_owned())
        .collect()
}

fn greedy_text(rest: &[&str]) -> String {
    let args = greedy(rest);
    text(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn every_command_has_help_with_examples() {
    for command in [
        "generate",
        "serve",
        "batch",
        "pull",
        "list",
        "rm",
        "inspect",
        "devices",
        "tokenize",
        "logits",
        "perplexity",
        "bench",
        "bench-serve",
        "profile",
        "tune",
        "verify",
        "report",
    ] {
        let help = text(&[command, "--help"]);
        assert!(help.contains("Usage: glimt"), "{command}: {help}");
        assert!(help.contains("Examples:"), "{command}: {help}");
        assert!(
            help.contains(&format!("glimt {command}")),
            "{command}: {help}"
        );
        assert!(text(&["--help"]).contains(command));
    }
    let generate = text(&["generate", "--help"]);
    for expected in [
        "PROMPT",
        "GLIMT_MODEL",
        "GLIMT_DEVICE",
        "1.05",
        "0.8",
        "0.95",
        "0.05",
        "40",
    ] {
        assert!(
            generate.contains(expected),
            "{expected} is not in: {generate}"
        );
    }
    assert!(text(&["--version"]).starts_with("glimt "));
}
