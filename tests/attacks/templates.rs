//! Protects against templates that are harmless for one message and never end for two: they refuse the requests that they are too much for,
//! and no other.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use glimt::gguf::Value as Meta;
use serde_json::{Value, json};

#[path = "../cli/edited.rs"]
#[allow(dead_code)]
mod edited;

const EMBEDDED: &[u8] = include_bytes!("../../assets/tales-q4_k_m.gguf");

fn write(directory: &Path, name: &str, content: &[u8]) -> String {
    let path = directory.join(name);
    std::fs::write(&path, content).expect("the temporary directory is writable");
    let path = path.to_str();
    path.expect("temporary paths are UTF-8 here").to_owned()
}

/// What a template does if there are two messages.
const HOSTILE: [&str; 6] = [
    "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
    "{% set x = range(100000) | list %}{% for i in range(100000) %}{% if 999999 in x %}{% endif %}{% endfor %}",
    "{% for i in range(100000) %}{% set x = range(100000) | unique | list %}{% endfor %}",
    "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "{% set ns = namespace(x=[]) %}{% for i in range(90000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}",
    "{{ '%100000000000d' | format(1) }}",
];

/// How long a template may take, with the time in which a build for tests computes everything else.
const PATIENCE: Duration = Duration::from_secs(15);

struct Served {
    child: Child,
    address: SocketAddr,
}

impl Served {
    fn start(model: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_glimt"))
            .args(["serve", "--port", "0", "-c", "256", "-m", model])
            .env("GLIMT_DEVICE", "cpu")
            .env("GLIMT_CONFIG", "")
            .env_remove("GLIMT_API_KEY")
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
        Self { child, address }
    }

    /// The status of an answer to a conversation of so many messages, and its body.
    fn chat(&self, messages: usize) -> (u16, String) {
        let message = json!({"role": "user", "content": "a"});
        let body = json!({"messages": vec![message; messages], "max_tokens": 1});
        self.post("/v1/chat/completions", &body)
    }

    fn post(&self, path: &str, body: &Value) -> (u16, String) {
        let body = body.to_string();
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        let status = answer
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        (status.expect("it has a status"), answer)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_template_refuses_the_requests_that_it_is_too_much_for() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    for (i, hostile) in HOSTILE.into_iter().enumerate() {
        let template = format!(
            "{{% for m in messages %}}{{{{ m.content }}}}{{% endfor %}}{{% if messages | length > 1 %}}{hostile}{{% endif %}}"
        );
        let template = ("tokenizer.chat_template", Meta::from(template));
        let model = edited::edited(folder.path(), &format!("{i}.gguf"), &[template], |_, _| {});
        let server = Served::start(&model);
        assert_eq!(server.chat(1).0, 200, "{hostile}");
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let (status, body) = server.chat(2);
                    assert_eq!(status, 400, "{hostile}: {body}");
                    assert!(body.contains("tokenizer.chat_template"), "{body}");
                });
            }
        });
        assert!(
            begin.elapsed() < PATIENCE,
            "{hostile}: {:?}",
            begin.elapsed()
        );
        // It computes nothing for them any more, and answers others.
        let begin = Instant::now();
        assert_eq!(server.chat(1).0, 200, "{hostile}");
        assert!(begin.elapsed() < PATIENCE / 3, "{hostile}");
    }
}
