//! Reading what the user says: with an editor in a terminal, else line by line.

use std::borrow::Cow;
use std::io::{self, BufRead, IsTerminal, Read};
use std::path::PathBuf;

use reedline::{
    ColumnarMenu, DefaultCompleter, EditCommand, Emacs, FileBackedHistory, KeyCode, KeyModifiers,
    MenuBuilder, Prompt, PromptEditMode, PromptHistorySearch, Reedline, ReedlineEvent,
    ReedlineMenu, Signal, ValidationResult, Validator, default_emacs_keybindings,
};

use super::commands;
use crate::cli::error::CliError;
use crate::cli::output::{self, note};
use crate::cli::text::or_more_context;
use crate::pictures::terminal::{is_dumb, is_styled};

/// The most messages that the history keeps.
const HISTORY: usize = 1000;
/// The mark around a message of several lines.
const FENCE: &str = "\"\"\"";
const MENU: &str = "commands";
const PROMPT: &str = "> ";

/// A line that was typed.
pub(super) enum Line {
    /// A message or a command, without the marks of several lines.
    Text(String),
    /// A message, whatever it looks like.
    Message(String),
    /// Ctrl-C.
    Cancelled,
    /// Ctrl-D, or the end of what is piped.
    End,
}

/// The source of lines.
pub(super) enum Lines {
    /// A terminal.
    Editor(Box<Reedline>),
    /// A terminal that knows plain lines alone, and the most bytes of a message.
    Plain(u64),
    /// A pipe or a file, and the most bytes of a message.
    Piped(u64),
}

impl Lines {
    /// The lines of standard input, where a message has at most `most` bytes.
    pub(super) fn new(most: u64) -> Self {
        match io::stdin().is_terminal() {
            true if is_dumb() => Self::Plain(most),
            true => Self::Editor(Box::new(editor())),
            false => Self::Piped(most),
        }
    }

    /// Whether somebody types.
    pub(super) fn is_terminal(&self) -> bool {
        !matches!(self, Self::Piped(_))
    }

    /// The next line. `meter` is shown beside it.
    pub(super) fn next(&mut self, meter: String) -> Result<Line, CliError> {
        match self {
            Self::Editor(editor) => match editor.read_line(&Meter(meter)) {
                Ok(Signal::Success(text)) => {
                    // A terminal that is closed ends the program without any more words. What cannot be kept is no reason to stop.
                    let _ = editor.sync_history();
                    Ok(Line::Text(joined(&text)))
                }
                Ok(Signal::CtrlC) => Ok(Line::Cancelled),
                Ok(_) => Ok(Line::End),
                Err(error) => Err(CliError::Input(io::Error::other(error))),
            },
            Self::Plain(most) => {
                output::print(PROMPT)?;
                piped(*most)
            }
            Self::Piped(most) => piped(*most),
        }
    }

    /// Has `text` in the editor when the next line is read. Returned is whether there is one.
    pub(super) fn put(&mut self, text: &str) -> bool {
        let Self::Editor(editor) = self else {
            return false;
        };
        let text = EditCommand::InsertString(text.to_owned());
        editor.run_edit_commands(&[EditCommand::Clear, text]);
        true
    }
}

/// The next message of standard input, of several lines where it is marked so.
fn piped(most: u64) -> Result<Line, CliError> {
    let mut text = String::new();
    loop {
        let left = (most + 1).saturating_sub(text.len() as u64);
        let read = io::stdin().lock().take(left).read_line(&mut text);
        let ended = read.map_err(CliError::Input)? == 0;
        if text.len() as u64 > most {
            let path = "standard input".to_owned();
            let advice = or_more_context(most);
            return Err(CliError::TextTooLong { path, most, advice });
        }
        if ended && text.is_empty() {
            return Ok(Line::End);
        }
        if ended || is_complete(text.trim_end_matches(['\r', '\n'])) {
            return Ok(Line::Text(joined(text.trim_end_matches(['\r', '\n']))));
        }
    }
}

/// Whether a message does not go on in the next line.
fn is_complete(text: &str) -> bool {
    match text.strip_prefix(FENCE) {
        Some(rest) => rest.trim_end().ends_with(FENCE),
        None => !text.ends_with('\\'),
    }
}

