//! Writing: text to standard output with a closed pipe told apart from real failures, notes to standard error.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use super::error::CliError;
use super::lines::{Lines, wrapped, wrapped_page};
use super::screen;
use crate::pictures::terminal::{self, is_styled};

/// The escape sequences that dim text in a terminal and end that.
const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// Whether notes are left out.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Leaves out all notes from here on.
pub(super) fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Whether notes are left out.
pub(super) fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Writes one line to standard error, dimmed, unless notes are left out.
pub(super) fn note(message: fmt::Arguments<'_>) {
    if is_quiet() {
        return;
    }
    let line = message.to_string();
    match is_styled(io::stderr().is_terminal()) {
        true => tell(&line, DIM, PLAIN),
        false => tell(&line, "", ""),
    }
}

/// Writes a note that is wanted only by `--verbose`.
pub(super) fn detail(message: fmt::Arguments<'_>) {
    if log::log_enabled!(log::Level::Info) {
        note(message);
    }
}

/// Writes one line to standard error: an error, a warning, or what is logged.
pub(super) fn complain(message: fmt::Arguments<'_>) {
    tell(&message.to_string(), "", "");
}

/// Writes a line to standard error, above the bars. A terminal gets it broken between words. A closed standard error is ignored: there is
/// nobody left to tell.
fn tell(line: &str, begin: &str, end: &str) {
    let text = clean(line);
    let _ = screen::beside(|| {
        let mut err = io::stderr().lock();
        let text = columns(&err).map_or(text.clone(), |columns| wrapped(&text, columns));
        writeln!(err, "{begin}{text}{end}")
    });
}

/// `text` with control characters as `\\u{1b}`: names in files may hold what commands a terminal. Line breaks and tabs stay.
pub(super) fn clean(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => cleaned.push(c),
            // Overrides of the direction of writing show a text as another one.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => cleaned.extend(c.escape_unicode()),
            c if c.is_control() => cleaned.extend(c.escape_default()),
            c => cleaned.push(c),
        }
    }
    cleaned
}

/// A model's text as it may be shown: exactly so in a pipe or file, but without control characters in a terminal.
pub(super) fn shown(text: &str, in_terminal: bool) -> Cow<'_, str> {
    match in_terminal {
        true => Cow::Owned(clean(text)),
        false => Cow::Borrowed(text),
    }
}

/// JSON as it may be shown. JSON itself has to escape only some of what commands a terminal.
fn shown_json(json: &str, in_terminal: bool) -> String {
    let escaped = |c: char| match c {
        '\n' => c.to_string(),
        c if clean(c.encode_utf8(&mut [0; 4])).len() > c.len_utf8() => {
            format!("\\u{:04x}", u32::from(c))
        }
        c => c.to_string(),
    };
    match in_terminal {
        true => json.chars().map(escaped).collect(),
        false => json.to_owned(),
    }
}

/// Writes a line of JSON to standard output.
pub(super) fn print_json(line: &str) -> Result<(), CliError> {
    print(&shown_json(line, io::stdout().is_terminal()))
}

/// Writes what a model said to standard output.
pub(super) fn answer(text: &str) -> Result<(), CliError> {
    print(&shown(text, io::stdout().is_terminal()))
}

/// Writes a table or report, which may have names from files in it, to standard output. A terminal gets it broken between words.
pub(super) fn page(text: &str) -> Result<(), CliError> {
    let text = clean(text);
    match columns(&io::stdout()) {
        Some(columns) => print(&wrapped_page(&text, columns)),
        None => print(&text),
    }
}

/// Columns of the terminal that `to` is, if lines are broken there.
fn columns(to: &impl IsTerminal) -> Option<usize> {
    terminal::columns().filter(|_| to.is_terminal() && !terminal::is_dumb())
}

/// Ends the process with what the parser of the command line says: help, the version, or an error.
pub(super) fn end(said: &clap::Error) -> ! {
    match columns(&io::stderr()).filter(|_| said.use_stderr()) {
        Some(columns) => {
            let text = said.render();
            let text = match is_styled(true) {
                true => text.ansi().to_string(),
                false => text.to_string(),
            };
            eprint!("{}", wrapped(&text, columns));
            std::process::exit(said.exit_code())
        }
        None => said.exit(),
    }
}

