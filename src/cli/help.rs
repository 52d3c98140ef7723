//! Help: the commands in groups, and what `-h` leaves to `--help`.

use std::ffi::OsString;
use std::fmt::Write;
use std::io::IsTerminal;

use clap::{Arg, Command};

use super::config;
use super::lines::wrapped;
use super::output;
use crate::pictures::terminal;

/// The commands as the help lists them: under a heading each, and what people need first.
const GROUPS: [(&str, &[&str]); 4] = [
    (
        "Models and answers",
        &[
            "chat", "generate", "serve", "batch", "web", "pull", "list", "rm", "inspect", "devices",
        ],
    ),
    (
        "Measuring",
        &["bench", "bench-serve", "profile", "tune", "perplexity"],
    ),
    (
        "Looking inside and checking",
        &["tokenize", "logits", "synth", "verify", "report"],
    ),
    (
        "The program itself",
        &["config", "completions", "man", "help"],
    ),
];
/// The most columns that help fills.
const COLUMNS: usize = 100;
/// The most characters of a default that `-h` still tells.
const SHORT_DEFAULT: usize = 26;

/// `command` with its subcommands in [`GROUPS`].
pub(super) fn with_groups(command: Command) -> Command {
    let columns = terminal::columns_of_help().unwrap_or(COLUMNS).min(COLUMNS);
    let groups = groups(&command, columns);
    let options = command.get_styles().get_header();
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}{options}Options:{options:#}\n{{options}}{{after-help}}"
    );
    command.help_template(template)
}

/// The lists of the commands.
fn groups(command: &Command, columns: usize) -> String {
    let (header, literal) = (
        command.get_styles().get_header(),
        command.get_styles().get_literal(),
    );
    let about = |name: &str| match command.find_subcommand(name) {
        Some(known) => known.get_about().map(ToString::to_string),
        // The parser adds it.
        None => Some("Print this help, or that of a command".to_owned()),
    };
    let names = GROUPS.iter().flat_map(|(_, names)| *names);
    let widest = names.map(|name| name.len()).max().unwrap_or_default();
    let mut text = String::new();
    for (heading, names) in GROUPS {
        let _ = writeln!(text, "{header}{heading}:{header:#}");
        for name in names {
            let about = about(name).unwrap_or_default();
            let about = wrapped(&about, columns.saturating_sub(widest + 4));
            let pad = widest - name.len();
            let rest = format!("\n{:1$}", "", widest + 4);
            let _ = writeln!(
                text,
                "  {literal}{name}{literal:#}{:pad$}  {}",
                "",
                about.replace('\n', &rest)
            );
        }
        text.push('\n');
    }
    text
}

/// `command` with the first paragraph of its closing text under `-h`, and all of it under `--help`.
pub(super) fn with_short_ending(command: Command) -> Command {
    let Some(ending) = command.get_after_help().map(ToString::to_string) else {
        return command;
    };
    let short = ending.split("\n\n").next().unwrap_or_default().to_owned();
    command.after_help(short).after_long_help(ending)
}

/// `flag` without its default under `-h`, if that is long.
pub(super) fn brief(flag: Arg) -> Arg {
    let Some(help) = flag.get_help().map(ToString::to_string) else {
        return flag;
    };
    let is_long = |(_, default): &(&str, &str)| default.len() > SHORT_DEFAULT;
    let Some((brief, _)) = help.split_once(" [default: ").filter(is_long) else {
        return flag;
    };
    let brief = brief.to_owned();
    let whole = flag.get_long_help().cloned();
    flag.help(brief).long_help(whole.unwrap_or(help.into()))
}

/// Ends the process with the help that `words` ask for. Beside words that ask for something else, it is no answer: where no terminal
/// would show it, it goes to standard error, and the exit code is 2.
pub(super) fn tell(definition: Command, words: &[OsString]) -> ! {
    let is_command = |word: &OsString| definition.find_subcommand(word).is_some();
    let asks = |word: &OsString| ["-h", "--help", "help"].iter().any(|help| word == help);
    let else_asked = words
        .iter()
        .skip(1)
        .find(|word| !asks(word) && !is_command(word));
    let else_asked = else_asked
        .filter(|_| !std::io::stdout().is_terminal())
        .cloned();
    // The long help names the variables of the environment.
    let definition = match words.iter().any(|word| word == "-h") {
        true => config::without_environment(definition),
        false => definition,
    };
    let error = match (definition.try_get_matches_from(words), else_asked) {
        (Err(error), None) => output::end(&error),
        (Err(error), Some(other)) => {
            output::complain(format_args!("{}", error.render()));
            let (help, other) = (
                "-h and --help ask for this help alone",
                other.to_string_lossy(),
            );
            config::wrong(other, format!("{help}: leave one of them out"))
        }
        (Ok(_), _) => config::wrong("--help", "found a command, expected a question for help"),
    };
    output::complain(format_args!("glimt: error: {error}"));
    std::process::exit(i32::from(error.exit_code()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::definition;

    #[test]
    fn every_command_is_in_one_group() {
        let definition = definition();
        let mut listed: Vec<_> = GROUPS.iter().flat_map(|(_, names)| *names).collect();
        listed.sort();
        let mut there: Vec<_> = definition
            .get_subcommands()
            .map(Command::get_name)
            .collect();
        there.push("help");
        there.sort_unstable();
        assert_eq!(listed, there.iter().collect::<Vec<_>>());
        assert_eq!(GROUPS[0].1[0], "chat");
    }

    #[test]
    fn groups_fit_their_columns() {
        for columns in [40, 80, 100] {
            let plain = definition().styles(clap::builder::Styles::plain());
            for line in groups(&plain, columns).lines() {
                assert!(line.chars().count() <= columns, "{columns}: {line}");
            }
        }
    }

    #[test]
    fn a_long_default_is_left_to_the_long_help() {
        let flag = |help: &'static str| brief(Arg::new("x").long("x").help(help));
        let long = flag("So much [default: what is recommended for the model, else 0.8]");
        assert_eq!(
            long.get_help().map(ToString::to_string).as_deref(),
            Some("So much")
        );
        assert!(
            long.get_long_help()
                .is_some_and(|help| help.to_string().contains("else 0.8"))
        );
        let short = flag("So much [default: 5]");
        assert_eq!(
            short.get_help().map(ToString::to_string).as_deref(),
            Some("So much [default: 5]")
        );
    }
}
