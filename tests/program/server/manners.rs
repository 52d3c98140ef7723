//! Protects the manners of the server: places, keys, limits, who goes away and who reads slowly, and an end in order.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use glimt_server::server::{Keys, Settings};
use serde_json::{Value, json};

use super::client::{Response, send};
use super::{CHAT, COMPLETIONS, Server, chat, completion};

/// A request whose answer is as long as the context.
fn long(more: Value) -> Value {
    let body = completion(json!({"ignore_eos": true, "max_tokens": 900}));
    super::with(body, more)
}

/// Waits until `count` requests wait.
fn until_waiting(server: &Server, count: f64) {
    server.until("requests wait", |server| {
        server.metric("vllm:num_requests_waiting") == count
    });
}

/// After how many seconds it is worth asking again.
fn seconds(refused: &Response) -> u64 {
    let after = refused.header("retry-after");
    let after = after.and_then(|after| after.parse().ok());
    after.unwrap_or_else(|| panic!("no number in {refused:?}"))
}

fn signal(server: &Server, name: &str) {
    let sent = std::process::Command::new("kill")
        .args([name, &server.child.id().to_string()])
        .status();
    assert!(sent.expect("kill is there").success());
}

#[test]
fn who_finds_no_place_is_told_to_come_later() {
    let server = Server::start(&["--queue", "2", "--parallel", "1"]);
    let mut running = server.begin(COMPLETIONS, &long(json!({"stream": true})));
    assert_eq!(running.head().0, 200);
    running.chunk();
    let waiting = [0, 1].map(|_| server.begin(COMPLETIONS, &completion(json!({"max_tokens": 2}))));
    until_waiting(&server, 2.0);
    let refused = server.post(COMPLETIONS, &completion(json!({})));
    assert_eq!(refused.status, 429, "{refused:?}");
    assert_eq!(refused.error().1, "queue_full");
    assert!(seconds(&refused) >= 1, "{refused:?}");
    assert_eq!(server.metric("vllm:num_requests_running"), 1.0);
    // Who goes away gives the place to those who wait.
    drop(running);
    for connection in waiting {
        assert_eq!(connection.response().status, 200);
    }
    server.until_idle();
    assert_eq!(server.metric("glimt:requests_refused_total"), 1.0);
    let text = server.get("/metrics").body;
    assert!(text.contains("finished_reason=\"abort\"} 1\n"), "{text}");
    assert!(text.contains("finished_reason=\"length\"} 2\n"), "{text}");
}

#[test]
fn who_goes_away_is_not_answered_on() {
    let server = Server::start(&[]);
    let mut streaming = server.begin(COMPLETIONS, &long(json!({"stream": true})));
    streaming.head();
    streaming.chunk();
    drop(streaming);
    server.until_idle();
    let whole = server.begin(COMPLETIONS, &long(json!({})));
    server.until("it is answered", |server| {
        server.metric("vllm:num_requests_running") == 1.0
    });
    drop(whole);
    server.until_idle();
    let generated = server.metric("vllm:generation_tokens_total");
    assert!(
        generated < 300.0,
        "{generated} of 1800 tokens were computed"
    );
    assert_eq!(server.metric("vllm:kv_cache_usage_perc"), 0.0);
}

#[test]
fn nobody_is_answered_while_the_model_is_loaded() {
    let settings = Settings {
        address: ([127, 0, 0, 1], 0).into(),
        keys: Keys::default(),
        behind_proxy: false,
        guard_all: false,
        page: true,
        hosts: Default::default(),
        cors: vec![],
        queue: 1,
        timeout: None,
        max_body: 1 << 20,
        drain: Duration::ZERO,
        slots: None,
    };
    let server = glimt_server::server::Server::bind(settings).expect("there are free ports");
    let get = |path: &str| send(server.address(), "GET", path, &[], "").response();
    let health = get("/health");
    let status = health.json()["status"].clone();
    assert_eq!((health.status, status), (503, json!("loading")));
    assert_eq!(get("/metrics").status, 200);
    let body = chat(json!({})).to_string();
    let refused = send(server.address(), "POST", CHAT, &[], &body).response();
    assert_eq!(refused.status, 503);
    assert_eq!(refused.error().1, "unavailable");
    assert!(seconds(&refused) >= 1, "{refused:?}");
    assert_eq!(get("/v1/models").status, 503);
}

