//! How many bytes a folder has room for.

use std::path::Path;

/// Free bytes where `folder` is, or will be; nothing where the system does not tell.
#[cfg(unix)]
pub(super) fn free(folder: &Path) -> Option<u64> {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    let there = folder.ancestors().find(|folder| folder.exists())?;
    let path = CString::new(there.as_os_str().as_bytes()).ok()?;
    let mut told = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends with a zero byte, and the place has the size that the call fills.
    let failed = unsafe { libc::statvfs(path.as_ptr(), told.as_mut_ptr()) } != 0;
    if failed {
        return None;
    }
    // SAFETY: the call succeeded, so it has filled all fields.
    let told = unsafe { told.assume_init() };
    #[allow(
        clippy::unnecessary_cast,
        reason = "the fields are narrower on some systems"
    )]
    Some((told.f_bavail as u64).saturating_mul(told.f_frsize as u64))
}

/// Free bytes where `folder` is, or will be; nothing where the system does not tell.
#[cfg(not(unix))]
pub(super) fn free(folder: &Path) -> Option<u64> {
    let there = folder
        .ancestors()
        .find(|folder| folder.exists())?
        .canonicalize()
        .ok()?;
    // On Windows, canonical paths begin with `\\?\`, and mount points do not.
    let there = there
        .to_string_lossy()
        .trim_start_matches(r"\\?\")
        .to_owned();
    let disks = sysinfo::Disks::new_with_refreshed_list();
    let holding = disks
        .list()
        .iter()
        .filter(|disk| Path::new(&there).starts_with(disk.mount_point()));
    holding
        .max_by_key(|disk| disk.mount_point().as_os_str().len())
        .map(sysinfo::Disk::available_space)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_folder_that_is_not_there_yet_has_the_room_of_the_one_above() {
        let folder = tempfile::tempdir().expect("a folder");
        let free = super::free(&folder.path().join("a/b")).expect("the system tells");
        assert!(free > 0);
    }
}
