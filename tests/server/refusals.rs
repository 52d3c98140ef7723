//! Protects who asks for what is not there: every refusal has OpenAI's form, the right status, and the name of the field.

use serde_json::{Value, json};

use super::client::send;
use super::{CHAT, COMPLETIONS, Server, chat, completion};

#[test]
fn wrong_fields_are_refused_by_name() {
    let server = Server::start(&[]);
    let cases: Vec<(&str, Value, &str)> = vec![
        (CHAT, json!({"messages": null}), "messages"),
        (
            CHAT,
            json!({"messages": [{"role": "king", "content": "x"}]}),
            "messages[0].role",
        ),
        (
            CHAT,
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
            "messages[0].content[0].type",
        ),
        (CHAT, json!({"temperature": 3}), "temperature"),
        (CHAT, json!({"n": 0}), "n"),
        (CHAT, json!({"n": 100}), "n"),
        (CHAT, json!({"stream": "yes"}), "stream"),
        (
            CHAT,
            json!({"stream_options": {"include_usage": true}}),
            "stream_options",
        ),
        (CHAT, json!({"max_tokens": 0}), "max_tokens"),
        (
            CHAT,
            json!({"max_completion_tokens": -1}),
            "max_completion_tokens",
        ),
        (CHAT, json!({"stop": ["a", "b", "c", "d", "e"]}), "stop"),
        (CHAT, json!({"stop": [""]}), "stop"),
        (CHAT, json!({"top_logprobs": 3}), "top_logprobs"),
        (
            CHAT,
            json!({"logprobs": true, "top_logprobs": 21}),
            "top_logprobs",
        ),
        (
            CHAT,
            json!({"tools": [{"type": "function", "function": {"name": "f"}}]}),
            "tools",
        ),
        (
            CHAT,
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "what"}}}}),
            "response_format",
        ),
        (CHAT, json!({"grammar": "root ::= missing"}), "grammar"),
        (
            CHAT,
            json!({"reasoning_effort": "much"}),
            "reasoning_effort",
        ),
        (COMPLETIONS, json!({"prompt": null}), "prompt"),
        (COMPLETIONS, json!({"prompt": ""}), "prompt"),
        (COMPLETIONS, json!({"prompt": [[1], "x", {}]}), "prompt"),
        (COMPLETIONS, json!({"prompt": [99_999_999]}), "prompt"),
        (COMPLETIONS, json!({"suffix": "end"}), "suffix"),
        (COMPLETIONS, json!({"echo": true, "logprobs": 1}), "echo"),
        (COMPLETIONS, json!({"best_of": 2}), "best_of"),
    ];
    for (path, more, name) in cases {
        let body = if path == CHAT {
            chat(more)
        } else {
            completion(more)
        };
        let refused = server.post(path, &body);
        assert_eq!(refused.status, 400, "{body}: {refused:?}");
        assert_eq!(refused.error().0, name, "{body}: {refused:?}");
        assert_eq!(refused.json()["error"]["type"], "invalid_request_error");
    }
    server.answer(CHAT, &chat(json!({"max_tokens": 1})));
}

#[test]
fn what_is_not_there_is_refused() {
    let server = Server::start(&[]);
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
        refused(400, "unsupported")
    );
    let deep = "[".repeat(100_000);
    let plain = [("Content-Type", "text/plain")];
    assert_eq!(
        of("POST", CHAT, &plain, "{}"),
        refused(415, "unsupported_media_type")
    );
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
    let refused = server.post(COMPLETIONS, &completion(json!({"prompt": long})));
    assert_eq!(refused.error().1, "context_length_exceeded");
}