/// A message without the marks of several lines.
fn joined(text: &str) -> String {
    let fenced = text.strip_prefix(FENCE);
    match fenced.and_then(|rest| rest.trim_end().strip_suffix(FENCE)) {
        Some(inside) => inside.trim_matches(['\r', '\n']).to_owned(),
        None => text.replace("\\\r\n", "\n").replace("\\\n", "\n"),
    }
}

struct Fences;

impl Validator for Fences {
    fn validate(&self, text: &str) -> ValidationResult {
        match is_complete(text) {
            true => ValidationResult::Complete,
            false => ValidationResult::Incomplete,
        }
    }
}

/// An editor with history and completion of commands.
fn editor() -> Reedline {
    let mut keys = default_emacs_keybindings();
    let new_line = ReedlineEvent::Edit(vec![EditCommand::InsertNewline]);
    keys.add_binding(KeyModifiers::ALT, KeyCode::Enter, new_line.clone());
    keys.add_binding(KeyModifiers::SHIFT, KeyCode::Enter, new_line);
    let complete = [
        ReedlineEvent::Menu(MENU.to_owned()),
        ReedlineEvent::MenuNext,
    ];
    keys.add_binding(
        KeyModifiers::NONE,
        KeyCode::Tab,
        ReedlineEvent::UntilFound(complete.into()),
    );
    let mut completer = DefaultCompleter::with_inclusions(&['/']).set_min_word_len(1);
    completer.insert(commands::names().map(str::to_owned).collect());
    let menu = ColumnarMenu::default().with_name(MENU).with_marker("");
    let mut editor = Reedline::create()
        .with_edit_mode(Box::new(Emacs::new(keys)))
        .with_validator(Box::new(Fences))
        .with_completer(Box::new(completer))
        .with_menu(ReedlineMenu::EngineCompleter(Box::new(menu)))
        .with_ansi_colors(is_styled(true))
        .use_bracketed_paste(true);
    match history() {
        Ok(history) => editor = editor.with_history(Box::new(history)),
        Err(reason) => note(format_args!(
            "what you type is not kept for next time: {reason}"
        )),
    }
    editor
}

/// The lines that were typed before, kept in a file that only its owner can read.
fn history() -> Result<FileBackedHistory, String> {
    let folder = dirs::state_dir().or_else(dirs::data_local_dir);
    let folder = folder
        .ok_or("this system names no folder for it")?
        .join("glimt");
    let path = folder.join("history");
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    std::fs::create_dir_all(&folder).map_err(failed)?;
    make_private(&path).map_err(failed)?;
    let history = FileBackedHistory::with_file(HISTORY, path.clone());
    history.map_err(|error| format!("{}: {error}", path.display()))
}

/// Makes the file at `path` readable for its owner alone.
fn make_private(path: &PathBuf) -> io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    let options = crate::files::make_private(options.append(true).create(true));
    options.open(path).map(drop)
}

/// The prompt, with how full the context is on its right.
struct Meter(String);

impl Prompt for Meter {
    // Not the indicator: without a left prompt reedline writes the right one over what is typed.
    fn render_prompt_left(&self) -> Cow<'_, str> {
        Cow::Borrowed(PROMPT)
    }

    fn render_prompt_right(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.0)
    }

    fn render_prompt_indicator(&self, _: PromptEditMode) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    fn render_prompt_multiline_indicator(&self) -> Cow<'_, str> {
        Cow::Borrowed(". ")
    }

    fn render_prompt_history_search_indicator(&self, search: PromptHistorySearch) -> Cow<'_, str> {
        Cow::Owned(format!("(search: {}) ", search.term))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_several_lines_are_marked() {
        for (text, complete) in [
            ("one", true),
            ("one \\", false),
            ("one \\\ntwo", true),
            ("\"\"\"", false),
            ("\"\"\"one\ntwo", false),
            ("\"\"\"one\ntwo\"\"\"", true),
            ("say \"\"\"", true),
        ] {
            assert_eq!(is_complete(text), complete, "{text}");
        }
        assert_eq!(joined("one \\\ntwo"), "one \ntwo");
        assert_eq!(joined("\"\"\"\none\ntwo\n\"\"\""), "one\ntwo");
        assert_eq!(joined("C:\\"), "C:\\");
    }
}
