//! The program of `crates/lab`, which rewrites kernels for tests, or runs them as a Mac would.

use std::env;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;

/// The variable that names the program.
const PROGRAM: &str = "GLIMT_LAB";

/// The program that the variable or [`use_program`] names.
static NAMED: OnceLock<Option<PathBuf>> = OnceLock::new();

fn program() -> Option<&'static PathBuf> {
    let named = || env::var_os(PROGRAM).map(PathBuf::from);
    NAMED.get_or_init(named).as_ref()
}

/// Has this process ask `program`, unless it has asked one already.
pub fn use_program(program: &str) {
    NAMED.get_or_init(|| Some(PathBuf::from(program)));
}

/// Whether there is a laboratory. If there is none, this says which tests are left out.
pub fn is_there(what: &str) -> bool {
    let is_there = program().is_some();
    if !is_there {
        eprintln!("skipped: {what} (scripts/test --all, or GLIMT_LAB=$PWD/target/debug/glimt-lab)");
    }
    is_there
}

/// The answer of the laboratory to these arguments and this input.
///
/// # Errors
/// The reason why there is no answer.
pub fn answer(arguments: &[&str], input: Vec<u8>) -> Result<Vec<u8>, String> {
    let program = program().ok_or(
        "no laboratory: cargo build -p glimt-lab, then GLIMT_LAB=$PWD/target/debug/glimt-lab",
    )?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("{}: {e}", program.display()))?;
    let mut stdin = child.stdin.take().ok_or("no input")?;
    let writer = thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().map_err(|e| e.to_string())?;
    // One that refuses its arguments reads nothing.
    let sent = writer.join().map_err(|_| "the writer panicked")?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    sent.map_err(|e| e.to_string())?;
    Ok(output.stdout)
}

/// The text that the laboratory makes of `text`.
#[track_caller]
pub fn rewritten(arguments: &[&str], text: &str) -> String {
    let made = answer(arguments, text.as_bytes().to_vec());
    let made = made.unwrap_or_else(|e| panic!("glimt-lab {}: {e}", arguments.join(" ")));
    String::from_utf8(made).expect("a shader is UTF-8")
}
