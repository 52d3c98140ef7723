//! Bars on standard error, and the lines that are written beside them.

use std::io::{self, IsTerminal};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{MultiProgress, ProgressBar};

use crate::pictures::terminal::is_dumb;

/// All bars that are drawn: together they know which lines of the terminal are theirs.
static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);
/// Whether there was a bar yet.
static USED: AtomicBool = AtomicBool::new(false);

/// Whether standard error can show bars: a terminal that knows how to move its cursor.
pub(super) fn draws() -> bool {
    io::stderr().is_terminal() && !is_dumb()
}

/// Draws this bar from now on.
pub(super) fn add(bar: ProgressBar) -> ProgressBar {
    USED.store(true, Ordering::Relaxed);
    BARS.add(bar)
}

/// Takes a bar away.
pub(super) fn remove(bar: &ProgressBar) {
    bar.finish_and_clear();
    BARS.remove(bar);
}

/// Calls `write`, which writes whole lines to the terminal, above the bars.
pub(super) fn beside<T>(write: impl FnOnce() -> T) -> T {
    match USED.load(Ordering::Relaxed) {
        true => BARS.suspend(write),
        false => write(),
    }
}
