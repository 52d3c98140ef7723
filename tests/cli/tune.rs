//! `tune`: what it finds is kept in the cache folder, used from then on, and forgotten on demand.

use std::path::{Path, PathBuf};
use std::process::Output;

use super::{error_line, failure, glimt, json, stderr, stdout};

const TINY: [&str; 4] = ["--synthetic", "tiny:q4_0", "--tier", "int8"];

/// Runs a command with a cache folder of its own.
fn run_in(cache: &Path, args: &[&str]) -> Output {
    let mut command = glimt(args);
    command.env("XDG_CACHE_HOME", cache).env("RUST_LOG", "info");
    command
        .output()
        .expect("the binary was built with this test")
}

/// The files of choices in a cache folder.
fn kept(cache: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(cache.join("glimt")).expect("the folder is there");
    let paths = files.map(|file| file.expect("it can be read").path());
    paths
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .collect()
}

#[cfg(target_os = "linux")]
#[test]
fn what_is_measured_is_kept_used_and_forgotten() {
    let cache = tempfile::tempdir().expect("a temporary directory");
    let cache = cache.path();
    let tune = |more: &[&str]| run_in(cache, &[&["tune", "-o", "json"], &TINY[..], more].concat());

    let output = tune(&["--seconds", "2", "--dry-run"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(kept(cache).is_empty(), "a dry run keeps nothing");

    let output = tune(&["--seconds", "4"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let tuned = json(stdout(&output));
    let found = tuned["found"].as_array().expect("a list");
    assert!(!found.is_empty(), "{tuned}");
    for one in found {
        assert!(one["candidates"].as_u64() > Some(1), "{one}");
        assert!(one["chosen_us"].as_f64() <= one["default_us"].as_f64());
    }
    let files = kept(cache);
    assert_eq!(files.len(), 1, "{files:?}");
    let path = files[0].to_str().expect("the path is UTF-8 here");

    let bench = &["bench", "-p", "0", "-n", "4", "-r", "1"];
    let bench = || run_in(cache, &[&bench[..], &TINY].concat());
    let output = bench();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains(path), "{}", stderr(&output));

    std::fs::write(path, "{").expect("the file can be replaced");
    let output = bench();
    assert!(output.status.success(), "{}", stderr(&output));
    let warned = stderr(&output);
    assert!(
        warned.contains("not using the choices") && warned.contains(path),
        "{warned}"
    );

    let output = run_in(cache, &["tune", "--forget"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(kept(cache).is_empty());
    let output = run_in(cache, &["tune", "--forget"]);
    assert!(stderr(&output).contains("nothing was kept"));
}

#[test]
fn what_has_no_choices_is_refused() {
    let message = failure(&["tune", "--device", "cpu"], 2);
    assert!(error_line(&message).contains("--device"), "{message}");
    let message = failure(
        &["tune", "--tier", "subgroup", "--synthetic", "tiny:q4_0"],
        2,
    );
    assert!(error_line(&message).contains("int8"), "{message}");
}
