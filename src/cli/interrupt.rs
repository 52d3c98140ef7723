//! Ctrl-C: while an answer is being generated the first one stops the answer, which then ends in order; at any other
//! time, and the second time, it ends the process at once and leaves no file half written. So does SIGTERM. A server ends in order with
//! the first of either.
//!
//! In a conversation Ctrl-C only stops what goes on, however often it comes. If that has not ended after some seconds, because a device
//! hangs, the next one ends the process.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::error::{CliError, EXIT_INTERRUPTED};
use super::output::note;
use super::tty;
use crate::files;

/// Nothing to bring to an end: Ctrl-C exits.
const IDLE: u8 = 0;
/// An answer is being generated: Ctrl-C stops it.
const GENERATING: u8 = 1;
/// The answer was asked to stop.
const STOPPING: u8 = 2;

/// Requests are answered: Ctrl-C and SIGTERM end the server in order.
const SERVING: u8 = 3;
/// The server was asked to end.
const DRAINING: u8 = 4;

/// The function that asks the server to end.
static DRAIN: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();

static STATE: AtomicU8 = AtomicU8::new(IDLE);

/// How long what Ctrl-C stops in a conversation may take to end, before another one ends the process.
const PATIENCE: Duration = Duration::from_secs(5);

/// The state of a conversation that gives Ctrl-C its meaning.
enum Talk {
    /// None is held.
    None,
    /// Nothing was to be stopped since the last prompt.
    Undisturbed,
    /// The first Ctrl-C since then.
    Stopped(Instant),
}

static TALK: Mutex<Talk> = Mutex::new(Talk::None);

/// The sentence that is printed when a signal ends the process.
static PARTING: Mutex<Option<&str>> = Mutex::new(None);

/// Installs the handler, once per process.
///
/// # Errors
/// [`CliError::Signal`] where the system refuses.
#[cfg(unix)]
pub(super) fn install() -> Result<(), CliError> {
    use signal_hook::consts::{SIGINT, SIGTERM};

    let mut signals =
        signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).map_err(CliError::Signal)?;
    let wait = move || {
        for signal in signals.forever() {
            match signal {
                SIGINT => on_ctrl_c(),
                // Shells report this status of a process that a signal ended.
                other if !drains() => end(128 + other),
                _ => {}
            }
        }
    };
    let thread = std::thread::Builder::new().name("signals".to_owned());
    thread.spawn(wait).map_err(CliError::Signal)?;
    Ok(())
}

/// Installs the handler, once per process.
///
/// # Errors
/// [`CliError::Signal`] where the system refuses.
#[cfg(not(unix))]
pub(super) fn install() -> Result<(), CliError> {
    ctrlc::set_handler(on_ctrl_c)
        .map_err(std::io::Error::other)
        .map_err(CliError::Signal)
}

fn on_ctrl_c() {
    let mut talk = TALK.lock().unwrap_or_else(PoisonError::into_inner);
    match *talk {
        Talk::None => {
            let stop =
                STATE.compare_exchange(GENERATING, STOPPING, Ordering::SeqCst, Ordering::SeqCst);
            if stop.is_err() && !drains() {
                end(i32::from(EXIT_INTERRUPTED));
            }
        }
        Talk::Undisturbed => {
            // Also before an answer begins, which then ends at once.
            STATE.store(STOPPING, Ordering::SeqCst);
            *talk = Talk::Stopped(Instant::now());
        }
        Talk::Stopped(since) if since.elapsed() > PATIENCE => end(i32::from(EXIT_INTERRUPTED)),
        Talk::Stopped(_) => {}
    }
}

/// Asks the server to end, if there is one that was not asked yet.
fn drains() -> bool {
    let asked = STATE.compare_exchange(SERVING, DRAINING, Ordering::SeqCst, Ordering::SeqCst);
    match (asked, DRAIN.get()) {
        (Ok(_), Some(drain)) => {
            drain();
            true
        }
        _ => false,
    }
}

/// From here on the first Ctrl-C or SIGTERM only calls `drain`.
pub(super) fn drain_with(drain: Box<dyn Fn() + Send + Sync>) {
    if DRAIN.set(drain).is_ok() {
        STATE.store(SERVING, Ordering::SeqCst);
    }
}

/// Ends the process, leaves no file half written, and the terminal as it was.
fn end(code: i32) -> ! {
    tty::restore();
    if let Some(parting) = *PARTING.lock().unwrap_or_else(PoisonError::into_inner) {
        note(format_args!("\n{parting}"));
    }
    files::remove_unfinished();
    leave(code)
}

/// Has `text` said when a signal ends the process from here on, or nothing.
pub(super) fn say_at_end(text: Option<&'static str>) {
    *PARTING.lock().unwrap_or_else(PoisonError::into_inner) = text;
}

/// A conversation waits for what is typed next: from here on Ctrl-C stops what follows, and does not end the process.
pub(super) fn at_prompt() {
    let mut talk = TALK.lock().unwrap_or_else(PoisonError::into_inner);
    *talk = Talk::Undisturbed;
    STATE.store(IDLE, Ordering::SeqCst);
}

/// Ends the process without the clean-up of C libraries: a driver that is taken down while another thread still uses it may crash.
pub(super) fn leave(code: i32) -> ! {
    #[cfg(unix)]
    // SAFETY: it takes a number and does not return. Nothing is left to be written: output is flushed with every line or token.
    unsafe {
        libc::_exit(code)
    }
    #[cfg(not(unix))]
    std::process::exit(code)
}

/// From here on the first Ctrl-C only asks the answer to stop.
pub(super) fn begin_answer() {
    // Fails only when the answer is already asked to stop, which must stay so.
    let _ = STATE.compare_exchange(IDLE, GENERATING, Ordering::SeqCst, Ordering::SeqCst);
}

/// The answer has ended: from here on Ctrl-C ends the process.
pub(super) fn end_answer() {
    STATE.store(IDLE, Ordering::SeqCst);
}

/// Whether Ctrl-C asked the answer to stop.
pub(super) fn requested() -> bool {
    STATE.load(Ordering::SeqCst) == STOPPING
}