#[test]
fn who_waits_and_goes_away_gives_the_place_back() {
    let mut server = Server::start(&["--queue", "1", "--parallel", "1"]);
    let mut running = server.begin(COMPLETIONS, &long(json!({"stream": true})));
    running.head();
    running.chunk();
    for _ in 0..5 {
        let waiting = server.begin(COMPLETIONS, &completion(json!({})));
        until_waiting(&server, 1.0);
        drop(waiting);
        until_waiting(&server, 0.0);
    }
    drop(running);
    server.until_idle();
    let line = server.logged(COMPLETIONS);
    assert_eq!(line["status"], 499, "{line}");
    let text = server.get("/metrics").body;
    assert!(text.contains("finished_reason=\"abort\"} 6\n"), "{text}");
    server.answer(COMPLETIONS, &completion(json!({})));
}

#[test]
fn a_reader_that_does_not_read_keeps_nobody_waiting() {
    let server = Server::start(&[]);
    // The head of the answer is not read either, and every token has many log-probabilities.
    let slow = server.begin(
        COMPLETIONS,
        &long(json!({"stream": true, "logprobs": 20, "max_tokens": 200})),
    );
    let began = Instant::now();
    server.answer(COMPLETIONS, &completion(json!({"max_tokens": 2})));
    server.until_idle();
    assert!(began.elapsed() < Duration::from_secs(60));
    // All of it is there once it reads.
    let events = slow.response().events();
    let tokens = events
        .iter()
        .filter_map(|e| e["choices"][0]["logprobs"]["tokens"].as_array());
    assert_eq!(tokens.map(Vec::len).sum::<usize>(), 200);
}

#[test]
fn keys_are_asked_for_but_not_by_routers() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = super::write(folder.path(), "keys", b"second\n\n third \n");
    let server = Server::start(&["--api-key", "first", "--api-key-file", &file]);
    let body = chat(json!({"max_tokens": 1})).to_string();
    let with = |key: &str| {
        let headers = [("Authorization", key)];
        send(server.address, "POST", CHAT, &headers, &body).response()
    };
    for key in ["Bearer first", "Bearer second", "bearer third"] {
        assert_eq!(with(key).status, 200, "{key}");
    }
    for key in ["Bearer fourth", "first", "Bearer", "Basic first"] {
        let refused = with(key);
        assert_eq!(refused.status, 401, "{key}");
        assert_eq!(refused.error().1, "invalid_api_key");
        assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
    }
    assert_eq!(server.get("/v1/models").status, 401);
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(server.get("/metrics").status, 200);
    let server = Server::listening(&["--api-key", "first", "--key-everywhere"]);
    assert_eq!(server.get("/health").status, 401);
}

#[test]
fn others_are_served_only_with_a_key_or_on_demand() {
    let refused = std::process::Command::new(env!("CARGO_BIN_EXE_glimt"))
        .args([
            "serve", "--device", "cpu", "--host", "0.0.0.0", "--port", "0",
        ])
        .env("GLIMT_CONFIG", "")
        .env_remove("GLIMT_API_KEY")
        .output()
        .expect("the binary was built with this test");
    let message = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{message}");
    assert!(message.contains("--no-key"), "{message}");
    Server::listening(&["--host", "0.0.0.0", "--no-key"]);
    Server::listening(&["--host", "0.0.0.0", "--api-key", "k"]);
}

#[test]
fn web_pages_may_ask_only_where_they_are_let() {
    let asks = [
        ("Origin", "https://a.example"),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "authorization"),
    ];
    let server = Server::start(&["--cors", "https://a.example", "--api-key", "k"]);
    let leave = send(server.address, "OPTIONS", CHAT, &asks, "").response();
    assert_eq!(leave.status, 204, "{leave:?}");
    assert_eq!(
        leave.header("access-control-allow-origin"),
        Some("https://a.example")
    );
    assert_eq!(
        leave.header("access-control-allow-headers"),
        Some("authorization")
    );
    let other = [("Origin", "https://b.example"), asks[1]];
    let none = send(server.address, "OPTIONS", CHAT, &other, "").response();
    assert_eq!(none.header("access-control-allow-origin"), None);
    let server = Server::start(&[]);
    let none = send(server.address, "OPTIONS", CHAT, &asks, "").response();
    assert_eq!(none.header("access-control-allow-origin"), None);
}

