//! Opening a session file: the lock, the header, and a new file's beginning.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use super::SessionFileError;
use super::identity::Identity;
use super::record::checksum;
use crate::files;

/// How session files begin.
const MAGIC: &str = "glimtses";
/// The version that is written.
const VERSION: u32 = 1;
/// Bytes of magic, version and length of the identity.
const START: usize = 16;
/// The longest identity that is read.
const MOST_IDENTITY: u32 = 1 << 20;

/// An error of the system while `doing` something with `path`.
pub(super) fn failed(
    path: &Path,
    doing: &'static str,
) -> impl Fn(io::Error) -> SessionFileError + use<> {
    let path = path.to_owned();
    move |source| SessionFileError::Io {
        path: path.clone(),
        doing,
        source,
    }
}

/// The header of a file for a model.
pub(super) fn header(identity: &Identity) -> Vec<u8> {
    let identity = serde_json::to_vec(identity).unwrap_or_default();
    let mut header = MAGIC.as_bytes().to_vec();
    header.extend(VERSION.to_le_bytes());
    header.extend((identity.len() as u32).to_le_bytes());
    header.extend(identity);
    let sum = checksum(0, &header);
    header.extend(sum.to_le_bytes());
    header
}

/// The folder that the file at `path` is in.
fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Whether there is a file at `path`. Asked before opening it: opening a pipe may wait.
fn is_there(path: &Path) -> Result<bool, SessionFileError> {
    match fs::metadata(path) {
        Ok(attributes) if attributes.is_file() => Ok(true),
        Ok(attributes) => Err(SessionFileError::Foreign {
            path: path.to_owned(),
            found: match attributes.is_dir() {
                true => "it is a directory".to_owned(),
                false => "it is a device or a pipe".to_owned(),
            },
            expected: MAGIC,
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed(path, "cannot open")(error)),
    }
}

/// Checks what can be told of a file before the model is loaded: that it can be there, and that it begins as one of the model does.
/// Nothing is changed.
pub(super) fn check(path: &Path, identity: &Identity) -> Result<(), SessionFileError> {
    if !is_there(path)? {
        let folder = folder(path);
        if folder.is_dir() {
            return Ok(());
        }
        let missing = format!("there is no folder {}", folder.display());
        let missing = io::Error::new(io::ErrorKind::NotFound, missing);
        return Err(failed(path, "cannot begin")(missing));
    }
    let own = header(identity);
    let found = beginning(
        path,
        &mut File::open(path).map_err(failed(path, "cannot open"))?,
    )?;
    match own.starts_with(&found) || of_model(&found, identity).is_some() {
        true => Ok(()),
        false => Err(refusal(path, &found, identity)),
    }
}

/// The first bytes of a file, as many as the longest header has.
fn beginning(path: &Path, file: &mut File) -> Result<Vec<u8>, SessionFileError> {
    let mut found = Vec::new();
    let read = file
        .take(START as u64 + u64::from(MOST_IDENTITY) + 8)
        .read_to_end(&mut found);
    read.map_err(failed(path, "cannot read"))?;
    Ok(found)
}

/// Opens and locks the file at `path`, or creates it empty.
pub(super) fn open_locked(path: &Path) -> Result<File, SessionFileError> {
    let open_failed = failed(path, "cannot open");
    loop {
        is_there(path)?;
        let mut options = OpenOptions::new();
        files::make_private(options.read(true).write(true).create(true));
        let file = options.open(path).map_err(&open_failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(SessionFileError::InUse {
                    path: path.to_owned(),
                });
            }
            Err(TryLockError::Error(error)) => return Err(failed(path, "cannot lock")(error)),
        }
        if is_still(path, &file).map_err(&open_failed)? {
            remove_unfinished(path);
            return Ok(file);
        }
    }
}

