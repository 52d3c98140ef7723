//! A server for tests: the program on a free port, with what it writes to standard error.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::client::{Connection, Response, send};

/// A server that runs until the test ends.
pub struct Server {
    pub child: Child,
    pub address: SocketAddr,
    lines: Receiver<String>,
    /// Lines that were read.
    pub read: Vec<String>,
}

impl Server {
    /// Starts one with these flags, and waits until it listens.
    pub fn listening(flags: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_glimt"));
        for name in ["GLIMT_MODEL", "GLIMT_API_KEY", "RUST_LOG"] {
            command.env_remove(name);
        }
        let mut child = command
            .args(["serve", "--port", "0"])
            .args(flags)
            .env("GLIMT_DEVICE", "cpu")
            .env("GLIMT_CONFIG", "")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary was built with this test");
        let stderr = child.stderr.take().expect("it is piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let mut server = Self {
            child,
            address: ([127, 0, 0, 1], 0).into(),
            lines,
            read: vec![],
        };
        let line = server.line("listening on http://");
        let address = line
            .split("http://")
            .nth(1)
            .and_then(|rest| rest.split(' ').next());
        server.address = address.and_then(|a| a.parse().ok()).expect("an address");
        server
    }

    /// Starts one with these flags, and waits until it answers.
    pub fn start(flags: &[&str]) -> Self {
        let mut server = Self::listening(flags);
        server.line("serving ");
        server.until("it is ready", |server| server.get("/health").status == 200);
        server
    }

    /// The next line on standard error that holds `text`.
    pub fn line(&mut self, text: &str) -> String {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    self.read.push(line.clone());
                    if line.contains(text) {
                        return line;
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    panic!("no line with {text:?} in {:#?}", self.read)
                }
            }
        }
    }

    /// The next line of the log that is about this route.
    pub fn logged(&mut self, route: &str) -> Value {
        let line = self.line(&format!("\"route\":\"{route}\""));
        serde_json::from_str(&line).expect("the log is JSON")
    }

    /// Waits until something holds.
    pub fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !holds(self) {
            assert!(Instant::now() < end, "never: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn get(&self, path: &str) -> Response {
        send(self.address, "GET", path, &[], "").response()
    }

    pub fn begin(&self, path: &str, body: &Value) -> Connection {
        send(self.address, "POST", path, &[], &body.to_string())
    }

    pub fn post(&self, path: &str, body: &Value) -> Response {
        self.begin(path, body).response()
    }

    /// The JSON that answers a request which must succeed.
    pub fn answer(&self, path: &str, body: &Value) -> Value {
        let response = self.post(path, body);
        assert_eq!(response.status, 200, "{body}: {response:?}");
        response.json()
    }

    /// The value of a metric without labels but the model's.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("{name}{{")));
        let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
        let value = line.rsplit(' ').next().and_then(|value| value.parse().ok());
        value.expect("a number")
    }

    /// Waits until nothing is answered and nothing waits.
    pub fn until_idle(&self) {
        self.until("nothing is asked", |server| {
            server.metric("vllm:num_requests_running") == 0.0
                && server.metric("vllm:num_requests_waiting") == 0.0
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
