//! Protects others from grammars that take long to follow: these end their own request alone, and the others decode on.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::served::Server;

const COMPLETIONS: &str = "/v1/completions";

/// A completion with a grammar of which each character leaves open which rules have matched.
fn hostile(seed: u64) -> Value {
    let grammar =
        "start: a\na: b c | c b | /[a-z ]/\nb: a c | c a | /[a-z ]/\nc: a b | b a | /[a-z ]/";
    json!({"prompt": "a", "grammar": grammar, "max_tokens": 200, "temperature": 1, "seed": seed, "ignore_eos": true})
}

fn friendly(more: Value) -> Value {
    let mut body = json!({"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "ignore_eos": true});
    let more = more.as_object().expect("it is an object").clone();
    body.as_object_mut().expect("it is one").extend(more);
    body
}

/// How a request ended whose grammar is too much: with its own error, or before it was followed at all.
fn assert_ended(status: u16, error: &Value) {
    let message = error["message"].as_str().unwrap_or_default();
    let by_time = error["code"] == "grammar_too_slow" && message.contains("seconds");
    let by_size = message.contains("at one place");
    assert!(status == 400 && (by_time || by_size), "{status} {error}");
    assert!(!message.contains("backtrace"), "{message}");
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_grammar_slows_only_its_own_request() {
    let server = Server::start(&[
        "--device",
        "0",
        "--tier",
        "subgroup",
        "-c",
        "256",
        "--parallel",
        "4",
    ]);
    let alone = server.answer(COMPLETIONS, &friendly(json!({})));
    let slow: Vec<_> = (0..2)
        .map(|seed| server.begin(COMPLETIONS, &hostile(seed)))
        .collect();
    server.until("they are answered", |server| {
        server.metric("vllm:num_requests_running") > 1.0
    });
    let schema = json!({"guided_json": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}});
    let began = Instant::now();
    for _ in 0..3 {
        let beside = server.answer(COMPLETIONS, &friendly(json!({})));
        assert_eq!(beside["choices"][0]["text"], alone["choices"][0]["text"]);
        server.answer(COMPLETIONS, &friendly(schema.clone()));
    }
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "{:?}",
        began.elapsed()
    );
    for slow in slow {
        let answer = slow.response();
        assert_ended(answer.status, &answer.json()["error"]);
    }
    server.until_idle();
    server.answer(COMPLETIONS, &friendly(schema));
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_grammar_holds_the_cpu_no_longer_than_its_time() {
    let server = Server::start(&["-c", "256"]);
    let began = Instant::now();
    let answer = server.post(COMPLETIONS, &hostile(1));
    assert_ended(answer.status, &answer.json()["error"]);
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "{:?}",
        began.elapsed()
    );
    server.answer(COMPLETIONS, &friendly(json!({})));
}
