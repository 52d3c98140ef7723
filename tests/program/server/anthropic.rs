//! Protects who uses Anthropic's API: messages, their streams, tools and thoughts, and errors in its form.

use serde_json::{Value, json};

use super::client::send;
use super::{Server, scripted_server, with};

const MESSAGES: &str = "/v1/messages";

fn ask(more: Value) -> Value {
    let body =
        json!({"max_tokens": 200, "messages": [{"role": "user", "content": "Good morning!"}]});
    with(body, more)
}

fn tools() -> Value {
    let schema = |name: &str| json!({"type": "object", "properties": {name: {"type": "string"}}, "required": [name]});
    json!([
        {"name": "read", "description": "Reads.", "input_schema": schema("path"), "cache_control": {"type": "ephemeral"}},
        {"type": "custom", "name": "write", "input_schema": schema("input")},
    ])
}

/// The message that a stream tells, put together as clients do.
fn put_together(events: &[Value]) -> Value {
    let mut message = events[0]["message"].clone();
    let mut partial = String::new();
    for event in events {
        let index = event["index"].as_u64().unwrap_or(0) as usize;
        let content = message["content"].as_array_mut().expect("a list");
        match event["type"].as_str().expect("a text") {
            "content_block_start" => {
                assert_eq!(index, content.len());
                content.push(event["content_block"].clone());
                partial.clear();
            }
            "content_block_delta" => {
                let delta = &event["delta"];
                let kind = delta["type"].as_str().expect("a text");
                if kind == "input_json_delta" {
                    partial += delta["partial_json"].as_str().expect("a text");
                    continue;
                }
                let name = kind.trim_end_matches("_delta");
                let before = content[index][name].as_str().expect("a text").to_owned();
                content[index][name] = (before + delta[name].as_str().expect("a text")).into();
            }
            "content_block_stop" if !partial.is_empty() => {
                content[index]["input"] = serde_json::from_str(&partial).expect("it is JSON");
            }
            "message_delta" => {
                for name in ["stop_reason", "stop_sequence"] {
                    message[name] = event["delta"][name].clone();
                }
                message["usage"] = event["usage"].clone();
            }
            _ => {}
        }
    }
    message
}

/// A message without what differs from one answer to the next.
fn plain(mut message: Value) -> Value {
    message["id"] = Value::Null;
    message["usage"] = json!(message["usage"]["output_tokens"]);
    for block in message["content"].as_array_mut().into_iter().flatten() {
        if block["type"] == "tool_use" {
            block["id"] = Value::Null;
        }
    }
    message
}

pub(super) fn answered(server: &Server, body: Value) -> Value {
    let whole = server.answer(MESSAGES, &body);
    let streamed = server.post(MESSAGES, &with(body, json!({"stream": true})));
    let events = streamed.named_events();
    let kinds: Vec<_> = events.iter().filter_map(|e| e["type"].as_str()).collect();
    assert_eq!(kinds[..2], ["message_start", "ping"]);
    assert_eq!(kinds[kinds.len() - 2..], ["message_delta", "message_stop"]);
    assert_eq!(plain(put_together(&events)), plain(whole.clone()));
    whole
}

#[test]
fn thoughts_come_only_if_they_are_asked_for() {
    let (server, _folder) = scripted_server();
    let plain = answered(&server, ask(json!({})));
    assert!(
        plain["id"]
            .as_str()
            .is_some_and(|id| id.starts_with("msg_"))
    );
    assert_eq!(
        (&plain["type"], &plain["role"]),
        (&json!("message"), &json!("assistant"))
    );
    let text = json!([{"type": "text", "text": "Good morning to all of you! END of this text.", "citations": null}]);
    assert_eq!(plain["content"], text);
    assert_eq!(plain["stop_reason"], "end_turn");
    let usage = &plain["usage"];
    let prompt = usage["input_tokens"].as_u64().expect("a number")
        + usage["cache_read_input_tokens"].as_u64().expect("a number");
    let counted = server.answer(
        "/v1/messages/count_tokens",
        &ask(json!({"max_tokens": null})),
    );
    assert_eq!(counted, json!({"input_tokens": prompt}));
    for kind in ["enabled", "adaptive"] {
        let asked = ask(json!({"thinking": {"type": kind, "budget_tokens": 1024}}));
        let content = answered(&server, asked)["content"].clone();
        assert_eq!(content[0]["type"], "thinking");
        assert_eq!(
            content[0]["thinking"],
            "Somebody greets me, so I greet back."
        );
        assert_eq!(content[1], text[0]);
    }
    let off = ask(json!({"thinking": {"type": "disabled"}}));
    assert_eq!(answered(&server, off)["content"], text);
    let stopped = answered(&server, ask(json!({"stop_sequences": ["never", " END"]})));
    assert_eq!(stopped["content"][0]["text"], "Good morning to all of you!");
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"]),
        (&json!("stop_sequence"), &json!(" END"))
    );
    let cut = answered(&server, ask(json!({"max_tokens": 2})));
    assert_eq!(cut["stop_reason"], "max_tokens");
    assert_eq!(cut["usage"]["output_tokens"], 2);
}

