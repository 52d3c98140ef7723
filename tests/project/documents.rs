//! Protects what is read: links lead somewhere, README.md and ARCHITECTURE.md stay short, and files of tests say what they protect.

use std::fs;
use std::path::{Component, Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All documents, by their paths in the repository.
fn documents() -> Vec<PathBuf> {
    let mut found = vec![];
    for folder in ["", "docs", "benches", "assets", "crates/lab"] {
        let entries = fs::read_dir(root().join(folder)).unwrap_or_else(|e| panic!("{folder}: {e}"));
        for entry in entries {
            let name = entry.expect("a file or a folder").file_name();
            let path = Path::new(folder).join(name);
            if path.extension().is_some_and(|e| e == "md") {
                found.push(path);
            }
        }
    }
    found
}

fn text(path: &Path) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The anchor of a heading: its letters and digits in lower case, with hyphens for spaces.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The targets of the links in Markdown.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let ends = text.split("](").skip(1);
    ends.filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target)
}

/// A path without `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            other => plain.push(other),
        }
    }
    plain
}

#[test]
fn links_lead_somewhere() {
    let documents = documents();
    assert!(documents.len() >= 8, "{documents:?}");
    let mut broken = vec![];
    let mut followed = 0;
    for document in &documents {
        let text_here = text(document);
        for target in links(&text_here).filter(|target| !target.contains("://")) {
            followed += 1;
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let path = match file {
                "" => document.clone(),
                _ => plain(&document.with_file_name("").join(file)),
            };
            let found = match heading {
                "" => root().join(&path).exists(),
                _ => {
                    documents.contains(&path)
                        && text(&path)
                            .lines()
                            .any(|line| line.starts_with('#') && anchor(line) == heading)
                }
            };
            if !found {
                broken.push(format!("{}: {target}", document.display()));
            }
        }
    }
    assert!(
        followed > 20,
        "{followed} links: they are written otherwise now"
    );
    assert!(
        broken.is_empty(),
        "links to nothing:\n{}",
        broken.join("\n")
    );
}

#[test]
fn what_is_read_first_is_short() {
    for (name, most) in [
        ("README.md", 130),
        ("ARCHITECTURE.md", 150),
        ("BENCHMARKS.md", 200),
        ("benches/notes.md", 800),
    ] {
        let lines = text(Path::new(name)).lines().count();
        assert!(
            lines <= most,
            "{name} has {lines} lines, at most {most}: move details to docs/, or leave them out"
        );
    }
}

/// The most words that ARCHITECTURE.md defines.
const WORDS: usize = 18;

#[test]
fn few_words_have_to_be_learned() {
    let text = text(Path::new("ARCHITECTURE.md"));
    let (_, words) = text.split_once("\n## Words\n").expect("it defines words");
    let (words, _) = words.split_once("\n## ").expect("another part follows");
    // Two rows are the head of the table.
    let words = words.lines().filter(|line| line.starts_with('|')).count() - 2;
    assert!(words <= WORDS, "{words} words, at most {WORDS}");
}

/// The files of Rust in a folder and those in it.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        let path = entry.expect("a file or a folder").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn files_of_tests_say_what_they_protect() {
    let mut files = vec![];
    sources(&root().join("tests"), &mut files);
    let mut others = vec![];
    for folder in ["src", "crates"] {
        sources(&root().join(folder), &mut others);
    }
    // `tests.rs`, `chat_tests.rs` and what is in folders named `tests`.
    files.extend(others.into_iter().filter(|path| {
        let mut names = path.iter().filter_map(|name| name.to_str());
        names.any(|name| name.trim_end_matches(".rs").ends_with("tests"))
    }));
    files.retain(|path| text(path).contains("#[test]"));
    assert!(files.len() > 30, "{files:?}");
    let mut silent = vec![];
    for path in &files {
        if !text(path).starts_with("//! Protects ") {
            silent.push(path.display().to_string());
        }
    }
    assert!(
        silent.is_empty(),
        "they do not begin with what they protect:\n{}",
        silent.join("\n")
    );
}
