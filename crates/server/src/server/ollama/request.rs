//! A request of ollama's API as a request for a chat or a completion.

use serde_json::{Map, Value, json};

use crate::server::error::ApiError;
use crate::server::fields::Fields;
use crate::server::translated::{Messages, by_schema, call, refuse, shared};

/// Fields that one of the routes has in its own way.
const OWN: [&str; 14] = [
    "messages",
    "prompt",
    "suffix",
    "system",
    "template",
    "context",
    "raw",
    "images",
    "think",
    "format",
    "options",
    "stream",
    "tools",
    "stream_options",
];

/// Fields that mean nothing here. docs/serving.md tells why.
const SILENT: [&str; 3] = ["keep_alive", "truncate", "shift"];

/// Options of how ollama loads and runs a model, which the flags of this server decide.
const LOADING: [&str; 17] = [
    "num_ctx",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "num_thread",
    "num_keep",
    "use_mmap",
    "use_mlock",
    "low_vram",
    "f16_kv",
    "numa",
    "vocab_only",
    "logits_all",
    "embedding_only",
    "draft_num_predict",
    "penalize_newline",
    "num_predict",
];

const NO_IMAGES: (&str, &str) = (
    "images",
    "is not supported: this model reads only text; leave images out",
);

/// The error with the names that fields have in this API.
pub(super) fn named(error: ApiError, fields: &Fields<'_>) -> ApiError {
    let options = fields.get("options").and_then(Value::as_object);
    let names = options.into_iter().flat_map(Map::keys);
    let names: Vec<_> = names.map(|n| (n.clone(), format!("options.{n}"))).collect();
    let mut all = vec![
        ("max_tokens", "options.num_predict"),
        ("reasoning_effort", "think"),
        ("response_format", "format"),
    ];
    all.extend(names.iter().map(|(n, there)| (n.as_str(), there.as_str())));
    error.renamed(&all)
}

/// Whether a model should stay loaded for no time: clients write 0 as a number of any kind, or as a duration in text.
pub(super) fn ends(keep_alive: &Value) -> bool {
    match keep_alive {
        Value::Number(seconds) => seconds.as_f64() == Some(0.0),
        Value::String(text) => {
            let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
            digits.parse() == Ok(0.0)
        }
        _ => false,
    }
}

/// The fields that both routes have in common.
fn common(fields: &Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    refuse(fields, &[NO_IMAGES])?;
    fields.skip(&SILENT);
    let mut chat = shared(fields, &[&OWN[..], &SILENT].concat())?;
    let mut put = |name: &str, value: Value| chat.insert(name.to_owned(), value);
    // Unlike elsewhere, answers are streamed if nothing is said.
    put("stream", fields.flag("stream")?.unwrap_or(true).into());
    match fields.get("think") {
        None => {}
        Some(Value::Bool(think)) => {
            let effort = if *think { "high" } else { "none" };
            put("reasoning_effort", effort.into());
        }
        Some(effort) => {
            put("reasoning_effort", effort.clone());
        }
    }
    match fields.get("format") {
        Some(Value::String(text)) if text.is_empty() => {}
        None => {}
        Some(Value::String(text)) if text == "json" => {
            put("response_format", json!({"type": "json_object"}));
        }
        Some(schema @ Value::Object(_)) => {
            put("response_format", by_schema(schema));
        }
        Some(_) => return Err(fields.wrong("format", "must be json, or a JSON schema")),
    }
    if let Some(options) = fields.object("options")? {
        // A number below 0 is no limit.
        let most = options.count("num_predict", i64::MIN..=i64::MAX)?;
        if let Some(most) = most.filter(|most| *most >= 0) {
            put("max_tokens", most.into());
        }
        options.skip(&LOADING);
        for (name, value) in shared(&options, &LOADING)? {
            put(&name, value);
        }
    }
    Ok(chat)
}