#[test]
fn an_agent_comes_to_its_end() {
    let (server, _folder) = scripted_server();
    let system = json!([{"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}}]);
    let mut messages = vec![json!({"role": "user", "content": [{"type": "text", "text": "Go."}]})];
    let mut calls = vec![];
    for _ in 0..3 {
        let body = ask(json!({"messages": messages, "system": system, "tools": tools()}));
        let answer = answered(&server, body);
        let content = answer["content"].as_array().expect("a list").clone();
        messages.push(json!({"role": "assistant", "content": content}));
        let used: Vec<_> = content.iter().filter(|b| b["type"] == "tool_use").collect();
        if used.is_empty() {
            assert_eq!(answer["stop_reason"], "end_turn");
            assert_eq!(content[0]["text"], "Both steps are done.");
            break;
        }
        assert_eq!(answer["stop_reason"], "tool_use");
        let result = json!([{"type": "text", "text": "done"}]);
        messages.push(json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": used[0]["id"], "content": result, "is_error": false},
        ]}));
        calls.push((used[0]["name"].clone(), used[0]["input"].clone()));
    }
    let expected = [
        (json!("read"), json!({"path": "a \"b\".txt"})),
        (json!("write"), json!({"input": "one\ntwo ✓"})),
    ];
    assert_eq!(calls, expected);
    assert_eq!(messages[1]["content"][0]["text"], "Reading it first.");
    let none = ask(json!({"tools": tools(), "tool_choice": {"type": "none"}}));
    assert_eq!(answered(&server, none)["content"][0]["type"], "text");
    let forced = ask(
        json!({"tools": tools(), "tool_choice": {"type": "tool", "name": "read"}, "max_tokens": 100}),
    );
    let forced = server.answer(MESSAGES, &forced);
    assert_eq!(forced["content"][0]["name"], "read", "{forced}");
}

#[test]
fn errors_are_told_in_its_form() {
    let (server, _folder) = scripted_server();
    let block = |block: Value| json!({"messages": [{"role": "user", "content": [block]}]});
    for (more, field) in [
        (json!({"messages": []}), "'messages'"),
        (json!({"max_tokens": 0}), "'max_tokens'"),
        (json!({"temperature": 101}), "'temperature'"),
        (
            json!({"messages": [{"role": "king", "content": "x"}]}),
            "'messages[0].role'",
        ),
        (
            block(json!({"type": "image", "source": {}})),
            "'messages[0].content[0].type'",
        ),
        (json!({"stop_sequences": [7]}), "'stop_sequences'"),
        (
            json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
            "'tools[0].type'",
        ),
        (
            json!({"tools": [{"name": "a b", "input_schema": {}}]}),
            "'tools[0].name'",
        ),
        (json!({"mcp_servers": [{}]}), "'mcp_servers'"),
        (json!({"n": 2}), "'n'"),
    ] {
        let refused = server.post(MESSAGES, &ask(more.clone()));
        assert_eq!(refused.status, 400, "{more}");
        let body = refused.json();
        assert_eq!(body["type"], "error");
        assert_eq!(body["error"]["type"], "invalid_request_error");
        let message = body["error"]["message"].as_str().expect("a text");
        assert!(message.contains(field), "{more}: {message}");
        assert_eq!(refused.header("x-request-id"), body["request_id"].as_str());
    }
    let long: Vec<_> = (0..200)
        .map(|_| json!({"role": "user", "content": "x".repeat(40)}))
        .collect();
    let refused = server
        .post(MESSAGES, &ask(json!({"messages": long})))
        .json();
    let message = refused["error"]["message"].as_str().expect("a text");
    assert!(
        message.starts_with("prompt is too long: ") && message.contains(" tokens > 4096 maximum"),
        "{message}"
    );
    let missing = server.post("/v1/messages/count", &json!({}));
    assert_eq!(
        (missing.status, missing.json()["error"]["type"].clone()),
        (404, json!("not_found_error"))
    );
    let guarded = Server::start(&["--api-key", "first"]);
    let status = |headers: &[(&str, &str)]| {
        let body = ask(json!({"max_tokens": 1})).to_string();
        send(guarded.address, "POST", MESSAGES, headers, &body).response()
    };
    let refused = status(&[("x-api-key", "second")]);
    assert_eq!(refused.json()["error"]["type"], "authentication_error");
    assert_eq!(status(&[("x-api-key", "first")]).status, 200);
    // Anthropic's clients ask for models where those of OpenAI do.
    let headers = [("anthropic-version", "2023-06-01")];
    let models = send(guarded.address, "GET", "/v1/models", &headers, "").response();
    assert_eq!(models.json()["error"]["type"], "authentication_error");
}

#[test]
fn a_last_message_of_the_model_is_gone_on_with() {
    let (server, _folder) = scripted_server();
    let turns =
        json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Good"}]);
    let asked = json!({"messages": turns, "continue_final_message": true});
    let prompt = server.answer("/apply-template", &asked)["prompt"].clone();
    assert_eq!(prompt, "user: Hi<|quiet|>Good");
    let counted = server.answer(
        "/v1/messages/count_tokens",
        &ask(json!({"messages": turns})),
    );
    // One for each letter, and one for the special token.
    assert_eq!(counted["input_tokens"], "user: HiGood".len() + 1);
}
