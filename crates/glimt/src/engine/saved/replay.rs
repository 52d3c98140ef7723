//! Reading a session file: its records in order, up to the last whole commit.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use super::SessionFileError;
use super::kept::{Change, Extent, Kept};
use super::opening::failed;
use super::record::{self, AROUND, HEAD, Kind};

/// Bytes that are read whatever is on the disk.
const SHORT: u64 = 1 << 20;

/// Reads the records from `begin` on. Rows take `row_bytes` each; they are skipped, and checked when they are read.
pub(super) fn replay(
    path: &Path,
    file: &mut File,
    begin: u64,
    row_bytes: u64,
) -> Result<Replay, SessionFileError> {
    let read_failed = failed(path, "cannot read");
    let length = file.metadata().map_err(&read_failed)?.len();
    let mut replay = Replay {
        kept: Kept::default(),
        group: vec![],
        end: begin,
    };
    let mut at = begin;
    while length.saturating_sub(at) >= HEAD {
        let keep = replay.end;
        let damaged = |difference| SessionFileError::damaged(path, at, difference, keep);
        file.seek(SeekFrom::Start(at)).map_err(&read_failed)?;
        let mut head = [0; HEAD as usize];
        file.read_exact(&mut head).map_err(&read_failed)?;
        let Some((kind, payload)) = record::parse(at, &head) else {
            if head == [0; HEAD as usize] && is_zero(file).map_err(&read_failed)? {
                // The system made the file longer, and was ended before it wrote what should stand there.
                break;
            }
            return Err(damaged(NO_HEAD));
        };
        if u64::from(payload) > kind.most_bytes(row_bytes) || is_hollow(file, payload) {
            return Err(damaged(TOO_LONG));
        }
        let next = at + AROUND + u64::from(payload);
        if next > length {
            break;
        }
        if kind == Kind::Rows {
            let extent = extent(file, at, payload, row_bytes).map_err(&read_failed)?;
            let extent = extent.ok_or_else(|| damaged(PART_OF_A_ROW))?;
            let before = keep;
            let rows = Change::Rows(Extent { before, ..extent });
            replay.group.push(rows);
        } else {
            let payload = payload_of(file, at, payload).map_err(&read_failed)?;
            let payload = payload.ok_or_else(|| damaged(OTHER_CHECKSUM))?;
            if !replay.take(kind, payload, next) {
                return Err(damaged(OUT_OF_ORDER));
            }
        }
        at = next;
    }
    Ok(replay)
}

/// Descriptions of the bytes found and of the bytes expected.
type Difference = (&'static str, &'static str);

const NO_HEAD: Difference = (
    "the head of a record that does not check",
    "a record or the end of the file",
);
const TOO_LONG: Difference = (
    "a record that is longer than any that is written, or has no bytes on the disk",
    "a record as it was written",
);
const PART_OF_A_ROW: Difference = ("a record with a part of a cache row", "whole rows");
pub(super) const OTHER_CHECKSUM: Difference = (
    "a record with another checksum",
    "a record as it was written",
);
const OUT_OF_ORDER: Difference = (
    "a record that does not follow from those before it",
    "records in the order in which they were written",
);

/// The rows of the record at `at`, of whose payload only the first position is read; nothing where these are no whole rows.
fn extent(file: &mut File, at: u64, payload: u32, row_bytes: u64) -> io::Result<Option<Extent>> {
    let bytes = u64::from(payload).saturating_sub(8);
    if bytes == 0 || row_bytes == 0 || !bytes.is_multiple_of(row_bytes) {
        return Ok(None);
    }
    let mut first = [0; 8];
    file.read_exact(&mut first)?;
    let rows = usize::try_from(bytes / row_bytes).ok();
    let first = usize::try_from(u64::from_le_bytes(first)).ok();
    Ok(first.zip(rows).and_then(|(first, rows)| {
        Some(Extent {
            first,
            end: first.checked_add(rows)?,
            at,
            before: 0,
        })
    }))
}

/// Reads the payload of the record at `at`, behind its head; nothing where it does not check.
pub(super) fn payload_of(file: &mut File, at: u64, length: u32) -> io::Result<Option<Vec<u8>>> {
    let mut payload = vec![0; length as usize];
    file.read_exact(&mut payload)?;
    let mut sum = [0; 8];
    file.read_exact(&mut sum)?;
    let checks = u64::from_le_bytes(sum) == record::checksum(at, &payload);
    Ok(checks.then_some(payload))
}

/// Whether a file has so many bytes that only its length says so, since next to nothing of it is on the disk. Short payloads may be read in
/// any case.
#[cfg(unix)]
fn is_hollow(file: &File, payload: u32) -> bool {
    use std::os::unix::fs::MetadataExt;
    let stored = file.metadata().map(|found| found.blocks() * 512);
    let few = |stored| u64::from(payload) > SHORT && stored < u64::from(payload) / 64;
    stored.is_ok_and(few)
}

/// Whether a file has so many bytes that only its length says so. Here nothing tells.
#[cfg(not(unix))]
fn is_hollow(_: &File, payload: u32) -> bool {
    let _ = SHORT;
    u64::from(payload) > Kind::Data.most_bytes(0)
}

/// Whether there is nothing but zeros from here to the end.
fn is_zero(file: &mut File) -> io::Result<bool> {
    let mut bytes = [0; 4096];
    loop {
        match file.read(&mut bytes)? {
            0 => return Ok(true),
            read if bytes[..read].iter().any(|byte| *byte != 0) => return Ok(false),
            _ => {}
        }
    }
}

/// The records read so far.
pub(super) struct Replay {
    /// The content after the last commit, and the tokens that were journaled since.
    pub kept: Kept,
    /// Changes that no commit has made yet.
    group: Vec<Change>,
    /// The position after the last commit or journal; what follows is the torn end of something that was never finished.
    pub end: u64,
}

impl Replay {
    /// Takes a record that ends at `next`; whether it follows from those before.
    fn take(&mut self, kind: Kind, payload: Vec<u8>, next: u64) -> bool {
        let change = match kind {
            Kind::Forget => {
                record::parse_counts(&payload).map(|(tokens, rows)| Change::Forget { tokens, rows })
            }
            Kind::Tokens => record::parse_tokens(&payload).map(Change::Tokens),
            Kind::Writer => serde_json::from_slice(&payload).ok().map(Change::Writer),
            Kind::Data => Some(Change::Data(payload)),
            // Taken where it is read.
            Kind::Rows => None,
            Kind::Commit => {
                self.end = next;
                return record::parse_counts(&payload).is_some_and(|counts| self.commit(counts));
            }
            Kind::Journal => {
                self.end = next;
                let tokens = record::parse_tokens(&payload);
                return tokens.is_some_and(|tokens| {
                    self.kept.journal(&tokens);
                    self.group.is_empty()
                });
            }
        };
        match change {
            Some(change) => self.group.push(change),
            None => return false,
        }
        true
    }

    /// Makes the changes of a group, and tells whether they come to these counts of tokens and rows.
    fn commit(&mut self, counts: (usize, usize)) -> bool {
        self.kept.drop_journal();
        let made = (self.group.drain(..)).all(|change| self.kept.apply(change));
        let rows = self.kept.rows();
        made && (self.kept.tokens.len(), rows) == counts && rows <= self.kept.tokens.len()
    }
}
