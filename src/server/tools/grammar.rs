//! The grammar of a call, for requests that demand one.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::typed::{self, Kind};
use super::{Format, KEY_BEGIN, KEY_END, SEPARATOR, Tool, Tools, VALUE_BEGIN, VALUE_END};
use crate::engine::chooser::Language;
use crate::server::sampling::one_of;

/// What stands behind [`Format::opening`] where one of the tools has to be called: all of the call but the marks that close it.
pub(in crate::server) fn forced(format: Format, tools: &Tools) -> Language {
    let mut rules = String::new();
    let mut calls = vec![];
    for (i, tool) in tools.all.iter().enumerate() {
        let call = match format {
            Format::Tagged => tagged(i, tool, &mut rules),
            Format::Json => json_call(tool),
            Format::DeepSeek => {
                format!("{} {}", quoted(&[&tool.name, SEPARATOR]), arguments(tool))
            }
            Format::DeepSeekFenced => {
                let before = quoted(&[&tool.name, "\n```json\n"]);
                format!("{before} {} \"\\n```\"", arguments(tool))
            }
        };
        let _ = writeln!(rules, "call_{i}: {call}");
        calls.push(format!("call_{i}"));
    }
    Language::Lark(format!("start: {}\n{rules}", calls.join(" | ")))
}

/// A text in the notation of Lark.
fn quoted(parts: &[&str]) -> String {
    Value::from(parts.concat()).to_string()
}

/// The schema of a tool's arguments. Those that it does not name are none, unless it says otherwise.
fn closed(tool: &Tool) -> Value {
    let mut schema = tool.parameters.clone();
    if let Some(schema) = schema.as_object_mut() {
        schema.entry("type").or_insert_with(|| json!("object"));
        let none = || Value::from(false);
        schema.entry("additionalProperties").or_insert_with(none);
    }
    schema
}

/// A schema in the notation of Lark. JSON is written as models have learnt it, without other white space.
fn in_lark(mut schema: Value) -> String {
    let layout =
        json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "});
    if let Some(schema) = schema.as_object_mut() {
        schema.insert("x-guidance".to_owned(), layout);
    }
    format!("%json {schema}")
}

/// The arguments of a tool as JSON.
fn arguments(tool: &Tool) -> String {
    in_lark(closed(tool))
}

fn json_call(tool: &Tool) -> String {
    let schema = json!({
        "type": "object",
        "properties": {"name": {"const": tool.name}, "arguments": closed(tool)},
        "required": ["name", "arguments"],
        "additionalProperties": false,
    });
    format!("\"\\n\"? {}", in_lark(schema))
}

/// A call in tags: its arguments in the order of the schema, those that are not required left out or not.
fn tagged(call: usize, tool: &Tool, rules: &mut String) -> String {
    let none = Map::new();
    let properties = tool.parameters["properties"].as_object().unwrap_or(&none);
    let required = tool.parameters["required"].as_array();
    let is_required = |name: &str| required.is_some_and(|names| names.iter().any(|n| n == name));
    let mut text = quoted(&[&tool.name]);
    for (i, (name, schema)) in properties.iter().enumerate() {
        let value = format!("value_{call}_{i}");
        let before = quoted(&[KEY_BEGIN, name, KEY_END, VALUE_BEGIN]);
        let behind = match typed::kind(&tool.parameters, name) {
            Kind::Text => match texts(schema) {
                Some(texts) => format!("{value}: ({}) {}", one_of(&texts), quoted(&[VALUE_END])),
                None => format!("{value}[suffix={}]: /(?s:.*)/", quoted(&[VALUE_END])),
            },
            Kind::Json | Kind::Either => {
                let schema = with_definitions(schema, &tool.parameters);
                format!("{value}: {} {}", in_lark(schema), quoted(&[VALUE_END]))
            }
        };
        let _ = writeln!(rules, "{behind}");
        let optional = if is_required(name) { "" } else { "?" };
        let _ = write!(text, " ({before} {value}){optional}");
    }
    text
}

/// The texts that a schema lists, if it does.
fn texts(schema: &Value) -> Option<Vec<&str>> {
    let listed = schema["enum"].as_array()?;
    listed.iter().map(Value::as_str).collect()
}

/// A schema with the definitions that it may name.
fn with_definitions(schema: &Value, parameters: &Value) -> Value {
    let mut schema = schema.clone();
    for name in ["$defs", "definitions"] {
        if let (Some(own), Some(found)) = (schema.as_object_mut(), parameters.get(name)) {
            own.entry(name).or_insert_with(|| found.clone());
        }
    }
    schema
}
