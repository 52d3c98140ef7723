//! Protects who uses ollama's API: chats and prompts, their streams, tools and thoughts, what is told of the model, and errors in its form.

use serde_json::{Value, json};

use super::{Server, scripted_server, with};

const CHAT: &str = "/api/chat";
const GENERATE: &str = "/api/generate";

fn ask(more: Value) -> Value {
    let body =
        json!({"model": "script", "messages": [{"role": "user", "content": "Good morning!"}]});
    with(body, more)
}

fn tools() -> Value {
    let tool = |name: &str, key: &str| {
        let schema = json!({"type": "object", "properties": {key: {"type": "string"}}});
        json!({"type": "function", "function": {"name": name, "parameters": schema}})
    };
    json!([tool("read", "path"), tool("write", "input")])
}

/// The texts, thoughts and calls of the lines of a stream, whose last line says that it is the last.
fn joined(lines: &[Value]) -> (String, String, Vec<Value>) {
    let (mut text, mut thoughts, mut calls) = (String::new(), String::new(), vec![]);
    for (i, line) in lines.iter().enumerate() {
        assert_eq!(line["done"], i + 1 == lines.len());
        assert!(line["created_at"].is_string() && line["model"] == "script");
        let message = &line["message"];
        assert_eq!(message["role"], "assistant");
        text += message["content"].as_str().expect("a text");
        thoughts += message["thinking"].as_str().unwrap_or_default();
        calls.extend(
            message["tool_calls"]
                .as_array()
                .into_iter()
                .flatten()
                .cloned(),
        );
    }
    (text, thoughts, calls)
}

