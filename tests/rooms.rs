//! Protects the order of the rooms of `src`: what is told in ARCHITECTURE.md, that a room uses only those above it in its table.

use std::fs;
use std::path::{Path, PathBuf};

/// The rooms, each of which may use those before it.
const ROOMS: [&str; 12] = [
    "quant",
    "gguf",
    "tokenizer",
    "model",
    "synth",
    "gpu",
    "kernels",
    "engine",
    "bench",
    "profile",
    "tune",
    "cli",
];

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        let path = entry.expect("a file or a folder").path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// Whether a file or a folder above it holds tests alone, which may use what they like.
fn is_test(path: &Path) -> bool {
    let test = |name: &str| name.contains("test") || name == "times.rs";
    let names = path.iter().filter_map(|name| name.to_str());
    names.skip_while(|name| *name != "src").any(test)
}

/// The code of a file that is no test: without comments, and up to the module of tests that ends it.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate();
    let lines = lines.take_while(|(_, line)| !line.starts_with("mod tests"));
    lines.map(|(i, line)| (i + 1, line.split("//").next().unwrap_or(line)))
}

#[test]
fn rooms_use_only_rooms_before_them() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut wrong = vec![];
    let mut uses = 0;
    for (i, room) in ROOMS.iter().enumerate() {
        let mut found = vec![];
        files(&src.join(room), &mut found);
        assert!(!found.is_empty(), "the room {room} is empty");
        for path in found.into_iter().filter(|path| !is_test(path)) {
            let text = fs::read_to_string(&path).expect("a text file");
            for (number, line) in code(&text) {
                for (j, other) in ROOMS.iter().enumerate() {
                    if line.contains(&format!("crate::{other}::")) {
                        uses += 1;
                        if j > i {
                            wrong.push(format!("{}:{number} uses {other}", path.display()));
                        }
                    }
                }
            }
        }
    }
    assert!(
        uses > 100,
        "the rooms use each other {uses} times: they are named otherwise now"
    );
    assert!(
        wrong.is_empty(),
        "rooms use later ones:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn every_room_is_named() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for entry in fs::read_dir(&src).expect("the folder of the sources") {
        let path = entry.expect("a file or a folder").path();
        if path.is_dir() {
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .expect("a name");
            assert!(
                ROOMS.contains(&name),
                "the room {name} has no place in the order"
            );
        }
    }
}
