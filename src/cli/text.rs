//! Texts that commands are given: an argument, a file, standard input.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use clap::Args;

use super::error::CliError;
use super::output::note;

/// The most bytes of a text that no context bounds.
pub(super) const MAX_BYTES: u64 = 256 << 20;
/// Standard input that is silent for so long is told of.
const PATIENCE: Duration = Duration::from_secs(1);

/// The most bytes that a text for a context of `n_ctx` tokens can have: texts have some four bytes a token.
pub(super) fn most_bytes(n_ctx: usize) -> u64 {
    (64 << 10) + 256 * n_ctx as u64
}

/// Further advice for a text of more than `most` bytes.
pub(super) fn or_more_context(most: u64) -> &'static str {
    match most < MAX_BYTES {
        true => ", or ask for more context with -c",
        false => "",
    }
}

/// A text file.
#[derive(Args)]
pub(super) struct FileArgs {
    /// Read the text from a file; - is standard input
    ///
    /// One line break at its end is dropped.
    #[arg(short, long, value_name = "FILE", allow_hyphen_values = true)]
    file: Option<PathBuf>,
}

impl FileArgs {
    /// The text of the file, or what is piped into standard input.
    ///
    /// # Errors
    /// [`CliError::NoFile`] where there is neither, or what reading gave.
    pub(super) fn read(&self) -> Result<String, CliError> {
        let input = self.input().or_else(Input::piped);
        input.ok_or(CliError::NoFile)?.read(MAX_BYTES)
    }

    /// The input that the flag names.
    pub(super) fn input(&self) -> Option<Input> {
        self.file.clone().map(|path| match path == Path::new("-") {
            true => Input::Standard,
            false => Input::File(path),
        })
    }
}

/// A text: argument, file or standard input.
#[derive(Args)]
pub(super) struct TextArgs {
    /// The text; - is standard input [default: standard input, where it is a pipe or a file]
    #[arg(conflicts_with = "file")]
    text: Option<String>,
    #[command(flatten)]
    file: FileArgs,
}

impl TextArgs {
    /// The source of the text; `what` names it in errors.
    ///
    /// # Errors
    /// [`CliError::NoText`] where none is given in any way.
    pub(super) fn input(&self, what: &'static str) -> Result<Input, CliError> {
        let input = self.given().or_else(Input::piped);
        input.ok_or(CliError::NoText { what })
    }

    /// The input that the flags name.
    fn given(&self) -> Option<Input> {
        match self.text.as_deref() {
            Some("-") => Some(Input::Standard),
            Some(text) => Some(Input::Text(text.to_owned())),
            None => self.file.input(),
        }
    }
}

/// A prompt: a text, and behind it what is piped into standard input.
#[derive(Args)]
pub(super) struct PromptArgs {
    #[command(flatten)]
    text: TextArgs,
    /// The prompt, as llama.cpp takes it
    #[arg(short = 'p', long = "prompt", value_name = "PROMPT", conflicts_with_all = ["text", "file"], allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Read \n, \t, \" and \\ in the prompt as llama.cpp does; without this flag they stay as they are
    #[arg(short = 'e', long = "escape", hide_short_help = true)]
    escape: bool,
    /// Leave standard input alone; else what is piped there is added to the prompt
    #[arg(long, hide_short_help = true)]
    no_stdin: bool,
}

impl PromptArgs {
    /// The inputs of the prompt, in order.
    ///
    /// # Errors
    /// [`CliError::NoText`] where none is given in any way.
    pub(super) fn inputs(&self) -> Result<Vec<Input>, CliError> {
        let named = self.prompt.clone().map(Input::Text);
        let given = match named.or_else(|| self.text.given()) {
            Some(Input::Text(text)) if self.escape => Some(Input::Text(unescaped(&text))),
            given => given,
        };
        let piped = match (&given, self.no_stdin) {
            (Some(Input::Standard), _) | (_, true) => None,
            _ => Input::piped(),
        };
        let inputs: Vec<_> = given.into_iter().chain(piped).collect();
        match inputs.is_empty() {
            true => Err(CliError::NoText { what: "prompt" }),
            false => Ok(inputs),
        }
    }
}

/// The texts of `inputs` with a blank line between them; of `most` bytes at most.
///
/// # Errors
/// An error of reading, or [`CliError::EmptyText`].
pub(super) fn read_all(inputs: &[Input], most: u64) -> Result<String, CliError> {
    let texts = inputs.iter().map(|input| input.read(most));
    let mut texts = texts.collect::<Result<Vec<_>, _>>()?;
    // Nothing was piped, or there is nothing but what was.
    texts.retain(|text| !text.is_empty());
    match texts.is_empty() {
        true => Err(CliError::EmptyText { what: "prompt" }),
        false => Ok(texts.join("\n\n")),
    }
}

