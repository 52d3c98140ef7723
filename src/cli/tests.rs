//! Protects the definitions of flags, and docs/cli.md, whose tables are made from them.

use std::collections::BTreeMap;
use std::fmt::Write;

use clap::{Arg, Command};

use super::{config, definition};

mod advice;

/// The command that rewrites the tables.
const REWRITE: &str = "GLIMT_WRITE=1 cargo test --bins cli::tests";
const END: &str = "<!-- end of flags -->";

#[test]
fn the_argument_definitions_are_consistent() {
    definition().debug_assert();
    config::without_environment(definition()).debug_assert();
}

/// A text in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "\\<")
}

/// A text in a cell, as code.
fn code(text: &str) -> String {
    format!("`{}`", text.replace('|', "\\|"))
}

/// A flag of a command with its names, what it means, and its default.
fn row(command: &Command, argument: &Arg) -> String {
    let value = argument.get_value_names().unwrap_or_default().join(" ");
    let takes_value = argument.get_action().takes_values();
    let mut names = vec![];
    if let Some(short) = argument.get_short() {
        names.push(format!("-{short}"));
    }
    let aliases = argument.get_all_aliases().unwrap_or_default();
    for long in argument.get_long().into_iter().chain(aliases) {
        names.push(format!("--{long}"));
    }
    match names.last_mut() {
        Some(last) if takes_value => write!(last, " {value}").expect("a text takes everything"),
        Some(_) => {}
        None => names.push(value),
    }
    let help = argument.get_long_help().or(argument.get_help());
    let help = help.unwrap_or_else(|| panic!("{} has no help", argument.get_id()));
    let help = help.to_string();
    // The default stands behind the first paragraph.
    let (first, more) = help.split_once("\n\n").unwrap_or((&help, ""));
    let (meaning, default) = match first.split_once(" [default: ") {
        Some((meaning, default)) => (meaning, default.trim_end_matches(']')),
        None => (first, ""),
    };
    let mut default = cell(default);
    let mut meaning = cell(&match more {
        "" => meaning.to_owned(),
        more => format!("{meaning}. {}", more.replace('\n', " ")),
    });
    let known = argument.get_possible_values();
    if takes_value && !known.is_empty() && !argument.is_hide_possible_values_set() {
        let known: Vec<_> = known.iter().map(|value| code(value.get_name())).collect();
        write!(meaning, ": {}", known.join(", ")).expect("a text takes everything");
    }
    for other in command.get_arg_conflicts_with(argument) {
        let name = other.get_long().map(|long| code(&format!("--{long}")));
        if let Some(name) = name.filter(|_| argument.get_long().is_some()) {
            write!(meaning, "; not with {name}").expect("a text takes everything");
        }
    }
    if let Some(name) = argument.get_env() {
        let name = code(&name.to_string_lossy());
        write!(meaning, " (environment: {name})").expect("a text takes everything");
    }
    for value in argument.get_default_values() {
        default = code(&value.to_string_lossy());
    }
    let names: Vec<_> = names.iter().map(|name| code(name)).collect();
    format!("| {} | {meaning} | {default} |", names.join(", "))
}

/// The rows of each command, in the order of the help.
fn rows() -> Vec<(String, Vec<String>)> {
    let of = |command: &Command| {
        let arguments = command.get_arguments().filter(|a| !a.is_hide_set());
        (
            command.get_name().to_owned(),
            arguments.map(|a| row(command, a)).collect(),
        )
    };
    definition().get_subcommands().map(of).collect()
}

