//! Protects `report`: its parts, what fails in them, where it is written, and that nothing private is in it.

use std::path::Path;

use super::{EMBEDDED, error_line, glimt, run, stderr, stdout, write};

const PARTS: [&str; 8] = [
    "machine", "devices", "device", "verify", "bench", "token", "prompt", "expected",
];

/// The sections of a report with their names, after the line that says when it was made.
fn sections(report: &str) -> Vec<(&str, &str)> {
    let mut all = report.split("\n## ");
    let first = all.next().expect("a text has a first part");
    assert!(first.starts_with("glimt report, 2"), "{report}");
    let section = |text| str::split_once(text, '\n').expect("a heading is a line");
    let named = |(heading, text)| (str::split(heading, ':').next().unwrap_or(heading), text);
    all.map(section).map(named).collect()
}

/// The section of this name.
fn section<'a>(report: &'a str, name: &str) -> &'a str {
    let found = sections(report)
        .into_iter()
        .find(|(other, _)| *other == name);
    found.unwrap_or_else(|| panic!("no {name} in {report}")).1
}

/// The names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("the folder is there");
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        let name = entry.expect("it can be read").file_name();
        name.to_string_lossy().into_owned()
    };
    let mut names: Vec<_> = entries.map(name).collect();
    names.sort();
    names
}

#[test]
fn the_cpu_reference_has_a_whole_report() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let mut command = glimt(&["report", "--device", "cpu"]);
    let output = command
        .current_dir(folder.path())
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output), "");
    assert_eq!(names(folder.path()), ["glimt-report.txt"]);
    assert!(stderr(&output).contains("part 4 of 8: verify"));
    let path = folder.path().join("glimt-report.txt");
    let report = std::fs::read_to_string(path).expect("it is text");
    let found: Vec<_> = sections(&report).iter().map(|(name, _)| *name).collect();
    assert_eq!(found, [&PARTS[..], &["verdict"]].concat(), "{report}");
    for (name, text) in &sections(&report)[..PARTS.len()] {
        assert!(text.starts_with("\n$ glimt "), "{name}: {text}");
        assert!(text.contains("(it took "), "{name}: {text}");
    }
    for (name, expected) in [
        ("machine", concat!("glimt ", env!("CARGO_PKG_VERSION"))),
        ("devices", "cpu: CPU with "),
        ("verify", "$ glimt verify --device cpu\n"),
        ("verify", "the CPU reference: "),
        ("bench", "$ glimt bench -p 64 -n 16 -r 1 --device cpu\n"),
        ("bench", "| CPU with "),
        ("token", "left out: the CPU reference has no kernels"),
        ("prompt", "left out: "),
        ("expected", "left out: "),
        ("verdict", "8 parts ran, none failed."),
    ] {
        let text = section(&report, name);
        assert!(text.contains(expected), "{name}: {text}");
    }
}

