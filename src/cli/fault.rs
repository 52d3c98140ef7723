//! Signals that would end the process without a word: a model's file is cut while the CPU reads its weights in place (SIGBUS), or a
//! template asks for more memory at once than there is (SIGABRT).

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a template is being rendered.
static RENDERING: AtomicBool = AtomicBool::new(false);

/// Says that a template is rendered from here on, or is not any more.
pub(super) fn set_rendering(rendering: bool) {
    RENDERING.store(rendering, Ordering::SeqCst);
}

/// Has these signals end the process with a sentence and exit code 1.
#[cfg(unix)]
pub(super) fn install() {
    for (signal, handler) in [
        (libc::SIGBUS, on_cut_file as *const ()),
        (libc::SIGABRT, on_abort as *const ()),
    ] {
        // SAFETY: the action is fully written: zeroes, an empty mask, and a handler that only calls what is safe in a signal handler.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as usize;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

/// Other systems refuse to cut a file that is mapped.
#[cfg(not(unix))]
pub(super) fn install() {}

#[cfg(unix)]
extern "C" fn on_cut_file(_: libc::c_int) {
    end(
        b"\nglimt: error: a file was cut while its content was read: the model's file is not whole any more; \
          copy or download it again\n",
    );
}

#[cfg(unix)]
extern "C" fn on_abort(_: libc::c_int) {
    if RENDERING.load(Ordering::SeqCst) {
        end(
            b"glimt: error: the chat template asks for more memory than there is: it is damaged or hostile; \
              glimt generate --raw goes without it\n",
        );
    }
    // Returning goes on with what `abort` does by default.
}

/// Whether a thread is saying why the process ends.
#[cfg(unix)]
static ENDING: AtomicBool = AtomicBool::new(false);

/// Writes `sentence` and ends the process. Other threads that come here wait for that.
#[cfg(unix)]
fn end(sentence: &[u8]) {
    // SAFETY: `pause`, `write` and `_exit` may be called in a signal handler, and the pointer and length are those of a slice.
    unsafe {
        while ENDING.swap(true, Ordering::SeqCst) {
            libc::pause();
        }
        libc::write(
            libc::STDERR_FILENO,
            sentence.as_ptr().cast(),
            sentence.len(),
        );
        libc::_exit(1);
    }
}
