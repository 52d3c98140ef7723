//! A server of the built-in model on the CPU.

use std::path::Path;
use std::process::Command;

use super::load::{self, Target};
use super::process::{Process, free_port};
use super::until;

/// The key of all servers.
pub const KEY: &str = "a-key-of-the-servers";

/// A server that runs until the test ends.
pub struct Server {
    pub process: Process,
    /// As `127.0.0.1:8001`.
    pub address: String,
}

impl Server {
    /// Starts one, and waits until it answers.
    pub fn start(folder: &Path) -> Self {
        let port = free_port().to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_glimt"));
        command.args([
            "serve", "--device", "cpu", "--drain", "120", "--port", &port,
        ]);
        let log = folder.join(format!("glimt-{port}.log"));
        let process = Process::start(&mut command, &log);
        let server = Self {
            process,
            address: format!("127.0.0.1:{port}"),
        };
        until("it answers", 60, || {
            load::get(&format!("{}/health", server.url())).is_some()
        });
        server
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How it is asked.
    pub fn target(&self) -> Target {
        Target {
            url: self.url(),
            key: Some(KEY.to_owned()),
        }
    }

    /// The text of the server's metrics.
    pub fn metrics(&self) -> String {
        load::get(&format!("{}/metrics", self.url())).expect("it answers")
    }

    /// Requests that it has accepted and not yet answered.
    pub fn held(&self) -> f64 {
        let text = self.metrics();
        let value = |name: &str| -> f64 {
            let line = text.lines().find(|line| line.starts_with(name));
            let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
            value.unwrap_or_else(|| panic!("no {name} in {text}"))
        };
        value("vllm:num_requests_running{") + value("vllm:num_requests_waiting{")
    }
}
