//! The grammar of a call, for requests that demand one.

use std::fmt::Write;

use serde_json::{Value, json};

use super::schema::{self, Form};
use super::typed;
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
    let of_form = |form: Form| {
        json!({
            "type": "object",
            "properties": form.properties,
            "required": form.required,
            "additionalProperties": form.additional.unwrap_or(Value::Bool(false)),
        })
    };
    if schema::is_combined(&tool.parameters) {
        let mut forms: Vec<Value> = schema::forms(&tool.parameters)
            .into_iter()
            .map(of_form)
            .collect();
        return match forms.len() {
            1 => forms.remove(0),
            _ => json!({ "anyOf": forms }),
        };
    }
    let mut schema = tool.parameters.clone();
    if let Some(schema) = schema.as_object_mut() {
        schema.entry("type").or_insert_with(|| json!("object"));
        let none = || Value::from(false);
        schema.entry("additionalProperties").or_insert_with(none);
    }
    schema
}

/// A schema of a tool in the notation of Lark. JSON is written as models have learnt it, without other white space.
fn in_lark(tool: &Tool, schema: &Value) -> String {
    let layout =
        json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "});
    let mut schema = schema::standalone(&tool.parameters, schema);
    if !schema.is_object() {
        // What is true accepts everything.
        schema = json!({});
    }
    if let Some(schema) = schema.as_object_mut() {
        schema.insert("x-guidance".to_owned(), layout);
    }
    format!("%json {schema}")
}

/// The arguments of a tool as JSON.
fn arguments(tool: &Tool) -> String {
    in_lark(tool, &closed(tool))
}

fn json_call(tool: &Tool) -> String {
    let schema = json!({
        "type": "object",
        "properties": {"name": {"const": tool.name}, "arguments": closed(tool)},
        "required": ["name", "arguments"],
        "additionalProperties": false,
    });
    format!("\"\\n\"? {}", in_lark(tool, &schema))
}

/// A call in tags, in one of the forms that the schema has.
fn tagged(call: usize, tool: &Tool, rules: &mut String) -> String {
    let forms = schema::forms(&tool.parameters).into_iter().enumerate();
    let forms = forms.map(|(i, form)| tagged_form(&format!("{call}_{i}"), tool, &form, rules));
    forms.collect::<Vec<_>>().join(" | ")
}

/// A call in tags: its arguments in the order of the schema, those that are not required left out or not.
fn tagged_form(number: &str, tool: &Tool, form: &Form, rules: &mut String) -> String {
    let is_required = |name: &str| form.required.iter().any(|n| n == name);
    let mut text = quoted(&[&tool.name]);
    for (i, (name, schema)) in form.properties.iter().enumerate() {
        let value = format!("value_{number}_{i}");
        let before = quoted(&[KEY_BEGIN, name, KEY_END, VALUE_BEGIN]);
        let is_text = typed::of_schema(&tool.parameters, schema).is_text_or_null();
        let behind = match typed::texts(&tool.parameters, schema) {
            Some(texts) if is_text => {
                format!("{value}: ({}) {}", one_of(&texts), quoted(&[VALUE_END]))
            }
            None if is_text => format!("{value}[suffix={}]: /(?s:.*)/", quoted(&[VALUE_END])),
            _ => format!(
                "{value}: {} {}",
                in_lark(tool, schema),
                quoted(&[VALUE_END])
            ),
        };
        let _ = writeln!(rules, "{behind}");
        let optional = if is_required(name) { "" } else { "?" };
        let _ = write!(text, " ({before} {value}){optional}");
    }
    text
}