/// The tables by what they are of: a command, or `several commands`. A flag that is the same for several commands is in that table,
/// and the tables of these commands name it below.
fn tables() -> BTreeMap<String, String> {
    let all = rows();
    let having = |row: &String| -> Vec<&str> {
        let having = all.iter().filter(|(_, rows)| rows.contains(row));
        having.map(|(name, _)| name.as_str()).collect()
    };
    let head = "| flag | meaning | default |\n|---|---|---|\n";
    let mut shared = "| flag | meaning | default | commands |\n|---|---|---|---|\n".to_owned();
    let mut told = vec![];
    let mut tables = BTreeMap::new();
    for (name, rows) in &all {
        let mut own = String::new();
        let mut others = vec![];
        for row in rows {
            let commands = having(row);
            if commands.len() == 1 {
                own += &format!("{row}\n");
                continue;
            }
            others.push(
                row.split(" | ")
                    .next()
                    .expect("the flag")
                    .trim_start_matches("| "),
            );
            if !told.contains(&row) {
                told.push(row);
                shared += &format!("{row} {} |\n", commands.join(", "));
            }
        }
        let mut text = match own.is_empty() {
            true => String::new(),
            false => format!("{head}{own}"),
        };
        if !others.is_empty() {
            let link = "[shared flags](#flags-that-several-commands-share)";
            let names: Vec<_> = others.iter().map(|names| short(names)).collect();
            let gap = if own.is_empty() { "" } else { "\n" };
            text += &format!("{gap}The {link}: {}.\n", names.join(", "));
        }
        tables.insert(name.clone(), text);
    }
    tables.insert("several commands".to_owned(), shared);
    tables
}

/// The first long name of a flag, or its only name, from the first cell of its row.
fn short(names: &str) -> String {
    let mut all = names.split(", ").map(|name| name.trim_matches('`'));
    let long = all.clone().find(|name| name.starts_with("--"));
    let name = long.or_else(|| all.next()).unwrap_or_default();
    code(name.split(' ').next().unwrap_or_default())
}

/// `text` with new tables between the markers; which tables it has.
fn with_tables(text: &str, tables: &BTreeMap<String, String>) -> (String, Vec<String>) {
    let mut new = String::new();
    let mut found = vec![];
    let mut inside = false;
    for line in text.lines() {
        inside &= line != END;
        if !inside {
            new += &format!("{line}\n");
        }
        let name = line
            .strip_prefix("<!-- flags of ")
            .and_then(|rest| rest.strip_suffix(" -->"));
        if let Some(name) = name {
            let table = tables.get(name);
            new += table.unwrap_or_else(|| panic!("docs/cli.md: no command {name}"));
            found.push(name.to_owned());
            inside = true;
        }
    }
    assert!(!inside, "docs/cli.md: {END} is missing");
    (new, found)
}

/// The lines that only one of two texts has.
fn difference(old: &str, new: &str) -> String {
    let only = |mark: char, one: &str, other: &str| -> String {
        let lines = one
            .lines()
            .filter(|line| !other.lines().any(|o| o == *line));
        lines.map(|line| format!("{mark} {line}\n")).collect()
    };
    only('-', old, new) + &only('+', new, old)
}

#[test]
fn the_tables_of_flags_are_those_of_the_definitions() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/cli.md");
    let old = std::fs::read_to_string(path).expect("docs/cli.md is there");
    let tables = tables();
    let (new, mut found) = with_tables(&old, &tables);
    found.sort();
    let filled = tables.iter().filter(|(_, table)| !table.is_empty());
    let expected: Vec<_> = filled.map(|(name, _)| name.clone()).collect();
    assert_eq!(
        found, expected,
        "docs/cli.md: a marker is missing, there twice, or of nothing"
    );
    if std::env::var_os("GLIMT_WRITE").is_some() {
        std::fs::write(path, new).expect("docs/cli.md can be written");
        return;
    }
    let difference = difference(&old, &new);
    assert!(
        old == new,
        "docs/cli.md is not what the definitions give; {REWRITE} writes it anew:\n{difference}"
    );
}

/// The long help of a flag says what the short one does: a command that changes one of them must not leave the other as it was.
#[test]
fn both_helps_of_a_flag_say_the_same() {
    for command in definition().get_subcommands() {
        for flag in command.get_arguments() {
            let (Some(short), Some(long)) = (flag.get_help(), flag.get_long_help()) else {
                continue;
            };
            let (short, long) = (short.to_string(), long.to_string());
            let told = short.split(" [default: ").next().unwrap_or_default();
            assert!(
                long.starts_with(told),
                "{} --{}: {told:?}, but {long:?}",
                command.get_name(),
                flag.get_id()
            );
        }
    }
}

#[test]
fn modules_that_log_are_named_as_in_the_library() {
    assert_eq!(
        super::room("glimt_formats::gguf::reader"),
        "glimt::gguf::reader"
    );
    assert_eq!(super::room("glimt::engine"), "glimt::engine");
    assert_eq!(super::room("wgpu_core::device"), "wgpu_core::device");
}
