//! A request of Anthropic's API as a request for a chat.

use serde_json::{Value, json};

use crate::server::error::ApiError;
use crate::server::fields::Fields;
use crate::server::messages::content;
use crate::server::model::Model;
use crate::server::translated::{Messages, by_schema, call, demand, refuse, shared, tool};

/// Fields that the API has in its own way.
const OWN: [&str; 10] = [
    "system",
    "messages",
    "tools",
    "tool_choice",
    "thinking",
    "stop_sequences",
    "output_config",
    "output_format",
    "container",
    "mcp_servers",
];

/// Fields that mean nothing here. docs/serving.md tells why.
const SILENT: [&str; 8] = [
    "metadata",
    "service_tier",
    "context_management",
    "cache_control",
    "inference_geo",
    "speed",
    "betas",
    "diagnostics",
];

const EFFORTS: [&str; 5] = ["low", "medium", "high", "xhigh", "max"];

/// Fields that cannot be met.
const REFUSED: [(&str, &str); 2] = [
    (
        "mcp_servers",
        "is not supported: this server calls no other servers; let the client call them",
    ),
    ("container", "is not supported: this server runs no code"),
];

/// The names of a chat's fields in this API.
pub(super) const NAMES: [(&str, &str); 5] = [
    ("stop", "stop_sequences"),
    ("response_format", "output_config.format"),
    ("reasoning_effort", "thinking"),
    (".function.name", ".name"),
    (".function.parameters", ".input_schema"),
];

/// A line that the vendor's agent puts in front of the system prompt. It differs in each request, so no prompt would be found in the cache.
const BILLING: &str = "x-anthropic-billing-header:";

/// The request for a chat.
///
/// # Errors
/// The fault, by its field.
pub(super) fn chat(fields: &Fields<'_>, model: &Model) -> Result<Value, ApiError> {
    refuse(fields, &REFUSED)?;
    fields.skip(&SILENT);
    let mut chat = shared(fields, &[&OWN[..], &SILENT].concat())?;
    let mut put = |name: &str, value: Value| chat.insert(name.to_owned(), value);
    let messages = messages(fields)?;
    if messages.ends_with_text() {
        put("continue_final_message", true.into());
    }
    put("messages", messages.all());
    if let Some(stops) = fields.list("stop_sequences")?.filter(|s| !s.is_empty()) {
        put("stop", stops.into());
    }
    let tools = fields.objects("tools")?.unwrap_or_default();
    let tools: Vec<_> = tools.iter().map(described).collect::<Result<_, _>>()?;
    if !tools.is_empty() {
        put("tools", tools.into());
    }
    if let Some(choice) = fields.object("tool_choice")? {
        put("tool_choice", chosen(&choice)?);
        let one = choice.flag("disable_parallel_tool_use")?.unwrap_or(false);
        put("parallel_tool_calls", (!one).into());
    }
    let config = fields.object("output_config")?;
    let effort = match &config {
        Some(config) => config.one_of("effort", &EFFORTS)?,
        None => None,
    };
    let thinks = thinks(fields, model)?;
    let effort = if thinks {
        effort.unwrap_or("high")
    } else {
        "none"
    };
    put("reasoning_effort", effort.into());
    let format = match &config {
        Some(config) => config.object("format")?,
        None => None,
    };
    if let Some(format) = format.or(fields.object("output_format")?) {
        format.one_of("type", &["json_schema"])?;
        let schema = format.needed_object("schema")?;
        put("response_format", by_schema(&schema.all().clone().into()));
    }
    Ok(chat.into())
}

/// Whether the model may think. With this API it does only if a request says so, or the server was told so.
fn thinks(fields: &Fields<'_>, model: &Model) -> Result<bool, ApiError> {
    let kinds = ["enabled", "adaptive", "disabled"];
    match fields.object("thinking")? {
        Some(thinking) => Ok(thinking.one_of("type", &kinds)? != Some("disabled")),
        None => Ok(model.think == Some(true)),
    }
}

fn described(fields: &Fields<'_>) -> Result<Value, ApiError> {
    if let Some(kind) = fields.text("type")?.filter(|kind| *kind != "custom") {
        let message = format!(
            "is '{kind}', which the model has not learnt and this server does not run; describe a tool of your own by name, description \
             and input_schema"
        );
        return Err(fields.wrong("type", &message));
    }
    fields.object("input_schema")?;
    let name = fields.needed_text("name")?;
    Ok(tool(
        name,
        fields.get("description"),
        fields.get("input_schema"),
    ))
}

fn chosen(choice: &Fields<'_>) -> Result<Value, ApiError> {
    match choice.one_of("type", &["auto", "any", "tool", "none"])? {
        Some("any") => Ok("required".into()),
        Some("tool") => Ok(demand(choice.needed_text("name")?)),
        Some(other) => Ok(other.into()),
        None => Err(choice.wrong("type", "is missing; it must be auto, any, tool or none")),
    }
}

