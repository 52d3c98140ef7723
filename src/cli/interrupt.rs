//! Ctrl-C: while an answer is being generated the first one stops the answer, which then ends in order; at any other
//! time, and the second time, it ends the process at once and leaves no file half written.

use std::sync::atomic::{AtomicU8, Ordering};

use super::error::{CliError, EXIT_INTERRUPTED};
use crate::files;

/// Nothing to bring to an end: Ctrl-C exits.
const IDLE: u8 = 0;
/// An answer is being generated: Ctrl-C stops it.
const GENERATING: u8 = 1;
/// The answer was asked to stop.
const STOPPING: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(IDLE);

/// Installs the handler, once per process.
///
/// # Errors
/// [`CliError::Signal`] where the system refuses.
pub(super) fn install() -> Result<(), CliError> {
    ctrlc::set_handler(|| {
        let stop = STATE.compare_exchange(GENERATING, STOPPING, Ordering::SeqCst, Ordering::SeqCst);
        if stop.is_err() {
            files::remove_unfinished();
            std::process::exit(i32::from(EXIT_INTERRUPTED));
        }
    })?;
    Ok(())
}

/// From here on the first Ctrl-C only asks the answer to stop.
pub(super) fn begin_answer() {
    // Fails only when the answer is already asked to stop, which must stay so.
    let _ = STATE.compare_exchange(IDLE, GENERATING, Ordering::SeqCst, Ordering::SeqCst);
}

/// Whether Ctrl-C asked the answer to stop.
pub(super) fn requested() -> bool {
    STATE.load(Ordering::SeqCst) == STOPPING
}
