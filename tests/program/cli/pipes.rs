//! Protects what is read from files and pipes: all of it, nothing else, and never without end.

use std::io::Write;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use super::{GREEDY, error_line, failure, glimt, greedy_text, stderr, stdout, write};

/// Runs a command with `input` piped into standard input.
pub(super) fn piped(args: &[&str], input: &[u8]) -> Output {
    let mut child = glimt(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary was built with this test");
    let mut pipe = child.stdin.take().expect("it is piped");
    // Who does not read all of it closes the pipe early.
    let _ = pipe.write_all(input);
    drop(pipe);
    child.wait_with_output().expect("it was started")
}

fn answer(args: &[&str], input: &[u8]) -> String {
    let output = piped(&[&GREEDY[..], &["-n", "8"], args].concat(), input);
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output).to_owned()
}

#[test]
fn what_is_piped_follows_the_prompt() {
    let both = greedy_text(&["-n", "8", "Once upon a time\n\nthere was a fox."]);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = write(directory.path(), "prompt.txt", b"Once upon a time\n");
    let fox = b"there was a fox.\n";
    assert_eq!(answer(&["Once upon a time"], fox), both);
    assert_eq!(answer(&["-f", &file], fox), both);
    // Alone, named, and left alone.
    let alone = greedy_text(&["-n", "8", "Once upon a time"]);
    for args in [&[][..], &["-"], &["-f", "-"]] {
        assert_eq!(answer(args, b"Once upon a time\n"), alone, "{args:?}");
    }
    assert_eq!(answer(&["--no-stdin", "Once upon a time"], fox), alone);
    assert_eq!(answer(&["Once upon a time"], b""), alone, "an empty pipe");
    let output = piped(&["generate", "--no-stdin"], fox);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

#[test]
fn files_of_other_systems_are_the_same_text() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let prompt = greedy_text(&["-n", "8", "Once\nupon"]);
    for (name, text) in [
        ("bom.txt", &b"\xef\xbb\xbfOnce\nupon\n"[..]),
        ("crlf.txt", b"Once\r\nupon\r\n"),
    ] {
        let file = write(directory.path(), name, text);
        assert_eq!(greedy_text(&["-n", "8", "-f", &file]), prompt, "{name}");
    }
}

#[test]
fn an_empty_stop_text_is_refused() {
    failure(&["generate", "--stop", "", "x"], 2);
}

#[cfg(unix)]
#[test]
fn text_without_end_ends_in_a_sentence() {
    let began = Instant::now();
    for command in ["generate", "logits", "perplexity", "tokenize"] {
        let message = failure(&[command, "-f", "/dev/zero"], 1);
        let error = error_line(&message);
        assert!(error.contains("/dev/zero has more than"), "{error}");
    }
    // The text of a pipe is bounded alike.
    let output = piped(&["generate", "--device", "cpu"], &b"y\n".repeat(1 << 20));
    assert_eq!(output.status.code(), Some(1));
    let error = error_line(stderr(&output));
    assert!(error.contains("standard input has more than"), "{error}");
    // As long as it may be, and still too long for the context.
    for byte in [b"y\n", b"  ", b"\0\0"] {
        let output = piped(&["generate", "--device", "cpu"], &byte.repeat(100 << 10));
        assert_eq!(output.status.code(), Some(1));
        let error = error_line(stderr(&output));
        assert!(error.contains("but the context holds 1024"), "{error}");
    }
    let took = began.elapsed();
    assert!(took < Duration::from_secs(60), "{took:?}");
}

#[cfg(unix)]
#[test]
fn only_pipes_and_files_are_read() {
    let prompt = [&GREEDY[..], &["-n", "2", "A fox"]].concat();
    // A socket that never says anything, as some shells have for standard input.
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("sockets");
    let output = glimt(&prompt)
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
        .output()
        .expect("the binary was built with this test");
    assert!(output.status.success(), "{}", stderr(&output));
    drop(ours);
    let message = failure(&["generate"], 2);
    assert!(error_line(&message).contains("no prompt"), "{message}");
}

#[cfg(unix)]
#[test]
fn waiting_for_a_silent_pipe_is_told() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let child = glimt(&[&GREEDY[..], &["-n", "2", "A fox"]].concat())
        .stdin(reader)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary was built with this test");
    std::thread::sleep(Duration::from_millis(1800));
    drop(writer);
    let output = child.wait_with_output().expect("it was started");
    assert!(output.status.success(), "{}", stderr(&output));
    let told = stderr(&output);
    assert!(told.contains("reading standard input"), "{told}");
    assert!(told.contains("--no-stdin"), "{told}");
}