/// Removes what processes that were killed while they replaced the file at `path` have left. Whoever replaces it has its lock, so nobody
/// does now.
fn remove_unfinished(path: &Path) {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
        return;
    };
    for entry in fs::read_dir(folder(path)).into_iter().flatten().flatten() {
        let other = entry.file_name();
        let middle = other.to_str().and_then(|other| {
            let rest = other.strip_prefix(name)?.strip_prefix('.')?;
            rest.strip_suffix(".tmp")
        });
        let is_ours = middle.is_some_and(|middle| {
            !middle.is_empty() && middle.bytes().all(|b| b.is_ascii_digit() || b == b'-')
        });
        if is_ours && begins_as_ours(&entry.path()) {
            // It only takes room.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Whether there is a file that begins as session files do, or is empty.
fn begins_as_ours(path: &Path) -> bool {
    let is_file = fs::symlink_metadata(path).is_ok_and(|there| there.is_file());
    let mut begins = Vec::new();
    let read = |file: File| file.take(MAGIC.len() as u64).read_to_end(&mut begins);
    is_file && File::open(path).and_then(read).is_ok() && MAGIC.as_bytes().starts_with(&begins)
}

/// Whether `path` still names `file`: another process may have replaced it by a shorter one before the lock was there.
#[cfg(unix)]
fn is_still(path: &Path, file: &File) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let own = file.metadata()?;
    match fs::metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (own.dev(), own.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether `path` still names `file`: here a file that is open is not replaced.
#[cfg(not(unix))]
fn is_still(_: &Path, _: &File) -> io::Result<bool> {
    Ok(true)
}

/// The length of a whole header, and the identity in it.
fn parsed(found: &[u8]) -> Option<(usize, Identity)> {
    let (start, rest) = found.split_at_checked(START)?;
    let length = u32::from_le_bytes(*start.last_chunk()?) as usize;
    let (identity, sum) = rest.split_at_checked(length)?;
    let expected = checksum(0, &found[..START + length]).to_le_bytes();
    let is_whole = start.starts_with(MAGIC.as_bytes()) && sum.starts_with(&expected);
    let read = serde_json::from_slice(identity).ok().filter(|_| is_whole)?;
    Some((START + length + expected.len(), read))
}

/// The length of the header and the identity in it, if its rows go with the model.
fn of_model(found: &[u8], own: &Identity) -> Option<(usize, Identity)> {
    let version = found.get(MAGIC.len()..)?.first_chunk().copied();
    let is_known = version.map(u32::from_le_bytes) == Some(VERSION);
    parsed(found).filter(|(_, there)| is_known && there.goes_with(own))
}

/// Checks the header of a file, or writes that of a new one; returns its length and the identity there, which may differ in the prediction layer.
pub(super) fn check_or_begin(
    path: &Path,
    file: &mut File,
    identity: &Identity,
) -> Result<(u64, Identity), SessionFileError> {
    let own = header(identity);
    let found = beginning(path, file)?;
    if found.len() < own.len() && own.starts_with(&found) {
        // New, or ended while its header was written: nothing was ever saved in it.
        begin(path, file, &own).map_err(failed(path, "cannot begin"))?;
        return Ok((own.len() as u64, identity.clone()));
    }
    match of_model(&found, identity) {
        Some((length, there)) => Ok((length as u64, there)),
        None => Err(refusal(path, &found, identity)),
    }
}

/// Writes the header of a new file.
fn begin(path: &Path, file: &mut File, header: &[u8]) -> io::Result<()> {
    file.seek(SeekFrom::Start(0))?;
    file.write_all(header)?;
    file.sync_all()?;
    sync_folder(path);
    Ok(())
}

/// Makes the name of a new file last. Where the system knows no such thing, the name lasts when it likes.
pub(super) fn sync_folder(path: &Path) {
    if cfg!(unix)
        && let Ok(folder) = File::open(folder(path))
    {
        let _ = folder.sync_all();
    }
}

/// Why a file that begins otherwise is not used.
fn refusal(path: &Path, found: &[u8], own: &Identity) -> SessionFileError {
    let damaged = |found, expected| SessionFileError::damaged(path, 0, (found, expected), 0);
    let magic = MAGIC.as_bytes();
    if !found.starts_with(magic) {
        let begins = String::from_utf8_lossy(&found[..found.len().min(magic.len())]).into_owned();
        return SessionFileError::Foreign {
            path: path.to_owned(),
            found: format!("it begins with {begins:?}"),
            expected: MAGIC,
        };
    }
    let Some((start, rest)) = found.split_at_checked(START) else {
        return damaged("a part of a header", "a whole header");
    };
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| start[at + i]));
    let (version, length) = (word(8), word(12) as usize);
    if version > VERSION {
        return SessionFileError::NewerVersion {
            path: path.to_owned(),
            found: version,
            expected: VERSION,
        };
    }
    if rest.len() < length {
        return damaged("a part of a header", "a whole header");
    }
    let Some((_, read)) = parsed(found) else {
        return damaged("a header that does not check", "a header as it was written");
    };
    if let Some([found, expected]) = read.types_of_cache(own) {
        return SessionFileError::OtherCache {
            path: path.to_owned(),
            found: found.to_owned(),
            expected: expected.to_owned(),
        };
    }
    match read.difference(own) {
        Some((what, found, expected)) => SessionFileError::OtherModel {
            path: path.to_owned(),
            what,
            found,
            expected,
        },
        None => damaged("a header that does not check", "a header as it was written"),
    }
}
