//! Protects removing from the cache: what is asked for goes, and nothing that anything else needs.

use std::fs;

use super::server::{Manners, Server, sha256};
use super::{Home, files, noise, parts, stderr};

/// A hub with two quantisations, pulled at two commits of which the second has one file more.
fn pulled() -> (Server, Home) {
    let (server, home) = (Server::start(), Home::new());
    server.put("a/b", "m-Q4_0.gguf", noise(5000, 1));
    server.put("a/b", "m-Q8_0.gguf", noise(6000, 2));
    for name in ["a/b:Q4_0", "a/b:Q8_0"] {
        home.pull(&server, name).0.expect("it is pulled");
    }
    server.put("a/b", "config.json", "{}");
    home.pull(&server, "a/b:Q4_0").0.expect("it is pulled");
    (server, home)
}

#[test]
fn a_model_goes_from_every_snapshot_and_others_stay() {
    let (server, home) = pulled();
    let error = home.failure(&server, &["rm", "--yes", "a/b"], 1);
    assert!(
        error.contains("name one: Q4_0 (5000 bytes), Q8_0 (6000 bytes)"),
        "{error}"
    );
    let error = home.failure(&server, &["rm", "a/b:Q4_0"], 2);
    assert!(error.contains("--yes"), "{error}");
    let output = home.run(&server, &["rm", "--yes", "a/b:q4_0"]);
    assert!(
        output.status.success() && stderr(&output).contains("m-Q4_0.gguf"),
        "{}",
        stderr(&output)
    );
    let left = files(&home.hub());
    assert!(
        !left
            .iter()
            .any(|name| name.contains("Q4_0") || name.contains(&sha256(&noise(5000, 1)))),
        "{left:?}"
    );
    assert!(
        left.contains(&format!("models--a--b/blobs/{}", sha256(&noise(6000, 2)))),
        "{left:?}"
    );
    home.text(&server, &["rm", "--yes", "a/b:Q8_0"]);
    assert_eq!(files(&home.hub()), ["CACHEDIR.TAG"]);
    assert!(!home.hub().join("models--a--b").exists());
    assert!(
        home.failure(&server, &["rm", "--yes", "a/b"], 1)
            .contains("no store")
    );
}

#[test]
fn bytes_that_another_file_needs_stay() {
    let (server, home) = (Server::start(), Home::new());
    // One content under two names is one blob.
    server.put("a/b", "m-Q4_0.gguf", noise(5000, 1));
    server.put("a/b", "n-Q8_0.gguf", noise(5000, 1));
    for name in ["a/b:Q4_0", "a/b:Q8_0"] {
        home.pull(&server, name).0.expect("it is pulled");
    }
    home.text(&server, &["rm", "--yes", "a/b:Q4_0"]);
    let kept = home.pull(&server, "a/b:Q8_0").0.expect("it is there");
    assert_eq!(fs::read(kept).expect("it is there"), noise(5000, 1));
    assert_eq!(home.text(&server, &["list"]).lines().count(), 2);
}

#[test]
fn what_was_begun_can_be_removed() {
    let (server, home) = (Server::start(), Home::new());
    server.put("a/b", "m-Q4_0.gguf", noise(50_000, 1));
    server.behave(Manners {
        cut: Some((9, 1000)),
        ..Manners::default()
    });
    home.pull(&server, "a/b").0.expect_err("it never comes");
    assert_eq!(parts(&home).len(), 1);
    assert_eq!(home.text(&server, &["list"]), "", "a part is no model");
    home.text(&server, &["rm", "--yes", "a/b"]);
    assert!(parts(&home).is_empty());
}

#[test]
fn without_links_the_files_themselves_are_there() {
    let (server, home) = (Server::start(), Home::new());
    server.put("a/b", "m-Q4_0.gguf", noise(50_000, 1));
    let run = |args: &[&str]| {
        let mut command = home.glimt(&server, args);
        let output = command.env("HF_HUB_DISABLE_SYMLINKS", "1").output();
        let output = output.expect("it runs");
        assert!(output.status.success(), "{}", stderr(&output));
        super::stdout(&output)
    };
    let path = run(&["pull", "a/b"]);
    let path = std::path::Path::new(path.trim());
    assert!(!path.is_symlink() && fs::read(path).expect("it is there") == noise(50_000, 1));
    assert!(!files(&home.hub()).iter().any(|name| name.contains("blobs")));
    server.asked();
    run(&["pull", "a/b"]);
    assert!(server.asked().iter().all(|asked| asked.sent == 0));
    // One that is too short is replaced.
    fs::write(path, "cut").expect("it can be written");
    run(&["pull", "a/b"]);
    assert!(fs::read(path).expect("it is there") == noise(50_000, 1));
    run(&["rm", "--yes", "a/b"]);
    assert_eq!(files(&home.hub()), ["CACHEDIR.TAG"]);
    // A blob that a link needs is copied, and stays.
    let old = home.pull(&server, "a/b").0.expect("it is pulled");
    server.put("a/b", "m-Q8_0.gguf", noise(50_000, 2));
    let new = run(&["pull", "a/b:Q4_0"]);
    assert!(old.is_symlink() && !std::path::Path::new(new.trim()).is_symlink());
    for path in [old.to_str().expect("a plain name"), new.trim()] {
        assert!(fs::read(path).expect("it is there") == noise(50_000, 1));
    }
}
