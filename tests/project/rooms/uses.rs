//! Protects the order of rooms: tells which modules of the crate use which, by explicit paths and by imports, followed through re-exports.

use super::source::tokens;
use std::collections::{BTreeMap, BTreeSet};

/// Imports of imports that are followed; more would be a name that imports itself.
const MOST_IMPORTS: usize = 8;

/// A module by its path from the root of the crate.
pub type Module = Vec<String>;

/// An import, or a path elsewhere in the code.
struct Path {
    segments: Vec<String>,
    /// The name in this module; nothing where the path is no import, `*` for all that is there.
    name: Option<String>,
}

/// The modules of a crate, with their tokens and the paths among them.
pub struct Crate(BTreeMap<Module, (Vec<String>, Vec<Path>)>);

impl Crate {
    /// The crate of files, each given by its path from the folder of the sources and its text. Files that only tests have are left out.
    pub fn of<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let read = |(path, text)| (module(path), tokens(text));
        let files: BTreeMap<_, _> = files.into_iter().map(read).collect();
        let declared = |module: &Module| {
            let above = (0..module.len()).map(|depth| (&module[..depth], &module[depth]));
            above.into_iter().all(|(parent, name)| {
                let declares =
                    |three: &[String]| three[0] == "mod" && three[1] == *name && three[2] == ";";
                files
                    .get(parent)
                    .is_some_and(|tokens| tokens.windows(3).any(declares))
            })
        };
        let kept = files.iter().filter(|(module, _)| declared(module));
        let with_paths = |tokens: &Vec<String>| (tokens.clone(), paths(tokens));
        Self(
            kept.map(|(module, tokens)| (module.clone(), with_paths(tokens)))
                .collect(),
        )
    }

    /// The modules that `module` uses, where it is one.
    pub fn uses(&self, module: &Module) -> BTreeSet<&Module> {
        let paths = self.0.get(module).into_iter().flat_map(|(_, paths)| paths);
        paths
            .filter_map(|path| self.resolve(module, &path.segments, 0))
            .collect()
    }

    /// All modules.
    pub fn modules(&self) -> impl Iterator<Item = &Module> {
        self.0.keys()
    }

    /// All modules, with the [tokens] of their code.
    pub fn code(&self) -> impl Iterator<Item = (&Module, &[String])> {
        self.0
            .iter()
            .map(|(module, (tokens, _))| (module, &**tokens))
    }

    /// The module in which a path ends that stands in `from`: where what it names is declared.
    fn resolve(&self, from: &[String], segments: &[String], depth: usize) -> Option<&Module> {
        let mut at = from.to_vec();
        let mut rest = segments;
        while let Some((first, others)) = rest.split_first() {
            match first.as_str() {
                "crate" => at.clear(),
                "self" => {}
                "super" => drop(at.pop()),
                _ => break,
            }
            rest = others;
        }
        // A path from here, or into another crate.
        let mut relative = rest.len() == segments.len();
        while let Some((first, others)) = rest.split_first() {
            let below = [&at[..], std::slice::from_ref(first)].concat();
            if self.0.contains_key(&below) {
                at = below;
                rest = others;
                relative = false;
                continue;
            }
            let import = self.import(&at, first).filter(|_| depth < MOST_IMPORTS);
            let found = import.and_then(|path| self.resolve(&at, &path.segments, depth + 1));
            return match found {
                Some(found) if others.is_empty() => Some(found),
                Some(found) => {
                    self.resolve(found, &[&["self".to_owned()], others].concat(), depth + 1)
                }
                None if relative => None,
                None => self.known(&at),
            };
        }
        self.known(&at)
    }

    fn known(&self, module: &[String]) -> Option<&Module> {
        self.0.get_key_value(module).map(|(module, _)| module)
    }

    fn import(&self, module: &[String], name: &str) -> Option<&Path> {
        let (_, paths) = self.0.get(module)?;
        paths.iter().find(|path| path.name.as_deref() == Some(name))
    }
}

