//! Protects what is saved while a session file that is mostly dead is written anew: from kills and from full disks at any moment.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use glimt::engine::Engine;
use glimt::engine::Wait;

use super::files::{assert_holds, length, made_up};
use super::{cpu, open};

/// The file that a process of the test saves to until it is killed.
const FILE: &str = "GLIMT_TEST_REWRITES";
/// Tokens of each save. Half of the saves have the file written anew.
const TOKENS: usize = 250;

/// The names in a folder that a file has before it is whole.
fn unfinished(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).expect("it is there");
    let paths = entries.map(|entry| entry.expect("a file").path());
    let is_unfinished = |path: &std::path::PathBuf| path.extension().is_some_and(|e| e == "tmp");
    paths.filter(is_unfinished).collect()
}

/// The file opens, and holds one save, which its data names. Returned is that.
fn assert_whole(path: &Path, engine: &Engine) -> Option<u8> {
    let mut file = open(path, engine);
    let salt = file.data().first().copied();
    if let Some(salt) = salt {
        assert_holds(&mut file, &mut made_up(engine, TOKENS, salt));
    }
    salt
}

#[test]
#[ignore = "it is the process that the next test kills"]
fn saves_without_end() {
    let Some(path) = std::env::var_os(FILE) else {
        return;
    };
    let engine = cpu();
    let mut file = open(path.as_ref(), &engine);
    for salt in (0..=u8::MAX).cycle() {
        let mut session = made_up(&engine, TOKENS, salt);
        let saved = file.save(&mut session, &[salt]).wait();
        saved.expect("it can be written");
    }
}

#[cfg(unix)]
#[test]
fn a_kill_while_a_file_is_written_anew_leaves_a_whole_one() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("a.session");
    let engine = cpu();
    let mut left = 0;
    for run in 0..12 {
        let mut child = Command::new(std::env::current_exe().expect("it runs"))
            .args(["--exact", "saved::rewrites::saves_without_end", "--ignored"])
            .env(FILE, &path)
            .stdout(Stdio::null())
            .spawn()
            .expect("it runs already");
        while unfinished(folder.path()).is_empty() {
            let ended = child.try_wait().expect("it was started");
            assert!(ended.is_none(), "{ended:?}");
            std::hint::spin_loop();
        }
        std::thread::sleep(Duration::from_micros(150 * run));
        child.kill().expect("it runs");
        child.wait().expect("it was started");
        let half = unfinished(folder.path());
        left += usize::from(!half.is_empty());
        assert!(assert_whole(&path, &engine).is_some(), "run {run}");
        assert_eq!(unfinished(folder.path()).len(), 0, "run {run}: {half:?}");
    }
    assert!(left > 0, "no kill came while a file was written");
}

/// The name of a file before it is whole leads to a device that is always full.
#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_is_full_while_a_file_is_written_anew_leaves_it_as_it_was() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("a.session");
    let engine = cpu();
    let mut file = open(&path, &engine);
    let part = folder
        .path()
        .join(format!("a.session.{}.tmp", std::process::id()));
    let live = (TOKENS * made_up(&engine, 1, 0).row_bytes()) as u64;
    let mut salt = 0;
    let mut save = |file: &mut glimt::engine::SessionFile| {
        salt += 1;
        let saved = file
            .save(&mut made_up(&engine, TOKENS, salt), &[salt])
            .wait();
        saved.expect("what is saved is saved, and the file only longer");
        salt
    };
    // So long that each save would have it written anew.
    while length(&path) < 4 * live + (1 << 20) {
        let _ = std::fs::remove_file(&part);
        std::os::unix::fs::symlink("/dev/full", &part).expect("links are possible");
        save(&mut file);
    }
    assert!(unfinished(folder.path()).is_empty());
    let last = save(&mut file);
    assert!(
        length(&path) < 3 * live,
        "with room again it becomes shorter"
    );
    drop(file);
    assert_eq!(assert_whole(&path, &engine), Some(last));
}

#[test]
fn what_looks_like_a_half_written_file_and_is_none_stays() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("a.session");
    let engine = cpu();
    drop(open(&path, &engine));
    let own = std::fs::read(&path).expect("it is there");
    let files = [
        ("a.session.12.tmp", &own[..], false),
        ("a.session.12-1.tmp", &own[..40], false),
        ("a.session.13.tmp", b"glim", false),
        ("a.session.14.tmp", b"my notes", true),
        ("a.session.notes.tmp", &own[..], true),
        ("b.session.12.tmp", &own[..], true),
        ("a.session.12", &own[..], true),
    ];
    for (name, bytes, _) in files {
        std::fs::write(folder.path().join(name), bytes).expect("it can be written");
    }
    open(&path, &engine);
    for (name, _, stays) in files {
        assert_eq!(folder.path().join(name).exists(), stays, "{name}");
    }
}
