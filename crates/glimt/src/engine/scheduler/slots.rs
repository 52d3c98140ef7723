//! Slots: the sequences that were answered last, as session files keep them.

use std::path::PathBuf;

use crate::engine::SessionFileError;

/// Something to do with the sequence of a slot. It is the one of the last request that [named](super::Request::slot) the slot, or had its place
/// in the steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotAction {
    /// Saves its tokens, and their cache rows as far as they are still there, to a session file.
    Save(PathBuf),
    /// Puts the tokens and cache rows of a session file in its place.
    Restore(PathBuf),
    /// Forgets it, with the cache rows that nobody else has in common with it.
    Erase,
}

/// The outcome of a [`SlotAction`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotDone {
    /// Tokens that were saved, restored or forgotten.
    pub tokens: usize,
    /// Bytes of the file; 0 without one.
    pub bytes: u64,
}

/// Why nothing was done with a slot. It has the sequence that it had.
#[derive(Debug, thiserror::Error)]
pub enum SlotError {
    /// There are fewer slots.
    #[error("there is no slot {slot}: the slots are 0 to {}", slots - 1)]
    NoSuchSlot {
        /// The number given.
        slot: usize,
        /// The number of slots.
        slots: usize,
    },
    /// Its sequence is being answered, or all places of the steps are taken. Later it can be done.
    #[error("slot {slot} is being answered; try it again later")]
    Busy {
        /// The slot.
        slot: usize,
    },
    /// There is no file to restore.
    #[error("there is no session file {}; name one that was saved", path.display())]
    NoFile {
        /// The path given.
        path: PathBuf,
    },
    /// Requests that are answered hold too much of the cache.
    #[error(
        "restoring takes {needed} rows of the cache, but {available} are free; try it again later, or give it more (--cache-tokens)"
    )]
    NoRoom {
        /// Rows that the file needs, in whole pages.
        needed: usize,
        /// Rows that nobody holds.
        available: usize,
    },
    /// The session file cannot be used.
    #[error(transparent)]
    File(#[from] SessionFileError),
}
