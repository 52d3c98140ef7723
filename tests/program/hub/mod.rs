//! Protects models by name: what is fetched is whole or is fetched on, what is wrong is refused, and each program finds what another
//! has fetched. The hub is a small one on loopback.

mod cache;
mod faults;
mod kills;
mod pull;
mod python;
mod runs;
mod server;
mod stores;
#[cfg(unix)]
mod terminal;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use glimt_hub::hub::{Event, Hub, HubError, Name, Patience, Settings};
use server::Server;

use crate::edited::EMBEDDED as TALES;
use crate::others;

/// A home folder that holds nothing.
struct Home {
    folder: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().expect("a temporary directory"),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The cache.
    fn hub(&self) -> PathBuf {
        self.path("huggingface/hub")
    }

    /// The program, with this home and nothing of the caller's settings.
    fn glimt(&self, server: &Server, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_glimt"));
        for name in [
            "GLIMT_MODEL",
            "GLIMT_DEVICE",
            "RUST_LOG",
            "HF_HUB_CACHE",
            "HUGGINGFACE_HUB_CACHE",
            "HF_TOKEN",
            "HF_TOKEN_PATH",
            "HUGGING_FACE_HUB_TOKEN",
            "HF_HUB_OFFLINE",
            "TRANSFORMERS_OFFLINE",
            "HF_HUB_DISABLE_SYMLINKS",
            "HF_HUB_DOWNLOAD_TIMEOUT",
            "http_proxy",
            "HTTP_PROXY",
            "https_proxy",
            "HTTPS_PROXY",
            "all_proxy",
            "ALL_PROXY",
        ] {
            command.env_remove(name);
        }
        command
            .args(args)
            .env("GLIMT_CONFIG", "")
            .env("HOME", self.folder.path())
            .env("HF_HOME", self.path("huggingface"))
            .env("HF_ENDPOINT", server.url())
            .env("OLLAMA_MODELS", self.path("ollama"))
            .stdin(Stdio::null());
        command
    }

    fn run(&self, server: &Server, args: &[&str]) -> Output {
        self.glimt(server, args)
            .output()
            .expect("the binary was built with this test")
    }

    /// Runs a command that must succeed; returns its standard output.
    fn text(&self, server: &Server, args: &[&str]) -> String {
        let output = self.run(server, args);
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        stdout(&output)
    }

    /// Runs a command that must fail with this code and an empty standard output; returns its error.
    fn failure(&self, server: &Server, args: &[&str], code: i32) -> String {
        failed(&self.run(server, args), code)
    }

    /// As the environment would give them, with little patience.
    fn settings(&self, server: &Server) -> Settings {
        Settings {
            endpoint: server.url(),
            cache: self.hub(),
            token: None,
            offline: false,
            links: true,
            ollama: vec![self.path("ollama")],
            lm_studio: vec![self.path(".lmstudio/models")],
            patience: Patience {
                silence: Duration::from_millis(400),
                first_wait: Duration::from_millis(10),
                tries: 4,
            },
        }
    }

    /// Fetches a model by the library; returns where it is and what was told.
    fn pull(&self, server: &Server, name: &str) -> (Result<PathBuf, HubError>, Vec<String>) {
        pull(&self.settings(server), name)
    }
}

fn pull(settings: &Settings, name: &str) -> (Result<PathBuf, HubError>, Vec<String>) {
    let mut told = vec![];
    let mut tell = |event: Event<'_>| {
        if !matches!(event, Event::Fetched(_) | Event::Checked { .. }) {
            told.push(format!("{event:?}"));
        }
    };
    let hub = Hub::new(settings);
    let name = Name::parse(name).expect("it is a name");
    let pulled = hub
        .offer(&name, &mut tell)
        .and_then(|offer| hub.pull(&offer, &mut tell));
    (pulled, told)
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("it is UTF-8")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("it is UTF-8")
}

/// The error of a command that failed with this code and an empty standard output.
fn failed(output: &Output, code: i32) -> String {
    let message = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{message}");
    assert_eq!(stdout(output), "", "{message}");
    let mut errors = message
        .lines()
        .filter_map(|line| line.strip_prefix("glimt: error: "));
    let error = errors
        .next()
        .unwrap_or_else(|| panic!("no error in: {message}"));
    assert!(!message.contains("panicked"), "{message}");
    error.to_owned()
}

/// Bytes that no two files share.
fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

/// All files below a folder, by their names from there.
fn files(folder: &Path) -> Vec<String> {
    fn walk(root: &Path, folder: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.expect("a file").path();
            if path.is_dir() && !path.is_symlink() {
                walk(root, &path, found);
            } else {
                let name = path.strip_prefix(root).expect("it is below");
                found.push(name.to_str().expect("a plain name").replace('\\', "/"));
            }
        }
    }
    let mut found = vec![];
    walk(folder, folder, &mut found);
    found.sort();
    found
}

/// The names of what is begun and not finished.
fn parts(home: &Home) -> Vec<String> {
    let all = files(&home.hub());
    all.into_iter()
        .filter(|name| name.ends_with(".incomplete"))
        .collect()
}
