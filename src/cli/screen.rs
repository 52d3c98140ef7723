//! Bars on standard error, and the lines that are written beside them.

use std::io::{self, IsTerminal};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{MultiProgress, ProgressBar};

/// All bars that are drawn: together they know which lines of the terminal are theirs.
static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);
/// Whether there was a bar yet.
static USED: AtomicBool = AtomicBool::new(false);

/// Whether a terminal of this kind can be drawn on.
fn is_drawable(kind: Option<&str>) -> bool {
    kind != Some("dumb")
}

/// Whether standard error can show bars: a terminal that knows how to move its cursor.
pub(super) fn draws() -> bool {
    io::stderr().is_terminal() && is_drawable(std::env::var("TERM").ok().as_deref())
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

/// Does what writes whole lines to the terminal, above the bars.
pub(super) fn beside<T>(write: impl FnOnce() -> T) -> T {
    match USED.load(Ordering::Relaxed) {
        true => BARS.suspend(write),
        false => write(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_without_a_cursor_gets_no_bars() {
        assert!(!is_drawable(Some("dumb")));
        assert!(is_drawable(Some("xterm")) && is_drawable(None));
    }
}
