//! Questions to whoever sits at the terminal.

use std::io::{self, BufRead, IsTerminal, Write};

use super::error::CliError;

/// Whether somebody can be asked: both the question and the answer go through a terminal.
pub(super) fn possible() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks a question; anything but `y` or `yes` is no.
pub(super) fn yes(question: &str) -> Result<bool, CliError> {
    let mut err = io::stderr().lock();
    let _ = write!(err, "{question} [y/N] ").and_then(|()| err.flush());
    drop(err);
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.map_err(CliError::unread("standard input"))?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}
