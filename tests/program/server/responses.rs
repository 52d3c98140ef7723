//! Protects who uses OpenAI's responses: items and their events, tools of both kinds, thoughts, and conversations that the server keeps.

use serde_json::{Value, json};

use super::client::send;
use super::{Server, scripted_server, with};

const RESPONSES: &str = "/v1/responses";

fn ask(more: Value) -> Value {
    with(json!({"input": "Good morning!"}), more)
}

/// A function, a custom tool, and one that the vendor's servers run.
fn tools() -> Value {
    let schema =
        json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]});
    json!([
        {"type": "function", "name": "read", "description": "Reads.", "parameters": schema, "strict": true},
        {"type": "custom", "name": "write", "description": "Writes.", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}},
        {"type": "web_search"},
    ])
}

/// The output that a stream tells, put together from its events, which are in the right order.
fn put_together(events: &[Value]) -> Vec<Value> {
    let mut output: Vec<Value> = vec![];
    // Which item is open, whether its part is, and what its deltas have told.
    let (mut open, mut part, mut told) = (None, false, String::new());
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
        let kind = event["type"]
            .as_str()
            .and_then(|kind| kind.strip_prefix("response."));
        let kind = kind.expect("all are of responses");
        if let Some(id) = event.get("item_id") {
            assert_eq!(Some(id), open.as_ref(), "{event}");
            assert_eq!(event["output_index"], output.len());
        }
        match kind {
            "output_item.added" => {
                assert!(open.is_none() && event["item"]["status"] == "in_progress");
                open = Some(event["item"]["id"].clone());
                told.clear();
            }
            "content_part.added" => part = true,
            "content_part.done" => part = false,
            "output_item.done" => {
                assert!(!part && open.take().as_ref() == Some(&event["item"]["id"]));
                output.push(event["item"].clone());
            }
            _ if kind.ends_with(".delta") => {
                let in_part = kind.starts_with("output_text") || kind.starts_with("reasoning_text");
                assert_eq!(part, in_part, "{event}");
                told += event["delta"].as_str().expect("a text");
            }
            _ if kind.ends_with(".done") => {
                let fields = ["text", "arguments", "input"];
                let whole = fields.iter().find_map(|name| event[name].as_str());
                assert_eq!(whole, Some(told.as_str()), "{event}");
            }
            _ => assert!(event["response"].is_object(), "{event}"),
        }
    }
    output
}

/// Output without ids, which differ from one answer to the next.
fn plain(output: &[Value]) -> Vec<Value> {
    let without = |item: &Value| {
        let mut item = item.clone();
        for name in ["id", "call_id"] {
            item.as_object_mut().expect("it is an object").remove(name);
        }
        item
    };
    output.iter().map(without).collect()
}

/// The response, which is the same as a whole and in events.
pub(super) fn answered(server: &Server, body: Value) -> Value {
    let whole = server.answer(RESPONSES, &body);
    let events = server
        .post(RESPONSES, &with(body, json!({"stream": true})))
        .named_events();
    let kinds: Vec<_> = events.iter().filter_map(|e| e["type"].as_str()).collect();
    assert_eq!(kinds[..2], ["response.created", "response.in_progress"]);
    let status = whole["status"].as_str().expect("a text");
    assert_eq!(kinds[kinds.len() - 1], format!("response.{status}"));
    let last = &events[events.len() - 1]["response"];
    let output = whole["output"].as_array().expect("a list");
    let streamed = put_together(&events);
    assert_eq!(json!(streamed), last["output"]);
    assert_eq!(plain(&streamed), plain(output));
    assert_eq!(
        last["usage"]["output_tokens"],
        whole["usage"]["output_tokens"]
    );
    whole
}

