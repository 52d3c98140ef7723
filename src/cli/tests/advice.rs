//! Protects advice in messages: each flag that one names is a flag of the commands that show it.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Command;

use crate::cli::definition;

/// The commands that answer with a model, and so show what the engine refuses.
const ANSWERING: [&str; 6] = ["generate", "chat", "serve", "batch", "logits", "perplexity"];

/// The commands that show the messages of these sources: all of those named. The first that fits counts. Messages of other sources may name
/// the flags of any command.
const SHOWN_BY: [(&str, &[&str]); 14] = [
    ("src/bench/", &["bench"]),
    ("src/profile/", &["profile"]),
    ("src/tune/", &["tune"]),
    ("src/synth/", &["synth"]),
    ("src/server/", &["serve"]),
    ("src/engine/", &ANSWERING),
    ("src/gpu/", &ANSWERING),
    ("src/models/", &ANSWERING),
    ("src/cli/chat/", &["chat"]),
    ("src/cli/batch/", &["batch"]),
    ("src/cli/batch_error", &["batch"]),
    ("src/cli/bench_serve", &["bench-serve"]),
    ("src/cli/generate", &["generate"]),
    ("src/cli/serve.rs", &["serve"]),
];

/// Flags that only those are told of who gave one that the others do not have.
const OF_SOME: [(&str, &[&str]); 9] = [
    ("--cache-tokens", &["serve", "batch"]),
    ("--parallel", &["serve", "batch"]),
    ("--draft", &["generate", "chat", "bench"]),
    ("--draft-model", &["generate", "chat", "bench"]),
    ("--cpu-share", &["generate", "chat", "bench"]),
    ("--logit-bias", &["generate", "chat", "serve", "batch"]),
    ("--raw", &["generate"]),
    ("--grammar", &["generate"]),
    ("--json-schema", &["generate"]),
];

/// Flags of llama.cpp's converter.
const OF_OTHERS: [&str; 1] = ["--bigendian"];
/// Programs in examples, whose flags are theirs.
const OTHERS: [&str; 3] = ["curl", "jq", "cargo"];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("it is a folder") {
        let path = entry.expect("it can be read").path();
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.unwrap_or_default();
        match path.is_dir() {
            true if !["tests", "testing", "kernels"].contains(&name) => sources(&path, found),
            false
                if name.ends_with(".rs") && !name.ends_with("tests.rs") && name != "testing.rs" =>
            {
                found.push(path)
            }
            _ => {}
        }
    }
}

/// The texts in the strings of a source, without those of its tests.
fn strings(source: &str) -> Vec<String> {
    let end = source.find("#[cfg(test)]\nmod ").unwrap_or(source.len());
    let mut chars = source[..end].chars().peekable();
    let mut found = vec![];
    let mut before = ' ';
    while let Some(c) = chars.next() {
        match c {
            '/' if before == '/' => {
                // A comment.
                chars.by_ref().find(|c| *c == '\n');
            }
            '"' if before == '#' => found.push(raw(&mut chars)),
            '"' if before != '\'' => found.push(string(&mut chars)),
            _ => {}
        }
        before = c;
    }
    found
}

/// The rest of a raw string between `#`.
fn raw(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> String {
    let mut text = String::new();
    while let Some(c) = chars.next() {
        match c {
            '"' if chars.peek() == Some(&'#') => break,
            c => text.push(c),
        }
    }
    text
}

/// The rest of a string.
fn string(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> String {
    let mut text = String::new();
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            '\\' => match chars.next() {
                // A string goes on behind the white space of the next line.
                Some('\n') => while chars.next_if(|c| c.is_whitespace()).is_some() {},
                Some('n') => text.push('\n'),
                Some(other) => text.push(other),
                None => {}
            },
            c => text.push(c),
        }
    }
    text
}

/// The words of a text with whether each is the last of a clause.
fn words(text: &str) -> Vec<(&str, bool)> {
    let opening = ['(', '`', '\'', '"'];
    let closing = [')', '`', '\'', '"', ';', ':', ',', '.'];
    let each = |word| {
        let word: &str = word;
        let word = word.trim_start_matches(opening);
        let bare = word.trim_end_matches(closing);
        (bare, bare.len() < word.len())
    };
    let lines = text.lines().map(|line| line.split(' ').map(each));
    let mut words = vec![];
    for line in lines {
        words.extend(line);
        // A line is a clause, if it does not go on.
        if words.last().is_none_or(|(word, _)| *word != "\\") {
            words.push(("", true));
        }
    }
    words
}