/// Writes `text` to standard output and flushes it, so that a streamed answer is seen token by token.
///
/// # Errors
/// [`CliError::BrokenPipe`] where the reader is gone, [`CliError::Write`] for anything else.
pub(super) fn print(text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(write_error)
}

/// Writes `value` as one line of JSON to standard output.
pub(super) fn json(value: &impl Serialize) -> Result<(), CliError> {
    json_line(&mut io::stdout().lock(), value)
}

/// Writes `value` as one line of JSON to `out`, which leads to standard output.
pub(super) fn json_line(out: &mut impl Write, value: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string(value).map_err(|error| write_error(error.into()))?;
    let line = shown_json(&text, io::stdout().is_terminal()) + "\n";
    out.write_all(line.as_bytes()).map_err(write_error)
}

/// Tells a closed pipe from other failures of standard output.
pub(super) fn write_error(error: io::Error) -> CliError {
    match error.kind() {
        io::ErrorKind::BrokenPipe => CliError::BrokenPipe,
        _ => CliError::Write(error),
    }
}

/// The error of a file that cannot be written.
pub(super) fn file_error(path: &Path, source: io::Error) -> CliError {
    CliError::WriteFile {
        path: path.display().to_string(),
        source,
    }
}

/// The thoughts of a model on standard error, dimmed where [`is_styled`] says so.
pub(super) struct Thoughts {
    dim: bool,
    open: bool,
    lines: Lines,
}

impl Thoughts {
    /// Thoughts whose lines are broken as `lines` say.
    pub(super) fn new(lines: Lines) -> Self {
        Self {
            dim: is_styled(io::stderr().is_terminal()),
            open: false,
            lines,
        }
    }

    /// Writes a piece of thought.
    pub(super) fn print(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let text = self.lines.broken(text);
        let mut err = io::stderr().lock();
        let start = if self.dim && !self.open { DIM } else { "" };
        self.open = true;
        let _ = write!(err, "{start}{text}").and_then(|()| err.flush());
    }

    /// Ends the thoughts with a line break and the terminal's normal brightness.
    pub(super) fn end(&mut self) {
        if self.open {
            self.open = false;
            let rest = self.lines.end();
            let bright = if self.dim { PLAIN } else { "" };
            let _ = writeln!(io::stderr().lock(), "{rest}{bright}");
        }
    }
}

/// `bytes` with a binary unit, as `17.2 GiB`.
pub(super) fn bytes(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match UNITS.iter().find(|(_, bits)| bytes >> bits > 0) {
        Some((unit, bits)) => format!("{:.1} {unit}", bytes as f64 / (1u64 << bits) as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_carry_binary_units() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(17 << 30), "17.0 GiB");
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
    }

    #[test]
    fn what_commands_a_terminal_is_escaped() {
        let text =
            "red \x1b[31m, bell \x07, delete \x7f, C1 \u{9b}2J, back\r, \u{202e}desrever\n\tüß";
        let expected = "red \\u{1b}[31m, bell \\u{7}, delete \\u{7f}, C1 \\u{9b}2J, back\\r, \\u{202e}desrever\n\tüß";
        assert_eq!(clean(text), expected);
    }

    #[test]
    fn terminals_are_not_commanded_and_pipes_get_each_byte() {
        let text = "a\u{1b}[31m\u{9b}2J\u{7f}b\u{202e}\n";
        assert_eq!(shown(text, false), text);
        assert_eq!(shown(text, true), clean(text));
        let json = serde_json::to_string(text).expect("it is a text") + "\n";
        assert_eq!(shown_json(&json, false), json);
        let escaped = shown_json(&json, true);
        assert!(
            escaped.ends_with('\n')
                && escaped
                    .trim_end()
                    .chars()
                    .all(|c| c == '\u{0}' || !c.is_control()),
            "{escaped}"
        );
        assert!(!escaped.contains('\u{202e}'), "{escaped}");
        let read: String = serde_json::from_str(&escaped).expect("it is the same text");
        assert_eq!(read, text);
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        let gone = write_error(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(matches!(gone, CliError::BrokenPipe));
        let full = write_error(io::Error::from(io::ErrorKind::StorageFull));
        assert!(matches!(full, CliError::Write(_)));
        assert_eq!(full.exit_code(), 1);
    }
}