fn messages(fields: &Fields<'_>) -> Result<Messages, ApiError> {
    let mut all = Messages::default();
    if let Some(text) = system(fields)?.filter(|text| !text.is_empty()) {
        all.said("system", text);
    }
    let Some(messages) = fields.objects("messages")?.filter(|m| !m.is_empty()) else {
        let message = "is missing; it must be a list of at least one message";
        return Err(fields.wrong("messages", message));
    };
    for message in &messages {
        match message.one_of("role", &["user", "assistant", "system"])? {
            Some(role @ ("user" | "system")) => said(role, message, &mut all)?,
            Some(_) => answered(message, &mut all)?,
            None => {
                return Err(message.wrong("role", "is missing; it must be user or assistant"));
            }
        }
    }
    Ok(all)
}

/// The system prompt: a text, or blocks of text, each of which becomes a paragraph.
fn system(fields: &Fields<'_>) -> Result<Option<String>, ApiError> {
    if !matches!(fields.get("system"), Some(Value::Array(_))) {
        return content(fields, "system");
    }
    let blocks = fields.objects("system")?.unwrap_or_default();
    let mut texts = vec![];
    for block in &blocks {
        block.one_of("type", &["text"])?;
        let text = block.needed_text("text")?;
        if !text.starts_with(BILLING) {
            texts.push(text);
        }
    }
    Ok(Some(texts.join("\n\n")))
}

/// The blocks of a message, where its content is a list; otherwise its text.
fn blocks<'a>(message: &Fields<'a>) -> Result<Result<Vec<Fields<'a>>, &'a str>, ApiError> {
    match message.get("content") {
        Some(Value::String(text)) => Ok(Err(text)),
        Some(Value::Array(_)) => Ok(Ok(message.objects("content")?.unwrap_or_default())),
        _ => Err(message.wrong("content", "must be a text or a list of blocks")),
    }
}

/// Adds a message of the user: texts, and what tools have returned.
fn said(role: &str, message: &Fields<'_>, all: &mut Messages) -> Result<(), ApiError> {
    let blocks = match blocks(message)? {
        Ok(blocks) => blocks,
        Err(text) => {
            all.said(role, text);
            return Ok(());
        }
    };
    let mut text: Option<String> = None;
    for block in &blocks {
        let more = match block.needed_text("type")? {
            "text" => block.needed_text("text")?.to_owned(),
            "document" => document(block)?,
            "tool_result" => {
                if let Some(text) = text.take() {
                    all.said(role, text);
                }
                let call = block.needed_text("tool_use_id")?;
                let result = content(block, "content")?.unwrap_or_default();
                all.returned(call, result);
                continue;
            }
            other => {
                let message = format!("is '{other}', but this model reads only text; leave it out");
                return Err(block.wrong("type", &message));
            }
        };
        text = Some(match text {
            Some(text) => format!("{text}\n\n{more}"),
            None => more,
        });
    }
    if let Some(text) = text {
        all.said(role, text);
    }
    Ok(())
}

/// The text of a document.
fn document(block: &Fields<'_>) -> Result<String, ApiError> {
    let source = block.needed_object("source")?;
    let text = match source.needed_text("type")? {
        "text" => source.needed_text("data")?.to_owned(),
        "content" => content(&source, "content")?.unwrap_or_default(),
        other => {
            let message = format!("is '{other}', but this model reads only documents of text");
            return Err(source.wrong("type", &message));
        }
    };
    Ok(match block.text("title")? {
        Some(title) => format!("{title}\n\n{text}"),
        None => text,
    })
}

/// Adds a message of the model: thoughts, texts and calls.
fn answered(message: &Fields<'_>, all: &mut Messages) -> Result<(), ApiError> {
    let blocks = match blocks(message)? {
        Ok(blocks) => blocks,
        Err(text) => {
            all.end();
            all.answered(text);
            return Ok(());
        }
    };
    all.end();
    for block in &blocks {
        match block.needed_text("type")? {
            "text" => all.answered(block.needed_text("text")?),
            "thinking" => all.thought(block.needed_text("thinking")?),
            // Only the vendor's servers can read them.
            "redacted_thinking" => {}
            "tool_use" => {
                let input = block.object("input")?;
                let input = input.map_or_else(|| json!({}), |input| input.all().clone().into());
                let (id, name) = (block.needed_text("id")?, block.needed_text("name")?);
                all.called(call(id, name, &input));
            }
            other => {
                let message = format!(
                    "is '{other}', which is none of text, thinking, redacted_thinking and tool_use"
                );
                return Err(block.wrong("type", &message));
            }
        }
    }
    Ok(())
}