/// The source of a text.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Input {
    /// The text itself.
    Text(String),
    /// A file.
    File(PathBuf),
    /// Standard input.
    Standard,
}

impl Input {
    /// Standard input where it is a pipe or a file: a terminal, a socket and /dev/null give no text that anybody meant.
    fn piped() -> Option<Self> {
        is_piped().then_some(Self::Standard)
    }

    /// The text, of `most` bytes at most.
    ///
    /// # Errors
    /// [`CliError::ReadText`], [`CliError::TextTooLong`] or [`CliError::NotUtf8`].
    pub(super) fn read(&self, most: u64) -> Result<String, CliError> {
        let (path, bytes) = match self {
            Self::Text(text) => return Ok(text.clone()),
            Self::File(path) => {
                let bytes = File::open(path).and_then(|file| bounded(file, most));
                (path.display().to_string(), bytes)
            }
            Self::Standard => ("standard input".to_owned(), standard_input(most)),
        };
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(source) => return Err(CliError::ReadText { path, source }),
        };
        if bytes.len() as u64 > most {
            let advice = or_more_context(most);
            return Err(CliError::TextTooLong { path, most, advice });
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            let offset = error.utf8_error().valid_up_to();
            CliError::NotUtf8 { path, offset }
        })?;
        Ok(plain(&text))
    }
}

/// The text without the additions of editors: a byte order mark, carriage returns at the ends of lines, and the last line break, which
/// llama.cpp drops, too.
fn plain(text: &str) -> String {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut text = text.replace("\r\n", "\n");
    if text.ends_with('\n') {
        text.pop();
    }
    text
}

/// A text with its escapes replaced, as llama.cpp does.
pub(super) fn unescaped(text: &str) -> String {
    let mut plain = String::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            plain.push(character);
            continue;
        }
        match characters.next() {
            Some('n') => plain.push('\n'),
            Some('r') => plain.push('\r'),
            Some('t') => plain.push('\t'),
            Some(other @ ('\\' | '"' | '\'')) => plain.push(other),
            Some(other) => plain.extend(['\\', other]),
            None => plain.push('\\'),
        }
    }
    plain
}

/// Up to `most` bytes, and one more where there are more.
fn bounded(from: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(most + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads like [`bounded`], from standard input. If that is silent, this is told once.
fn standard_input(most: u64) -> io::Result<Vec<u8>> {
    let (done, waiting) = mpsc::channel::<()>();
    let notice = std::thread::spawn(move || {
        if waiting.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
            let hint = match io::stdin().is_terminal() {
                true => "Ctrl-D ends it",
                false => "--no-stdin leaves it alone",
            };
            note(format_args!("reading standard input ({hint})"));
        }
    });
    let bytes = bounded(io::stdin().lock(), most);
    drop(done);
    // It ends at once.
    let _ = notice.join();
    bytes
}

/// Whether standard input is a pipe or a regular file.
#[cfg(unix)]
pub(super) fn is_piped() -> bool {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileTypeExt;
    let standard = io::stdin().as_fd().try_clone_to_owned().map(File::from);
    let kind = standard.and_then(|file| Ok(file.metadata()?.file_type()));
    // Closed, it has none.
    kind.is_ok_and(|kind| kind.is_fifo() || kind.is_file())
}

/// Whether standard input is no terminal.
#[cfg(not(unix))]
pub(super) fn is_piped() -> bool {
    !io::stdin().is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_editors_add_goes() {
        for (text, expected) in [
            ("\u{feff}one\r\ntwo\r\n", "one\ntwo"),
            ("one\n\n", "one\n"),
            ("a\rb", "a\rb"),
            ("\r\n", ""),
            ("in \u{feff} side", "in \u{feff} side"),
        ] {
            assert_eq!(plain(text), expected, "{text:?}");
        }
    }

    #[test]
    fn escapes_are_read() {
        assert_eq!(unescaped(r#"a\nb\\\t\""#), "a\nb\\\t\"");
        assert_eq!(unescaped(r"\x\"), r"\x\");
    }

    #[test]
    fn a_text_is_read_up_to_its_bound() {
        let read = |most| bounded(&b"abcdef"[..], most).expect("memory can be read");
        assert_eq!(read(6), b"abcdef");
        assert_eq!(read(4), b"abcde", "one more tells that there are more");
    }
}
