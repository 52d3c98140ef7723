//! Progress on standard error: a bar in a terminal, elsewhere a few plain lines, and nothing where notes are left out.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::output::{bytes, is_quiet, note};
use super::screen;
use crate::gpu::compiling::{self, Compiling};

/// Work that takes no longer shows no bar.
const BAR_AFTER: Duration = Duration::from_millis(300);
/// The time after which the first line comes if there are no bars. Each further one takes twice as long as the one before.
const LINE_AFTER: Duration = Duration::from_secs(5);
/// Shaders that are compiled within so long of one another share a bar.
const SAME: Duration = Duration::from_secs(2);

/// The unit in which a bar counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Bytes,
    Tokens,
    Pieces,
}

impl Unit {
    /// The form of a bar.
    fn template(self) -> &'static str {
        match self {
            Self::Bytes => "{msg} {wide_bar} {bytes} of {total_bytes}, {eta}",
            Self::Tokens => "{msg} {wide_bar} {pos} of {len} tokens, {eta}",
            Self::Pieces => "{msg} {wide_bar} {pos} of {len}",
        }
    }

    /// `done` of `of`, in words.
    fn words(self, done: u64, of: u64) -> String {
        match self {
            Self::Bytes => format!("{} of {}", bytes(done), bytes(of)),
            Self::Tokens => format!("{done} of {of} tokens"),
            Self::Pieces => format!("{done} of {of}"),
        }
    }
}

/// The progress of one piece of work. It is shown once that has taken a while.
pub(super) struct Bar {
    began: Instant,
    state: Arc<Mutex<State>>,
    /// Ends the thread that shows it in time, where there is one.
    timer: Mutex<Option<Sender<()>>>,
}

struct State {
    unit: Unit,
    what: String,
    done: u64,
    of: u64,
    /// The bar while it is shown.
    bar: Option<ProgressBar>,
    /// Whether the bar was taken away.
    ended: bool,
    /// When the next line is due, where there are no bars.
    line: Duration,
}

impl State {
    /// Draws it as it is now.
    fn draw(&mut self) {
        let bar = self.bar.get_or_insert_with(|| {
            let bar = drawn(self.unit, &self.what);
            bar.set_length(self.of);
            bar.set_position(self.done);
            // How much is done when it is shown first tells no speed.
            bar.reset_eta();
            screen::add(bar)
        });
        bar.set_length(self.of);
        bar.set_position(self.done);
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(|e| e.into_inner())
}

impl Bar {
    fn new(what: impl Into<String>, unit: Unit, of: u64) -> Self {
        let state = State {
            unit,
            what: what.into(),
            done: 0,
            of,
            bar: None,
            ended: false,
            line: LINE_AFTER,
        };
        Self {
            began: Instant::now(),
            state: Arc::new(Mutex::new(state)),
            timer: Mutex::default(),
        }
    }

    /// Has it shown in time even if nothing is told by then.
    fn in_time(self) -> Self {
        if is_quiet() || !screen::draws() {
            return self;
        }
        let (on, off) = channel();
        let state = Arc::clone(&self.state);
        let show = move || {
            if off.recv_timeout(BAR_AFTER) == Err(RecvTimeoutError::Timeout) {
                let mut state = lock(&state);
                if !state.ended {
                    state.draw();
                }
            }
        };
        // Without a thread it is shown when something is told.
        let thread = thread::Builder::new().name("bar".to_owned());
        *self.timer() = thread.spawn(show).is_ok().then_some(on);
        self
    }

    fn timer(&self) -> MutexGuard<'_, Option<Sender<()>>> {
        self.timer.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Shows that `done` is done.
    pub(super) fn at(&self, done: u64) {
        let of = self.state().of;
        self.at_of(done, of);
    }

    /// Notes that one more is done.
    pub(super) fn step(&self) {
        let mut state = self.state();
        state.done += 1;
        let (done, of) = (state.done, state.of);
        drop(state);
        self.at_of(done, of);
    }

    /// Shows that `done` of `of` is done.
    pub(super) fn at_of(&self, done: u64, of: u64) {
        let spent = self.began.elapsed();
        let mut state = self.state();
        (state.done, state.of, state.ended) = (done, of, false);
        if is_quiet() || spent < BAR_AFTER {
            return;
        }
        if !screen::draws() {
            if spent >= state.line {
                state.line = spent * 2;
                note(format_args!("{}", line(&state.what, state.unit, done, of)));
            }
            return;
        }
        state.draw();
    }

    /// Calls the work otherwise from now on.
    pub(super) fn call(&self, what: &str) {
        let mut state = self.state();
        if state.what == what {
            return;
        }
        what.clone_into(&mut state.what);
        if let Some(bar) = &state.bar {
            bar.set_message(what.to_owned());
        }
    }

