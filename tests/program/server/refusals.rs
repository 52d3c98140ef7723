//! Protects who asks for what is not there: every refusal has OpenAI's form, the right status, and the name of the field.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::send;
use super::{CHAT, COMPLETIONS, Server, chat, completion};

/// Wrong fields of conversations, and the names that are told.
fn of_chats() -> Vec<(Value, &'static str)> {
    vec![
        (json!({"messages": null}), "messages"),
        (
            json!({"messages": [{"role": "king", "content": "x"}]}),
            "messages[0].role",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
            "messages[0].content[0].type",
        ),
        (json!({"temperature": 101}), "temperature"),
        (json!({"n": 0}), "n"),
        (json!({"n": 100}), "n"),
        (json!({"stream": "yes"}), "stream"),
        (
            json!({"stream_options": {"include_usage": true}}),
            "stream_options",
        ),
        (json!({"max_tokens": 0}), "max_tokens"),
        (
            json!({"max_completion_tokens": -3}),
            "max_completion_tokens",
        ),
        (json!({"n_predict": 0}), "n_predict"),
        (json!({"stop": vec!["a"; 33]}), "stop"),
        (json!({"stop": [7]}), "stop"),
        (json!({"guided_regex": "[0-9]+"}), "guided_regex"),
        (json!({"mirostat": 1}), "mirostat"),
        (json!({"options": {"temperature": 1}}), "options"),
        (json!({"top_logprobs": 3}), "top_logprobs"),
        (
            json!({"logprobs": true, "top_logprobs": 21}),
            "top_logprobs",
        ),
        (
            json!({"tools": [{"type": "function", "function": {"name": "f g"}}]}),
            "tools[0].function.name",
        ),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "what"}}}}),
            "response_format",
        ),
        (json!({"grammar": "root ::= missing"}), "grammar"),
        (json!({"reasoning_effort": "much"}), "reasoning_effort"),
    ]
}

/// Wrong fields of completions.
fn of_completions() -> Vec<(Value, &'static str)> {
    vec![
        (json!({"prompt": null}), "prompt"),
        (json!({"prompt": ""}), "prompt"),
        (json!({"prompt": [[1], "x", {}]}), "prompt"),
        (json!({"prompt": [99_999_999]}), "prompt"),
        (json!({"suffix": "end"}), "suffix"),
        (json!({"echo": true, "logprobs": 1}), "echo"),
        (json!({"best_of": 2}), "best_of"),
    ]
}

#[test]
fn wrong_fields_are_refused_by_name() {
    let server = Server::start(&[]);
    let chats = of_chats()
        .into_iter()
        .map(|(more, name)| (CHAT, chat(more), name));
    let others = of_completions()
        .into_iter()
        .map(|(more, name)| (COMPLETIONS, completion(more), name));
    for (path, body, name) in chats.chain(others) {
        let refused = server.post(path, &body);
        assert_eq!(refused.status, 400, "{body}: {refused:?}");
        assert_eq!(refused.error().0, name, "{body}: {refused:?}");
        assert_eq!(refused.json()["error"]["type"], "invalid_request_error");
    }
    let endless = json!({"guided_json": {"$ref": "#"}});
    let refused = server.post(CHAT, &chat(endless));
    assert_eq!(refused.status, 400, "{refused:?}");
    assert!(
        refused.json()["error"]["message"]
            .to_string()
            .contains("leads back to itself")
    );
    server.answer(CHAT, &chat(json!({"max_tokens": 1})));
}

