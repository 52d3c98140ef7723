//! Copying to the clipboard: by a program of the system, or by the terminal itself.

use std::io::{self, IsTerminal, Write};
use std::process::{Command, Stdio};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use crate::cli::error::CliError;
use crate::cli::output;
use crate::pictures::terminal::is_dumb;

/// Bytes that terminals take at least of such a sequence: xterm and tmux stop near 100000 in base64.
const MOST: usize = 74_000;

/// Programs that copy their standard input, each with the variable that must be set for it, and its arguments.
const PROGRAMS: &[(Option<&str>, &str, &[&str])] = &[
    #[cfg(target_os = "macos")]
    (None, "pbcopy", &[]),
    #[cfg(windows)]
    (None, "clip", &[]),
    (Some("WAYLAND_DISPLAY"), "wl-copy", &[]),
    (Some("DISPLAY"), "xclip", &["-selection", "clipboard"]),
    (Some("DISPLAY"), "xsel", &["--clipboard", "--input"]),
    (Some("WSL_DISTRO_NAME"), "clip.exe", &[]),
];

/// Copies `text`. Returned is by what, in words.
///
/// # Errors
/// [`CliError::NoClipboard`].
pub(super) fn copy(text: &str) -> Result<String, CliError> {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    // From afar a program would copy to the clipboard of the other machine.
    let is_far = is_set("SSH_CONNECTION") || is_set("SSH_TTY");
    let programs = PROGRAMS
        .iter()
        .filter(|(needs, ..)| !is_far && needs.is_none_or(is_set));
    for (_, program, arguments) in programs {
        if by(program, arguments, text).is_ok() {
            return Ok(format!("by {program}"));
        }
    }
    if is_dumb() || !io::stdout().is_terminal() || text.len() > MOST {
        return Err(CliError::NoClipboard);
    }
    output::print(&sequence(text))?;
    Ok("by the terminal, if it lets programs do that (OSC 52)".to_owned())
}

/// The escape sequence that tells a terminal to copy `text`.
fn sequence(text: &str) -> String {
    format!("\x1b]52;c;{}\x07", BASE64_STANDARD.encode(text))
}

/// Copies by a program.
fn by(program: &str, arguments: &[&str], text: &str) -> io::Result<()> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let written = match child.stdin.take() {
        Some(mut stdin) => stdin.write_all(text.as_bytes()),
        None => Ok(()),
    };
    match child.wait()?.success() {
        true => written,
        false => Err(io::ErrorKind::Other.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_get_the_text_in_base64() {
        assert_eq!(sequence("Fox\n狐"), "\x1b]52;c;Rm94CueLkA==\x07");
    }
}
