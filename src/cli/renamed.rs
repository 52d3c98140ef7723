//! Commands of llama.cpp and ollama: which they are here, or what to use instead. docs/cli.md lists them.

use std::ffi::{OsStr, OsString};

use clap::Command;

use super::config;
use super::error::CliError;
use super::text;
use super::words;

/// A command of another program.
enum Renamed {
    Is(&'static str),
    Instead(&'static str),
}

/// Commands of llama.cpp and ollama. `run` is read apart.
const COMMANDS: &[(&str, Renamed)] = &[
    ("show", Renamed::Is("inspect")),
    ("ls", Renamed::Is("list")),
    ("server", Renamed::Is("serve")),
    (
        "ps",
        Renamed::Instead(
            "each glimt serve is a process with one model, and no service stands behind them: the system's ps lists them, and GET /metrics tells what one does",
        ),
    ),
    (
        "stop",
        Renamed::Instead(
            "no service keeps models loaded; Ctrl-C or SIGTERM ends a glimt serve in order",
        ),
    ),
    (
        "create",
        Renamed::Instead(
            "a GGUF file runs as it is: glimt chat -m FILE --system TEXT, or the same as keys of the config file (glimt config --help)",
        ),
    ),
    ("cp", Renamed::Instead("a model is a file: name it with -m")),
    (
        "push",
        Renamed::Instead("glimt fetches models and uploads none"),
    ),
    (
        "quantize",
        Renamed::Instead(
            "llama.cpp's llama-quantize writes files that glimt loads; glimt synth writes random ones",
        ),
    ),
    (
        "convert",
        Renamed::Instead("llama.cpp's convert_hf_to_gguf.py writes files that glimt loads"),
    ),
];

/// The command line with a command of glimt in place of one of another program. Without any command, somebody `at_terminal` talks.
///
/// # Errors
/// [`CliError::Setting`] for a command that glimt has no place for.
pub(super) fn command(
    definition: &Command,
    mut typed: Vec<OsString>,
    at_terminal: bool,
) -> Result<Vec<OsString>, CliError> {
    let Some(name) = typed.get(1).map(|name| name.to_string_lossy().into_owned()) else {
        if at_terminal {
            typed.push("chat".into());
        }
        return Ok(typed);
    };
    if name.starts_with('-') && !["-h", "--help", "-V", "--version"].contains(&&*name) {
        if !at_terminal {
            let problem = "no command stands before this flag; name one, as in glimt generate -p TEXT, or glimt chat";
            return Err(config::wrong(name, problem));
        }
        typed.insert(1, "chat".into());
    }
    if name == "run" {
        return run(definition, typed);
    }
    if name == "help"
        && let Some(asked) = typed.get_mut(2)
    {
        let own = COMMANDS.iter().find_map(|(known, renamed)| match renamed {
            Renamed::Is(own) if asked == known => Some(*own),
            _ => None,
        });
        let run = (asked == "run").then_some("chat");
        if let Some(own) = own.or(run) {
            *asked = own.into();
        }
        return Ok(typed);
    }
    match COMMANDS.iter().find(|(known, _)| *known == name) {
        Some((_, Renamed::Is(own))) => typed[1] = (*own).into(),
        Some((_, Renamed::Instead(advice))) => {
            return Err(config::wrong(format!("glimt {name}"), *advice));
        }
        None => {}
    }
    Ok(typed)
}

/// `run MODEL [PROMPT]`: a prompt is answered, also one that is piped; without one, a conversation begins.
fn run(definition: &Command, typed: Vec<OsString>) -> Result<Vec<OsString>, CliError> {
    let mut words = typed;
    words[1] = "generate".into();
    let mut all = words::read(definition, words)?.all;
    let generate = definition.find_subcommand("generate");
    let (mut flags, mut texts) = (vec![], vec![]);
    let mut rest = all.drain(2..);
    while let Some(word) = rest.next() {
        if word == "--" {
            texts.extend(rest.by_ref());
            break;
        }
        let is_flag = word
            .to_str()
            .is_some_and(|text| text.len() > 1 && text.starts_with('-'));
        if !is_flag {
            texts.push(word);
            continue;
        }
        let takes = generate.is_some_and(|command| words::takes_next(command, &word));
        flags.push(word);
        if takes {
            flags.extend(rest.next());
        }
    }
    drop(rest);
    let is = |flags: &[OsString], names: &[&str]| {
        let mut flags = flags.iter();
        flags.any(|flag| names.iter().any(|name| flag == name))
    };
    if !is(&flags, &["-m", "--model"]) && !texts.is_empty() {
        let model = texts.remove(0);
        flags.splice(0..0, ["--model".into(), model]);
    }
    let has_prompt = is(&flags, &["-p", "--prompt", "-f", "--file"]) || !texts.is_empty();
    let asks_for_help = is(&flags, &["-h", "--help"]);
    let answers = !asks_for_help && (has_prompt || text::is_piped());
    let mut command: Vec<OsString> = vec![all.swap_remove(0)];
    command.push(if answers { "generate" } else { "chat" }.into());
    command.append(&mut flags);
    if !texts.is_empty() {
        command.push("--".into());
        command.push(texts.join(OsStr::new(" ")));
    }
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::definition;

    fn of(words: &[&str]) -> Result<Vec<String>, String> {
        let typed = ["glimt"].iter().chain(words).map(OsString::from).collect();
        let all = command(&definition(), typed, false).map_err(|error| error.to_string())?;
        let words = all.into_iter().skip(1);
        Ok(words
            .map(|word| word.into_string().expect("it was text"))
            .collect())
    }

    #[test]
    fn commands_of_other_programs_are_understood_or_named() {
        for (words, expected) in [
            (&["show", "a/b"][..], &["inspect", "a/b"][..]),
            (&["ls"], &["list"]),
            (
                &["run", "a/b", "Hello", "there"],
                &["generate", "--model", "a/b", "--", "Hello there"],
            ),
            (
                &["run", "-n", "5", "a/b", "- x"],
                &["generate", "--model", "a/b", "-n", "5", "--", "- x"],
            ),
            (
                &["run", "a/b", "-p", "Hi"],
                &["generate", "--model", "a/b", "-p", "Hi"],
            ),
            (
                &["run", "-m", "a/b", "Hi"],
                &["generate", "-m", "a/b", "--", "Hi"],
            ),
            (
                &["run", "a/b", "--help"],
                &["chat", "--model", "a/b", "--help"],
            ),
        ] {
            let expected: Vec<String> = expected.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(of(words), Ok(expected));
        }
        for (words, said) in [
            (&["ps"][..], "glimt serve"),
            (&["-p", "Hi"], "glimt generate"),
        ] {
            let error = of(words).expect_err("it is refused");
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn the_documentation_names_every_command() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/cli.md");
        let text = std::fs::read_to_string(path).expect("docs/cli.md is there");
        for (name, _) in COMMANDS {
            assert!(
                text.contains(&format!("`{name}`")),
                "docs/cli.md does not name {name}"
            );
        }
    }
}
