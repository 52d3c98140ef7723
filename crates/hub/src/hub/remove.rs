//! Removing a model from the cache: its files in every snapshot, and the blobs that no other file needs.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::cache::{Files, RepoFolder, length, names};
use super::choice::{choose_any, models};
use super::lock::Lock;
use super::{HubError, Name, Settings, Store, stores};

/// The plan of a removal.
#[derive(Debug)]
pub struct Removal {
    /// `user/repo`.
    pub repo: String,
    /// The names of the files, and of what was begun and not finished.
    pub names: Vec<String>,
    /// The bytes that become free.
    pub bytes: u64,
    /// The files of snapshots.
    pointers: Vec<PathBuf>,
    /// The bytes that are theirs alone.
    blobs: Vec<PathBuf>,
    folder: PathBuf,
    /// The folder of its locks.
    locks: PathBuf,
}

/// The name of the blob that a link leads to; nothing where a file is no link.
fn blob_of(pointer: &Path) -> Option<String> {
    let target = fs::read_link(pointer).ok()?;
    target.file_name()?.to_str().map(str::to_owned)
}

/// The files of the model in the snapshots.
fn chosen(repo: &str, quantisation: Option<&str>, snapshots: &[Files]) -> Result<Files, HubError> {
    let mut found = vec![];
    let mut refused = None;
    for snapshot in snapshots {
        let files = snapshot.iter().map(|file| (file.0.clone(), file.clone()));
        match choose_any(repo, &models(files), quantisation, false) {
            Ok(model) => found.extend(model.files.iter().cloned()),
            Err(HubError::NoGguf(_)) => {}
            Err(error) => {
                refused.get_or_insert(error);
            }
        }
    }
    match refused {
        Some(error @ HubError::Several { .. }) => Err(error),
        Some(error) if found.is_empty() => Err(error),
        _ => Ok(found),
    }
}

impl Removal {
    /// The plan to remove a model. Without a quantisation, files that were begun in its repository and not finished go too.
    ///
    /// # Errors
    /// [`HubError::NotHere`], [`HubError::Foreign`], [`HubError::Several`], [`HubError::NoQuantisation`], [`HubError::Read`].
    pub fn plan(settings: &Settings, name: &Name) -> Result<Self, HubError> {
        let not_here = || HubError::NotHere(name.to_string());
        let Name::Repository {
            repo, quantisation, ..
        } = name
        else {
            return Err(foreign(settings, name)?.unwrap_or_else(not_here));
        };
        let folder = RepoFolder::new(&settings.cache, repo)?;
        let snapshots = folder.snapshots()?;
        let parts = if quantisation.is_none() {
            folder.parts()?
        } else {
            vec![]
        };
        let chosen = chosen(repo, quantisation.as_deref(), &snapshots)?;
        if chosen.is_empty() && parts.is_empty() {
            return Err(foreign(settings, name)?.unwrap_or_else(not_here));
        }
        let pointers: BTreeSet<PathBuf> = chosen.iter().map(|(_, path)| path.clone()).collect();
        let kept = snapshots.iter().flatten().map(|(_, path)| path);
        let kept: BTreeSet<String> = kept
            .filter(|path| !pointers.contains(*path))
            .filter_map(|path| blob_of(path))
            .collect();
        let sums: BTreeSet<String> = pointers
            .iter()
            .filter_map(|path| blob_of(path))
            .filter(|sum| !kept.contains(sum))
            .collect();
        let copies = pointers.iter().filter(|path| !path.is_symlink());
        let mut blobs: Vec<PathBuf> = sums.iter().map(|sum| folder.blob(sum)).collect();
        blobs.extend(parts.iter().cloned());
        let name_of = |part: &PathBuf| {
            part.file_name()
                .map(|name| name.to_string_lossy().into_owned())
        };
        let names: BTreeSet<String> = chosen.into_iter().map(|(name, _)| name).collect();
        Ok(Self {
            repo: repo.clone(),
            bytes: blobs.iter().chain(copies).map(|path| length(path)).sum(),
            names: names
                .into_iter()
                .chain(parts.iter().filter_map(name_of))
                .collect(),
            pointers: pointers.into_iter().collect(),
            blobs,
            locks: folder.locks,
            folder: folder.path,
        })
    }

    /// Removes it, unless a program fetches from the repository. The files of snapshots go first, so that none ever leads nowhere.
    ///
    /// # Errors
    /// [`HubError::BeingFetched`] or [`HubError::Write`].
    pub fn carry_out(&self) -> Result<(), HubError> {
        // All of them: a pull of several files holds one lock after the other.
        let held = self.hold_locks()?;
        for path in self.pointers.iter().chain(&self.blobs) {
            gone(fs::remove_file(path)).map_err(HubError::write(path))?;
        }
        // Some systems do not remove what is open.
        drop(held);
        let lock = |blob: &PathBuf| {
            let sum = blob.file_name()?.to_str()?;
            let sum = sum.strip_suffix(".incomplete").unwrap_or(sum);
            Some(self.locks.join(format!("{sum}.lock")))
        };
        for path in self.blobs.iter().filter_map(lock) {
            gone(fs::remove_file(&path)).map_err(HubError::write(path))?;
        }
        let snapshots = self.folder.join("snapshots");
        remove_empty(&snapshots);
        if !snapshots.exists() {
            // The files that are left only describe what was there.
            let rest = ["refs", ".no_exist", "trees"].map(|rest| self.folder.join(rest));
            for rest in rest.iter().chain([&self.locks]) {
                gone(fs::remove_dir_all(rest)).map_err(HubError::write(rest))?;
            }
            for folder in [&self.folder.join("blobs"), &self.folder] {
                // Blobs that no snapshot names stay, and so do their folders.
                let _ = fs::remove_dir(folder);
            }
        }
        Ok(())
    }

    /// Takes the locks of all files of the repository that were ever fetched.
    fn hold_locks(&self) -> Result<Vec<Lock>, HubError> {
        let names = names(&self.locks)?.into_iter();
        let locks = names.filter(|name| name.ends_with(".lock"));
        let take = |name| {
            Lock::try_take(&self.locks.join(name))?
                .ok_or_else(|| HubError::BeingFetched(self.repo.clone()))
        };
        locks.map(take).collect()
    }
}

/// The result, where a file that is not there counts as removed.
fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Removes folders without files; the system refuses to remove others.
fn remove_empty(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&entry.path());
        }
    }
    let _ = fs::remove_dir(folder);
}

/// Why a model of another program is not removed; nothing where none has it.
fn foreign(settings: &Settings, name: &Name) -> Result<Option<HubError>, HubError> {
    let Some(found) = stores::find(settings, name)? else {
        return Ok(None);
    };
    let (store, way) = match found.store {
        Store::HuggingFace => return Ok(None),
        Store::Ollama => (
            "ollama",
            format!("ollama rm {}", found.name.trim_start_matches("ollama:")),
        ),
        Store::LmStudio => {
            let folder = found.files.first().and_then(|file| file.parent());
            let folder = folder.unwrap_or(Path::new("")).display().to_string();
            (
                "LM Studio, which has no command for it",
                format!("My Models in its window, or by deleting {folder}"),
            )
        }
    };
    Ok(Some(HubError::Foreign {
        name: name.to_string(),
        store,
        advice: format!("remove it with: {way}"),
    }))
}