/// The message that answers, which is the same as a whole and in lines.
pub(super) fn answered(server: &Server, body: Value) -> Value {
    let whole = server.answer(CHAT, &with(body.clone(), json!({"stream": false})));
    let message = &whole["message"];
    let lines = server.post(CHAT, &body).lines();
    let (text, thoughts, calls) = joined(&lines);
    assert_eq!(message["content"], text);
    assert_eq!(message["thinking"].as_str().unwrap_or_default(), thoughts);
    let functions = |calls: &[Value]| {
        calls
            .iter()
            .map(|c| c["function"].clone())
            .collect::<Vec<_>>()
    };
    let expected = message["tool_calls"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    assert_eq!(functions(&calls), functions(&expected));
    for last in [&whole, &lines[lines.len() - 1]] {
        for name in [
            "total_duration",
            "prompt_eval_count",
            "prompt_eval_duration",
            "eval_count",
            "eval_duration",
        ] {
            assert!(last[name].is_u64(), "{last}");
        }
    }
    whole
}

#[test]
fn chats_are_streamed_unless_that_is_forbidden() {
    let (server, _folder) = scripted_server();
    let whole = answered(&server, ask(json!({})));
    assert_eq!(
        whole["message"]["content"],
        "Good morning to all of you! END of this text."
    );
    assert_eq!(
        whole["message"]["thinking"],
        "Somebody greets me, so I greet back."
    );
    assert_eq!(whole["done_reason"], "stop");
    let quiet = answered(
        &server,
        ask(json!({"think": false, "model": "script:latest"})),
    );
    assert_eq!(quiet["message"].get("thinking"), None);
    let options = json!({"num_predict": 2, "num_ctx": 8192, "temperature": 0.5, "seed": 1});
    let cut = answered(&server, ask(json!({"think": false, "options": options})));
    assert_eq!(
        (&cut["done_reason"], &cut["eval_count"]),
        (&json!("length"), &json!(2))
    );
    let stopped = answered(
        &server,
        ask(json!({"think": false, "options": {"stop": [" END"], "num_predict": -1}})),
    );
    assert_eq!(stopped["message"]["content"], "Good morning to all of you!");
    let schema = json!({"type": "object", "properties": {"n": {"enum": [7]}}, "required": ["n"], "additionalProperties": false});
    let formed = answered(&server, ask(json!({"think": false, "format": schema})));
    let found: Value = serde_json::from_str(formed["message"]["content"].as_str().expect("a text"))
        .expect("it is JSON");
    assert_eq!(found, json!({"n": 7}));
    for (body, reason) in [
        (json!({"messages": []}), "load"),
        (json!({"messages": [], "keep_alive": 0}), "unload"),
    ] {
        let loaded = server.answer(CHAT, &body);
        assert_eq!(
            (&loaded["done"], &loaded["done_reason"]),
            (&json!(true), &json!(reason))
        );
    }
}

#[test]
fn an_agent_comes_to_its_end() {
    let (server, _folder) = scripted_server();
    let mut messages = vec![json!({"role": "user", "content": "Go."})];
    let mut calls = vec![];
    for _ in 0..3 {
        let message = answered(
            &server,
            ask(json!({"messages": messages, "tools": tools()})),
        )["message"]
            .clone();
        messages.push(message.clone());
        let Some(call) = message["tool_calls"].get(0) else {
            assert_eq!(message["content"], "Both steps are done.");
            break;
        };
        let name = call["function"]["name"].clone();
        messages.push(json!({"role": "tool", "tool_name": name, "content": "done"}));
        calls.push((name, call["function"]["arguments"].clone()));
    }
    let expected = [
        (json!("read"), json!({"path": "a \"b\".txt"})),
        (json!("write"), json!({"input": "one\ntwo ✓"})),
    ];
    assert_eq!(calls, expected);
}

#[test]
fn prompts_are_answered_with_and_without_the_template() {
    let (server, _folder) = scripted_server();
    let asked = json!({"prompt": "Good morning!", "system": "Be short.", "think": false});
    let lines = server.post(GENERATE, &asked).lines();
    let texts: String = lines
        .iter()
        .filter_map(|line| line["response"].as_str())
        .collect();
    assert_eq!(texts, "Good morning to all of you! END of this text.");
    let raw = json!({"prompt": "<|quiet|>", "raw": true, "stream": false});
    assert_eq!(server.answer(GENERATE, &raw)["response"], texts);
    assert_eq!(
        server.answer(GENERATE, &json!({"prompt": ""}))["done_reason"],
        "load"
    );
}

#[test]
fn the_model_is_told_of() {
    let (server, _folder) = scripted_server();
    for path in ["/api/tags", "/api/ps"] {
        let models = server.get(path).json()["models"].clone();
        assert_eq!(models[0]["name"], "script:latest");
        assert!(
            models[0]["size"]
                .as_u64()
                .is_some_and(|size| size > 1_000_000)
        );
        assert_eq!(models[0]["details"]["quantization_level"], "F16");
    }
    let shown = server.answer("/api/show", &json!({"model": "script"}));
    assert_eq!(
        shown["capabilities"],
        json!(["completion", "tools", "thinking"])
    );
    assert_eq!(shown["model_info"]["deepseek2.context_length"], 4096);
    assert_eq!(shown["details"]["family"], "deepseek2");
    assert!(server.get("/api/version").json()["version"].is_string());
}

#[test]
fn errors_are_told_in_its_form() {
    let (server, _folder) = scripted_server();
    let image = json!([{"role": "user", "content": "x", "images": ["aGk="]}]);
    for (path, body, field) in [
        (
            CHAT,
            ask(json!({"messages": image})),
            "'messages[0].images'",
        ),
        (
            CHAT,
            ask(json!({"messages": [{"role": "king"}]})),
            "'messages[0].role'",
        ),
        (
            CHAT,
            ask(json!({"options": {"temperature": 101}})),
            "'options.temperature'",
        ),
        (
            CHAT,
            ask(json!({"options": {"num_predict": 0}})),
            "'options.num_predict'",
        ),
        (CHAT, ask(json!({"format": "xml"})), "'format'"),
        (CHAT, ask(json!({"think": "much"})), "'think'"),
        (
            GENERATE,
            json!({"prompt": "x", "images": ["aGk="]}),
            "'images'",
        ),
        (GENERATE, json!({"prompt": "x", "suffix": "y"}), "'suffix'"),
        (
            GENERATE,
            json!({"prompt": "x", "context": [1]}),
            "'context'",
        ),
        (
            GENERATE,
            json!({"prompt": "x", "raw": true, "system": "y"}),
            "'system'",
        ),
    ] {
        let refused = server.post(path, &body);
        assert_eq!(refused.status, 400, "{body}");
        let message = refused.json()["error"].as_str().map(str::to_owned);
        assert!(
            message.as_ref().is_some_and(|m| m.contains(field)),
            "{body}: {message:?}"
        );
    }
    let pulled = server.post("/api/pull", &json!({"model": "x"}));
    assert_eq!(pulled.status, 404);
    assert!(
        pulled.json()["error"]
            .as_str()
            .is_some_and(|m| m.contains("glimt pull"))
    );
}
