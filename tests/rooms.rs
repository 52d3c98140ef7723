//! Protects what ARCHITECTURE.md tells of the rooms of `src`: that a room uses only those above it in its table, and that `gpu` and
//! `engine` block nowhere but in their wrappers for native builds.

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

/// What blocks a thread, as code says it.
const BLOCKING: [&str; 9] = [
    "PollType::Wait",
    "PollType::wait",
    "block_on",
    "thread::",
    ".recv()",
    ".join()",
    "sleep(",
    "park(",
    "Condvar",
];
/// The files that may block: the wrappers for native builds.
const WRAPPERS: [&str; 3] = ["gpu/wait.rs", "engine/wait.rs", "engine/gpu/wait.rs"];
/// The files that may call the wrappers: measurements, which native builds alone make.
const MEASUREMENTS: [&str; 3] = [
    "engine/bandwidth.rs",
    "engine/gpu/measure.rs",
    "engine/gpu/tune.rs",
];

/// The lines of `gpu` and `engine` and of the trials of kernels, tests aside, with the files that they stand in.
fn lines_of_the_core() -> Vec<(String, usize, String)> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = vec![];
    for room in ["gpu", "kernels", "engine"] {
        files(&src.join(room), &mut found);
    }
    let mut lines = vec![];
    for path in found.into_iter().filter(|path| !is_test(path)) {
        let text = fs::read_to_string(&path).expect("a text file");
        let name = path.strip_prefix(&src).expect("a file of src");
        let name = name.to_string_lossy().replace('\\', "/");
        lines.extend(code(&text).map(|(number, line)| (name.clone(), number, line.to_owned())));
    }
    lines
}

#[test]
fn nothing_blocks_but_the_wrappers_for_native_builds() {
    let (mut wrong, mut wrapped) = (vec![], 0);
    for (name, number, line) in lines_of_the_core() {
        let blocks = BLOCKING.iter().any(|word| line.contains(word));
        match WRAPPERS.contains(&name.as_str()) {
            true => wrapped += usize::from(blocks),
            false if blocks => wrong.push(format!("{name}:{number}: {line}")),
            false => {}
        }
    }
    assert!(wrapped > 3, "the wrappers block otherwise now: {wrapped}");
    assert!(wrong.is_empty(), "these lines block:\n{}", wrong.join("\n"));
}

/// The wrappers under their own names: the core takes those with `async`.
#[test]
fn only_measurements_call_what_waits() {
    let calls = [
        "complete(",
        "Gpu::open(",
        "Recording::new(",
        "Stamps::new(",
        "GpuModel::load(",
        "GpuModel::load_precomposed(",
        "GpuBackend::new(",
        "GpuBackend::with_chunk(",
        "gpu.wait(",
        "gpu().wait(",
        "gpu.buffer(",
        "gpu.storage(",
        "gpu.storage_with(",
        "gpu.read::<",
        "gpu.map_read(",
        "gpu.pipelines(",
        ".make(gpu",
        ".make(&",
        "wait::in_turn",
        "wait::repeat",
    ];
    let lines = lines_of_the_core().into_iter();
    let wrong: Vec<_> = lines
        .filter(|(name, ..)| {
            ![&WRAPPERS[..], &MEASUREMENTS]
                .concat()
                .contains(&name.as_str())
        })
        .filter(|(.., line)| calls.iter().any(|call| line.contains(call)))
        .map(|(name, number, line)| format!("{name}:{number}: {line}"))
        .collect();
    assert!(wrong.is_empty(), "these lines wait:\n{}", wrong.join("\n"));
}