#[test]
fn what_is_too_long_or_takes_too_long_is_given_up() {
    let mut server = Server::start(&["--max-body", "1", "--timeout", "1"]);
    let large = chat(json!({"user": "x".repeat(2 << 20)})).to_string();
    let head =
        format!("POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n");
    // By what it says of itself, and by what it is.
    let length = format!(
        "{head}Connection: close\r\nContent-Length: {}\r\n\r\n",
        large.len()
    );
    let chunked = format!(
        "{head}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{large}\r\n0\r\n\r\n",
        large.len()
    );
    for request in [length, chunked] {
        let mut stream = TcpStream::connect(server.address).expect("it listens");
        let _ = stream.write_all(request.as_bytes());
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).expect("it answers");
        assert_eq!(&answer, b"HTTP/1.1 413");
    }
    let late = server.post(COMPLETIONS, &long(json!({})));
    assert_eq!(late.status, 504, "{late:?}");
    assert_eq!(late.header("x-should-retry"), Some("false"));
    let late = server
        .post(COMPLETIONS, &long(json!({"stream": true})))
        .events();
    let last = &late[late.len() - 1];
    assert_eq!(last["error"]["code"], "timeout", "{last}");
    server.until_idle();
    let line = server.logged(COMPLETIONS);
    assert_eq!(
        (&line["status"], &line["error"]),
        (&json!(504), &json!("timeout"))
    );
}

#[test]
fn a_line_tells_of_each_request_without_its_text() {
    let mut server = Server::start(&[]);
    let body = chat(json!({"max_tokens": 3})).to_string();
    let headers = [("X-Request-Id", "mine-7")];
    let answer = send(server.address, "POST", CHAT, &headers, &body).response();
    assert_eq!(answer.header("x-request-id"), Some("mine-7"));
    let line = server.logged(CHAT);
    assert_eq!(line["id"], "mine-7");
    assert_eq!(line["status"], 200);
    assert_eq!(line["generated_tokens"], 3);
    assert_eq!(
        line["prompt_tokens"],
        answer.json()["usage"]["prompt_tokens"]
    );
    assert_eq!(line["finish_reasons"], json!(["length"]));
    assert!(
        line["time"].is_string() && line["first_token_seconds"].is_f64(),
        "{line}"
    );
    assert!(!server.read.concat().contains("fox"), "{:?}", server.read);
    let other = server.get("/v1/models");
    assert!(
        other
            .header("x-request-id")
            .is_some_and(|id| id.len() == 32)
    );
    let hostile = [("X-Request-Id", "a b\"c")];
    let other = send(server.address, "GET", "/v1/models", &hostile, "").response();
    assert_ne!(other.header("x-request-id"), Some("a b\"c"));
}

#[test]
fn the_end_comes_in_order() {
    for name in ["-TERM", "-INT"] {
        let mut server = Server::start(&["--parallel", "1"]);
        let mut running = server.begin(
            COMPLETIONS,
            &long(json!({"stream": true, "max_tokens": 60})),
        );
        assert_eq!(running.head().0, 200);
        running.chunk();
        let waiting = server.begin(COMPLETIONS, &completion(json!({})));
        until_waiting(&server, 1.0);
        signal(&server, name);
        server.until("it drains", |server| server.get("/health").status == 503);
        let refused = server.post(COMPLETIONS, &completion(json!({})));
        assert_eq!(refused.status, 503);
        assert!(seconds(&refused) >= 1, "{refused:?}");
        let mut text = String::new();
        while let Some(chunk) = running.chunk() {
            text += &chunk;
        }
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
        assert_eq!(waiting.response().status, 200);
        let status = server.child.wait().expect("it ends");
        assert_eq!(status.code(), Some(0), "{name}: {:?}", server.read);
    }
}

#[test]
fn what_takes_too_long_at_the_end_is_cut_and_a_second_signal_ends_at_once() {
    let mut server = Server::start(&["--drain", "1"]);
    let mut running = server.begin(COMPLETIONS, &long(json!({"stream": true})));
    running.head();
    running.chunk();
    signal(&server, "-TERM");
    let mut text = String::new();
    while let Some(chunk) = running.chunk() {
        text += &chunk;
    }
    assert!(text.contains("about to end"), "{text}");
    assert_eq!(server.child.wait().expect("it ends").code(), Some(1));
    let mut server = Server::start(&[]);
    let mut running = server.begin(COMPLETIONS, &long(json!({"stream": true})));
    running.head();
    running.chunk();
    signal(&server, "-TERM");
    server.until("it drains", |server| server.get("/health").status == 503);
    signal(&server, "-TERM");
    assert_eq!(server.child.wait().expect("it ends").code(), Some(143));
}

