//! What `glimt tune` found for a device, kept in the user's cache folder: a file for each adapter, driver and version of glimt.

use super::geometry::Made;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// The version whose kernels were measured.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Why choices cannot be kept or read again.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TuningError {
    /// The system names no cache folder.
    #[error("there is no cache folder to keep choices in: set XDG_CACHE_HOME or HOME")]
    NoFolder,
    /// The file cannot be read or written.
    #[error("{path}: {reason}; delete it, or run glimt tune again")]
    File {
        /// The file.
        path: String,
        /// What the system or the parser said.
        reason: String,
    },
}

/// The file's content.
#[derive(Serialize, Deserialize)]
struct Kept {
    adapter: String,
    driver: String,
    version: String,
    choices: Made,
}

/// The file for a device.
///
/// # Errors
/// [`TuningError::NoFolder`].
pub fn path(info: &wgpu::AdapterInfo) -> Result<PathBuf, TuningError> {
    let folder = dirs::cache_dir().ok_or(TuningError::NoFolder)?;
    let name = format!(
        "tuned {} {} {} {} {VERSION}",
        info.name, info.backend, info.driver, info.driver_info
    );
    Ok(folder.join("glimt").join(file_name(&name)))
}

/// Letters, digits and dots, the rest as single dashes.
fn file_name(text: &str) -> String {
    let kept = |c: char| c.is_ascii_alphanumeric() || c == '.';
    let words: Vec<_> = text
        .split(|c| !kept(c))
        .filter(|word| !word.is_empty())
        .collect();
    words.join("-").to_lowercase() + ".json"
}

/// The choices kept for a device, and their file; `None` where none are kept.
///
/// # Errors
/// [`TuningError::File`] where there is a file that cannot be read, or is of another device.
pub fn load(info: &wgpu::AdapterInfo) -> Result<Option<(Made, PathBuf)>, TuningError> {
    let Ok(path) = path(info) else {
        return Ok(None);
    };
    match std::fs::read(&path) {
        Ok(bytes) => parse(info, &path, &bytes).map(|made| Some((made, path))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(failed(&path, &e)),
    }
}

fn parse(info: &wgpu::AdapterInfo, path: &Path, bytes: &[u8]) -> Result<Made, TuningError> {
    let kept: Kept = serde_json::from_slice(bytes).map_err(|e| failed(path, &e))?;
    let (found, expected) = (
        (&kept.adapter, &kept.driver, kept.version.as_str()),
        (&info.name, &driver(info), VERSION),
    );
    if found != expected {
        return Err(failed(
            path,
            &format!("made for {found:?}, the device and version are {expected:?}"),
        ));
    }
    Ok(kept.choices)
}

fn driver(info: &wgpu::AdapterInfo) -> String {
    format!("{} {}", info.driver, info.driver_info)
}

/// Keeps `choices` for a device in place of those kept before; returns the file.
///
/// # Errors
/// [`TuningError`].
pub fn save(info: &wgpu::AdapterInfo, choices: &Made) -> Result<PathBuf, TuningError> {
    let path = path(info)?;
    let kept = Kept {
        adapter: info.name.clone(),
        driver: driver(info),
        version: VERSION.to_owned(),
        choices: choices.clone(),
    };
    let text = serde_json::to_string_pretty(&kept).map_err(|e| failed(&path, &e))?;
    // Renamed when it is whole: another process may read at any time.
    let part = path.with_extension(std::process::id().to_string());
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&part, text + "\n"))
        .and_then(|()| std::fs::rename(&part, &path))
        .map_err(|e| failed(&path, &e))?;
    Ok(path)
}

/// Deletes what is kept for a device; returns the file where there was one.
///
/// # Errors
/// [`TuningError`].
pub fn forget(info: &wgpu::AdapterInfo) -> Result<Option<PathBuf>, TuningError> {
    let path = path(info)?;
    match std::fs::remove_file(&path) {
        Ok(()) => Ok(Some(path)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(failed(&path, &e)),
    }
}

fn failed(path: &Path, reason: &dyn std::fmt::Display) -> TuningError {
    TuningError::File {
        path: path.display().to_string(),
        reason: reason.to_string(),
    }
}
