//! Tools that a model may call: what requests say of them, and the forms in which models write calls.
//!
//! [`Parser`] finds calls in the text of an answer while it comes. [`grammar::forced`] keeps an answer to a call where a request demands one.

#[cfg(test)]
mod anything;
mod arguments;
#[cfg(test)]
mod damaged;
mod described;
mod grammar;
mod heads;
mod known;
mod literal;
mod parser;
mod quoting;
mod schema;
mod tags;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod typed;

use serde_json::{Map, Value, json};

pub(super) use described::{as_texts, describe};
pub(super) use grammar::forced;
pub(super) use parser::{Delta, Offered, Parser};

use super::error::ApiError;
use super::fields::Fields;
use super::tree;

/// A tool.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tool {
    pub(super) name: String,
    /// The JSON schema of its arguments: an object.
    pub(super) parameters: Value,
}

/// Which tools an answer may call.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Tools {
    /// What templates are told of all tools.
    pub(super) described: Vec<Value>,
    /// Those that may be called.
    pub(super) all: Vec<Tool>,
    /// Whether it has to call one.
    pub(super) forced: bool,
    /// Whether it may call several.
    pub(super) parallel: bool,
}

/// How a model writes calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// GLM's: the name and pairs of keys and values in tags.
    Tagged,
    /// An object of JSON in tags.
    Json,
    /// DeepSeek's: the name, a mark, and JSON.
    DeepSeek,
    /// DeepSeek's older one: JSON in a fenced block.
    DeepSeekFenced,
}

pub(super) const CALLS_BEGIN: &str = "<｜tool▁calls▁begin｜>";
pub(super) const CALLS_END: &str = "<｜tool▁calls▁end｜>";
pub(super) const CALL_BEGIN: &str = "<｜tool▁call▁begin｜>";
pub(super) const CALL_END: &str = "<｜tool▁call▁end｜>";
pub(super) const SEPARATOR: &str = "<｜tool▁sep｜>";
pub(super) const TAG_BEGIN: &str = "<tool_call>";
pub(super) const TAG_END: &str = "</tool_call>";
pub(super) const KEY_BEGIN: &str = "<arg_key>";
pub(super) const KEY_END: &str = "</arg_key>";
pub(super) const VALUE_BEGIN: &str = "<arg_value>";
pub(super) const VALUE_END: &str = "</arg_value>";

/// All marks of calls, some of which may be special tokens of a vocabulary.
pub(super) const MARKS: [&str; 11] = [
    CALLS_BEGIN,
    CALLS_END,
    CALL_BEGIN,
    CALL_END,
    SEPARATOR,
    TAG_BEGIN,
    TAG_END,
    KEY_BEGIN,
    KEY_END,
    VALUE_BEGIN,
    VALUE_END,
];

impl Format {
    /// That of a model, by the text of its chat template, which writes earlier calls.
    pub(super) fn of_template(source: &str) -> Option<Self> {
        if source.contains(KEY_BEGIN) {
            Some(Self::Tagged)
        } else if source.contains(CALL_BEGIN) {
            Some(match source.contains("```json") {
                true => Self::DeepSeekFenced,
                false => Self::DeepSeek,
            })
        } else if source.contains(TAG_BEGIN) {
            Some(Self::Json)
        } else {
            None
        }
    }

    /// The marks with which an answer begins that is a call.
    pub(super) fn marks(self) -> &'static [&'static str] {
        match self {
            Self::Tagged | Self::Json => &[TAG_BEGIN],
            Self::DeepSeek | Self::DeepSeekFenced => &[CALLS_BEGIN, CALL_BEGIN],
        }
    }

    /// What stands before the name of the first call.
    pub(super) fn opening(self) -> String {
        match self {
            Self::Tagged | Self::Json => TAG_BEGIN.to_owned(),
            Self::DeepSeek => format!("{CALLS_BEGIN}{CALL_BEGIN}"),
            Self::DeepSeekFenced => format!("{CALLS_BEGIN}{CALL_BEGIN}function{SEPARATOR}"),
        }
    }
}

/// Reads `tools` and `tool_choice`; `None` if no tool may be called.
///
/// # Errors
/// What is wrong with them.
pub(super) fn read(fields: &Fields<'_>) -> Result<Option<Tools>, ApiError> {
    for old in ["functions", "function_call"] {
        if fields.get(old).is_some() {
            return Err(fields.wrong(old, "is no longer used; give tools and tool_choice"));
        }
    }
    let listed = fields.objects("tools")?.unwrap_or_default();
    let mut all = listed.iter().map(tool).collect::<Result<Vec<_>, _>>()?;
    let described = listed.iter().map(|tool| Value::Object(tool.all().clone()));
    let parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    let mut forced = false;
    match fields.get("tool_choice") {
        None => {}
        Some(Value::Object(_)) => {
            let name = fields.needed_object("tool_choice").and_then(named)?;
            all.retain(|tool| tool.name == name);
            if all.is_empty() {
                let message = format!("names the tool '{name}', which is not among the tools");
                return Err(fields.wrong("tool_choice", &message));
            }
            forced = true;
        }
        Some(_) => match fields.one_of("tool_choice", &["none", "auto", "required"])? {
            Some("none") => return Ok(None),
            Some("required") if all.is_empty() => {
                return Err(fields.wrong("tool_choice", "demands a tool, but there are no tools"));
            }
            choice => forced = choice == Some("required"),
        },
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
    let read = |text: &str| tree::value(text).ok();
    let value = read(text).or_else(|| read(&literal::read(text, true)?));
    match value {
        Some(Value::Object(map)) => map,
        None if text.trim().is_empty() => Map::new(),
        Some(Value::Null) => Map::new(),
        // Some clients write the object as a text twice.
        Some(Value::String(inner)) if inner.trim_start().starts_with('{') => arguments(&inner),
        _ => [("arguments".to_owned(), Value::from(text))]
            .into_iter()
            .collect(),
    }
}

fn named(choice: Fields<'_>) -> Result<String, ApiError> {
    choice.one_of("type", &["function"])?;
    let function = choice.needed_object("function")?;
    Ok(function.needed_text("name")?.to_owned())
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