/// A request for the next message of a conversation.
///
/// # Errors
/// The fault, by its field.
pub(super) fn talk(fields: &Fields<'_>) -> Result<Value, ApiError> {
    let mut chat = common(fields)?;
    let mut all = Messages::default();
    // Calls without a result: their ids and tools.
    let mut open: Vec<(String, String)> = vec![];
    let mut calls = 0;
    for message in fields.objects("messages")?.unwrap_or_default() {
        refuse(&message, &[NO_IMAGES])?;
        let text = message.text("content")?.unwrap_or_default();
        let roles = ["system", "user", "assistant", "tool"];
        match message.one_of("role", &roles)? {
            Some("tool") => {
                let id = answered(&message, &mut open)?;
                all.returned(&id, text);
            }
            Some("assistant") => {
                all.end();
                if let Some(thoughts) = message.text("thinking")?.filter(|t| !t.is_empty()) {
                    all.thought(thoughts);
                }
                all.answered(text);
                for made in message.objects("tool_calls")?.unwrap_or_default() {
                    let function = made.needed_object("function")?;
                    let name = function.needed_text("name")?;
                    let arguments = function.get("arguments").cloned().unwrap_or_default();
                    let given = made.text("id")?.filter(|id| !id.is_empty());
                    let id = given.map_or_else(|| format!("call_{calls}"), str::to_owned);
                    calls += 1;
                    all.called(call(&id, name, &arguments));
                    open.push((id, name.to_owned()));
                }
            }
            Some(role) => all.said(role, text),
            None => {
                let message_ = format!("is missing; it must be one of {}", roles.join(", "));
                return Err(message.wrong("role", &message_));
            }
        }
    }
    chat.insert("messages".to_owned(), all.all());
    if let Some(tools) = fields.list("tools")?.filter(|tools| !tools.is_empty()) {
        chat.insert("tools".to_owned(), tools.iter().map(described).collect());
    }
    Ok(chat.into())
}

/// A tool as a chat has it. Clients may leave its type out.
fn described(tool: &Value) -> Value {
    let mut tool = tool.clone();
    if let Some(map) = tool.as_object_mut() {
        map.entry("type").or_insert_with(|| "function".into());
    }
    tool
}

/// The call that a result belongs to: the one that it names, or the first of its tool without a result, or the first without one.
fn answered(message: &Fields<'_>, open: &mut Vec<(String, String)>) -> Result<String, ApiError> {
    let id = message.text("tool_call_id")?;
    let name = match message.text("tool_name")? {
        None => message.text("name")?,
        found => found,
    };
    let by_id = open.iter().position(|(call, _)| Some(call.as_str()) == id);
    let by_name = open
        .iter()
        .position(|(_, tool)| Some(tool.as_str()) == name);
    let first = (!open.is_empty()).then_some(0);
    match (id, by_id.or(by_name).or(first)) {
        (Some(id), None) => Ok(id.to_owned()),
        (_, Some(place)) => Ok(open.remove(place).0),
        (None, None) => Ok("call_none".to_owned()),
    }
}

/// A request for what follows a prompt, and whether it is one without a template.
///
/// # Errors
/// The fault, by its field.
pub(super) fn generate(fields: &Fields<'_>) -> Result<(Value, bool), ApiError> {
    let refused = [
        (
            "suffix",
            "is not supported: the model only continues a text",
        ),
        (
            "template",
            "is not supported: the model's own template is used; render the prompt and give raw",
        ),
        (
            "context",
            "is not supported; give the whole conversation to /api/chat",
        ),
    ];
    refuse(fields, &refused)?;
    let mut body = common(fields)?;
    let prompt = fields.needed_text("prompt")?;
    let raw = fields.flag("raw")?.unwrap_or(false);
    if raw {
        let beside_raw = "means nothing with raw; put it into the prompt";
        refuse(fields, &[("system", beside_raw)])?;
        body.insert("prompt".to_owned(), prompt.into());
        return Ok((body.into(), true));
    }
    let mut all = Messages::default();
    if let Some(system) = fields.text("system")?.filter(|text| !text.is_empty()) {
        all.said("system", system);
    }
    all.said("user", prompt);
    body.insert("messages".to_owned(), all.all());
    Ok((body.into(), false))
}
