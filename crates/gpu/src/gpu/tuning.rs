//! Measurements on a device, kept in the user's cache folder: the choices of `glimt tune`, and the tiers of models. Each is a file for
//! an adapter, driver and version of glimt.

use super::geometry::Made;
use crate::files;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
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
        /// The message of the system or the parser.
        reason: String,
    },
}

/// The first words of the names of files with [`Made`] and [`Tiers`].
const TUNED: &str = "tuned";
const TIERS: &str = "tiers";

/// The tiers that were measured on a device, by the products that they were measured with.
pub type Tiers = BTreeMap<String, MeasuredTier>;

/// A tier that was chosen by measuring.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MeasuredTier {
    /// Whether the tier is `int8`; else it is `subgroup`.
    pub int8: bool,
    /// Microseconds of the products with activations as floats or halves.
    pub subgroup_us: f64,
    /// Microseconds of the products with activations as bytes.
    pub int8_us: f64,
}

/// The file's content.
#[derive(Serialize, Deserialize)]
struct Kept<T> {
    adapter: String,
    driver: String,
    version: String,
    choices: T,
}

/// The folder for all files.
///
/// # Errors
/// [`TuningError::NoFolder`].
pub fn folder() -> Result<PathBuf, TuningError> {
    let folder = dirs::cache_dir().ok_or(TuningError::NoFolder)?;
    Ok(folder.join("glimt"))
}

/// Checks that files can be written to [`folder`].
///
/// # Errors
/// [`TuningError`].
pub fn check_folder() -> Result<(), TuningError> {
    let folder = folder()?;
    let probe = folder.join(format!("probe-{}.tmp", std::process::id()));
    std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(&probe, ""))
        .and_then(|()| std::fs::remove_file(&probe))
        .map_err(|e| failed(&folder, &e))
}

/// The file of this kind for a device. Its name keeps letters, digits and dots, and has a single dash for what stands between them.
fn path_of(kind: &str, folder: &Path, info: &wgpu::AdapterInfo) -> PathBuf {
    let (name, backend, driver) = (&info.name, info.backend, driver(info));
    let text = format!("{kind} {name} {backend} {driver} {VERSION}");
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '.');
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    folder.join(words.join("-").to_lowercase() + ".json")
}

/// The choices kept for a device, and their file; `None` where none are kept.
///
/// # Errors
/// [`TuningError::File`] where there is a file that cannot be read, or is of another device.
pub fn load(info: &wgpu::AdapterInfo) -> Result<Option<(Made, PathBuf)>, TuningError> {
    match folder() {
        Ok(folder) => read(TUNED, &folder, info),
        Err(_) => Ok(None),
    }
}

/// The tiers kept for a device in `folder`; none where there is no file.
pub fn tiers(folder: &Path, info: &wgpu::AdapterInfo) -> Result<Tiers, TuningError> {
    let kept = read(TIERS, folder, info)?;
    Ok(kept.map(|(tiers, _)| tiers).unwrap_or_default())
}

fn read<T: DeserializeOwned>(
    kind: &str,
    folder: &Path,
    info: &wgpu::AdapterInfo,
) -> Result<Option<(T, PathBuf)>, TuningError> {
    let path = path_of(kind, folder, info);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(&path, &e)),
    };
    let kept: Kept<T> = serde_json::from_slice(&bytes).map_err(|e| failed(&path, &e))?;
    let found = (&kept.adapter, &kept.driver, kept.version.as_str());
    let expected = (&info.name, &driver(info), VERSION);
    if found != expected {
        let reason = format!("made for {found:?}, the device and version are {expected:?}");
        return Err(failed(&path, &reason));
    }
    Ok(Some((kept.choices, path)))
}

fn driver(info: &wgpu::AdapterInfo) -> String {
    format!("{} {}", info.driver, info.driver_info)
}

