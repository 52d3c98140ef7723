//! The cache that `huggingface_hub` defines: `models--user--repo` with `blobs`, named by their checksums, `snapshots/<commit>/<file>`,
//! which are links to blobs, and `refs/main`, which names the newest commit. Where links are impossible, a snapshot has the file itself.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::HubError;
use super::api::is_commit;
use crate::files;

/// The prefix of the names of models' folders.
const MODELS: &str = "models";
/// The most folders below a snapshot that are looked into: as many as the name of a file that is fetched may have.
const DEPTH: usize = 512;
/// Tells programs that make backups that the folder is a cache (<https://bford.info/cachedir/>).
const TAG: &str =
    "Signature: 8a477f597d28d172789f06886806bc55\n# This folder is a cache of models.\n";

/// The folder of one repository in a cache.
pub(super) struct RepoFolder {
    pub(super) path: PathBuf,
    /// The folder of its locks.
    pub(super) locks: PathBuf,
}

impl RepoFolder {
    /// The folder of `user/repo` in the cache at `root`. A folder of that name in other capitals is the same.
    ///
    /// # Errors
    /// [`HubError::Read`].
    pub(super) fn new(root: &Path, repo: &str) -> Result<Self, HubError> {
        let name = format!("{MODELS}--{}", repo.replace('/', "--"));
        let mut same = names(root)?;
        same.retain(|there| there.eq_ignore_ascii_case(&name));
        let exact = same.iter().find(|there| **there == name);
        Ok(Self::named(root, exact.or(same.first()).unwrap_or(&name)))
    }

    fn named(root: &Path, name: &str) -> Self {
        Self {
            path: root.join(name),
            locks: root.join(".locks").join(name),
        }
    }

    /// The file with the bytes of a checksum.
    pub(super) fn blob(&self, sum: &str) -> PathBuf {
        self.path.join("blobs").join(sum)
    }

    /// The file in which the bytes are until all have come.
    pub(super) fn part(&self, sum: &str) -> PathBuf {
        self.path.join("blobs").join(format!("{sum}.incomplete"))
    }

    /// The lock that is held while they are fetched.
    pub(super) fn lock(&self, sum: &str) -> PathBuf {
        self.locks.join(format!("{sum}.lock"))
    }

    /// A file of a commit.
    pub(super) fn pointer(&self, commit: &str, file: &str) -> PathBuf {
        let snapshot = self.path.join("snapshots").join(commit);
        file.split('/').fold(snapshot, |path, part| path.join(part))
    }

    /// Makes the folder of blobs.
    ///
    /// # Errors
    /// [`HubError::Write`].
    pub(super) fn prepare(&self, root: &Path) -> Result<(), HubError> {
        let blobs = self.path.join("blobs");
        fs::create_dir_all(&blobs).map_err(HubError::write(blobs))?;
        let tag = root.join("CACHEDIR.TAG");
        if !tag.exists() {
            files::replace(&tag, TAG).map_err(HubError::write(tag))?;
        }
        Ok(())
    }

    /// Gives a file of a commit the bytes of the blob with a checksum. It becomes a link to the blob if `links` and the system allow that.
    /// Otherwise a `fresh` blob, which no other file can need, is moved there, and any other blob is copied.
    ///
    /// # Errors
    /// [`HubError::Write`].
    pub(super) fn link(
        &self,
        commit: &str,
        file: &str,
        sum: &str,
        links: bool,
        fresh: bool,
    ) -> Result<PathBuf, HubError> {
        let pointer = self.pointer(commit, file);
        // A file that is there although its bytes had to be fetched is not the right one.
        if pointer.exists() && (pointer.is_symlink() || !fresh) {
            return Ok(pointer);
        }
        if let Some(folder) = pointer.parent() {
            fs::create_dir_all(folder).map_err(HubError::write(folder))?;
        }
        let up = "../".repeat(file.split('/').count() + 1);
        // A link that leads nowhere is in the way.
        if pointer.is_symlink() {
            fs::remove_file(&pointer).map_err(HubError::write(&pointer))?;
        }
        if links && symlink(&format!("{up}blobs/{sum}"), &pointer).is_ok() {
            return Ok(pointer);
        }
        let blob = self.blob(sum);
        let done = match fresh {
            true => fs::rename(blob, &pointer),
            false => copy(&blob, &pointer),
        };
        done.map_err(HubError::write(&pointer))?;
        Ok(pointer)
    }

