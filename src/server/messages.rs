//! The messages of a conversation, as OpenAI's API has them.

use serde_json::{Map, Value};

use super::error::ApiError;
use super::fields::Fields;
use super::tools;
use crate::tokenizer::{Message, ToolCall};

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// Reads the messages of a request.
///
/// # Errors
/// What is wrong with one, by its place.
pub(super) fn read(fields: &Fields<'_>) -> Result<Vec<Message>, ApiError> {
    let Some(messages) = fields.objects("messages")? else {
        return Err(fields.wrong("messages", "is missing; it must be a list of messages"));
    };
    if messages.is_empty() {
        return Err(fields.wrong("messages", "is empty; there must be at least one"));
    }
    messages.iter().map(message).collect()
}

fn message(fields: &Fields<'_>) -> Result<Message, ApiError> {
    let Some(role) = fields.one_of("role", &ROLES)? else {
        let message = format!("is missing; it must be one of {}", ROLES.join(", "));
        return Err(fields.wrong("role", &message));
    };
    let tool_calls = match role {
        "assistant" => {
            let calls = fields.objects("tool_calls")?.unwrap_or_default();
            calls.iter().map(call).collect::<Result<_, _>>()?
        }
        _ => vec![],
    };
    let thoughts = match fields.text("reasoning_content")? {
        None => fields.text("reasoning")?,
        found => found,
    };
    let content = content(fields, "content")?;
    // Clients send back answers that have only thoughts or nothing, and results of tools that return nothing.
    let may_be_missing =
        ["assistant", "tool"].contains(&role) || fields.all().contains_key("content");
    if content.is_none() && !may_be_missing {
        let message = "is missing; it must be a text or a list of parts";
        return Err(fields.wrong("content", message));
    }
    let tool_call_id = match role {
        "tool" => Some(fields.needed_text("tool_call_id")?.to_owned()),
        _ => None,
    };
    // The newer name of the same.
    let role = if role == "developer" { "system" } else { role };
    Ok(Message {
        reasoning_content: thoughts.map(str::to_owned),
        tool_calls,
        tool_call_id,
        ..Message::new(role, content.unwrap_or_default())
    })
}

/// The text of a field that has the form of a message's content; `None` if there is none.
pub(super) fn content(fields: &Fields<'_>, name: &str) -> Result<Option<String>, ApiError> {
    match fields.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(_)) => {
            let parts = fields.objects(name)?.unwrap_or_default();
            parts.iter().map(part).collect::<Result<_, _>>().map(Some)
        }
        Some(_) => Err(fields.wrong(name, "must be a text or a list of parts")),
    }
}

fn part<'a>(fields: &Fields<'a>) -> Result<&'a str, ApiError> {
    match fields.needed_text("type")? {
        "text" | "input_text" | "output_text" => fields.needed_text("text"),
        "refusal" => fields.needed_text("refusal"),
        other => {
            let message =
                format!("is '{other}', but this model reads only text; leave out other parts");
            Err(fields.wrong("type", &message))
        }
    }
}

fn call(fields: &Fields<'_>) -> Result<ToolCall, ApiError> {
    let function = fields.needed_object("function")?;
    Ok(ToolCall {
        id: fields.text("id")?.unwrap_or_default().to_owned(),
        name: function.needed_text("name")?.to_owned(),
        arguments: arguments(&function)?,
    })
}

/// The arguments of a call, which are a text that holds an object of JSON. One that was cut does not end the conversation.
fn arguments(function: &Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    let read = match function.get("arguments") {
        None => Some(Map::new()),
        Some(Value::Object(map)) => Some(map.clone()),
        Some(Value::String(text)) => Some(tools::arguments(text)),
        Some(_) => None,
    };
    read.ok_or_else(|| function.wrong("arguments", "must be a text that holds an object of JSON"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read_all(messages: Value) -> Result<Vec<Message>, ApiError> {
        let body = json!({ "messages": messages });
        read(&Fields::of_body(&body).expect("it is an object"))
    }

    #[test]
    fn messages_of_all_roles_are_read() {
        let found = read_all(json!([
            {"role": "developer", "content": "Rule."},
            {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}], "name": "x"},
            {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{\"zone\": \"CET\"}"}},
            ]},
            {"role": "tool", "tool_call_id": "c1", "content": "noon"},
        ]));
        let found = found.expect("they are right");
        let roles: Vec<_> = found.iter().map(|m| m.role.as_str()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool"]);
        assert_eq!(found[1].content, "one two");
        assert_eq!(found[2].content, "");
        assert_eq!(found[2].reasoning_content.as_deref(), Some("hm"));
        assert_eq!(found[2].tool_calls[0].arguments["zone"], "CET");
        assert_eq!(found[3].tool_call_id.as_deref(), Some("c1"));
    }

    #[test]
    fn messages_without_content_go_on() {
        let found = read_all(json!([
            {"role": "user", "content": null},
            {"role": "assistant", "content": null},
            {"role": "assistant"},
            {"role": "tool", "tool_call_id": "c1", "content": null},
            {"role": "assistant", "content": [], "tool_calls": null},
        ]));
        let found = found.expect("they are right");
        assert!(found.iter().all(|message| message.content.is_empty()));
    }

    #[test]
    fn damaged_arguments_of_earlier_calls_go_on() {
        for (arguments, expected) in [
            (json!("{\"query\": \"last da"), json!({"query": "last da"})),
            (json!("{\"query\": \"x\", \"lim"), json!({"query": "x"})),
            (json!("{'query': None}"), json!({"query": null})),
            (json!("\"{\\\"query\\\": 1}\""), json!({"query": 1})),
            (json!("no JSON"), json!({"arguments": "no JSON"})),
            (json!("[1]"), json!({"arguments": "[1]"})),
            (json!("null"), json!({})),
            (json!(" "), json!({})),
            (json!(null), json!({})),
            (json!({"query": "x"}), json!({"query": "x"})),
        ] {
            let call = json!({"function": {"name": "f", "arguments": arguments}});
            let found = read_all(json!([{"role": "assistant", "tool_calls": [call]}]));
            let found = found.expect("it is right");
            let found = json!(found[0].tool_calls[0].arguments);
            assert_eq!(found, expected, "{arguments}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        for (messages, name) in [
            (json!(null), "messages"),
            (json!("hello"), "messages"),
            (json!([]), "messages"),
            (json!(["hello"]), "messages[0]"),
            (json!([{"content": "x"}]), "messages[0].role"),
            (
                json!([{"role": "king", "content": "x"}]),
                "messages[0].role",
            ),
            (json!([{"role": "user"}]), "messages[0].content"),
            (json!([{"role": "system"}]), "messages[0].content"),
            (
                json!([{"role": "user", "content": 3}]),
                "messages[0].content",
            ),
            (
                json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
                "messages[0].content[0].type",
            ),
            (
                json!([{"role": "tool", "content": "x"}]),
                "messages[0].tool_call_id",
            ),
            (
                json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}]),
                "messages[0].tool_calls[0].function.arguments",
            ),
        ] {
            let error = read_all(messages.clone()).expect_err("it is wrong");
            assert_eq!(error.json()["error"]["param"], name, "{messages}");
        }
    }
}
