//! Protects memory from requests for so many answers that making them before they are counted would take all of it.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::attacked::memory;
use super::{CHAT, COMPLETIONS, Server, friendly};

/// Bytes of memory that a refusal may take for a moment.
const FEW: u64 = 64 << 20;

/// The most memory that a process had so far.
const MOST: &str = "VmHWM";

/// Many answers to many prompts, with something that each of them would have a copy of.
fn orders() -> Vec<(&'static str, Value)> {
    let properties: serde_json::Map<String, Value> = (0..400)
        .map(|i| (format!("p{i}"), json!({"type": "string"})))
        .collect();
    let choices: Vec<String> = (0..3000).map(|i| format!("choice {i}")).collect();
    let biases: serde_json::Map<String, Value> =
        (0..2000).map(|i| (i.to_string(), json!(1))).collect();
    vec![
        (
            "n",
            json!({"guided_json": {"type": "object", "properties": properties}}),
        ),
        ("n", json!({"guided_choice": choices})),
        ("n", json!({"logit_bias": biases})),
        ("n", json!({"prompt": vec![vec![60; 1000]; 128]})),
        ("n", json!({})),
        (
            "logit_bias",
            json!({"logit_bias": {"1": 1, "01": 1, "001": 1}}),
        ),
        ("logit_bias", json!({"logit_bias": {"+1": 1}})),
        ("logit_bias", json!({"logit_bias": {"1 ": 1}})),
        ("logit_bias", json!({"logit_bias": [[1, 1], [1, 2]]})),
    ]
}

#[test]
fn answers_are_counted_before_they_are_made() {
    let server = Server::start(&[]);
    friendly(&server);
    let before = memory(&server, MOST);
    for (field, more) in orders() {
        let mut body = json!({"prompt": vec!["a"; 128], "n": 128, "max_tokens": 1});
        let fields = body.as_object_mut().expect("it is an object");
        fields.extend(more.as_object().expect("it is an object").clone());
        let began = Instant::now();
        let refused = server.post(COMPLETIONS, &body);
        assert_eq!(
            (refused.status, refused.error().0.as_str()),
            (400, field),
            "{refused:?}"
        );
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "{field}: {:?}",
            began.elapsed()
        );
        if field == "n" {
            let told = refused.body;
            assert!(told.contains("16384") && told.contains("1024"), "{told}");
        }
    }
    if let (Some(before), Some(after)) = (before, memory(&server, MOST)) {
        assert!(after < before + FEW, "{before} before, {after} after");
    }
    // More than there are places, but not more than a request may ask for.
    let refused = server.post(
        CHAT,
        &json!({"messages": [{"role": "user", "content": "a"}], "n": 100}),
    );
    assert_eq!(
        (refused.status, refused.error().0.as_str()),
        (400, "n"),
        "{refused:?}"
    );
    friendly(&server);
}

#[test]
fn many_answers_of_a_large_form_take_the_memory_of_few() {
    let server = Server::start(&["--parallel", "2"]);
    friendly(&server);
    let before = memory(&server, MOST);
    let choices: Vec<String> = (0..1000).map(|i| format!("choice {i}")).collect();
    let body = json!({"prompt": "a", "n": 60, "max_tokens": 1, "guided_choice": choices, "temperature": 1, "seed": 1});
    let answer = server.answer(COMPLETIONS, &body);
    let texts = answer["choices"].as_array().expect("a list");
    assert_eq!(texts.len(), 60);
    assert!(
        texts
            .iter()
            .all(|choice| choice["finish_reason"] == "length"),
        "{answer}"
    );
    if let (Some(before), Some(after)) = (before, memory(&server, MOST)) {
        assert!(after < before + FEW, "{before} before, {after} after");
    }
}

#[test]
fn a_line_of_a_batch_that_asks_for_too_much_has_an_error_and_the_others_are_answered() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (input, output) = (folder.path().join("in"), folder.path().join("out"));
    let line = |id: &str, body: Value| {
        json!({"custom_id": id, "method": "POST", "url": COMPLETIONS, "body": body}).to_string()
    };
    let huge = json!({"prompt": vec!["a"; 128], "n": 128, "max_tokens": 1, "guided_json": {"type": "object"}});
    let good = json!({"prompt": "Once", "max_tokens": 2, "n": 3});
    let lines = [
        line("first", good.clone()),
        line("huge", huge),
        line("last", good),
    ];
    std::fs::write(&input, lines.join("\n")).expect("it is writable");
    let ran = Command::new(env!("CARGO_BIN_EXE_glimt"))
        .args(["batch", "--device", "cpu", "--allow-errors"])
        .args([&input, &output])
        .env("GLIMT_CONFIG", "")
        .output()
        .expect("the binary was built with this test");
    assert!(
        ran.status.success(),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    let answers = std::fs::read_to_string(&output).expect("it was written");
    let mut found: Vec<(String, u64)> = answers
        .lines()
        .map(|line| {
            let line: Value = serde_json::from_str(line).expect("lines are JSON");
            let id = line["custom_id"].as_str().expect("an id").to_owned();
            (
                id,
                line["response"]["status_code"].as_u64().expect("a status"),
            )
        })
        .collect();
    found.sort();
    let expected = [("first", 200), ("huge", 400), ("last", 200)];
    assert_eq!(found, expected.map(|(id, status)| (id.to_owned(), status)));
}