    /// Takes the bar away.
    pub(super) fn end(&self) {
        *self.timer() = None;
        let mut state = self.state();
        state.ended = true;
        if let Some(bar) = state.bar.take() {
            screen::remove(&bar);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.end();
    }
}

/// A bar that is drawn nowhere yet. The template is a constant.
fn hidden(template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template);
    let style = style.expect("the templates are constants that indicatif accepts");
    ProgressBar::hidden().with_style(style)
}

/// A bar in the form of `template`, which is a constant. It is hidden where bars cannot be drawn, and where notes are left out.
pub(super) fn bar(length: Option<u64>, template: &str) -> ProgressBar {
    let bar = hidden(template);
    if let Some(length) = length {
        bar.set_length(length);
    }
    match is_quiet() || !screen::draws() {
        true => bar,
        false => screen::add(bar),
    }
}

/// The bar of a piece of work.
fn drawn(unit: Unit, what: &str) -> ProgressBar {
    hidden(unit.template()).with_message(what.to_owned())
}

/// Progress as a line.
fn line(what: &str, unit: Unit, done: u64, of: u64) -> String {
    format!("{what}: {}", unit.words(done, of))
}

/// A bar in bytes.
pub(super) fn progress_bar(what: &'static str) -> Bar {
    Bar::new(what, Unit::Bytes, 0)
}

/// Shows on `bar` how much is done, of how much in all, until all is.
pub(super) fn told(bar: &Bar) -> impl FnMut(u64, u64) + use<'_> {
    |done, total| match done < total {
        true => bar.at_of(done, total),
        false => bar.end(),
    }
}

/// A bar for the tokens of a prompt.
pub(super) fn prompt_bar(what: &'static str, tokens: usize) -> Bar {
    Bar::new(what, Unit::Tokens, tokens as u64).in_time()
}

/// A bar for the repetitions of a measurement.
pub(super) fn runs_bar(what: String, runs: u64) -> Bar {
    Bar::new(what, Unit::Pieces, runs)
}

/// A bar for shaders, and those that were compiled before the ones that are compiled now.
struct Shaders {
    bar: Bar,
    before: usize,
    last: Instant,
}

/// Shows from now on when shaders are compiled. A step has few of them, so steps that follow one another share a bar.
pub(super) fn show_compiling() {
    static SHADERS: Mutex<Option<Shaders>> = Mutex::new(None);
    compiling::listen(|Compiling { done, of }| {
        let mut shaders = SHADERS.lock().unwrap_or_else(|e| e.into_inner());
        let now = Instant::now();
        let kept = shaders.take().filter(|kept| now - kept.last < SAME);
        let kept = shaders.insert(kept.unwrap_or_else(|| Shaders {
            bar: Bar::new("compiling shaders", Unit::Pieces, 0),
            before: 0,
            last: now,
        }));
        kept.last = now;
        kept.bar
            .at_of((kept.before + done) as u64, (kept.before + of) as u64);
        if done == of {
            kept.before += of;
            kept.bar.end();
        }
    });
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use indicatif::{ProgressDrawTarget, TermLike};

    use super::*;

    /// A terminal of so many columns that keeps what is written.
    #[derive(Debug, Clone)]
    struct Narrow(u16, Arc<Mutex<Vec<String>>>);

    impl TermLike for Narrow {
        fn width(&self) -> u16 {
            self.0
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            let mut written = self.1.lock().expect("no writer panics");
            written.push(text.to_owned());
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn bars_fit_into_one_line_of_a_narrow_terminal() {
        for width in [40, 80, 200] {
            for (unit, what, of) in [
                (Unit::Bytes, "writing", 1023 << 30),
                (Unit::Tokens, "prompt", 131_072),
                (Unit::Pieces, "compiling shaders", 120),
            ] {
                let terminal = Narrow(width, Arc::default());
                let bar = drawn(unit, what);
                bar.set_draw_target(ProgressDrawTarget::term_like(Box::new(terminal.clone())));
                bar.set_length(of);
                bar.set_position(of - 1);
                bar.tick();
                let written = terminal.1.lock().expect("no writer panics");
                let lines: Vec<_> = written
                    .iter()
                    .filter(|text| text.contains(" of "))
                    .collect();
                assert!(!lines.is_empty(), "{written:?}");
                for line in lines {
                    let columns = line.trim_end().chars().count();
                    assert!(
                        columns <= usize::from(width),
                        "{columns} of {width}: {line}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_line_says_what_is_done_and_of_how_much() {
        let line = |unit, done, of| line("loading", unit, done, of);
        assert_eq!(
            line(Unit::Bytes, 3 << 30, 17 << 30),
            "loading: 3.0 GiB of 17.0 GiB"
        );
        assert_eq!(line(Unit::Tokens, 7, 90), "loading: 7 of 90 tokens");
        assert_eq!(line(Unit::Pieces, 1, 2), "loading: 1 of 2");
    }
}
