//! Programs that run until a test ends.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use super::until;

/// A port that nobody listens on.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("there are free ports");
    listener.local_addr().expect("it has an address").port()
}

/// Takes away what would send local requests elsewhere, or change how a program of this repository runs.
pub fn without_settings(command: &mut Command) -> &mut Command {
    for name in [
        "http_proxy",
        "HTTP_PROXY",
        "https_proxy",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
        "GLIMT_MODEL",
        "GLIMT_DEVICE",
        "GLIMT_API_KEY",
        "RUST_LOG",
    ] {
        command.env_remove(name);
    }
    command.env("GLIMT_CONFIG", "")
}

/// A program whose output goes to a file.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts one, with its output in `log`.
    pub fn start(command: &mut Command, log: &Path) -> Self {
        let file = File::create(log).expect("the temporary directory is writable");
        let same = file.try_clone().expect("it can be shared");
        let child = without_settings(command)
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(same)
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self {
            child,
            log: log.to_owned(),
        }
    }

    /// The output of the process so far.
    pub fn printed(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("it was started")
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &id]).status();
        assert!(sent.expect("kill is there").success());
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it was started");
    }

    /// Waits for its end.
    pub fn wait(&mut self, seconds: u64) -> ExitStatus {
        until("it ends", seconds, || self.ended().is_some());
        self.ended().expect("it has ended")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A process that has children ends them if it is asked.
        if let Ok(None) = self.child.try_wait() {
            self.terminate();
            for _ in 0..100 {
                if let Ok(Some(_)) = self.child.try_wait() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