/// The module of a file.
fn module(path: &str) -> Module {
    let path = path.trim_end_matches(".rs");
    let path = path.strip_suffix("/mod").unwrap_or(path);
    let names = path.split('/').filter(|name| *name != "lib");
    names.map(str::to_owned).collect()
}

/// The imports of a file, and the paths in it that say where they begin.
fn paths(tokens: &[String]) -> Vec<Path> {
    let is_name = |token: &str| token.starts_with(|c: char| c.is_alphabetic() || c == '_');
    let mut found = vec![];
    let mut i = 0;
    while i < tokens.len() {
        let next = tokens.get(i + 1).map_or("", |next| next);
        match tokens[i].as_str() {
            "use" if is_name(next) || next == "{" => {
                i = tree(tokens, i + 1, &[], &mut found);
            }
            "crate" | "super" | "self" if next == "::" => {
                let mut segments = vec![tokens[i].clone()];
                while tokens.get(i + 1).is_some_and(|t| t == "::")
                    && tokens.get(i + 2).is_some_and(|t| is_name(t))
                {
                    segments.push(tokens[i + 2].clone());
                    i += 2;
                }
                found.push(Path {
                    segments,
                    name: None,
                });
                i += 1;
            }
            _ => i += 1,
        }
    }
    found
}

/// Reads a tree of imports at `i`, all of them below `above`, and returns where it ends.
fn tree(tokens: &[String], mut i: usize, above: &[String], found: &mut Vec<Path>) -> usize {
    let mut segments = above.to_vec();
    let mut name = None;
    while let Some(token) = tokens.get(i) {
        match token.as_str() {
            "{" => {
                i += 1;
                while tokens.get(i).is_some_and(|token| token != "}") {
                    i = tree(tokens, i, &segments, found);
                    i += usize::from(tokens.get(i).is_some_and(|token| token == ","));
                }
                return i + 1;
            }
            "," | ";" | "}" => break,
            "as" => {
                name = tokens.get(i + 1).cloned();
                i += 1;
            }
            "::" => {}
            "self" if !segments.is_empty() => {}
            "*" => name = Some("*".to_owned()),
            other => segments.push(other.to_owned()),
        }
        i += 1;
    }
    let name = name.or_else(|| segments.last().cloned());
    found.push(Path { segments, name });
    i
}

#[test]
fn uses_are_followed_to_where_a_name_is_declared() {
    let files = [
        (
            "lib.rs",
            "pub mod room; pub mod other; #[cfg(test)] mod test;",
        ),
        (
            "room/mod.rs",
            "mod a; pub mod b; mod c; pub use a::{Named as Renamed, A}; pub struct Here;",
        ),
        ("room/a.rs", "pub struct A; mod child; use super::Here;"),
        (
            "room/a/child.rs",
            "fn f() -> super::super::Renamed { crate::room::b::g() }",
        ),
        (
            "room/b.rs",
            "use super::{A, c::{self, C}}; use std::fmt; impl<'a> X<'a> + use<'a> {}",
        ),
        ("room/c.rs", "use crate::other::Deep; use self::fmt::A;"),
        ("test.rs", "use crate::room::a;"),
        (
            "other.rs",
            "pub use crate::room::b;  pub use b::Thing as Deep;",
        ),
    ];
    let all = Crate::of(files);
    let uses = |path: &str| -> Vec<String> {
        all.uses(&module(path))
            .iter()
            .map(|module| module.join("::"))
            .collect()
    };
    assert_eq!(uses("room/a.rs"), ["room"]);
    assert_eq!(uses("room/a/child.rs"), ["room::a", "room::b"]);
    assert_eq!(uses("room/b.rs"), ["room::a", "room::c"]);
    assert_eq!(uses("room/c.rs"), ["room::b", "room::c"]);
    assert_eq!(uses("other.rs"), ["room::b"]);
    assert!(all.modules().all(|module| *module != ["test"]));
}
