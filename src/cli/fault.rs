//! A model's file that is cut while the CPU reads its weights in place: the system answers with a signal (SIGBUS), which would end the
//! process without a word.

/// Has that signal end the process with a sentence and exit code 1.
#[cfg(unix)]
pub(super) fn install() {
    // SAFETY: the action is fully written: zeroes, an empty mask, and a handler that only calls what is safe in a signal handler.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = say_and_end as *const () as usize;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

/// Other systems refuse to cut a file that is mapped.
#[cfg(not(unix))]
pub(super) fn install() {}

#[cfg(unix)]
extern "C" fn say_and_end(_: libc::c_int) {
    const SENTENCE: &[u8] = b"\nglimt: error: a file was cut while its content was read: \
          the model's file is not whole any more; copy or download it again\n";
    // SAFETY: `write` and `_exit` may be called in a signal handler, and the pointer and length are those of a constant.
    unsafe {
        libc::write(
            libc::STDERR_FILENO,
            SENTENCE.as_ptr().cast(),
            SENTENCE.len(),
        );
        libc::_exit(1);
    }
}
