//! The commands of a conversation: lines that begin with a slash.

use std::path::PathBuf;

/// The command or question that a line asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command<'a> {
    Help,
    Clear,
    Regenerate,
    /// The new text, or nothing to type it anew.
    Edit(&'a str),
    /// The new text, or nothing to show it.
    System(&'a str),
    Read(&'a str),
    Save(&'a str),
    Load(&'a str),
    Drop(&'a str),
    Thoughts,
    Copy,
    Stats,
    /// The name and the value, or nothing to show all.
    Set(&'a str),
    Leave,
}

/// Each command with what follows it, and what it does.
const COMMANDS: [(&str, &str); 14] = [
    ("/help", "show this list"),
    ("/clear", "forget the conversation; the system prompt stays"),
    ("/regen", "answer the last question again"),
    ("/edit [TEXT]", "change the last question, and answer it"),
    (
        "/system [TEXT]",
        "show or change the system prompt; \"\" removes it",
    ),
    ("/read FILE", "add a text file to the next message"),
    (
        "/save [FILE]",
        "keep the conversation in a session file from here on",
    ),
    (
        "/load FILE",
        "go on with the conversation of a session file",
    ),
    (
        "/drop [N]",
        "forget the oldest N questions with their answers (1)",
    ),
    ("/thoughts", "show the thoughts before the last answer"),
    ("/copy", "copy the last answer to the clipboard"),
    (
        "/stats",
        "show what the last answer and the conversation took",
    ),
    (
        "/set [NAME VALUE]",
        "show or change a setting, as temp, stop or ctx",
    ),
    ("/bye", "leave; so does Ctrl-D"),
];

/// The names of all commands.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    COMMANDS
        .iter()
        .filter_map(|(head, _)| head.split(' ').next())
}

/// The letters behind the slash, if `line` begins as commands do. Paths and comments of programs do not.
fn letters(line: &str) -> Option<&str> {
    let word = line.split(char::is_whitespace).next().unwrap_or_default();
    let is_letter = |c: char| c.is_ascii_alphabetic() || c == '?';
    word.strip_prefix('/')
        .filter(|word| word.chars().all(is_letter))
}

/// A message as it was meant: one that would be a command has a second slash before it.
pub(super) fn message(line: &str) -> &str {
    match line.strip_prefix('/') {
        Some(rest) if letters(rest).is_some_and(|letters| !letters.is_empty()) => rest,
        _ => line,
    }
}

/// The command that `line` is, or the unknown name in it; `None` if it is a [`message`].
pub(super) fn parse(line: &str) -> Option<Result<Command<'_>, &str>> {
    letters(line)?;
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    Some(Ok(match name {
        "/help" | "/?" => Command::Help,
        "/clear" | "/reset" => Command::Clear,
        "/regen" | "/retry" => Command::Regenerate,
        "/edit" => Command::Edit(rest),
        "/system" => Command::System(rest),
        "/read" => Command::Read(rest),
        "/save" => Command::Save(rest),
        "/load" => Command::Load(rest),
        "/drop" => Command::Drop(rest),
        "/thoughts" => Command::Thoughts,
        "/copy" => Command::Copy,
        "/stats" => Command::Stats,
        "/set" => set(rest),
        "/bye" | "/quit" | "/exit" => Command::Leave,
        unknown => return Some(Err(unknown)),
    }))
}

/// The command `/set TEXT`, also as ollama has it: `/set system TEXT`, `/set parameter NAME VALUE`, `/set nothink`.
fn set(text: &str) -> Command<'_> {
    let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    match (name, rest.trim()) {
        ("system", rest) => Command::System(rest),
        ("parameter", rest) => Command::Set(rest),
        ("think", "") => Command::Set("think on"),
        ("nothink", "") => Command::Set("think off"),
        _ => Command::Set(text),
    }
}

/// The file that is meant by what follows a command. As in a shell, quotes may stand around it, and `~` for the home folder.
pub(super) fn file(text: &str) -> PathBuf {
    let quoted = |quote| text.strip_prefix(quote)?.strip_suffix(quote);
    let text = quoted('"').or_else(|| quoted('\'')).unwrap_or(text);
    match (text.strip_prefix("~/"), dirs::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(text),
    }
}

/// All commands, one on a line, in at most `columns` columns.
pub(super) fn help(columns: usize) -> String {
    let widths = COMMANDS.iter().map(|(head, _)| head.len());
    let width = widths.max().unwrap_or_default();
    let mut text = String::new();
    for (head, what) in COMMANDS {
        text += &match width + 2 + what.len() <= columns {
            true => format!("{head:width$}  {what}\n"),
            false => format!("{head}\n  {what}\n"),
        };
    }
    text +=
        "Alt-Enter begins a new line, and so does Enter behind \\ or between \"\"\" and \"\"\".\n";
    text += "Ctrl-C stops an answer. A message that looks like a command begins with //.\n";
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_a_slash_are_commands() {
        assert_eq!(parse("Hello /help"), None);
        assert_eq!(parse("//help is a command"), None);
        assert_eq!(parse("/help"), Some(Ok(Command::Help)));
        assert_eq!(parse("/?"), Some(Ok(Command::Help)));
        assert_eq!(
            parse("/system  Be kind. "),
            Some(Ok(Command::System("Be kind.")))
        );
        assert_eq!(parse("/edit a\nb"), Some(Ok(Command::Edit("a\nb"))));
        assert_eq!(parse("/hlep me"), Some(Err("/hlep")));
        for (text, command) in [
            ("/set temp 0.5", Command::Set("temp 0.5")),
            ("/set parameter top_k 5", Command::Set("top_k 5")),
            ("/set system Be kind.", Command::System("Be kind.")),
            ("/set nothink", Command::Set("think off")),
            ("/set think", Command::Set("think on")),
            ("/set think hide", Command::Set("think hide")),
        ] {
            assert_eq!(parse(text), Some(Ok(command)), "{text}");
        }
        assert_eq!(parse("/ help"), Some(Err("/")));
    }

    #[test]
    fn what_is_pasted_is_said_as_it_is() {
        for line in [
            "/etc/passwd is a file\nand more",
            "/usr/bin/cc: not found",
            "// a comment",
            "//",
            "///docs",
            "/*\n * a comment",
            " /help",
        ] {
            assert_eq!((parse(line), message(line)), (None, line));
        }
        assert_eq!(
            (parse("//help me"), message("//help me")),
            (None, "/help me")
        );
    }

    #[test]
    fn files_are_named_as_in_a_shell() {
        for (text, path) in [
            ("my notes.txt", "my notes.txt"),
            ("\"my notes.txt\"", "my notes.txt"),
            ("'a'", "a"),
            ("'a", "'a"),
            ("\"", "\""),
            ("a~/b", "a~/b"),
        ] {
            assert_eq!(file(text), PathBuf::from(path));
        }
        let home = dirs::home_dir().expect("a home");
        assert_eq!(file("~/a b"), home.join("a b"));
        assert_eq!(file("'~/a'"), home.join("a"));
    }

    #[test]
    fn the_help_names_all_commands_and_fits() {
        assert!(names().all(|name| matches!(parse(name), Some(Ok(_)))));
        for columns in [40, 80] {
            let help = help(columns);
            assert!(names().all(|name| help.contains(name)));
        }
        assert!(help(80).lines().all(|line| line.chars().count() <= 80));
    }
}
