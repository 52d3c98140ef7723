//! Protects others from bodies, texts and forms that take much time or memory.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::attacked::{PATIENCE, Served, chat, request};

const CHAT: &str = "/v1/chat/completions";

/// Sends a request that must be refused soon, while others are served.
fn refused(served: &Served, name: &str, body: &str) {
    let began = Instant::now();
    let answer = served.post(CHAT, body);
    assert!((400..500).contains(&answer.status), "{name}: {answer:?}");
    assert!(
        began.elapsed() < 2 * PATIENCE,
        "{name}: {:?}",
        began.elapsed()
    );
    assert!(served.bystander() < PATIENCE, "{name}");
}

#[test]
fn forms_that_are_too_large_are_refused_at_once() {
    let served = Served::start();
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
        refused(&served, name, &chat(form));
    }
}

#[test]
fn tools_that_refer_to_themselves_end() {
    let served = Served::start();
    let named = json!({"$ref": "#"});
    let schema = json!({"type": "object", "anyOf": vec![named; 12], "properties": {"a": {}}});
    let tool = json!({"name": "f", "input_schema": schema});
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "tools": [tool]});
    let began = Instant::now();
    let answer = served.post("/v1/messages/count_tokens", &body.to_string());
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(began.elapsed() < 2 * PATIENCE);
}

#[test]
fn work_whose_client_has_left_keeps_nobody_waiting() {
    let served = Served::start();
    let choices: Vec<_> = (0..50_000).map(|i| format!("c{i}")).collect();
    let form = request(CHAT, &chat(json!({"guided_choice": choices})));
    let text = request(
        CHAT,
        &chat(json!({"messages": [{"role": "user", "content": "zq".repeat(4_000_000)}]})),
    );
    for bomb in [form, text] {
        // Bytes behind the request must not hide that the client has left.
        let bomb = format!("{bomb}GET");
        let sent: Vec<_> = (0..8).map(|_| served.sent(bomb.as_bytes())).collect();
        std::thread::sleep(Duration::from_millis(300));
        drop(sent);
        assert!(served.bystander() < PATIENCE);
    }
}

#[test]
fn texts_that_are_too_long_are_not_read_to_their_end() {
    let served = Served::start();
    for piece in ["zq", " ", "😀", "the fox ", "\n", "<|user|>", "<"] {
        let content = piece.repeat(4_000_000 / piece.len());
        let body = chat(json!({"messages": [{"role": "user", "content": content}]}));
        let began = Instant::now();
        let answer = served.post(CHAT, &body);
        assert_eq!(
            (answer.status, answer.code().as_str()),
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
    let served = Served::start();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 15000000\r\n\r\n{";
    let stalled: Vec<_> = (0..20).map(|_| served.sent(head.as_bytes())).collect();
    std::thread::sleep(Duration::from_millis(300));
    assert!(served.bystander() < PATIENCE);
    let middle = chat(json!({"user": "a".repeat(200_000)}));
    assert_eq!(served.post(CHAT, &middle).status, 200);
    drop(stalled);
}

#[test]
fn values_that_nothing_reads_take_no_memory_and_too_many_are_refused() {
    let served = Served::start();
    assert_eq!(served.post(CHAT, &chat(json!({}))).status, 200);
    let before = served.memory();
    let many = format!("[{}0]", "{\"\":0},".repeat(1_000_000));
    let unknown = chat(json!({})).replacen('{', &format!("{{\"x\":{many},"), 1);
    assert_eq!(served.post(CHAT, &unknown).status, 200);
    let known = chat(json!({})).replacen('{', &format!("{{\"metadata\":{many},"), 1);
    let answer = served.post(CHAT, &known);
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (413, "request_too_large")
    );
    if let (Some(before), Some(after)) = (before, served.memory()) {
        assert!(after < before + 50, "{before} MB before, {after} MB after");
    }
}

#[test]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[ignore = "long: scripts/test --all"]
fn memory_of_large_bodies_and_forms_goes_back() {
    let served = Served::start();
    assert_eq!(served.post(CHAT, &chat(json!({}))).status, 200);
    let before = served.memory().expect("the system tells it");
    let many = format!("[{}0]", "{\"\":0},".repeat(1_000_000));
    let unknown = chat(json!({})).replacen('{', &format!("{{\"x\":{many},"), 1);
    let rules = |n: usize| -> String {
        let names: Vec<_> = (0..n).map(|i| format!("r{i}")).collect();
        let rules = (0..n).map(|i| format!("r{i} ::= \"x{i}\"\n"));
        format!(
            "root ::= {}\n{}",
            names.join(" | "),
            rules.collect::<String>()
        )
    };
    let forms = [9000, 1000].map(|n| chat(json!({"grammar": rules(n)})));
    for round in 0..6 {
        served.post(CHAT, &unknown);
        let form = request(CHAT, &forms[round % 2]);
        let sent: Vec<_> = (0..4).map(|_| served.sent(form.as_bytes())).collect();
        sent.into_iter().map(super::attacked::answer).for_each(drop);
    }
    // It is given back for all that was used every 5 seconds.
    std::thread::sleep(Duration::from_secs(8));
    let after = served.memory().expect("the system tells it");
    assert!(after < before + 50, "{before} MB before, {after} MB after");
}
