//! The attacks on a server, and their effect on other users.

use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{Connection, Response, send};
use super::{CHAT, Server};

/// How long others may wait for a short answer. A build for tests computes slowly.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// A connection on which these bytes were sent.
pub fn sent(server: &Server, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).expect("it listens");
    // A server that refuses a request may not read all of it.
    let _ = stream.write_all(bytes);
    stream
}

/// The response that comes on a connection.
pub fn answered(stream: TcpStream) -> Response {
    Connection(BufReader::new(stream)).response()
}

/// A request with a body, as it is sent.
pub fn request(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

/// The body of a request for a short answer, with other fields.
pub fn chat(more: Value) -> Value {
    let mut body =
        json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "temperature": 0});
    let fields = body.as_object_mut().expect("it is an object");
    fields.extend(more.as_object().expect("it is an object").clone());
    body
}

/// The answer to a chat whose body is this text.
pub fn answer_to(server: &Server, body: &str) -> Response {
    send(server.address, "POST", CHAT, &[], body).response()
}

/// Has a request of somebody else read and answered, and returns how long that took. Nothing is computed, which is slow here.
pub fn bystander(server: &Server) -> Duration {
    let began = Instant::now();
    server.answer("/tokenize", &json!({"prompt": "hello"}));
    began.elapsed()
}

/// Bytes of memory of the process by this name, where the system tells them.
pub fn memory(server: &Server, name: &str) -> Option<u64> {
    let status = format!("/proc/{}/status", server.child.id());
    let status = std::fs::read_to_string(status).ok()?;
    let mut lines = status.lines();
    let size = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kilobytes: u64 = size.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kilobytes << 10)
}
