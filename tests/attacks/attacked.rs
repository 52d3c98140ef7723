//! A server that is attacked, and what others see of it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long others may wait for a short answer. A build for tests computes slowly.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// A server with the built-in model, which runs until the test ends.
pub struct Served {
    child: Child,
    pub address: SocketAddr,
}

/// The answer of a server.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: String,
}

impl Answer {
    /// The code of an error.
    pub fn code(&self) -> String {
        let body: Value = serde_json::from_str(&self.body).unwrap_or_default();
        body["error"]["code"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }
}

impl Served {
    /// Starts one, and waits until it answers.
    pub fn start() -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_glimt"));
        for name in ["GLIMT_MODEL", "GLIMT_API_KEY", "RUST_LOG"] {
            command.env_remove(name);
        }
        let mut child = command
            .args(["serve", "--port", "0"])
            .env("GLIMT_DEVICE", "cpu")
            .env("GLIMT_CONFIG", "")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary was built with this test");
        let stderr = child.stderr.take().expect("it is piped");
        let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
        let address = lines.find_map(|line| {
            let (_, rest) = line.split_once("listening on http://")?;
            rest.split(' ').next()?.parse().ok()
        });
        std::thread::spawn(move || lines.for_each(drop));
        let address = address.expect("it tells where it listens");
        let served = Self { child, address };
        let until = Instant::now() + Duration::from_secs(60);
        while served.get("/health").status != 200 {
            assert!(Instant::now() < until, "it is never ready");
            std::thread::sleep(Duration::from_millis(20));
        }
        served
    }

    /// A connection on which these bytes were sent.
    pub fn sent(&self, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        let limit = Some(Duration::from_secs(60));
        stream.set_read_timeout(limit).expect("a limit can be set");
        // A server that refuses a request may not read all of it.
        let _ = stream.write_all(bytes);
        stream
    }

    pub fn get(&self, path: &str) -> Answer {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        answer(self.sent(request.as_bytes()))
    }

    pub fn post(&self, path: &str, body: &str) -> Answer {
        answer(self.sent(request(path, body).as_bytes()))
    }

    /// Has a request of somebody else read and answered, and returns how long that took. Nothing is computed, which is slow here.
    pub fn bystander(&self) -> Duration {
        let began = Instant::now();
        let answer = self.post("/tokenize", r#"{"prompt": "hello"}"#);
        assert_eq!(answer.status, 200, "{answer:?}");
        began.elapsed()
    }

    /// Memory of the process in MB, where the system tells it.
    pub fn memory(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
        let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
        Some(kilobytes >> 10)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A request with a body.
pub fn request(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

/// A request for a short answer, with other fields.
pub fn chat(more: Value) -> String {
    let mut body =
        json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "temperature": 0});
    let fields = body.as_object_mut().expect("it is an object");
    fields.extend(more.as_object().expect("it is an object").clone());
    body.to_string()
}

/// The answer to the request of a connection that is closed behind it.
pub fn answer(mut stream: TcpStream) -> Answer {
    let mut text = vec![];
    // A connection may be reset when its answer is there.
    let _ = stream.read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_default();
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    Answer {
        status: status.unwrap_or_default(),
        body: body.to_owned(),
    }
}
