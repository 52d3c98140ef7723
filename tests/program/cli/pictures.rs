//! Protects pictures and written files: SVG and bars of `bench` and `inspect`, plain output where no terminal reads it, and that Ctrl-C
//! leaves an earlier file as it was.

use std::fs;
use std::path::Path;

use super::{error_line, failure, glimt, json, run, stderr, stdout, text};

/// A small measurement on the CPU reference.
const BENCH: [&str; 11] = [
    "bench", "--device", "cpu", "-p", "3", "-n", "2", "-d", "0,5", "-r", "1",
];

/// The output of a command in a terminal of 40 columns with this locale.
fn narrow(args: &[&str], locale: &str) -> String {
    let output = glimt(args)
        .env("COLUMNS", "40")
        .env("LC_ALL", locale)
        .output()
        .expect("the binary was built with this test");
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    stdout(&output).to_owned()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let name = |entry: fs::DirEntry| entry.file_name().into_string().expect("a plain name");
    entries
        .map(|entry| name(entry.expect("a file of the folder")))
        .collect()
}

/// An SVG file whose elements are all closed.
fn assert_svg(text: &str) {
    assert!(
        text.starts_with("<svg ") && text.ends_with("</svg>\n"),
        "{text}"
    );
    assert_eq!(
        text.matches("<text").count(),
        text.matches("</text>").count()
    );
    assert_eq!(
        text.matches("<title>").count(),
        text.matches("</title>").count()
    );
    assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
}

#[test]
fn bench_draws_its_rows_and_a_pipe_gets_the_table_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("speed.svg");
    let output = run(&[&BENCH[..], &["--svg", path.to_str().expect("a plain name")]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let table: Vec<_> = stdout(&output).lines().collect();
    assert_eq!(table.len(), 2 + 4, "{table:?}");
    assert!(table.iter().all(|line| line.starts_with("| ")), "{table:?}");
    assert!(table[0].ends_with("|  accepted |"), "{table:?}");
    // Before the first row.
    let notes = stderr(&output);
    assert!(notes.starts_with("device: CPU with "), "{notes}");
    assert!(notes.contains("speed.svg"), "{notes}");
    let drawn = fs::read_to_string(&path).expect("it was written");
    assert_svg(&drawn);
    // A line for pp3 and one for tg2, each with its sample in the legend.
    assert_eq!(drawn.matches("<polyline").count(), 4);
    for expected in ["Tales 16M", "CPU with", "pp3", "tg2"] {
        assert!(drawn.contains(expected), "{expected}: {drawn}");
    }
    assert_eq!(names(folder.path()), ["speed.svg"]);
}

#[test]
fn bars_fit_a_narrow_terminal() {
    let args = [&BENCH[..], &["--bars"]].concat();
    for (locale, block) in [("C.UTF-8", '█'), ("C", '#')] {
        let text = narrow(&args, locale);
        let (_, bars) = text.split_once("\n\n").expect("bars below the table");
        assert!(bars.contains(block) && bars.contains("tg2 @ d5"), "{bars}");
        assert!(
            bars.lines().all(|line| line.chars().count() <= 40),
            "{bars}"
        );
        assert!(!bars.contains('\x1b'), "{bars}");
        let page = narrow(&["inspect", "--bars"], locale);
        let (_, bars) = page.rsplit_once("\n\n").expect("bars below the page");
        assert!(bars.contains(block) && bars.contains("experts"), "{bars}");
        assert!(
            bars.lines().all(|line| line.chars().count() == 40),
            "{bars}"
        );
    }
    let message = failure(&[&args[..], &["-o", "jsonl"]].concat(), 2);
    assert!(error_line(&message).contains("-o md"), "{message}");
    failure(&["inspect", "--bars", "--json"], 2);
}

#[test]
fn inspect_draws_its_memory_and_prints_as_without() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("memory.svg");
    let path = path.to_str().expect("a plain name");
    let plain = text(&["inspect", "--json", "--ctx", "1000"]);
    let drawing = text(&["inspect", "--json", "--ctx", "1000", "--svg", path]);
    assert_eq!(drawing, plain);
    let drawn = fs::read_to_string(path).expect("it was written");
    assert_svg(&drawn);
    for expected in ["experts", "attention", "cache", "1000 tokens"] {
        assert!(drawn.contains(expected), "{expected}: {drawn}");
    }
    let cache = json(&plain)["memory"]["cache"].as_f64().expect("a number");
    assert!(drawn.contains(&format!("{:.1} MiB", cache / f64::from(1 << 20))));
    let message = failure(&["inspect", "--svg", "no/such/folder/x.svg"], 1);
    assert!(
        error_line(&message).contains("no/such/folder/x.svg"),
        "{message}"
    );
}

