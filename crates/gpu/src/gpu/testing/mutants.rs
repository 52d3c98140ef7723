//! Templates with a mistake: that of the mutant which `GLIMT_TEST_MUTANT` names, or what a thread has in place of one.

use super::laboratory;
use std::borrow::Cow;
use std::cell::RefCell;
use std::env;
use std::sync::OnceLock;

/// The variable that names a mutant, as `glimt-lab mutants` lists them.
const MUTANT: &str = "GLIMT_TEST_MUTANT";

thread_local! {
    /// The template that this thread has another text for: its file, and that text.
    static CHANGED: RefCell<Option<(String, String)>> = const { RefCell::new(None) };
}

/// The result of `act` where this thread expands `text` in place of the template of `file`.
pub fn with<T>(file: &str, text: String, act: impl FnOnce() -> T) -> T {
    CHANGED.set(Some((file.to_owned(), text)));
    let done = act();
    CHANGED.set(None);
    done
}

/// The template of `file`, with the mistake that is asked for if that is in this file.
pub fn mutated<'a>(file: &str, text: &'a str) -> Cow<'a, str> {
    static NAMED: OnceLock<Option<String>> = OnceLock::new();
    static MADE: OnceLock<String> = OnceLock::new();
    let changed = CHANGED.with_borrow(|changed| {
        let changed = changed.as_ref().filter(|(changed, _)| changed == file);
        changed.map(|(_, text)| text.clone())
    });
    if let Some(changed) = changed {
        return Cow::Owned(changed);
    }
    let named = NAMED.get_or_init(|| env::var(MUTANT).ok()).as_deref();
    match named.filter(|name| name.split(':').next() == Some(file)) {
        Some(name) => {
            let made = MADE.get_or_init(|| laboratory::rewritten(&["mutant", name], text));
            Cow::Owned(made.clone())
        }
        None => Cow::Borrowed(text),
    }
}
