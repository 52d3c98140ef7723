//! Locks that `huggingface_hub` takes too, so that two programs do not fetch the same file at once.
//!
//! They only save work. Where a system has no locks, each program checks what it has fetched.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

use super::HubError;

/// A lock that is held until it is dropped.
pub(super) struct Lock {
    _file: Option<File>,
}

impl Lock {
    /// Takes the lock of the file at `path`; nothing if another program has it.
    ///
    /// # Errors
    /// [`HubError::Write`] where the file cannot be made.
    pub(super) fn try_take(path: &Path) -> Result<Option<Self>, HubError> {
        match attempt(path) {
            Ok(held) => Ok(Some(Self { _file: held })),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(HubError::write(path)(error)),
        }
    }

    /// Takes the lock of the file at `path`; `waits` is called once if another program has it.
    ///
    /// # Errors
    /// [`HubError::Write`] where the file cannot be made.
    pub(super) fn take(path: &Path, waits: &mut dyn FnMut()) -> Result<Self, HubError> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(HubError::write(folder))?;
        }
        let mut told = false;
        loop {
            if let Some(held) = Self::try_take(path)? {
                return Ok(held);
            }
            if !std::mem::replace(&mut told, true) {
                waits();
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }
}

/// The locked file; nothing where the system has no locks; `WouldBlock` where another has it.
#[cfg(unix)]
fn attempt(path: &Path) -> io::Result<Option<File>> {
    use std::fs::TryLockError;
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o664)
        .open(path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::Error(error)) if error.kind() != io::ErrorKind::Interrupted => {
            return Ok(None);
        }
        Err(_) => return Err(io::ErrorKind::WouldBlock.into()),
    }
    // Whoever held it before may have deleted it, and then it locks nothing.
    let same = fs::metadata(path).and_then(|there| {
        let held = file.metadata()?;
        Ok((there.dev(), there.ino()) == (held.dev(), held.ino()))
    });
    match same {
        Ok(true) => Ok(Some(file)),
        _ => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// The locked file; `WouldBlock` where another has it.
#[cfg(windows)]
fn attempt(path: &Path) -> io::Result<Option<File>> {
    use std::os::windows::fs::OpenOptionsExt;

    /// The errors of the system for a file that another has open alone (ERROR_SHARING_VIOLATION, ERROR_LOCK_VIOLATION).
    const HELD: [i32; 2] = [32, 33];
    let mut options = OpenOptions::new();
    let opened = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .share_mode(0)
        .open(path);
    opened
        .map(Some)
        .map_err(|error| match error.raw_os_error() {
            Some(code) if HELD.contains(&code) => io::ErrorKind::WouldBlock.into(),
            _ => error,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn the_second_waits_for_the_first() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a/b.lock");
        let first = Lock::take(&path, &mut || panic!("nobody has it")).expect("it is free");
        let mut first = Some(first);
        let mut waited = 0;
        Lock::take(&path, &mut || {
            waited += 1;
            first = None;
        })
        .expect("it becomes free");
        assert_eq!(waited, 1);
    }
}
