//! Protects `glimt generate`: the answer, its statistics, and its end.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use super::{EMBEDDED, GREEDY, glimt, greedy, greedy_text, json, run, stderr, stdout, text, write};

/// The greedy text on every adapter and tier is that of the CPU: no choice among these tokens is close.
#[test]
fn every_adapter_and_tier_tells_the_same_tale() {
    let listing = json(&text(&["devices", "--json"]));
    let adapters = listing["adapters"].as_array().expect("a list");
    if adapters.is_empty() {
        eprintln!("skipped: no GPU adapter (install mesa-vulkan-drivers, or your GPU's driver)");
    }
    let prompt = "Once upon a time";
    // Quick products of the CPU round more than a GPU does.
    let expected = greedy_text(&["--cpu-products", "exact", "-n", "24", prompt]);
    for adapter in adapters {
        let index = adapter["index"].to_string();
        let tiers: &[&str] = if adapter["tier"] == "plain" {
            &["plain"]
        } else {
            &["plain", "subgroup"]
        };
        for tier in tiers {
            let args = [
                "--device", &index, "--tier", tier, "--raw", "--temp", "0", "-n", "24",
            ];
            let tale = text(&[&["generate"], &args[..], &[prompt]].concat());
            assert_eq!(tale, expected, "{adapter} {tier}");
        }
    }
}

#[test]
fn greedy_answers_repeat_and_statistics_stay_off_standard_output() {
    let args = greedy(&["-n", "24", "Once upon a time"]);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let first = run(&args);
    let second = run(&args);
    assert!(first.status.success(), "{}", stderr(&first));
    assert_eq!(stdout(&first), stdout(&second));
    assert!(stdout(&first).trim().len() > 20, "{:?}", stdout(&first));
    let messages = stderr(&first);
    let last = messages.lines().last().expect("a statistics line");
    assert!(
        last.starts_with("prompt: ") && last.contains("; generated: 24 tokens"),
        "{last}"
    );
    assert!(last.contains("24 tokens (limit), "), "{last}");
    assert!(!stdout(&first).contains("tokens/s"), "{:?}", stdout(&first));
    // Greedy takes no draw, so there is no seed to tell.
    assert!(!messages.contains("seed"), "{messages}");
}

#[test]
fn a_seed_repeats_an_answer_and_a_random_one_is_printed() {
    let args = [
        "generate",
        "--device",
        "cpu",
        "-n",
        "16",
        "Tell me a story.",
    ];
    let first = run(&args);
    assert!(first.status.success(), "{}", stderr(&first));
    let seed = stderr(&first)
        .lines()
        .find_map(|line| Some(line.split_once("; seed ")?.1));
    let seed = seed.expect("a random seed is printed").to_owned();
    let again = text(&[&args[..], &["--seed", &seed]].concat());
    assert_eq!(stdout(&first), again);
    let other = text(&[&args[..], &["--seed", "1"]].concat());
    assert_eq!(other, text(&[&args[..], &["-s", "1"]].concat()));
}

#[test]
fn a_prompt_may_come_from_a_file_or_a_pipe() {
    let prompt = "Once upon a time there was a king";
    let expected = greedy_text(&["-n", "8", prompt]);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = write(
        directory.path(),
        "prompt.txt",
        format!("{prompt}\n").as_bytes(),
    );
    assert_eq!(greedy_text(&["-n", "8", "-f", &file]), expected);
    for extra in [&[][..], &["-f", "-"]] {
        let mut args: Vec<&str> = GREEDY.to_vec();
        args.extend(["-n", "8"]);
        args.extend(extra);
        let mut command = glimt(&args);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().expect("it starts");
        let mut pipe = child.stdin.take().expect("it is piped");
        writeln!(pipe, "{prompt}").expect("the prompt is read");
        drop(pipe);
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(stdout(&output), expected);
    }
}

#[test]
fn a_stop_text_ends_the_answer_and_is_not_printed() {
    let whole = greedy_text(&["-n", "40", "Once upon a time"]);
    let words: Vec<&str> = whole.split_whitespace().collect();
    // Two words in the middle, which tokens split in their own way.
    let stop = format!("{} {}", words[6], words[7]);
    let at = whole.find(&stop).expect("it was taken from the text");
    let mut args = greedy(&["-n", "40", "Once upon a time", "--stop", "never said"]);
    args.extend(["--stop".to_owned(), stop]);
    let output = run(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(stdout(&output), format!("{}\n", &whole[..at]));
    assert!(
        stderr(&output).contains(" (stop text), "),
        "{}",
        stderr(&output)
    );
}

#[test]
fn the_context_bounds_an_answer() {
    let args = greedy(&["-c", "20", "Once upon a time"]);
    let output = run(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(output.status.success(), "{}", stderr(&output));
    let last = stderr(&output).lines().last().expect("a statistics line");
    assert!(last.contains(" (context full), "), "{last}");
}

#[test]
fn the_model_and_device_may_come_from_the_environment() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = write(directory.path(), "tales.gguf", EMBEDDED);
    let args = [
        "generate",
        "--raw",
        "--temp",
        "0",
        "-n",
        "8",
        "Once upon a time",
    ];
    let mut command = glimt(&args);
    let output = command
        .env("GLIMT_MODEL", &file)
        .env("GLIMT_DEVICE", "cpu")
        .output()
        .unwrap();
    assert_eq!(
        stdout(&output),
        greedy_text(&["-n", "8", "Once upon a time"])
    );
    let output = glimt(&["inspect"])
        .env("GLIMT_MODEL", "no/such.gguf")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("no/such.gguf"),
        "{}",
        stderr(&output)
    );
}

/// Starts an endless answer and returns it with its standard output once a first piece of text has come.
fn endless() -> (Child, BufReader<ChildStdout>, String) {
    let args = [
        "generate",
        "--device",
        "cpu",
        "--raw",
        "-s",
        "1",
        "Once upon a time",
    ];
    let mut child = glimt(&args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut out = BufReader::new(child.stdout.take().expect("it is piped"));
    let begin = String::from_utf8(out.fill_buf().expect("text comes").to_vec()).expect("UTF-8");
    out.consume(begin.len());
    assert!(!begin.is_empty());
    (child, out, begin)
}

#[test]
fn a_closed_pipe_is_success_and_silent() {
    let (mut child, out, _) = endless();
    drop(out);
    let mut messages = String::new();
    child
        .stderr
        .take()
        .expect("it is piped")
        .read_to_string(&mut messages)
        .expect("UTF-8");
    assert_eq!(child.wait().expect("it ends").code(), Some(0), "{messages}");
    assert!(
        !messages.contains("error") && !messages.contains("pipe"),
        "{messages}"
    );
}

#[cfg(unix)]
#[test]
fn ctrl_c_stops_the_answer() {
    let (mut child, mut out, _) = endless();
    let killed = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(killed.expect("kill exists on Unix").success());
    let mut rest = String::new();
    out.read_to_string(&mut rest).expect("UTF-8");
    let mut messages = String::new();
    child
        .stderr
        .take()
        .expect("it is piped")
        .read_to_string(&mut messages)
        .expect("UTF-8");
    assert_eq!(
        child.wait().expect("it ends").code(),
        Some(130),
        "{messages}"
    );
    let last = messages.lines().last().expect("a statistics line");
    assert!(
        last.starts_with("prompt: ") && last.contains(" (interrupted)"),
        "{last}"
    );
    assert!(rest.ends_with('\n'), "{rest:?}");
}