#[test]
fn thoughts_and_texts_are_items() {
    let (server, _folder) = scripted_server();
    let whole = answered(
        &server,
        ask(json!({"metadata": {"a": "b"}, "instructions": "Be kind."})),
    );
    assert!(
        whole["id"]
            .as_str()
            .is_some_and(|id| id.starts_with("resp_"))
    );
    assert_eq!(
        (&whole["object"], &whole["status"]),
        (&json!("response"), &json!("completed"))
    );
    assert_eq!(whole["metadata"], json!({"a": "b"}));
    let [thoughts, text] = whole["output"].as_array().expect("a list").as_slice() else {
        panic!("{whole}");
    };
    assert_eq!(
        (&thoughts["type"], &thoughts["summary"]),
        (&json!("reasoning"), &json!([]))
    );
    let thought = "Somebody greets me, so I greet back.";
    assert_eq!(
        thoughts["content"],
        json!([{"type": "reasoning_text", "text": thought}])
    );
    assert_eq!(thoughts.get("encrypted_content"), None);
    assert_eq!(
        (&text["type"], &text["role"]),
        (&json!("message"), &json!("assistant"))
    );
    assert_eq!(
        text["content"][0]["text"],
        "Good morning to all of you! END of this text."
    );
    let usage = &whole["usage"];
    assert!(usage["output_tokens_details"]["reasoning_tokens"].as_u64() > Some(1));
    let quiet = json!({"reasoning": {"effort": "none"}, "max_output_tokens": 2, "include": ["message.output_text.logprobs"], "top_logprobs": 2});
    let cut = answered(&server, ask(quiet));
    assert_eq!(
        (&cut["status"], &cut["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    let part = &cut["output"][0]["content"][0];
    assert_eq!(part["logprobs"].as_array().map(Vec::len), Some(2));
    let schema = json!({"type": "object", "properties": {"n": {"enum": [7]}}, "required": ["n"], "additionalProperties": false});
    let format =
        json!({"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": true}});
    let formed = answered(
        &server,
        ask(json!({"text": format, "reasoning": {"effort": "none"}})),
    );
    let found: Value = serde_json::from_str(
        formed["output"][0]["content"][0]["text"]
            .as_str()
            .expect("a text"),
    )
    .expect("it is JSON");
    assert_eq!(found, json!({"n": 7}));
}

#[test]
fn an_agent_that_sends_all_items_comes_to_its_end() {
    let (server, _folder) = scripted_server();
    let mut input = vec![
        json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go."}]}),
    ];
    let mut calls = vec![];
    for _ in 0..3 {
        let more = json!({"input": input, "tools": tools(), "store": false, "include": ["reasoning.encrypted_content"]});
        let answer = answered(&server, ask(more));
        assert_eq!(answer["tools"].as_array().map(Vec::len), Some(2));
        let output = answer["output"].as_array().expect("a list").clone();
        let call = output
            .iter()
            .find(|item| item["call_id"].is_string())
            .cloned();
        input.extend(output);
        let Some(call) = call else {
            break;
        };
        let kind = format!("{}_output", call["type"].as_str().expect("a text"));
        input.push(json!({"type": kind, "call_id": call["call_id"], "output": "done"}));
        calls.push((
            call["type"].clone(),
            call["name"].clone(),
            call.get("arguments").or(call.get("input")).cloned(),
        ));
    }
    let expected = [
        (
            json!("function_call"),
            json!("read"),
            Some(json!(r#"{"path": "a \"b\".txt"}"#)),
        ),
        (
            json!("custom_tool_call"),
            json!("write"),
            Some(json!("one\ntwo ✓")),
        ),
    ];
    assert_eq!(calls, expected);
    let last = &input[input.len() - 1];
    assert_eq!(last["content"][0]["text"], "Both steps are done.");
}

#[test]
fn a_demanded_input_follows_its_grammar_and_others_are_told_of() {
    let (server, _folder) = scripted_server();
    let grammar = json!({"type": "grammar", "syntax": "regex", "definition": "[0-9]{3}"});
    let tools = json!([{"type": "custom", "name": "write", "format": grammar}]);
    let choice = json!({"type": "custom", "name": "write"});
    let demanded = ask(json!({"tools": tools, "tool_choice": choice}));
    let response = server.post(RESPONSES, &demanded);
    assert_eq!(response.header("x-glimt-not-enforced"), None);
    let input = response.json()["output"][0]["input"].clone();
    let is_digit = |c: char| c.is_ascii_digit();
    let input = input.as_str().expect("it is a call");
    assert!(input.len() == 3 && input.chars().all(is_digit), "{input}");
    let free = server.post(RESPONSES, &ask(json!({"tools": tools})));
    let told = free.header("x-glimt-not-enforced");
    assert_eq!(told, Some("grammar of the tool write"), "{free:?}");
}

#[test]
fn conversations_are_kept_and_forgotten() {
    let (server, _folder) = scripted_server();
    let first = server.answer(RESPONSES, &ask(json!({"tools": tools()})));
    let call = &first["output"][1];
    let result =
        json!([{"type": "function_call_output", "call_id": call["call_id"], "output": "done"}]);
    let second =
        ask(json!({"input": result, "tools": tools(), "previous_response_id": first["id"]}));
    let second = server.answer(RESPONSES, &second);
    assert_eq!(second["previous_response_id"], first["id"]);
    assert_eq!(second["output"][0]["name"], "write");
    let path = |id: &Value| format!("{RESPONSES}/{}", id.as_str().expect("a text"));
    assert_eq!(server.get(&path(&second["id"])).json(), second);
    let as_events = server.get(&format!("{}?stream=true", path(&second["id"])));
    assert_eq!(as_events.status, 400, "{as_events:?}");
    let items = server
        .get(&format!("{}/input_items", path(&second["id"])))
        .json();
    assert_eq!(items["data"][0]["call_id"], call["call_id"]);
    // An item that is kept can be referred to.
    let reference = json!([{"type": "item_reference", "id": call["id"]}, result[0]]);
    let third = ask(json!({"input": reference, "tools": tools()}));
    assert_eq!(
        server.answer(RESPONSES, &third)["output"][0]["name"],
        "write"
    );
    let delete = |id: &Value| send(server.address, "DELETE", &path(id), &[], "").response();
    assert_eq!(delete(&first["id"]).json()["deleted"], true);
    assert_eq!(delete(&first["id"]).status, 404);
    assert_eq!(server.get(&path(&first["id"])).status, 404);
    let lost = server.post(
        RESPONSES,
        &ask(json!({"previous_response_id": second["id"]})),
    );
    assert_eq!(lost.status, 400);
    let expected = (
        "previous_response_id".to_owned(),
        "previous_response_not_found".to_owned(),
    );
    assert_eq!(lost.error(), expected);
    let unkept = server.answer(RESPONSES, &ask(json!({"store": false})));
    assert_eq!(server.get(&path(&unkept["id"])).status, 404);
    // A stream is kept, too.
    let events = server
        .post(RESPONSES, &ask(json!({"stream": true})))
        .named_events();
    let last = &events[events.len() - 1]["response"];
    assert_eq!(&server.get(&path(&last["id"])).json(), last);
}

#[test]
fn thoughts_come_back_sealed_or_not() {
    let (server, _folder) = scripted_server();
    let asked = ask(json!({"include": ["reasoning.encrypted_content"]}));
    let answer = answered(&server, asked);
    let thoughts = &answer["output"][0];
    let count = |item: Value| {
        let input = json!([{"role": "user", "content": "Hi"}, item, {"role": "assistant", "content": "Ho"}]);
        let found = server.answer("/v1/responses/input_tokens", &json!({"input": input}));
        found["input_tokens"].as_u64().expect("a number")
    };
    let none = count(json!({"type": "reasoning", "summary": []}));
    let sealed = json!({"type": "reasoning", "summary": [], "encrypted_content": thoughts["encrypted_content"]});
    // The template shows them in brackets.
    let longer = none + "Somebody greets me, so I greet back.".len() as u64 + 3;
    assert_eq!(count(thoughts.clone()), longer);
    assert_eq!(count(sealed), longer);
    assert_eq!(
        count(json!({"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"})),
        none
    );
}

#[test]
fn what_cannot_be_met_is_refused_by_name() {
    let (server, _folder) = scripted_server();
    for (more, name) in [
        (json!({"input": null}), "input"),
        (
            json!({"input": [{"type": "computer_call"}]}),
            "input[0].type",
        ),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}),
            "input[0].content[0].type",
        ),
        (
            json!({"input": [{"type": "item_reference", "id": "msg_0"}]}),
            "input[0].id",
        ),
        (json!({"background": true}), "background"),
        (json!({"conversation": "c"}), "conversation"),
        (json!({"max_output_tokens": 0}), "max_output_tokens"),
        (json!({"reasoning": {"effort": "much"}}), "reasoning.effort"),
        (
            json!({"text": {"format": {"type": "xml"}}}),
            "text.format.type",
        ),
        (
            json!({"tools": [{"type": "computer_use_preview"}]}),
            "tools[0].type",
        ),
        (
            json!({"tools": [{"type": "function", "name": "a b"}]}),
            "tools[0].name",
        ),
        (
            json!({"tool_choice": {"type": "web_search"}}),
            "tool_choice.type",
        ),
        (
            json!({"previous_response_id": "resp_0"}),
            "previous_response_id",
        ),
        (json!({"n": 2}), "n"),
    ] {
        let refused = server.post(RESPONSES, &ask(more.clone()));
        assert_eq!(
            (refused.status, refused.error().0.as_str()),
            (400, name),
            "{more}: {refused:?}"
        );
    }
}