/// Whether a word is a flag.
fn is_flag(word: &str) -> bool {
    let letters = |text: &str| text.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
    match word.strip_prefix("--") {
        Some(name) => name.len() > 1 && letters(name) && !name.starts_with('-'),
        None => word.len() == 2 && word.starts_with('-') && letters(&word[1..]),
    }
}

fn has(command: &Command, flag: &str) -> bool {
    let is_long = |long: &str| flag.strip_prefix("--") == Some(long);
    command.get_arguments().any(|argument| {
        let mut names = argument
            .get_long_and_visible_aliases()
            .into_iter()
            .flatten();
        let aliases = argument.get_all_aliases().into_iter().flatten();
        names.any(is_long)
            || aliases.into_iter().any(is_long)
            || argument
                .get_short()
                .is_some_and(|short| flag == format!("-{short}"))
    }) || ["-h", "--help"].contains(&flag)
}

/// The mistakes in the flags of a text that these commands show; all commands if none are named.
fn wrong(text: &str, shown_by: &[&str]) -> Vec<String> {
    let mut cli = definition();
    cli.build();
    let find = |name: &str| cli.find_subcommand(name);
    let mut found = vec![];
    let mut named: Option<&Command> = None;
    let mut other = false;
    let words = words(text);
    let sentence = words.len() > 2;
    for (at, (word, ends)) in words.iter().enumerate() {
        if *word == "glimt" {
            named = words.get(at + 1).and_then(|(next, _)| find(next));
        }
        other |= OTHERS.contains(word) || *word == "|";
        let is_known = OF_OTHERS.contains(word) || other;
        if is_flag(word) && sentence && !is_known {
            let of_some = OF_SOME.iter().find(|(flag, _)| flag == word);
            let shown_by = of_some.map_or(shown_by, |(_, commands)| commands);
            let lacking = match named {
                Some(command) if has(command, word) => None,
                Some(command) => Some(command.get_name().to_owned()),
                None if shown_by.is_empty() => {
                    let any = cli.get_subcommands().any(|command| has(command, word));
                    (!any).then(|| "no command".to_owned())
                }
                None => {
                    let lacks =
                        |name: &&&str| !find(name).is_some_and(|command| has(command, word));
                    shown_by.iter().find(lacks).map(|name| (*name).to_owned())
                }
            };
            found.extend(lacking.map(|command| format!("{word} ({command})")));
        }
        if *ends {
            named = None;
            // Commands of others have all of their line.
            other &= !word.is_empty();
        }
    }
    found
}

#[test]
fn flags_that_messages_name_are_flags_of_the_commands_that_show_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let libraries = fs::read_dir(root.join("crates")).expect("it is a folder");
    let libraries = libraries.map(|entry| entry.expect("it can be read").path());
    let packages: Vec<_> = libraries.chain([root.to_owned()]).collect();
    let mut found = vec![];
    for package in &packages {
        sources(&package.join("src"), &mut found);
    }
    let mut all = vec![];
    for path in &found {
        let package = packages
            .iter()
            .find_map(|package| path.strip_prefix(package).ok());
        let name = package.expect("it is below");
        let name = name.to_str().expect("a plain name").replace('\\', "/");
        let shown_by = SHOWN_BY.iter().find(|(prefix, _)| name.starts_with(prefix));
        let shown_by = shown_by.map_or(&[][..], |(_, commands)| commands);
        let text = fs::read_to_string(path).expect("it is a text");
        // Reasons of tests that are ignored name no flags of this program.
        let texts = strings(&text).into_iter();
        for text in texts.filter(|text| !text.starts_with("long: ")) {
            let wrong = wrong(&text, shown_by);
            if !wrong.is_empty() {
                all.push(format!("{name}: {} in {text:?}", wrong.join(", ")));
            }
        }
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[test]
fn wrong_advice_is_noticed() {
    assert!(wrong("too long; use a smaller -c", &["generate"]).is_empty());
    assert_eq!(
        wrong("too long; use a smaller -c", &["profile"]),
        ["-c (profile)"]
    );
    assert_eq!(
        wrong("see glimt devices --tier plain", &[]),
        ["--tier (devices)"]
    );
    assert!(wrong("see glimt devices --json: then use --tier", &[]).is_empty());
    assert_eq!(
        wrong("use --no-such-flag or so", &[]),
        ["--no-such-flag (no command)"]
    );
    let source = "// \"a --comment\"\nlet x = \"one \\\n    two --x\"; let y = '\"';\n#[cfg(test)]\nmod tests { \"no\" }";
    assert_eq!(strings(source), ["one two --x"]);
}
