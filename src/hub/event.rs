//! What is told while a model is fetched.

use std::time::Duration;

use super::HubError;

/// What happens while a model is fetched.
#[derive(Debug)]
pub enum Event<'a> {
    /// A file is begun.
    File {
        /// Its name.
        name: &'a str,
        /// Its length in bytes.
        bytes: u64,
    },
    /// So many bytes of the file are there.
    Fetched(u64),
    /// So much of it was read to check it.
    Checked {
        /// In bytes.
        bytes: u64,
        /// Its length.
        of: u64,
    },
    /// Something passing went wrong, and after a wait it is tried again.
    Again {
        /// What went wrong.
        why: &'a HubError,
        /// How long the wait is.
        wait: Duration,
    },
    /// What was there of a file is dropped, and it is fetched from the beginning.
    StartOver {
        /// Its name.
        file: &'a str,
        /// Why.
        why: &'static str,
    },
    /// Another program fetches the file of this name, and this one waits for it.
    Waiting(&'a str),
}
