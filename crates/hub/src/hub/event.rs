//! The events while a model is fetched.

use std::time::Duration;

use super::HubError;

/// An event while a model is fetched.
#[derive(Debug)]
pub enum Event<'a> {
    /// A file is begun.
    File {
        /// The name of the file.
        name: &'a str,
        /// The length of the file in bytes.
        bytes: u64,
    },
    /// The number of bytes of the file that are there.
    Fetched(u64),
    /// A part of the file was read to check it.
    Checked {
        /// The number of bytes that were read.
        bytes: u64,
        /// The length of the file.
        of: u64,
    },
    /// Something passing went wrong, and after a wait it is tried again.
    Again {
        /// The error of the last try.
        why: &'a HubError,
        /// How long the wait is.
        wait: Duration,
    },
    /// The bytes that were there of a file are dropped, and it is fetched from the beginning.
    StartOver {
        /// The name of the file.
        file: &'a str,
        /// Why.
        why: &'static str,
    },
    /// Another program fetches the file of this name, and this one waits for it.
    Waiting(&'a str),
}
