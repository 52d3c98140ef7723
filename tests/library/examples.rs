//! Protects the examples: each runs with the built-in model and prints what it should.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// An example, which was built with the tests beside their folder.
fn example(name: &str, args: &[&str], input: &str) -> String {
    let mut folder: PathBuf = std::env::current_exe().expect("this test runs");
    folder.pop();
    folder.pop();
    let program = folder
        .join("examples")
        .join(name)
        .with_extension(std::env::consts::EXE_EXTENSION);
    let mut child = Command::new(&program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| {
            panic!(
                "{}: {error} (cargo test builds it, or cargo build --examples)",
                program.display()
            )
        });
    let mut stdin = child.stdin.take().expect("it is piped");
    // One that reads nothing may have ended.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().expect("it was started");
    assert!(
        status.success(),
        "{name}: {}",
        String::from_utf8_lossy(&stderr)
    );
    String::from_utf8(stdout).expect("it prints UTF-8")
}

#[test]
fn a_chat_evaluates_only_what_is_new_and_goes_on_from_its_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("chat");
    let path = path.to_str().expect("temporary paths are UTF-8");
    let reused = |printed: &str| -> Vec<usize> {
        let lines = printed.lines().filter_map(|line| line.strip_prefix('['));
        let counts = lines.filter_map(|line| line.split_once(" tokens reused"));
        counts
            .map(|(count, _)| count.parse().expect("a count"))
            .collect()
    };
    let printed = example("chat_loop", &[path], "Tell me of a fox.\nAnd of a crow.\n");
    let first = reused(&printed);
    assert_eq!((first.len(), first[0]), (2, 0), "{printed}");
    assert!(first[1] > 0, "{printed}");
    let printed = example("chat_loop", &[path], "Go on.\n");
    let second = reused(&printed);
    assert!(second.len() == 1 && second[0] > first[1], "{printed}");
}

#[test]
fn a_stream_prints_its_tokens_and_their_number() {
    let printed = example("stream", &[], "");
    assert!(printed.ends_with("[40 tokens]\n"), "{printed}");
    assert!(printed.len() > 60, "{printed}");
}

#[test]
fn two_conversations_go_their_ways_and_one_goes_on_from_its_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("crow");
    let printed = example(
        "two_conversations",
        &[path.to_str().expect("temporary paths are UTF-8")],
        "",
    );
    assert!(
        printed.contains("The fox said:") && printed.contains("The crow said:"),
        "{printed}"
    );
    assert!(printed.ends_with("the same: true\n"), "{printed}");
}
