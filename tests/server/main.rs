//! Protects the server as its clients meet it: the program runs on a free port with the built-in model, mostly on the CPU, and is spoken
//! to over HTTP.

#[cfg(unix)]
mod agents;
mod anthropic;
#[cfg(unix)]
mod browser;
mod chat;
mod client;
#[cfg(unix)]
mod clients;
mod completions;
#[path = "../cli/edited.rs"]
#[allow(dead_code)]
mod edited;
mod forms;
mod hosts;
mod llama;
mod load;
#[cfg(unix)]
mod manners;
mod many;
mod ollama;
#[cfg(unix)]
#[path = "../common/others.rs"]
mod others;
mod page;
#[cfg(unix)]
mod page_in_chromium;
#[cfg(unix)]
mod page_markdown;
mod refusals;
mod responses;
#[path = "../common/scripted.rs"]
mod scripted;
#[cfg(target_os = "linux")]
mod soak;
mod tools;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use client::{Connection, Response, send};
use serde_json::{Value, json};

const EMBEDDED: &[u8] = include_bytes!("../../assets/tales-q4_k_m.gguf");

fn write(directory: &Path, name: &str, content: &[u8]) -> String {
    let path = directory.join(name);
    std::fs::write(&path, content).expect("the temporary directory is writable");
    path.to_str()
        .expect("temporary paths are UTF-8 here")
        .to_owned()
}

/// A server that runs until the test ends.
struct Server {
    child: Child,
    address: SocketAddr,
    lines: Receiver<String>,
    /// Lines that were read.
    read: Vec<String>,
}

impl Server {
    /// Starts one with these flags, and waits until it listens.
    fn listening(flags: &[&str]) -> Self {
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
    fn start(flags: &[&str]) -> Self {
        let mut server = Self::listening(flags);
        server.line("serving ");
        server.until("it is ready", |server| server.get("/health").status == 200);
        server
    }

    /// The next line on standard error that holds `text`.
    fn line(&mut self, text: &str) -> String {
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
    fn logged(&mut self, route: &str) -> Value {
        let line = self.line(&format!("\"route\":\"{route}\""));
        serde_json::from_str(&line).expect("the log is JSON")
    }

    /// Waits until something holds.
    fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !holds(self) {
            assert!(Instant::now() < end, "never: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn get(&self, path: &str) -> Response {
        send(self.address, "GET", path, &[], "").response()
    }

    fn begin(&self, path: &str, body: &Value) -> Connection {
        send(self.address, "POST", path, &[], &body.to_string())
    }

    fn post(&self, path: &str, body: &Value) -> Response {
        self.begin(path, body).response()
    }

    /// What a request that must succeed is answered with.
    fn answer(&self, path: &str, body: &Value) -> Value {
        let response = self.post(path, body);
        assert_eq!(response.status, 200, "{body}: {response:?}");
        response.json()
    }

    /// The value of a metric without labels but the model's.
    fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("{name}{{")));
        let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
        let value = line.rsplit(' ').next().and_then(|value| value.parse().ok());
        value.expect("a number")
    }

    /// Waits until nothing is answered and nothing waits.
    fn until_idle(&self) {
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

/// The answers of the scripted model: two steps of an agent and an end, and to conversations without tools a text with thoughts.
const SCRIPT: scripted::Script<'_> = scripted::Script {
    steps: &[
        "Reading it first.<tool_call>read<arg_key>path</arg_key><arg_value>a \"b\".txt</arg_value></tool_call>",
        "<tool_call>write<arg_key>input</arg_key><arg_value>one\ntwo ✓</arg_value></tool_call>",
        "Both steps are done.",
    ],
    thoughts: "Somebody greets me, so I greet back.",
    text: "Good morning to all of you! END of this text.",
    context: 4096,
};

/// A server of the scripted model.
fn scripted_server() -> (Server, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let model = scripted::scripted(folder.path(), "script", &SCRIPT);
    let model = model.to_str().expect("temporary paths are UTF-8 here");
    (Server::start(&["-m", model, "--temp", "0"]), folder)
}

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// A request for a greedy answer to a short message.
fn chat(more: Value) -> Value {
    let body = json!({
        "messages": [{"role": "user", "content": "Tell me a story about a fox."}],
        "temperature": 0,
        "max_tokens": 8,
    });
    with(body, more)
}

/// A request to continue a short text greedily.
fn completion(more: Value) -> Value {
    let body = json!({"prompt": "Once upon a time", "temperature": 0, "max_tokens": 8});
    with(body, more)
}

fn with(mut body: Value, more: Value) -> Value {
    let fields = body.as_object_mut().expect("it is an object");
    fields.extend(more.as_object().expect("it is an object").clone());
    body
}

/// The text of the first answer.
fn text(answer: &Value) -> &str {
    let choice = &answer["choices"][0];
    let text = choice["message"]["content"]
        .as_str()
        .or(choice["text"].as_str());
    text.unwrap_or_else(|| panic!("no text in {answer}"))
}

/// The texts of the deltas of a stream, joined.
fn streamed(events: &[Value]) -> String {
    let choices = events.iter().filter_map(|event| event["choices"].get(0));
    let texts = choices.filter_map(|c| c["delta"]["content"].as_str().or(c["text"].as_str()));
    texts.collect()
}
