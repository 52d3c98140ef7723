//! A client of HTTP on a bare connection, so that a test can read slowly, go away, or say what no library would.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// A response that is whole.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    /// With names in small letters.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// The error's field and code.
    pub fn error(&self) -> (String, String) {
        let error = &self.json()["error"];
        assert!(error["message"].is_string(), "{self:?}");
        let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
        (text("param"), text("code"))
    }

    /// The events of a stream, without the mark of its end, which must be there.
    pub fn events(&self) -> Vec<Value> {
        let lines = self
            .body
            .lines()
            .filter_map(|line| line.strip_prefix("data: "));
        let mut lines: Vec<&str> = lines.collect();
        assert_eq!(lines.pop(), Some("[DONE]"), "{self:?}");
        let event = |line: &&str| serde_json::from_str(line).expect("events are JSON");
        lines.iter().map(event).collect()
    }

    /// The events of a stream in which each has the name that its data has as its type.
    pub fn named_events(&self) -> Vec<Value> {
        assert_eq!(
            self.header("content-type"),
            Some("text/event-stream; charset=utf-8")
        );
        let events = self.body.split("\n\n").filter(|event| !event.is_empty());
        let event = |event: &str| {
            let rest = event.strip_prefix("event: ").expect("events are named");
            let (name, data) = rest.split_once("\ndata: ").expect("a name and data");
            let data: Value = serde_json::from_str(data).expect("events are JSON");
            assert_eq!(data["type"], name);
            data
        };
        events.map(event).collect()
    }

    /// The lines of a stream of JSON.
    pub fn lines(&self) -> Vec<Value> {
        assert_eq!(self.header("content-type"), Some("application/x-ndjson"));
        let line = |line: &str| serde_json::from_str(line).expect("lines are JSON");
        self.body.lines().map(line).collect()
    }
}

/// A connection on which a request was sent.
pub struct Connection(pub BufReader<TcpStream>);

/// Sends a request.
pub fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Connection {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream
        .set_read_timeout(Some(Duration::from_secs(120)))
        .expect("a limit can be set");
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n",
        body.len()
    );
    if !headers.iter().any(|(name, _)| *name == "Content-Type") {
        head += "Content-Type: application/json\r\n";
    }
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    let request = format!("{head}\r\n{body}");
    // A server that refuses a request may not read all of it.
    let _ = stream.write_all(request.as_bytes());
    Connection(BufReader::new(stream))
}

impl Connection {
    /// The status and the headers.
    pub fn head(&mut self) -> (u16, Vec<(String, String)>) {
        let mut line = String::new();
        let mut read = |line: &mut String| {
            line.clear();
            self.0.read_line(line).expect("the server answers");
            line.truncate(line.trim_end().len());
        };
        read(&mut line);
        let status = line
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status in {line:?}"));
        let mut headers = vec![];
        loop {
            read(&mut line);
            let Some((name, value)) = line.split_once(": ") else {
                return (status, headers);
            };
            headers.push((name.to_lowercase(), value.to_owned()));
        }
    }

    /// The next chunk of a body in chunks; `None` behind the last.
    pub fn chunk(&mut self) -> Option<String> {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("the server goes on");
        let length = usize::from_str_radix(line.trim(), 16).expect("the length of a chunk");
        let mut bytes = vec![0; length + 2];
        self.0.read_exact(&mut bytes).expect("the server goes on");
        bytes.truncate(length);
        let text = String::from_utf8(bytes).expect("events are UTF-8");
        (length > 0).then_some(text)
    }

    /// The whole response.
    pub fn response(mut self) -> Response {
        let (status, headers) = self.head();
        let chunked = headers
            .iter()
            .any(|(name, value)| name == "transfer-encoding" && value == "chunked");
        let mut body = String::new();
        if chunked {
            while let Some(chunk) = self.chunk() {
                body += &chunk;
            }
        } else {
            let length = headers.iter().find(|(name, _)| name == "content-length");
            let length = length.and_then(|(_, length)| length.parse().ok());
            let mut rest = self.0.take(length.unwrap_or(u64::MAX));
            rest.read_to_string(&mut body).expect("the server goes on");
        }
        Response {
            status,
            headers,
            body,
        }
    }
}
