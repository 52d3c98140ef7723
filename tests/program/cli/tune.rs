//! Protects `tune`: what it finds is kept in the cache folder, used from then on, and forgotten on demand.

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::Output;

use super::{error_line, failure, glimt, json, stderr, stdout};

const TINY: [&str; 4] = ["--synthetic", "tiny:q4_0", "--tier", "subgroup"];

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

/// Writes choices of nothing for the default adapter, under the name that it would have.
fn make_file(cache: &Path) -> PathBuf {
    let devices = run_in(cache, &["devices", "--json"]);
    let adapter = &json(stdout(&devices))["adapters"][0];
    let text = |key: &str| adapter[key].as_str().expect("a text").to_owned();
    let (name, backend, driver) = (text("name"), text("backend"), text("driver"));
    let version = env!("CARGO_PKG_VERSION");
    let all = format!("tuned {name} {backend} {driver} {version}").to_lowercase();
    let words = all.split(|c: char| !c.is_ascii_alphanumeric() && c != '.');
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    let path = cache.join("glimt").join(words.join("-") + ".json");
    let content = serde_json::json!({
        "adapter": name,
        "driver": driver,
        "version": version,
        "choices": {"geometries": {}, "merge_up_to": {}},
    });
    std::fs::write(&path, content.to_string()).expect("the folder is writable");
    path
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "long: scripts/test --all"]
fn what_is_measured_is_kept_used_and_forgotten() {
    let cache = tempfile::tempdir().expect("a temporary directory");
    let cache = cache.path();
    let tune = |more: &[&str]| run_in(cache, &[&["tune", "-o", "json"], &TINY[..], more].concat());

    let dry = ["tune", "--seconds", "2", "--dry-run", "--tier", "int8"];
    let output = run_in(cache, &[&dry[..], &TINY[..2]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("bytes"), "{}", stdout(&output));
    assert!(kept(cache).is_empty(), "a dry run keeps nothing");

    let output = tune(&["--seconds", "12"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let tuned = json(stdout(&output));
    let found = tuned["found"].as_array().expect("a list");
    assert!(!found.is_empty(), "{tuned}");
    for one in found {
        assert!(one["candidates"].as_u64() > Some(1), "{one}");
        assert!(
            one["site"]
                .as_str()
                .is_some_and(|site| site.contains("halves"))
        );
        assert!(one["chosen_us"].as_f64() <= one["default_us"].as_f64());
    }
    // On a busy machine nothing may be faster: then what is kept is written here.
    let files = kept(cache);
    assert_eq!(
        files.len(),
        usize::from(tuned["faster"] == true),
        "{files:?}"
    );
    let path = match files.first() {
        Some(path) => path.clone(),
        None => make_file(cache),
    };
    let path = path.to_str().expect("the path is UTF-8 here");

    let bench = &["bench", "-p", "0", "-n", "4", "-r", "1"];
    let bench = || run_in(cache, &[&bench[..], &TINY].concat());
    let output = bench();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains(path), "{}", stderr(&output));

    let with_number = |name: &str, value: u32| {
        let mut content = json(&std::fs::read_to_string(make_file(cache)).expect("a text"));
        content["choices"]["numbers"] = serde_json::json!({name: value});
        std::fs::write(path, content.to_string()).expect("the file can be replaced");
        let bench = ["bench", "-p", "200", "-n", "0", "-r", "1", "-o", "json"];
        run_in(cache, &[&bench[..], &TINY].concat())
    };
    let output = with_number("chunk", 64);
    assert_eq!(
        json(stdout(&output))[0]["n_ubatch"],
        64,
        "{}",
        stderr(&output)
    );
    for (name, value) in [("chunk", 0), ("chunks", 1)] {
        let output = with_number(name, value);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(stderr(&output).contains(name), "{}", stderr(&output));
        assert_eq!(json(stdout(&output))[0]["n_ubatch"], 200);
    }

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
    let message = failure(&["tune", "--tier", "plain", "--synthetic", "tiny:q4_0"], 2);
    assert!(
        error_line(&message).contains("leave out --tier"),
        "{message}"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn ctrl_c_ends_tuning_at_once_and_keeps_nothing() {
    let cache = tempfile::tempdir().expect("a temporary directory");
    let mut child = glimt(&[&["tune", "--seconds", "60"], &TINY[..]].concat())
        .env("XDG_CACHE_HOME", cache.path())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the binary was built with this test");
    let told = std::io::BufReader::new(child.stderr.take().expect("it is piped"));
    let mut lines = told.lines().map(|line| line.expect("messages are UTF-8"));
    let measuring = lines.find(|line| line.contains("candidates"));
    assert!(measuring.is_some(), "it measures");
    let pid = i32::try_from(child.id()).expect("process ids fit");
    // SAFETY: the process is a child that was not waited for, so the id is its own.
    unsafe { libc::kill(pid, libc::SIGINT) };
    let began = std::time::Instant::now();
    let rest: Vec<_> = lines.collect();
    let status = child.wait().expect("it was started");
    // Tuning ends when the current candidate is compiled. That takes less than a second, but longer where other tests run.
    assert!(began.elapsed().as_secs_f64() < 10.0, "{rest:?}");
    assert_eq!(status.code(), Some(130));
    assert!(kept(cache.path()).is_empty());
}

#[cfg(target_os = "linux")]
#[test]
fn what_cannot_be_kept_is_said_before_measuring() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    // A file where the cache folder would be: nobody, not even root, can write into it.
    let cache = folder.path().join("cache");
    std::fs::write(&cache, "").expect("the folder is writable");
    let output = run_in(&cache, &[&["tune", "--seconds", "8"], &TINY[..]].concat());
    let told = stderr(&output);
    assert!(output.status.success(), "{told}");
    let said = told.find("will not be kept").expect("it is said");
    let measured = told.find("candidates").expect("it is measured");
    assert!(said < measured, "{told}");
    assert!(stdout(&output).contains("|"), "the table is there");
}