#[test]
fn what_is_not_there_is_refused() {
    let server = Server::start(&["--strict-model"]);
    let other = chat(json!({"model": "gpt-9"})).to_string();
    let of = |method, path, headers: &[(&str, &str)], body| {
        let response = send(server.address, method, path, headers, body).response();
        let code = response.error().1;
        (response.status, code)
    };
    let refused = |status: u16, code: &str| (status, code.to_owned());
    assert_eq!(of("GET", "/v1/nothing", &[], ""), refused(404, "not_found"));
    assert_eq!(of("GET", CHAT, &[], ""), refused(405, "method_not_allowed"));
    assert_eq!(
        of("POST", "/v1/embeddings", &[], "{}"),
        refused(404, "not_found")
    );
    let deep = "[".repeat(100_000);
    let plain = [
        ("Content-Type", "text/plain"),
        ("Origin", "http://example.org"),
    ];
    assert_eq!(
        of("POST", CHAT, &plain, "{}"),
        refused(415, "unsupported_media_type")
    );
    // Only pages have to say that it is JSON.
    let missing = of("POST", CHAT, &plain[..1], "{}");
    assert_eq!(missing, of("POST", CHAT, &[], "{}"));
    assert_eq!(missing.0, 400);
    assert_eq!(of("POST", CHAT, &[], "{\"messages\": [").0, 400);
    assert_eq!(of("POST", CHAT, &[], "[1]").0, 400);
    assert_eq!(of("POST", CHAT, &[], &deep).0, 400);
    assert_eq!(
        of("POST", CHAT, &[], &other),
        refused(404, "model_not_found")
    );
}

#[test]
fn a_prompt_that_is_too_long_is_told_with_both_numbers() {
    let server = Server::start(&["-c", "32"]);
    let long = "a fox and a hen ".repeat(40);
    let body = chat(json!({"messages": [{"role": "user", "content": long}]}));
    let refused = server.post(CHAT, &body);
    assert_eq!(refused.status, 400);
    assert_eq!(
        refused.error(),
        ("messages".to_owned(), "context_length_exceeded".to_owned())
    );
    let message = refused.json()["error"]["message"].to_string();
    let count = server.answer("/tokenize", &json!({"messages": body["messages"]}))["count"].clone();
    assert!(
        message.contains(&count.to_string()) && message.contains("32"),
        "{message}"
    );
    // Agents know by one of these wordings that they have to shorten the conversation.
    for wording in [
        "This model's maximum context length is 32 tokens",
        "prompt is too long",
        "exceeds the available context size",
        "Please reduce the length of the messages",
    ] {
        assert!(message.contains(wording), "{message}");
    }
    let refused = server.post(COMPLETIONS, &completion(json!({"prompt": long})));
    assert_eq!(refused.error().1, "context_length_exceeded");
}

#[test]
fn hostile_requests_leave_the_server_as_it_was() {
    let server = Server::start(&[]);
    let ask = |more: Value| {
        let body = completion(more);
        let shown: String = body.to_string().chars().take(90).collect();
        let began = Instant::now();
        let status = server.post(COMPLETIONS, &body).status;
        assert!([200, 400].contains(&status), "{status}: {shown}");
        assert!(began.elapsed() < Duration::from_secs(30), "{shown}");
    };
    let deep = |open: &str, close: &str, n: usize| {
        format!("start: {}\"a\"{}", open.repeat(n), close.repeat(n))
    };
    for grammar in [
        deep("(", ")", 20_000),
        deep("[", "]", 20_000),
        "start: start start | \"a\"".to_owned(),
        "start: /(a|aa)*b{1,9999}{1,9999}/".to_owned(),
        format!("root ::= {}", "(".repeat(200_000)),
        format!("start: \"{}\"", "a".repeat(500_000)),
    ] {
        ask(json!({ "grammar": grammar }));
    }
    for schema in [
        json!({"type": "string", "pattern": "(a{1,1000}){1,1000}"}),
        json!({"type": "array", "minItems": 1_000_000, "items": {"type": "integer"}}),
        json!({"allOf": [{"$ref": "#"}]}),
        json!({"$ref": "http://example.com/schema"}),
        json!({"enum": (0..1000).map(|i| "x".repeat(i)).collect::<Vec<_>>()}),
    ] {
        ask(json!({ "guided_json": schema }));
    }
    ask(json!({"stop": ["a".repeat(1 << 20)]}));
    ask(json!({"prompt": "a".repeat(8 << 20)}));
    ask(json!({"prompt": "\u{0}\u{feff}\u{1f999}"}));
    ask(json!({"max_tokens": i64::MAX, "stop": "a", "seed": i64::MIN}));
    let variables = json!({"messages": [], "bos_token": 3, "add_generation_prompt": "x"});
    let body = chat(json!({"chat_template_kwargs": variables}));
    server.answer(CHAT, &body);
    assert_eq!(server.get("/health").status, 200);
    server.until_idle();
}
