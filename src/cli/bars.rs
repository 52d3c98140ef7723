//! Progress bars on standard error.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::output::is_quiet;

/// A progress bar in bytes on standard error; indicatif hides it where that is no terminal.
pub(super) fn progress_bar(what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes} of {total_bytes}, {eta}")
        .expect("the template is a constant that indicatif accepts");
    bar(0).with_style(style).with_message(what)
}

/// A bar that is shown unless notes are left out.
fn bar(length: u64) -> ProgressBar {
    let target = match is_quiet() {
        true => ProgressDrawTarget::hidden(),
        false => ProgressDrawTarget::stderr(),
    };
    ProgressBar::with_draw_target(Some(length), target)
}

/// Shows on `bar` how much is done, of how much in all.
pub(super) fn told(bar: &ProgressBar) -> impl FnMut(u64, u64) + use<'_> {
    |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    }
}

/// A prompt that takes longer shows a bar.
pub(super) const BAR_AFTER: Duration = Duration::from_millis(300);

/// A bar on standard error for the tokens of a long prompt, shown when its position is set.
pub(super) fn prompt_bar(what: &'static str, tokens: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos} of {len} tokens, {eta}")
        .expect("the template is a constant that indicatif accepts");
    bar(tokens as u64).with_style(style).with_message(what)
}

/// A bar on standard error for the repetitions of a measurement.
pub(super) fn runs_bar(what: String, runs: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos} of {len}")
        .expect("the template is a constant that indicatif accepts");
    let bar = bar(runs).with_style(style);
    bar.set_message(what);
    bar
}