#[test]
fn a_model_that_cannot_be_loaded_ends_the_server() {
    let mut server = Server::listening(&["-m", "/no/such/model.gguf"]);
    let line = server.line("glimt: error");
    assert!(line.contains("/no/such/model.gguf"), "{line}");
    assert_eq!(server.child.wait().expect("it ends").code(), Some(1));
}

#[test]
fn an_address_that_is_taken_is_told() {
    let server = Server::listening(&[]);
    let port = server.address.port().to_string();
    let second = std::process::Command::new(env!("CARGO_BIN_EXE_glimt"))
        .args(["serve", "--device", "cpu", "--port", &port])
        .env("GLIMT_CONFIG", "")
        .env_remove("GLIMT_MODEL")
        .output()
        .expect("the binary was built with this test");
    let message = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(1), "{message}");
    assert!(message.contains("cannot listen on 127.0.0.1:"), "{message}");
}

/// Bytes of memory that a process has.
#[cfg(target_os = "linux")]
pub fn memory(server: &Server) -> usize {
    let path = format!("/proc/{}/statm", server.child.id());
    let text = std::fs::read_to_string(path).expect("it runs");
    let pages = text
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<usize>().ok());
    pages.expect("a number") * 4096
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "long: scripts/test --all"]
fn many_requests_and_many_that_are_given_up_leave_nothing_behind() {
    let server = Server::start(&["--queue", "16"]);
    let address = server.address;
    let ask = move |i: usize| {
        let tokens = 1 + i * 7 % 13;
        let prompt = "Once upon a time there was a fox ".repeat(1 + i * 5 % 4);
        let body = completion(json!({
            "prompt": prompt, "max_tokens": tokens, "stream": i.is_multiple_of(2), "temperature": 1, "seed": i,
        }));
        let connection = send(address, "POST", COMPLETIONS, &[], &body.to_string());
        if i.is_multiple_of(3) {
            std::thread::sleep(Duration::from_millis((i % 5 * 20) as u64));
            return None;
        }
        Some(connection.response().status)
    };
    let round = |first: usize| {
        let found: Vec<Option<u16>> = std::thread::scope(|scope| {
            let client = |c: usize| {
                scope.spawn(move || (0..12).map(|i| ask(first + c * 12 + i)).collect::<Vec<_>>())
            };
            let clients: Vec<_> = (0..6).map(client).collect();
            let answers = clients
                .into_iter()
                .flat_map(|c| c.join().expect("a client"));
            answers.collect()
        });
        server.until_idle();
        let answered = found.iter().filter(|status| **status == Some(200)).count();
        let others = found
            .iter()
            .filter(|s| s.is_some_and(|s| s != 200 && s != 429));
        assert_eq!(others.count(), 0, "{found:?}");
        assert!(answered > 24, "{found:?}");
    };
    round(0);
    let before = memory(&server);
    round(1000);
    round(2000);
    let grown = memory(&server).saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes more");
    assert_eq!(server.metric("vllm:kv_cache_usage_perc"), 0.0);
}

#[test]
fn clients_that_go_away_anywhere_leave_nothing_behind() {
    let server = Server::start(&["--queue", "8"]);
    for i in 0..40usize {
        let body = long(json!({"stream": i.is_multiple_of(2)}));
        let mut connection = server.begin(COMPLETIONS, &body);
        // Some find no place.
        if !i.is_multiple_of(2) || connection.head().0 != 200 {
            continue;
        }
        for _ in 0..i % 5 {
            connection.chunk();
        }
    }
    // Half of a head, and half of a body.
    for text in [
        "POST /v1/comp",
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{",
    ] {
        let mut stream = TcpStream::connect(server.address).expect("it listens");
        stream.write_all(text.as_bytes()).expect("it reads");
    }
    server.until_idle();
    server.answer(COMPLETIONS, &completion(json!({"max_tokens": 2})));
}