#[test]
fn a_picture_that_cannot_be_written_is_refused_before_measuring() {
    let message = failure(
        &[&BENCH[..], &["--svg", "no/such/folder/x.svg"]].concat(),
        1,
    );
    assert!(
        error_line(&message).contains("no/such/folder/x.svg"),
        "{message}"
    );
    assert!(!message.contains("device:"), "{message}");
}

#[test]
fn synth_tells_what_it_wrote() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tiny.gguf");
    let path = path.to_str().expect("a plain name");
    let output = run(&["synth", "tiny", "q4_0", path, "--layers", "1"]);
    assert!(output.status.success() && stdout(&output).is_empty());
    let note = stderr(&output);
    let start = format!("wrote {path}: tiny q4_0, ");
    assert!(
        note.starts_with(&start) && note.ends_with(" tensors\n"),
        "{note}"
    );
    assert_eq!(names(folder.path()), ["tiny.gguf"]);
}

#[test]
fn one_token_is_not_several() {
    let args = ["generate", "--device", "cpu", "--raw", "-n", "1", "a"];
    let output = run(&args);
    let last = stderr(&output).lines().last().expect("a statistics line");
    assert!(
        last.starts_with("prompt: 1 token, ") && last.contains("generated: 1 token (limit)"),
        "{last}"
    );
}

/// Begins a command that writes a file to `folder`, and sends it a signal when that is half written. Returned is its exit code.
#[cfg(unix)]
fn interrupted(signal: &str, args: &[&str], folder: &Path) -> Option<i32> {
    let before = names(folder).len();
    let mut child = glimt(args)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("the binary was built with this test");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while names(folder).len() == before {
        assert!(
            std::time::Instant::now() < deadline,
            "{args:?} begins no file"
        );
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let killed = std::process::Command::new("kill")
        .args([signal, &child.id().to_string()])
        .status();
    assert!(killed.expect("kill exists on Unix").success());
    child.wait().expect("it ends").code()
}

#[cfg(unix)]
#[test]
fn signals_leave_an_earlier_file_as_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("earlier");
    let file = path.to_str().expect("a plain name");
    let synth = &["synth", "youtu-llm-2b", "q4_0", file][..];
    let bench = &["bench", "--device", "cpu", "-n", "500", "--svg", file];
    let report = &["report", file, "--device", "cpu"];
    for (args, signal, code) in [
        (synth, "-INT", 130),
        (synth, "-TERM", 143),
        (bench, "-INT", 130),
        (report, "-INT", 130),
    ] {
        fs::write(&path, "what was there").expect("it can be written");
        let ended = interrupted(signal, args, folder.path());
        assert_eq!(ended, Some(code), "{args:?}");
        let left = fs::read_to_string(&path).expect("it is still there");
        assert_eq!(left, "what was there", "{args:?}");
        assert_eq!(names(folder.path()), ["earlier"], "{args:?}");
    }
}

/// `script` of util-linux runs a command in a terminal; where there is none, nothing is tested.
#[cfg(target_os = "linux")]
#[test]
fn a_terminal_gets_a_table_of_80_columns_and_bars() {
    let program = env!("CARGO_BIN_EXE_glimt");
    let table = |more: &str| {
        let command = format!("{program} {}{more}", BENCH.join(" "));
        let output = std::process::Command::new("script")
            .args(["-qec", &command, "/dev/null"])
            .env("LC_ALL", "C.UTF-8")
            .env("NO_COLOR", "1")
            .stdin(std::process::Stdio::null())
            .output()
            .ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success().then_some(text)
    };
    let (Some(narrow), Some(wide)) = (table(""), table(" --wide")) else {
        eprintln!("skipped: no script of util-linux");
        return;
    };
    let head = |text: &str| {
        let mut lines = text.split(['\r', '\n']);
        let head = lines.find_map(|line| line.find("| model").map(|at| line[at..].to_owned()));
        head.unwrap_or_else(|| panic!("no head in: {text}"))
    };
    assert!(head(&narrow).chars().count() <= 80, "{narrow}");
    assert!(head(&wide).ends_with("|  accepted |"), "{wide}");
    for text in [&narrow, &wide] {
        assert!(
            text.contains('█') && text.contains("generation, tokens/s"),
            "{text}"
        );
    }
}
