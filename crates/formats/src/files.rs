//! Files that are replaced whole. What is written gets a name of its own beside the file that it replaces, and the file's name at the
//! end. So whatever ends the writing early, an earlier file stays as it was.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The names that unfinished files have. It is locked while such a file is created, renamed or removed.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn unfinished() -> MutexGuard<'static, Vec<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes what is unfinished, for a process that is about to exit. From then on no file is begun or finished.
#[cfg(not(target_arch = "wasm32"))]
pub fn remove_unfinished() {
    let unfinished = unfinished();
    for part in unfinished.iter() {
        // There is nobody left who could do more about it.
        let _ = fs::remove_file(part);
    }
    std::mem::forget(unfinished);
}

/// Whether a path leads to a device or pipe, or is a name of the system's for what is open, such as /dev/stdout, which may be a file.
pub fn is_device(path: &Path) -> bool {
    let of_system = |folder: PathBuf| folder == Path::new("/dev") || folder.starts_with("/proc");
    let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
    folder.is_some_and(of_system) || fs::metadata(path).is_ok_and(|found| !found.is_file())
}

/// Has a file that is made be its owner's alone, where the system knows owners: it holds what somebody said.
pub fn make_private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
}

/// A file that is being written. Dropped before [`finish`](Self::finish), it leaves nothing behind.
pub struct NewFile {
    out: File,
    /// The path of the unfinished file and the path that it will have; none of a device or pipe, which is written to directly.
    names: Option<(PathBuf, PathBuf)>,
}

impl NewFile {
    /// Begins a file that will replace `path`. If that is a link, what it leads to is replaced.
    ///
    /// # Errors
    /// The error of the system, also where a file of that name may not be written.
    pub fn create(path: &Path) -> io::Result<Self> {
        let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let mut permissions = None;
        match OpenOptions::new().write(true).open(&target) {
            Ok(out) => {
                let metadata = out.metadata()?;
                if is_device(path) {
                    return Ok(Self { out, names: None });
                }
                permissions = Some(metadata.permissions());
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let name = target.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let mut all = unfinished();
        let part = (0..)
            .map(|number| {
                let mut part = name.to_owned();
                part.push(match number {
                    0 => format!(".{}.tmp", std::process::id()),
                    _ => format!(".{}-{number}.tmp", std::process::id()),
                });
                target.with_file_name(part)
            })
            .find(|part| !all.contains(part))
            .ok_or(io::ErrorKind::AlreadyExists)?;
        let mut options = OpenOptions::new();
        let out = (options.read(true).write(true).create(true).truncate(true)).open(&part)?;
        all.push(part.clone());
        drop(all);
        let new = Self {
            out,
            names: Some((part, target)),
        };
        if let Some(permissions) = permissions {
            new.out.set_permissions(permissions)?;
        }
        Ok(new)
    }

    /// A handle to the file, to lock it and to go on with it when it has its name.
    ///
    /// # Errors
    /// The error of the system.
    pub fn handle(&self) -> io::Result<File> {
        self.out.try_clone()
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// The error of the system; then nothing of the file is left.
    pub fn finish(mut self) -> io::Result<()> {
        if let Some((part, target)) = &self.names {
            let mut all = unfinished();
            fs::rename(part, target)?;
            all.retain(|other| other != part);
        }
        self.names = None;
        Ok(())
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some((part, _)) = &self.names {
            let mut all = unfinished();
            // A failure to remove it would hide why it is removed.
            let _ = fs::remove_file(part);
            all.retain(|other| other != part);
        }
    }
}

/// Replaces the file at `path` by one with `content`.
///
/// # Errors
/// The errors of creating, writing and finishing a [`NewFile`].
pub fn replace(path: &Path, content: impl AsRef<[u8]>) -> io::Result<()> {
    let mut new = NewFile::create(path)?;
    new.write_all(content.as_ref())?;
    new.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names in a folder.
    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("a folder");
        let name = |entry: io::Result<fs::DirEntry>| entry.expect("a file").file_name();
        let mut names: Vec<_> = entries
            .map(|entry| name(entry).into_string().expect("a plain name"))
            .collect();
        names.sort();
        names
    }

    #[test]
    fn an_earlier_file_stays_until_the_new_one_is_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.svg");
        replace(&path, "old").expect("it can be written");
        let read = || fs::read_to_string(&path).expect("it is there");
        let mut left = NewFile::create(&path).expect("it can be written");
        left.write_all(b"half").expect("it can be written");
        // Two at once do not write into each other.
        let mut other = NewFile::create(&path).expect("it can be written");
        other.write_all(b"new").expect("it can be written");
        let id = std::process::id();
        let [first, second] = [format!("a.svg.{id}.tmp"), format!("a.svg.{id}-1.tmp")];
        let mut expected = vec!["a.svg".to_owned(), second, first];
        expected.sort();
        assert_eq!((names(folder.path()), read().as_str()), (expected, "old"));
        drop(left);
        assert_eq!(read(), "old");
        other.finish().expect("it can be renamed");
        assert_eq!((names(folder.path()).len(), read().as_str()), (1, "new"));
    }

    #[test]
    fn what_cannot_be_replaced_is_refused_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let missing = folder.path().join("no/a.svg");
        for path in [folder.path(), &missing, Path::new(""), Path::new("..")] {
            assert!(NewFile::create(path).is_err(), "{}", path.display());
        }
        assert!(names(folder.path()).is_empty());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn names_of_the_system_are_told_from_files() {
        let memory = tempfile::NamedTempFile::new_in("/dev/shm").expect("it can be written");
        for file in [
            memory.path(),
            Path::new("/dev/shm/none"),
            Path::new("Cargo.toml"),
        ] {
            assert!(!is_device(file), "{}", file.display());
        }
        for device in ["/dev/null", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/2"] {
            assert!(is_device(Path::new(device)), "{device}");
        }
        replace(memory.path(), "new").expect("it can be written");
        let read = fs::read_to_string(memory.path());
        assert_eq!(read.expect("it is there"), "new");
        assert_eq!(
            memory.as_file().metadata().expect("it is open").len(),
            0,
            "it was replaced"
        );
    }

    #[cfg(unix)]
    #[test]
    fn links_and_permissions_stay_and_devices_are_written_to() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().expect("a folder");
        let [file, link] = ["file", "link"].map(|name| folder.path().join(name));
        fs::write(&file, "old").expect("it can be written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("it is ours");
        symlink(&file, &link).expect("links are possible");
        replace(&link, "new").expect("it can be written");
        assert!(
            fs::symlink_metadata(&link)
                .expect("it is there")
                .is_symlink()
        );
        assert_eq!(fs::read_to_string(&file).expect("it is there"), "new");
        let mode = fs::metadata(&file)
            .expect("it is there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o640);
        replace(Path::new("/dev/null"), "gone").expect("it takes everything");
        assert!(!fs::metadata("/dev/null").expect("it is there").is_file());
    }
}
