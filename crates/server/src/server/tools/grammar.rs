//! The grammar of a call, for requests that demand one.

use std::fmt::Write;

use serde_json::{Value, json};

use super::marks::{
    KEY_BEGIN, KEY_END, KIMI_SEPARATOR, PARAMETER, PARAMETER_END, SEPARATOR, VALUE_BEGIN, VALUE_END,
};
use super::schema::{self, Form};
use super::{Format, Tool, Tools};
use super::{inputs, typed};
use crate::engine::chooser::Language;
use crate::server::sampling::one_of;
use crate::tokenizer::Tokenizer;

/// The grammar of the text behind [`Format::opening`] where one of the tools has to be called: all of the call but the marks that close
/// it. Marks that are tokens of the vocabulary are written as these tokens.
pub(in crate::server) fn forced(format: Format, tools: &Tools, tokenizer: &Tokenizer) -> Language {
    let mut rules = String::new();
    let mut calls = vec![];
    for (i, tool) in tools.all.iter().enumerate() {
        let name = quoted(&tool.name);
        let separator = mark(tokenizer, SEPARATOR);
        let call = match format {
            Format::Tagged | Format::Xml => tagged(format, i, tool, tokenizer, &mut rules),
            Format::Json | Format::GigaChat => json_call(tool, "arguments"),
            Format::Llama => json_call(tool, "parameters"),
            Format::Kimi => {
                let (name, mark) = (
                    quoted(&format!("{}:0", tool.name)),
                    mark(tokenizer, KIMI_SEPARATOR),
                );
                format!("{name} {mark} {}", arguments(tool))
            }
            Format::DeepSeek => format!("{name} {separator} {}", arguments(tool)),
            Format::DeepSeekFenced => {
                let before = quoted(&format!("{}\n```json\n", tool.name));
                format!("{before} {} \"\\n```\"", arguments(tool))
            }
        };
        let _ = writeln!(rules, "call_{i}: {call}");
        calls.push(format!("call_{i}"));
    }
    Language::Lark(format!("start: {}\n{rules}", calls.join(" | ")))
}

/// A text in the notation of Lark.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// The token of a mark, if the vocabulary has one.
fn token(tokenizer: &Tokenizer, mark: &str) -> Option<u32> {
    match tokenizer.encode(mark, false).ok()?.as_slice() {
        [token] => Some(*token),
        _ => None,
    }
}

/// A mark in the notation of Lark.
fn mark(tokenizer: &Tokenizer, mark: &str) -> String {
    token(tokenizer, mark).map_or_else(|| quoted(mark), |token| format!("<[{token}]>"))
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
        // The schema `true` accepts everything.
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

/// A call that is an object of JSON, with the arguments under `key`.
fn json_call(tool: &Tool, key: &str) -> String {
    let schema = json!({
        "type": "object",
        "properties": {"name": {"const": tool.name}, key: closed(tool)},
        "required": ["name", key],
        "additionalProperties": false,
    });
    format!("\"\\n\"? {}", in_lark(tool, &schema))
}

/// A call in tags, in one of the forms that the schema has.
fn tagged(
    format: Format,
    call: usize,
    tool: &Tool,
    tokenizer: &Tokenizer,
    rules: &mut String,
) -> String {
    let forms = schema::forms(&tool.parameters).into_iter().enumerate();
    let forms = forms.map(|(i, form)| {
        let number = format!("{call}_{i}");
        tagged_form((format, &number), tool, &form, tokenizer, rules)
    });
    forms.collect::<Vec<_>>().join(" | ")
}

/// A call in tags: its arguments in the order of the schema, those that are not required left out or not.
fn tagged_form(
    (format, number): (Format, &str),
    tool: &Tool,
    form: &Form,
    tokenizer: &Tokenizer,
    rules: &mut String,
) -> String {
    let is_required = |name: &str| form.required.iter().any(|n| n == name);
    let mark = |text| mark(tokenizer, text);
    let is_xml = format == Format::Xml;
    let suffix = match is_xml {
        true => quoted(&format!("\n{PARAMETER_END}\n")),
        false => quoted(VALUE_END),
    };
    let end = match is_xml {
        true => suffix.clone(),
        false => mark(VALUE_END),
    };
    // A special token is never taken for its text.
    let is_special = token(tokenizer, VALUE_END).is_some_and(|end| tokenizer.is_special(end));
    let is_special = is_special && !is_xml;
    let mut text = match is_xml {
        true => quoted(&format!("{}>\n", tool.name)),
        false => quoted(&tool.name),
    };
    for (i, (name, schema)) in form.properties.iter().enumerate() {
        let value = format!("value_{number}_{i}");
        let key = match is_xml {
            true => vec![quoted(&format!("{PARAMETER}{name}>\n"))],
            false => vec![
                mark(KEY_BEGIN),
                quoted(name),
                mark(KEY_END),
                mark(VALUE_BEGIN),
            ],
        };
        let is_text = typed::of_schema(&tool.parameters, schema).is_text_or_null();
        let rule = match typed::texts(&tool.parameters, schema) {
            Some(texts) if is_text => format!("{value}: ({}) {end}", one_of(&texts)),
            None if is_text && is_special => format!("{value}: /(?s:.*)/ {end}"),
            None if is_text => format!("{value}[suffix={suffix}]: /(?s:.*)/"),
            _ => format!("{value}: {} {end}", in_lark(tool, schema)),
        };
        let rule = inputs::rule(&value, schema, &end).unwrap_or(rule);
        let _ = writeln!(rules, "{rule}");
        let optional = if is_required(name) { "" } else { "?" };
        let _ = write!(text, " ({} {value}){optional}", key.join(" "));
    }
    text
}
