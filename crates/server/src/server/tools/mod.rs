//! Tools that a model may call: what requests say of them, and the forms in which models write calls.
//!
//! [`Parser`] finds calls in the text of an answer while it comes. [`grammar::forced`] keeps an answer to a call where a request demands one.

#[cfg(test)]
mod anything;
mod arguments;
#[cfg(test)]
mod coder;
#[cfg(test)]
mod damaged;
#[cfg(test)]
mod deepseek;
mod described;
mod ends;
mod grammar;
mod heads;
mod inputs;
mod known;
mod literal;
mod llama;
mod marks;
mod parser;
mod quoting;
mod schema;
mod tags;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod typed;
#[cfg(test)]
mod unusual;
mod xml;

use serde_json::{Map, Value, json};

pub(super) use described::{as_texts, describe, number_calls};
pub(super) use grammar::forced;
pub(super) use inputs::{GRAMMAR, not_enforced};
pub(super) use marks::MARKS;
pub(super) use parser::{Delta, Offered, Parser};

use super::error::ApiError;
use super::fields::Fields;
use super::tree;
use crate::tokenizer::exact;

/// A tool.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tool {
    pub(super) name: String,
    /// The JSON schema of its arguments: an object.
    pub(super) parameters: Value,
}

/// The tools that an answer may call.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Tools {
    /// The descriptions of all tools, for the template.
    pub(super) described: Vec<Value>,
    /// The tools that may be called.
    pub(super) all: Vec<Tool>,
    /// Whether the model has to call a tool.
    pub(super) forced: bool,
    /// Whether the model may call several tools.
    pub(super) parallel: bool,
}

/// How a model writes calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// GLM's: the name and pairs of keys and values in tags.
    Tagged,
    /// An object of JSON in tags.
    Json,
    /// Qwen3-Coder's: the name and the keys in the tags themselves, and values between these.
    Xml,
    /// DeepSeek's: the name, a mark, and JSON.
    DeepSeek,
    /// DeepSeek's older one: JSON in a fenced block.
    DeepSeekFenced,
    /// Kimi-K2's: the name with a number, a mark, and JSON.
    Kimi,
    /// GigaChat's: an object of JSON as a message of its own.
    GigaChat,
    /// Llama 3's: an object of JSON that is the answer, or what stands behind a mark.
    Llama,
}

/// Reads `tools` and `tool_choice`; `None` if no tool may be called.
///
/// # Errors
/// The problem with the tools or the choice.
pub(super) fn read(fields: &Fields<'_>) -> Result<Option<Tools>, ApiError> {
    for old in ["functions", "function_call"] {
        let is_off = |value: &Value| *value == json!([]) || *value == json!("none");
        if fields.get(old).is_some_and(|value| !is_off(value)) {
            return Err(fields.wrong(old, "is no longer used; give tools and tool_choice"));
        }
    }
    let listed = fields.objects("tools")?.unwrap_or_default();
    let mut all = listed.iter().map(tool).collect::<Result<Vec<_>, _>>()?;
    let described = listed.iter().map(|tool| Value::Object(tool.all().clone()));
    let parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    let (names, mode) = choice(fields)?;
    if mode == "none" {
        return Ok(None);
    }
    if let Some(name) = names
        .iter()
        .find(|name| all.iter().all(|tool| tool.name != **name))
    {
        let message = format!("names the tool '{name}', which is not among the tools");
        return Err(fields.wrong("tool_choice", &message));
    }
    all.retain(|tool| names.is_empty() || names.contains(&tool.name.as_str()));
    let forced = ["required", "any"].contains(&mode);
    if forced && all.is_empty() {
        return Err(fields.wrong("tool_choice", "demands a tool, but there are no tools"));
    }
    Ok((!all.is_empty()).then(|| Tools {
        described: described.collect(),
        all,
        forced,
        parallel,
    }))
}

