//! The messages of a conversation, as OpenAI's API has them.

use serde_json::{Map, Value};

use super::error::ApiError;
use super::fields::Fields;
use super::tools;
use crate::tokenizer::{Message, ToolCall, exact};

const ROLES: [&str; 6] = [
    "system",
    "developer",
    "user",
    "assistant",
    "tool",
    "function",
];
/// Fields of messages that say nothing to a template.
const SILENT: [&str; 6] = [
    "id",
    "name",
    "refusal",
    "audio",
    "annotations",
    "reasoning_details",
];

/// Reads the messages of a request.
///
/// # Errors
/// The problem with a message, by its place.
pub(super) fn read(fields: &Fields<'_>) -> Result<Vec<Message>, ApiError> {
    let Some(messages) = fields.objects("messages")? else {
        return Err(fields.wrong("messages", "is missing; it must be a list of messages"));
    };
    if messages.is_empty() {
        return Err(fields.wrong("messages", "is empty; there must be at least one"));
    }
    fields.look_into("messages");
    messages.iter().map(message).collect()
}

fn message(fields: &Fields<'_>) -> Result<Message, ApiError> {
    let Some(role) = fields.one_of("role", &ROLES)? else {
        let message = format!("is missing; it must be one of {}", ROLES.join(", "));
        return Err(fields.wrong("role", &message));
    };
    fields.skip(&SILENT);
    // The older name of the same.
    let role = if role == "function" { "tool" } else { role };
    let mut tool_calls: Vec<ToolCall> = vec![];
    if role == "assistant" {
        let calls = fields.objects("tool_calls")?.unwrap_or_default();
        tool_calls = calls.iter().map(call).collect::<Result<_, _>>()?;
        // The older form of the same.
        if let Some(function) = fields.object("function_call")?.filter(|_| calls.is_empty()) {
            tool_calls.push(called(String::new(), &function)?);
        }
    }
    let thoughts = match fields.text("reasoning_content")? {
        None => fields.text("reasoning")?,
        found => found,
    };
    let mut thoughts = thoughts.map(str::to_owned);
    let is_written = |value: &&Value| role == "tool" && !is_content(value);
    let content = match fields.get("content").filter(is_written) {
        // Results that clients have not written as texts.
        Some(value) => Some(exact::json(value)),
        None => content_and_thoughts(fields, "content", &mut thoughts)?,
    };
    // Clients send back answers that have only thoughts or nothing, and results of tools that return nothing.
    let may_be_missing = ["assistant", "tool"].contains(&role) || fields.is_named("content");
    if content.is_none() && !may_be_missing {
        let message = "is missing; it must be a text or a list of parts";
        return Err(fields.wrong("content", message));
    }
    let tool_call_id = match role {
        "tool" => fields.text("tool_call_id")?.map(str::to_owned),
        _ => None,
    };
    // The newer name of the same.
    let role = if role == "developer" { "system" } else { role };
    Ok(Message {
        reasoning_content: thoughts,
        tool_calls,
        tool_call_id,
        ..Message::new(role, content.unwrap_or_default())
    })
}

/// The text of a field that has the form of a message's content; `None` if there is none.
pub(super) fn content(fields: &Fields<'_>, name: &str) -> Result<Option<String>, ApiError> {
    content_and_thoughts(fields, name, &mut None)
}

/// Whether a value has the form of a message's content.
fn is_content(value: &Value) -> bool {
    let is_part =
        |part: &Value| part.is_string() || part.get("type").or(part.get("text")).is_some();
    match value {
        Value::Array(parts) => parts.iter().all(is_part),
        value => value.is_string(),
    }
}

/// The text of a content. Thoughts among its parts are added to `thoughts`.
fn content_and_thoughts(
    fields: &Fields<'_>,
    name: &str,
    thoughts: &mut Option<String>,
) -> Result<Option<String>, ApiError> {
    match fields.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(parts)) if parts.iter().all(Value::is_string) => {
            Ok(Some(parts.iter().filter_map(Value::as_str).collect()))
        }
        Some(Value::Array(_)) => {
            let mut text = String::new();
            for part in fields.objects(name)?.unwrap_or_default() {
                match thought(&part)? {
                    Some(more) => thoughts.get_or_insert_default().push_str(more),
                    None => text += self::part(&part)?,
                }
            }
            Ok(Some(text))
        }
        Some(_) => Err(fields.wrong(name, "must be a text or a list of parts")),
    }
}

/// The text of a part that has thoughts.
fn thought<'a>(fields: &Fields<'a>) -> Result<Option<&'a str>, ApiError> {
    match fields.text("type")? {
        Some("thinking") => fields.needed_text("thinking").map(Some),
        Some("reasoning") => fields.needed_text("text").map(Some),
        _ => Ok(None),
    }
}

fn part<'a>(fields: &Fields<'a>) -> Result<&'a str, ApiError> {
    fields.skip(&["cache_control", "annotations"]);
    if fields.get("type").is_none() && fields.get("text").is_some() {
        return fields.needed_text("text");
    }
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
    fields.skip(&["type", "index"]);
    let id = fields.text("id")?.unwrap_or_default().to_owned();
    if let Some(custom) = fields.object("custom")? {
        let input = custom.needed_text("input")?.into();
        return Ok(ToolCall {
            id,
            name: custom.needed_text("name")?.to_owned(),
            arguments: [("input".to_owned(), input)].into_iter().collect(),
        });
    }
    called(id, &fields.needed_object("function")?)
}

