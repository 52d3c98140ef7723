//! The memory that a command takes.

use std::process::Output;

/// Runs a command, and returns the most memory that it had, in bytes. Only Linux tells it, and elsewhere it is 0.
#[cfg(target_os = "linux")]
pub fn measured(args: &[&str]) -> (Output, u64) {
    use std::io::{Read, Seek};
    use std::os::unix::process::ExitStatusExt;

    // They are files, since nobody reads them while `wait4` waits.
    let mut written = [(); 2].map(|()| tempfile::tempfile().expect("a temporary file"));
    let [stdout, stderr] = [0, 1].map(|i| written[i].try_clone().expect("one more handle"));
    let mut command = super::glimt(args);
    let child = command.stdout(stdout).stderr(stderr).spawn();
    let id = child.expect("the binary was built with this test").id();
    // SAFETY: all of `rusage` may be zero, the call only writes to what it is given, and nobody else waits for this child.
    let (waited, status, usage) = unsafe {
        let (mut status, mut usage) = (0, std::mem::zeroed());
        let waited = libc::wait4(id as i32, &mut status, 0, &mut usage);
        (waited, status, usage)
    };
    assert_eq!(waited, id as i32, "{}", std::io::Error::last_os_error());
    let [stdout, stderr] = [0, 1].map(|i| {
        let mut text = vec![];
        written[i].rewind().expect("it is a file");
        written[i].read_to_end(&mut text).expect("it is a file");
        text
    });
    let output = Output {
        status: std::process::ExitStatus::from_raw(status),
        stdout,
        stderr,
    };
    // Linux tells KiB.
    (output, usage.ru_maxrss as u64 * 1024)
}

/// Runs a command, and returns the most memory that it had, in bytes. Only Linux tells it, and elsewhere it is 0.
#[cfg(not(target_os = "linux"))]
pub fn measured(args: &[&str]) -> (Output, u64) {
    (super::run(args), 0)
}