    /// Says that a commit is the newest.
    ///
    /// # Errors
    /// [`HubError::Write`].
    pub(super) fn set_main(&self, commit: &str) -> Result<(), HubError> {
        let main = self.main();
        let folder = self.path.join("refs");
        fs::create_dir_all(&folder).map_err(HubError::write(folder))?;
        files::replace(&main, commit).map_err(HubError::write(main))
    }

    fn main(&self) -> PathBuf {
        self.path.join("refs").join("main")
    }

    /// The snapshots: the newest commit first, then the others, the youngest first.
    ///
    /// # Errors
    /// [`HubError::Read`].
    pub(super) fn snapshots(&self) -> Result<Vec<Files>, HubError> {
        let folder = self.path.join("snapshots");
        let main = fs::read_to_string(self.main()).unwrap_or_default();
        let mut commits = names(&folder)?;
        commits.retain(|commit| is_commit(commit));
        commits.sort_by_key(|commit| {
            let made = fs::metadata(folder.join(commit))
                .and_then(|there| there.modified())
                .ok();
            (commit == main.trim(), made)
        });
        let snapshot = |commit: &String| {
            let mut files = vec![];
            walk(&folder.join(commit), "", DEPTH, &mut files)?;
            Ok(files)
        };
        commits.iter().rev().map(snapshot).collect()
    }

    /// The files that were begun and not finished.
    ///
    /// # Errors
    /// [`HubError::Read`].
    pub(super) fn parts(&self) -> Result<Vec<PathBuf>, HubError> {
        let blobs = self.path.join("blobs");
        let names = names(&blobs)?
            .into_iter()
            .filter(|name| name.ends_with(".incomplete"));
        Ok(names.map(|name| blobs.join(name)).collect())
    }
}

/// Files by their names below a folder. These have `/` between folders.
pub(super) type Files = Vec<(String, PathBuf)>;

/// The repositories of a cache.
///
/// # Errors
/// [`HubError::Read`].
pub(super) fn repositories(root: &Path) -> Result<Vec<(String, RepoFolder)>, HubError> {
    let folder = |name: String| {
        let repo = name
            .strip_prefix(MODELS)?
            .strip_prefix("--")?
            .replace("--", "/");
        let folder = RepoFolder::named(root, &name);
        (repo.split('/').count() == 2).then_some((repo, folder))
    };
    Ok(names(root)?.into_iter().filter_map(folder).collect())
}

/// The number of bytes of a file that are there.
pub(super) fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |there| there.len())
}

/// The plain names in a folder, in order; none where there is no such folder.
pub(super) fn names(folder: &Path) -> Result<Vec<String>, HubError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => return Ok(vec![]),
            _ => return Err(HubError::read(folder)(error)),
        },
    };
    let mut names = vec![];
    for entry in entries {
        let entry = entry.map_err(HubError::read(folder))?;
        names.extend(entry.file_name().into_string().ok());
    }
    names.sort();
    Ok(names)
}

/// The files below a folder, at most `depth` folders deep, each with its name from there.
pub(super) fn walk(
    folder: &Path,
    prefix: &str,
    depth: usize,
    found: &mut Files,
) -> Result<(), HubError> {
    for name in names(folder)? {
        let path = folder.join(&name);
        let name = format!("{prefix}{name}");
        // A link to a folder could lead around in a circle.
        match fs::symlink_metadata(&path) {
            Ok(there) if there.is_dir() && depth > 0 => {
                walk(&path, &format!("{name}/"), depth - 1, found)?
            }
            Ok(there) if !there.is_dir() => found.push((name, path)),
            _ => {}
        }
    }
    Ok(())
}

/// Copies a file, which gets its name when it is whole.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut new = files::NewFile::create(to)?;
    io::copy(&mut fs::File::open(from)?, &mut new)?;
    new.finish()
}

#[cfg(unix)]
fn symlink(target: &str, path: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, path)
}

#[cfg(windows)]
fn symlink(target: &str, path: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target.replace('/', "\\"), path)
}