/// Runs what a section names as the command that repeats it.
fn repeated(section: &str) -> String {
    let line = section
        .lines()
        .find_map(|line| line.strip_prefix("$ glimt "));
    let words: Vec<_> = line.expect("a command").split(' ').collect();
    let output = run(&words);
    assert!(output.status.success(), "{words:?}: {}", stderr(&output));
    stdout(&output).to_owned()
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_gpu_has_a_whole_report() {
    let args = ["report", "-", "--device", "0", "--tier", "subgroup"];
    let output = run(&[&args[..], &["--synthetic", "tiny:q4_0"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let report = stdout(&output);
    for (name, expected) in [
        ("devices", "0: "),
        ("device", "tier subgroup: it runs; activations "),
        ("device", "    max_storage_buffer_binding_size: "),
        ("verify", "\nsubgroup "),
        ("verify", " comparisons passed"),
        ("bench", "--tier subgroup --synthetic tiny:q4_0\n"),
        ("token", "| kernel "),
        ("token", "tier subgroup;"),
        ("prompt", "us/prompt"),
        ("expected", "| synthetic glm-4.7-flash q4_0 | subgroup | "),
        ("expected", " by a plain read"),
        ("verdict", "8 parts ran, none failed."),
    ] {
        let text = section(report, name);
        assert!(text.contains(expected), "{name}: {text}");
    }
    assert!(!section(report, "device").contains("texture"), "{report}");
}

/// The number of a cell, without its deviation.
fn number(cell: &str) -> f64 {
    let number = cell.split('±').next().unwrap_or_default().trim();
    number.parse().unwrap_or_else(|e| panic!("{cell}: {e}"))
}

#[test]
#[ignore = "long: scripts/test --all"]
fn what_was_measured_stands_beside_what_was_expected() {
    let args = [
        "report",
        "-",
        "--device",
        "0",
        "--tier",
        "plain",
        "--tier",
        "subgroup",
        "--only",
        "expected",
        "--only",
        "bench",
        "--synthetic",
        "tiny:q4_0",
    ];
    let output = run(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    let report = stdout(&output);
    let lines = |part: &str, start: &str| -> Vec<Vec<String>> {
        let lines = section(report, part).lines();
        let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect();
        lines
            .filter(|line| line.starts_with(start))
            .map(cells)
            .collect()
    };
    assert_eq!(lines("bench", "| model ").len(), 1, "{report}");
    let measured = lines("bench", "| synthetic tiny q4_0 ");
    let expected = lines("expected", "| synthetic tiny q4_0 ");
    assert_eq!((measured.len(), expected.len()), (4, 2), "{report}");
    for (tier, expected) in ["plain", "subgroup"].iter().zip(&expected) {
        let row = measured
            .iter()
            .find(|row| row[5] == "tg16" && row[8] == *tier);
        let measured = number(&row.expect("a row of this tier")[6]);
        assert_eq!(expected[2], *tier, "{report}");
        assert!(
            (number(&expected[8]) / measured - 1.0).abs() < 0.02,
            "{report}"
        );
        assert!(number(&expected[7]) > 0.0, "{report}");
    }
}

#[test]
fn sections_are_repeated_by_their_commands() {
    let args = [
        "report", "-", "--device", "cpu", "--only", "bench", "--only", "devices",
    ];
    let output = run(&[&args[..], &["--only", "machine"]].concat());
    let report = stdout(&output);
    assert_eq!(sections(report).len(), 4, "{report}");
    for (name, expected) in [("bench", "| CPU with "), ("devices", "cpu: CPU with ")] {
        let again = repeated(section(report, name));
        assert!(again.contains(expected), "{name}: {again}");
    }
    let again = repeated(section(report, "machine"));
    assert_eq!(sections(&again)[0].0, "machine", "{again}");
}

#[test]
fn a_part_that_fails_stops_no_other_and_tells_no_folder() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let half = write(home.path(), "half.gguf", &EMBEDDED[..EMBEDDED.len() / 2]);
    let only = ["--only", "bench", "--only", "machine", "--only", "verify"];
    let args = [&["report", "-", "--device", "cpu", "-m", &half], &only[..]].concat();
    let mut command = glimt(&args);
    let output = command.env("HOME", home.path()).output().expect("it runs");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let report = stdout(&output);
    let bench = section(report, "bench");
    assert!(bench.contains("FAILED: half.gguf is truncated"), "{bench}");
    assert!(bench.contains(" -m half.gguf\n"), "{bench}");
    assert!(section(report, "verify").contains(" passed"), "{report}");
    let verdict = section(report, "verdict");
    assert!(verdict.contains("1 of 3 parts failed: bench."), "{verdict}");
    let folder = home.path().to_string_lossy();
    assert!(!report.contains(&*folder), "{report}");
    let error = error_line(stderr(&output));
    assert!(error.contains("1 of 3 parts failed: bench"), "{error}");
}

#[test]
fn what_cannot_be_reported_is_refused_and_leaves_earlier_files() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let earlier = write(folder.path(), "earlier.txt", b"earlier");
    let missing = folder.path().join("no/report.txt");
    let missing = missing.to_str().expect("temporary paths are UTF-8 here");
    let path = folder
        .path()
        .to_str()
        .expect("temporary paths are UTF-8 here");
    for (args, code, expected) in [
        (&[missing][..], 1, missing),
        (&[path], 1, path),
        (&[&earlier, "--device", "no such adapter"], 1, "adapter"),
        (
            &[&earlier, "--device", "cpu", "--tier", "plain"],
            2,
            "no tiers",
        ),
        (
            &[
                &earlier,
                "-m",
                "no/such/model.gguf",
                "--device",
                "cpu",
                "--only",
                "bench",
            ],
            1,
            "bench",
        ),
    ] {
        let output = run(&[&["report"], args].concat());
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        assert!(
            error_line(stderr(&output)).contains(expected),
            "{args:?}: {}",
            stderr(&output)
        );
        assert_eq!(names(folder.path()), ["earlier.txt"], "{args:?}");
    }
    // The last one has told in the report what failed.
    let report = std::fs::read_to_string(&earlier).expect("it is there");
    assert!(section(&report, "bench").contains("FAILED: "), "{report}");
}
