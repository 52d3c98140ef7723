//! Protects others from bodies, texts and forms that take much time or memory.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::attacked::{PATIENCE, answer_to, answered, bystander, chat, memory, request, sent};
use super::{CHAT, Server};

/// Sends a request that must be refused soon, while others are served.
fn refused(server: &Server, name: &str, body: &Value) {
    let began = Instant::now();
    let answer = server.post(CHAT, body);
    assert!((400..500).contains(&answer.status), "{name}: {answer:?}");
    assert!(
        began.elapsed() < 2 * PATIENCE,
        "{name}: {:?}",
        began.elapsed()
    );
    assert!(bystander(server) < PATIENCE, "{name}");
}

#[test]
fn forms_that_are_too_large_are_refused_at_once() {
    let server = Server::start(&[]);
    let texts = |n: usize| (0..n).map(|i| format!("x{i}")).collect::<Vec<_>>();
    let quoted = |n: usize| texts(n).join("\" | \"");
    let map = |n: usize| -> Value {
        let all = texts(n)
            .into_iter()
            .map(|name| (name, json!({"type": "string"})));
        Value::Object(all.collect())
    };
    let chain: String = (0..1900)
        .map(|i| format!("r{i} ::= r{} {}\n", i + 1, "\"abcdef\" ".repeat(8)))
        .collect();
    for (name, form) in [
        (
            "one line",
            json!({"grammar": format!("start: \"{}\"", quoted(200_000))}),
        ),
        (
            "gbnf",
            json!({"grammar": format!("root ::= \"{}\"", quoted(200_000))}),
        ),
        (
            "a chain of rules",
            json!({"grammar": format!("{chain}root ::= r0\nr1900 ::= \"x\"")}),
        ),
        (
            "groups",
            json!({"grammar": format!("start: {}", "(".repeat(1_000_000))}),
        ),
        ("choices", json!({"guided_choice": texts(100_000)})),
        (
            "properties",
            json!({"guided_json": {"type": "object", "properties": map(20_000)}}),
        ),
        ("values", json!({"guided_json": {"enum": texts(200_000)}})),
        (
            "names",
            json!({"guided_json": {"type": "object", "properties": map(4000), "propertyNames": {"enum": texts(200_000)}}}),
        ),
        ("stops", json!({"stop": texts(100_000)})),
        (
            "expression",
            json!({"structured_outputs": {"regex": "(a|b)".repeat(100_000)}}),
        ),
    ] {
        refused(&server, name, &chat(form));
    }
}

#[test]
fn tools_that_refer_to_themselves_end() {
    let server = Server::start(&[]);
    let named = json!({"$ref": "#"});
    let schema = json!({"type": "object", "anyOf": vec![named; 12], "properties": {"a": {}}});
    let tool = json!({"name": "f", "input_schema": schema});
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "tools": [tool]});
    let began = Instant::now();
    let answer = server.post("/v1/messages/count_tokens", &body);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(began.elapsed() < 2 * PATIENCE);
}

#[test]
fn work_whose_client_has_left_keeps_nobody_waiting() {
    let server = Server::start(&[]);
    let choices: Vec<_> = (0..50_000).map(|i| format!("c{i}")).collect();
    let form = request(CHAT, &chat(json!({"guided_choice": choices})).to_string());
    let text = request(
        CHAT,
        &chat(json!({"messages": [{"role": "user", "content": "zq".repeat(4_000_000)}]}))
            .to_string(),
    );
    for bomb in [form, text] {
        // Bytes behind the request must not hide that the client has left.
        let bomb = format!("{bomb}GET");
        let left: Vec<_> = (0..8).map(|_| sent(&server, bomb.as_bytes())).collect();
        std::thread::sleep(Duration::from_millis(300));
        drop(left);
        assert!(bystander(&server) < PATIENCE);
    }
}