/// Keeps `choices` for a device in place of those kept before; returns the file.
pub fn save(info: &wgpu::AdapterInfo, choices: &Made) -> Result<PathBuf, TuningError> {
    write(TUNED, &folder()?, info, choices)
}

/// Keeps the tier that was measured with the products `key` on a device, beside those of others; returns the file. What cannot be
/// read there is replaced: it can be measured again.
///
/// # Errors
/// [`TuningError::File`].
pub fn save_tier(
    folder: &Path,
    info: &wgpu::AdapterInfo,
    key: &str,
    tier: MeasuredTier,
) -> Result<PathBuf, TuningError> {
    let mut all = tiers(folder, info).unwrap_or_default();
    all.insert(key.to_owned(), tier);
    write(TIERS, folder, info, &all)
}

fn write<T: Serialize>(
    kind: &str,
    folder: &Path,
    info: &wgpu::AdapterInfo,
    choices: T,
) -> Result<PathBuf, TuningError> {
    let path = path_of(kind, folder, info);
    let kept = Kept {
        adapter: info.name.clone(),
        driver: driver(info),
        version: VERSION.to_owned(),
        choices,
    };
    let text = serde_json::to_string_pretty(&kept).map_err(|e| failed(&path, &e))?;
    // Another process may read at any time.
    std::fs::create_dir_all(folder)
        .and_then(|()| files::replace(&path, text + "\n"))
        .map_err(|e| failed(&path, &e))?;
    Ok(path)
}

/// Deletes what is kept for a device; returns the files that there were.
pub fn forget(info: &wgpu::AdapterInfo) -> Result<Vec<PathBuf>, TuningError> {
    let folder = folder()?;
    let mut deleted = vec![];
    for path in [TUNED, TIERS].map(|kind| path_of(kind, &folder, info)) {
        match std::fs::remove_file(&path) {
            Ok(()) => deleted.push(path),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(failed(&path, &e)),
        }
    }
    Ok(deleted)
}

fn failed(path: &Path, reason: &dyn std::fmt::Display) -> TuningError {
    TuningError::File {
        path: path.display().to_string(),
        reason: reason.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgpu::{AdapterInfo, Backend, DeviceType};

    fn info(driver: &str) -> AdapterInfo {
        let mut info = AdapterInfo::new(DeviceType::IntegratedGpu, Backend::Vulkan);
        (info.name, info.driver) = ("Some (GPU)".to_owned(), driver.to_owned());
        info
    }

    #[test]
    fn tiers_are_kept_by_device_driver_and_products() {
        let folder = tempfile::tempdir().expect("a folder");
        let (folder, of) = (folder.path(), |int8: bool| MeasuredTier {
            int8,
            subgroup_us: 300.5,
            int8_us: 200.0,
        });
        let here = info("mesa 1");
        assert!(tiers(folder, &here).expect("no file").is_empty());
        save_tier(folder, &here, "a", of(true)).expect("it can be written");
        let path = save_tier(folder, &here, "b", of(false)).expect("it can be written");
        let kept = tiers(folder, &here).expect("it can be read");
        assert_eq!(kept.len(), 2);
        assert_eq!((kept["a"], kept["b"]), (of(true), of(false)));
        assert!(tiers(folder, &info("mesa 2")).expect("no file").is_empty());
        let files = std::fs::read_dir(folder).expect("a folder").count();
        assert_eq!(files, 1, "nothing half written stays");

        // A file that cannot be read is named, and replaced by the next measurement.
        std::fs::write(&path, "{").expect("it can be written");
        let error = tiers(folder, &here).expect_err("half a file").to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
        save_tier(folder, &here, "a", of(false)).expect("it can be written");
        assert_eq!(tiers(folder, &here).expect("it can be read").len(), 1);

        // A folder that cannot be made.
        let error = save_tier(&path, &here, "a", of(true)).expect_err("a file is no folder");
        assert!(matches!(error, TuningError::File { .. }), "{error}");
    }
}
