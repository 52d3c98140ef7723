//! Protects the order of the sources: a room uses only those above it in the table of ARCHITECTURE.md, within a room no files
//! use each other in a circle, nothing blocks but what native builds wait with, and no function is too long.

mod blocking;
mod circles;
mod functions;
mod source;
mod uses;

use circles::{Graph, circles};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use uses::{Crate, Module};

/// The rooms, each of which may use those before it.
const ROOMS: [&str; 23] = [
    "files",
    "effort",
    "plural",
    "aliases",
    "quant",
    "gguf",
    "hub",
    "tokenizer",
    "model",
    "gpu",
    "kernels",
    "synth",
    "models",
    "engine",
    "chat",
    "web",
    "pictures",
    "bench",
    "profile",
    "tune",
    "verify",
    "server",
    "cli",
];

/// The sources of the program and of each library. The laboratory is no part of them.
fn folders() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let libraries = fs::read_dir(root.join("crates")).expect("the folder of the libraries");
    let libraries = libraries.map(|entry| entry.expect("a folder").path());
    let libraries = libraries.filter(|folder| !folder.ends_with("lab"));
    let all = [root.to_owned()].into_iter().chain(libraries);
    all.map(|folder| folder.join("src")).collect()
}

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

/// The sources without those that hold tests alone, which may use what they like. All packages are read as one crate: each imports the
/// rooms that it uses under their names.
fn sources() -> Crate {
    let mut all = BTreeMap::new();
    for folder in folders() {
        let mut found = vec![];
        files(&folder, &mut found);
        for path in found {
            let name = path.strip_prefix(&folder).expect("a file of the sources");
            let name = name.to_str().expect("a plain name").replace('\\', "/");
            let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
            let name = name.replace("main.rs", "lib.rs");
            *all.entry(name).or_insert_with(String::new) += &text;
        }
    }
    Crate::of(
        all.iter()
            .map(|(name, text)| (name.as_str(), text.as_str())),
    )
}

#[test]
fn rooms_use_only_rooms_before_them() {
    let sources = sources();
    let place = |module: &Module| {
        ROOMS
            .iter()
            .position(|room| module.first().is_some_and(|m| m == room))
    };
    let mut wrong = vec![];
    let mut uses = 0;
    for module in sources.modules() {
        for used in sources.uses(module) {
            if let (Some(own), Some(other)) = (place(module), place(used)) {
                uses += usize::from(own != other);
                if other > own {
                    wrong.push(format!("{} uses {}", module.join("::"), used.join("::")));
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
fn only_its_own_folder_knows_a_family() {
    let sources = sources();
    let mut wrong = vec![];
    for module in sources.modules() {
        let outside = module.first().is_some_and(|room| room != "models");
        for used in sources.uses(module) {
            if outside && used.len() > 1 && used[0] == "models" {
                wrong.push(format!("{} uses {}", module.join("::"), used.join("::")));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "what works for every family uses one:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn every_room_is_named() {
    let in_folder = |folder: PathBuf| fs::read_dir(folder).expect("a folder of sources");
    for entry in folders().into_iter().flat_map(in_folder) {
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

/// The files of each folder that has a mod.rs, and which of them use which. Modules below a file count as this file, and mod.rs
/// is no file of its room: it says what the room has.
fn files_of_rooms(sources: &Crate) -> BTreeMap<Module, Graph> {
    let rooms = sources.modules().filter(|module| {
        let folder: PathBuf = module.iter().collect();
        let file = folder.join("mod.rs");
        folders().iter().any(|sources| sources.join(&file).exists())
    });
    let mut graphs: BTreeMap<Module, Graph> =
        rooms.map(|room| (room.clone(), Graph::new())).collect();
    for module in sources.modules() {
        for used in sources.uses(module) {
            for (room, graph) in &mut graphs {
                let depth = room.len();
                let file = |module: &Module| {
                    module
                        .starts_with(room)
                        .then(|| module.get(depth).cloned())
                        .flatten()
                };
                if let (Some(file), Some(used)) = (file(module), file(used))
                    && file != used
                {
                    graph.entry(file).or_default().insert(used);
                }
            }
        }
    }
    graphs
}

#[test]
fn no_files_of_a_room_use_each_other_in_circles() {
    let sources = sources();
    let mut wrong = vec![];
    let mut uses = 0;
    for (room, graph) in files_of_rooms(&sources) {
        uses += graph.values().map(BTreeSet::len).sum::<usize>();
        for circle in circles(&graph) {
            wrong.push(format!("{}: {}", room.join("::"), circle.join(", ")));
            for file in &circle {
                let used = graph[*file]
                    .iter()
                    .filter(|used| circle.contains(&used.as_str()));
                let used: Vec<_> = used.map(String::as_str).collect();
                wrong.push(format!("    {file} uses {}", used.join(", ")));
            }
        }
    }
    assert!(
        uses > 100,
        "the files of the rooms use each other {uses} times: paths are written otherwise now"
    );
    assert!(
        wrong.is_empty(),
        "files use each other in circles:\n{}",
        wrong.join("\n")
    );
}