#[test]
fn texts_that_are_too_long_are_not_read_to_their_end() {
    let server = Server::start(&[]);
    for piece in ["zq", " ", "😀", "the fox ", "\n", "<|user|>", "<"] {
        let content = piece.repeat(4_000_000 / piece.len());
        let body = chat(json!({"messages": [{"role": "user", "content": content}]}));
        let began = Instant::now();
        let answer = server.post(CHAT, &body);
        assert_eq!(
            (answer.status, answer.error().1.as_str()),
            (400, "context_length_exceeded"),
            "{piece:?}"
        );
        assert!(
            began.elapsed() < 3 * PATIENCE,
            "{piece:?}: {:?}",
            began.elapsed()
        );
    }
}

#[test]
fn small_bodies_are_read_beside_large_ones_that_do_not_come() {
    let server = Server::start(&[]);
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 15000000\r\n\r\n{";
    let stalled: Vec<_> = (0..20).map(|_| sent(&server, head.as_bytes())).collect();
    std::thread::sleep(Duration::from_millis(300));
    assert!(bystander(&server) < PATIENCE);
    let middle = chat(json!({"user": "a".repeat(200_000)}));
    assert_eq!(server.post(CHAT, &middle).status, 200);
    drop(stalled);
}

#[test]
fn values_that_nothing_reads_take_no_memory_and_too_many_are_refused() {
    let server = Server::start(&[]);
    assert_eq!(server.post(CHAT, &chat(json!({}))).status, 200);
    let before = memory(&server, "VmRSS");
    let many = format!("[{}0]", "{\"\":0},".repeat(1_000_000));
    let short = chat(json!({})).to_string();
    let with = |name: &str| short.replacen('{', &format!("{{\"{name}\":{many},"), 1);
    assert_eq!(answer_to(&server, &with("x")).status, 200);
    let answer = answer_to(&server, &with("metadata"));
    assert_eq!(
        (answer.status, answer.error().1.as_str()),
        (413, "request_too_large")
    );
    if let (Some(before), Some(after)) = (before, memory(&server, "VmRSS")) {
        assert!(
            after < before + (50 << 20),
            "{before} before, {after} after"
        );
    }
}

#[test]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn long_texts_leave_no_memory() {
    let server = Server::start(&[]);
    server.answer(CHAT, &chat(json!({})));
    let before = memory(&server, "VmRSS").expect("the system tells it");
    for piece in ["a", " ", "😀", "<"] {
        let content = piece.repeat(12_000_000 / piece.len());
        let body = chat(json!({"messages": [{"role": "user", "content": content}]}));
        assert_eq!(server.post(CHAT, &body).status, 400);
    }
    server.until("its memory is given back", |server| {
        memory(server, "VmRSS").is_some_and(|after| after < before + (50 << 20))
    });
}

#[test]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[ignore = "long: scripts/test --all"]
fn memory_of_large_bodies_and_forms_goes_back() {
    let server = Server::start(&[]);
    server.answer(CHAT, &chat(json!({})));
    let before = memory(&server, "VmRSS").expect("the system tells it");
    let many = format!("[{}0]", "{\"\":0},".repeat(1_000_000));
    let unknown = chat(json!({}))
        .to_string()
        .replacen('{', &format!("{{\"x\":{many},"), 1);
    let rules = |n: usize| -> String {
        let names: Vec<_> = (0..n).map(|i| format!("r{i}")).collect();
        let rules = (0..n).map(|i| format!("r{i} ::= \"x{i}\"\n"));
        format!(
            "root ::= {}\n{}",
            names.join(" | "),
            rules.collect::<String>()
        )
    };
    let forms = [9000, 1000].map(|n| chat(json!({"grammar": rules(n)})).to_string());
    for round in 0..6 {
        answer_to(&server, &unknown);
        let form = request(CHAT, &forms[round % 2]);
        let sent: Vec<_> = (0..4).map(|_| sent(&server, form.as_bytes())).collect();
        sent.into_iter().map(answered).for_each(drop);
    }
    // It is given back for all that was used every 5 seconds.
    std::thread::sleep(Duration::from_secs(8));
    let after = memory(&server, "VmRSS").expect("the system tells it");
    assert!(
        after < before + (50 << 20),
        "{before} bytes before, {after} after"
    );
}
