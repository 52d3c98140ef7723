//! Progress bars on standard error.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::output::is_quiet;
use crate::pictures::terminal::is_dumb;

/// A bar in the form of `template`, which is a constant. It is hidden where standard error is no terminal or one that knows plain lines
/// alone, and where notes are left out.
pub(super) fn bar(length: Option<u64>, template: &str) -> ProgressBar {
    let target = match is_quiet() || is_dumb() {
        true => ProgressDrawTarget::hidden(),
        false => ProgressDrawTarget::stderr(),
    };
    let style = ProgressStyle::with_template(template);
    let style = style.expect("the templates are constants that indicatif accepts");
    ProgressBar::with_draw_target(length, target).with_style(style)
}

/// A bar in bytes.
pub(super) fn progress_bar(what: &'static str) -> ProgressBar {
    let template = "{msg} {wide_bar} {bytes} of {total_bytes}, {eta}";
    bar(Some(0), template).with_message(what)
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

/// A bar for the tokens of a long prompt, shown when its position is set.
pub(super) fn prompt_bar(what: &'static str, tokens: usize) -> ProgressBar {
    let template = "{msg} {wide_bar} {pos} of {len} tokens, {eta}";
    bar(Some(tokens as u64), template).with_message(what)
}

/// A bar for the repetitions of a measurement.
pub(super) fn runs_bar(what: String, runs: u64) -> ProgressBar {
    let bar = bar(Some(runs), "{msg} {wide_bar} {pos} of {len}");
    // Unlike `with_message`, this shows it at once.
    bar.set_message(what);
    bar
}
