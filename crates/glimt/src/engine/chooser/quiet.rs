//! Work of others whose panic is no more than an answer that is missing: nothing of it is printed.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// Whether a panic of this thread is caught and not to be told.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Has panics on a quiet thread print nothing; all others are told as before.
fn install() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            if !QUIET.try_with(Cell::get).unwrap_or(false) {
                before(panic);
            }
        }));
    });
}

/// The result of `work`; `None` if it panicked. Whatever it uses must not be used again then.
pub(in crate::engine) fn caught<T>(work: impl FnOnce() -> T) -> Option<T> {
    install();
    let before = QUIET.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    QUIET.set(before);
    result.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_nothing_and_the_thread_is_as_before() {
        assert_eq!(caught(|| 7), Some(7));
        assert_eq!(caught(|| -> u8 { panic!("of a test") }), None);
        assert!(!QUIET.get());
        let nested = caught(|| caught(|| -> u8 { panic!("inside") }).is_none() && QUIET.get());
        assert_eq!(nested, Some(true));
    }
}