fn called(id: String, function: &Fields<'_>) -> Result<ToolCall, ApiError> {
    Ok(ToolCall {
        id,
        name: function.needed_text("name")?.to_owned(),
        arguments: arguments(function),
    })
}

/// The arguments of a call, which are a text that holds an object of JSON. One that was cut does not end the conversation.
fn arguments(function: &Fields<'_>) -> Map<String, Value> {
    match function.get("arguments") {
        None => Map::new(),
        Some(Value::Object(map)) => map.clone(),
        Some(Value::String(text)) => tools::arguments(text),
        Some(other) => tools::arguments(&exact::json(other)),
    }
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
    fn results_and_older_forms_go_on() {
        let found = read_all(json!([
            {"role": "assistant", "content": null, "function_call": {"name": "f", "arguments": "{\"a\": 1}"}},
            {"role": "function", "name": "f", "content": {"b": [1, null]}},
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "g", "input": "x"}}]},
            {"role": "tool", "tool_call_id": "c", "content": 3},
            {"role": "tool", "tool_call_id": "c", "content": [{"b": 1}]},
            {"role": "tool", "tool_call_id": "c", "content": ["one ", "two"]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"text": "yes"}]},
        ]));
        let found = found.expect("they are right");
        assert_eq!(json!(found[0].tool_calls[0].arguments), json!({"a": 1}));
        assert_eq!(
            (found[1].role.as_str(), found[1].content.as_str()),
            ("tool", "{\"b\":[1,null]}")
        );
        assert_eq!(
            json!(found[2].tool_calls[0].arguments),
            json!({"input": "x"})
        );
        let texts = found[3..].iter().map(|message| message.content.as_str());
        assert_eq!(
            texts.collect::<Vec<_>>(),
            ["3", "[{\"b\":1}]", "one two", "yes"]
        );
        assert_eq!(found[6].reasoning_content.as_deref(), Some("hm"));
    }

    #[test]
    fn fields_of_messages_that_nothing_reads_are_known() {
        let body = json!({"messages": [
            {"role": "user", "name": "x", "foo": 1, "content": [{"type": "text", "text": "a", "bar": 1, "cache_control": {}}]},
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}", "baz": 1}}]},
        ]});
        let fields = Fields::of_body(&body).expect("it is an object");
        read(&fields).expect("they are right");
        let expected = [
            "messages[].foo",
            "messages[].content[].bar",
            "messages[].tool_calls[].function.baz",
        ];
        let found = fields.unread();
        assert_eq!(found.len(), expected.len(), "{found:?}");
        assert!(
            expected
                .iter()
                .all(|name| found.contains(&(*name).to_owned())),
            "{found:?}"
        );
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
            (json!([1]), json!({"arguments": "[1]"})),
            (json!("null"), json!({})),
            (json!(" "), json!({})),
            (json!(null), json!({})),
            (json!({"query": "x"}), json!({"query": "x"})),
            (json!("{\"query\": \"x\"}}"), json!({"query": "x"})),
            (json!("{}{\"query\": \"x\"}"), json!({"query": "x"})),
            (
                json!("{\"a\": NaN, \"query\": \"x\"}"),
                json!({"a": null, "query": "x"}),
            ),
            (
                json!("{\"a\": 1}, [1]"),
                json!({"arguments": "{\"a\": 1}, [1]"}),
            ),
        ] {
            let call = json!({"function": {"name": "f", "arguments": arguments}});
            let found = read_all(json!([{"role": "assistant", "tool_calls": [call]}]));
            let found = found.expect("it is right");
            let found = json!(found[0].tool_calls[0].arguments);
            assert_eq!(found, expected, "{arguments}");
        }
    }

    #[test]
    fn numbers_of_earlier_calls_stay_exact() {
        let big = "12345678901234567890123";
        let arguments = format!("{{\"n\":[{big},-{big},1e400],\"t\":\"{big}\"}}");
        let body = format!(
            "{{\"messages\": [{{\"role\": \"assistant\", \"tool_calls\": [\
             {{\"function\": {{\"name\": \"f\", \"arguments\": {arguments}}}}},\
             {{\"function\": {{\"name\": \"f\", \"arguments\": {}}}}}]}},\
             {{\"role\": \"tool\", \"content\": {arguments}}}]}}",
            Value::from(arguments.as_str())
        );
        let body = crate::server::tree::body(body.as_bytes()).expect("it is JSON");
        let found = read(&Fields::of_body(&body).expect("it is an object"));
        let found = found.expect("they are right");
        for call in &found[0].tool_calls {
            assert_eq!(exact::json(&json!(call.arguments)), arguments);
        }
        assert_eq!(found[1].content, arguments);
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
                json!([{"role": "tool", "content": "x", "tool_call_id": 1}]),
                "messages[0].tool_call_id",
            ),
            (
                json!([{"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}]),
                "messages[0].tool_calls[0].function.name",
            ),
        ] {
            let error = read_all(messages.clone()).expect_err("it is wrong");
            assert_eq!(error.json()["error"]["param"], name, "{messages}");
        }
    }
}