/// The arguments of an earlier call. What is cut is closed, and a text that is no object is the only argument.
pub(super) fn arguments(text: &str) -> Map<String, Value> {
    let read = |text: &str| tree::value(&exact::with_texts(text)).ok();
    let value = read(text).or_else(|| read(&literal::read(text, true)?));
    match value {
        Some(Value::Object(map)) => map,
        None if text.trim().is_empty() => Map::new(),
        Some(Value::Null) => Map::new(),
        // Some clients write the object as a text twice.
        Some(Value::String(inner)) if inner.trim_start().starts_with('{') => arguments(&inner),
        _ => objects(text).unwrap_or_else(|| {
            [("arguments".to_owned(), Value::from(text))]
                .into_iter()
                .collect()
        }),
    }
}

/// The fields of several objects, which clients make where parts of a stream are put together wrongly. Brackets may follow.
fn objects(text: &str) -> Option<Map<String, Value>> {
    let (mut all, mut rest) = (Map::new(), text.trim());
    loop {
        let (json, behind) = literal::first(rest)?;
        match tree::value(&exact::with_texts(&json)).ok()? {
            Value::Object(map) => all.extend(map),
            _ => return None,
        }
        rest = behind.trim_start_matches(|c: char| c.is_whitespace() || c == '}');
        if rest.is_empty() {
            return Some(all);
        }
    }
}

const MODES: [&str; 4] = ["none", "auto", "required", "any"];

/// The tools to which a request limits itself, all if there are none, and whether one has to be called.
fn choice<'a>(fields: &Fields<'a>) -> Result<(Vec<&'a str>, &'a str), ApiError> {
    let of_all = |mode: Option<&'a str>| (vec![], mode.unwrap_or("auto"));
    if !fields.get("tool_choice").is_some_and(Value::is_object) {
        return fields.one_of("tool_choice", &MODES).map(of_all);
    }
    let choice = fields.needed_object("tool_choice")?;
    match choice.text("type")? {
        Some("function" | "tool") | None => Ok((vec![name_of(&choice)?], "required")),
        Some("allowed_tools") => {
            let inner = choice.object("allowed_tools")?;
            let allowed = inner.as_ref().unwrap_or(&choice);
            let listed = allowed.objects("tools")?.unwrap_or_default();
            let names: Vec<_> = listed.iter().map(name_of).collect::<Result<_, _>>()?;
            if names.is_empty() {
                return Err(allowed.wrong("tools", "must name at least one tool"));
            }
            let mode = allowed.one_of("mode", &["auto", "required"])?;
            Ok((names, mode.unwrap_or("auto")))
        }
        Some(_) => {
            let known = [&MODES[..], &["function", "allowed_tools"]].concat();
            choice.one_of("type", &known).map(of_all)
        }
    }
}

/// The name of a tool that is chosen, which stands in an object or beside the type.
fn name_of<'a>(choice: &Fields<'a>) -> Result<&'a str, ApiError> {
    match choice.object("function")? {
        None if choice.get("name").is_some() => choice.needed_text("name"),
        None => choice.needed_object("function")?.needed_text("name"),
        Some(function) => function.needed_text("name"),
    }
}

fn tool(fields: &Fields<'_>) -> Result<Tool, ApiError> {
    if fields.one_of("type", &["function"])?.is_none() {
        return Err(fields.wrong("type", "is missing; it must be function"));
    }
    let function = fields.needed_object("function")?;
    let name = function.needed_text("name")?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || name.len() > 128 || !name.chars().all(is_plain) {
        let message = "must be of letters, digits, points, hyphens and underscores, 128 at most";
        return Err(function.wrong("name", message));
    }
    function.text("description")?;
    function.object("parameters")?;
    let parameters = function.get("parameters").cloned();
    Ok(Tool {
        name: name.to_owned(),
        parameters: parameters.unwrap_or_else(|| json!({"type": "object", "properties": {}})),
    })
}
