//! Hugging Face's filter `tojson`: Python's `json.dumps`, whose arguments it passes on. Unlike Jinja's own it escapes nothing for HTML.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, Value};

use super::super::exact::Exact;
use super::budget;
use super::python::{self, Number, failed};

/// Templates indent JSON by 2 or 4 spaces. A far larger indent would take all memory.
const MAX_INDENT: usize = 64;
/// The arguments in their order.
const ARGUMENTS: [&str; 4] = ["ensure_ascii", "indent", "separators", "sort_keys"];

/// `value` as JSON. Without arguments it is on one line, and only what JSON demands is escaped.
pub(super) fn tojson(value: &Value, given: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    if given.len() > ARGUMENTS.len() {
        return Err(failed(format!(
            "tojson has {} arguments; at most {} were expected",
            given.len(),
            ARGUMENTS.len()
        )));
    }
    let argument = |at: usize| -> Result<Option<Value>, Error> {
        let named: Option<Value> = kwargs.get(ARGUMENTS[at])?;
        let value = given.get(at).cloned().or(named);
        Ok(value.filter(|value| !value.is_none()))
    };
    let (ascii, indent) = (argument(0)?, argument(1)?);
    let (separators, sorted) = (argument(2)?, argument(3)?);
    kwargs.assert_all_used()?;
    let indent = indent
        .as_ref()
        .map(|indent| indent_of("tojson", indent))
        .transpose()?;
    let [between, after_key] = match &separators {
        Some(separators) => separators_of(separators)?,
        None => [if indent.is_some() { "," } else { ", " }, ": "].map(str::to_owned),
    };
    let mut json = JsonText {
        text: String::new(),
        ascii: ascii.is_some_and(|ascii| ascii.is_true()),
        indent,
        between,
        after_key,
        sorted: sorted.is_some_and(|sorted| sorted.is_true()),
    };
    json.value(value, 0)?;
    Ok(json.text)
}

/// The text of one level of indentation in `filter`: as many spaces as a number says, or a text.
pub(super) fn indent_of(filter: &str, value: &Value) -> Result<String, Error> {
    let spaces = match (value.as_str(), value.kind()) {
        (Some(text), _) => text.len() as i64,
        (None, ValueKind::Bool) => i64::from(value.is_true()),
        _ => value.as_i64().ok_or_else(|| {
            failed(format!(
                "{filter} has the indent {value}; a whole number or a text was expected"
            ))
        })?,
    };
    if spaces > MAX_INDENT as i64 {
        return Err(failed(format!(
            "{filter} has an indent of {spaces}; at most {MAX_INDENT} was expected"
        )));
    }
    let blanks = || " ".repeat(usize::try_from(spaces).unwrap_or(0));
    Ok(value.as_str().map_or_else(blanks, str::to_owned))
}

/// The separators between two items, and between a key and its value.
fn separators_of(value: &Value) -> Result<[String; 2], Error> {
    let texts = value
        .try_iter()?
        .map(|text| text.as_str().map(str::to_owned));
    let texts: Option<Vec<_>> = texts.collect();
    texts
        .and_then(|texts| texts.try_into().ok())
        .ok_or_else(|| {
            failed(format!(
                "tojson has the separators {value}; two texts were expected"
            ))
        })
}

/// Writes JSON in the form of Python's `json.dumps`.
struct JsonText {
    text: String,
    /// Escape everything beyond ASCII.
    ascii: bool,
    /// The text of one level of indentation; `None` for one line.
    indent: Option<String>,
    between: String,
    after_key: String,
    /// Whether keys are sorted.
    sorted: bool,
}

impl JsonText {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        budget::fits(self.text.len())?;
        match value.kind() {
            ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                self.text += &plain(value).expect("these are written without quotes");
            }
            ValueKind::Plain if value.downcast_object_ref::<Exact>().is_some() => {
                self.text += &value.to_string();
            }
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                self.text.push('[');
                let mut first = true;
                for item in value.try_iter()?.checked() {
                    self.separate(&mut first, depth + 1);
                    self.value(&item?, depth + 1)?;
                }
                self.close(']', first, depth);
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
                if self.sorted {
                    keys.sort();
                }
                self.text.push('{');
                let mut first = true;
                for key in keys {
                    self.separate(&mut first, depth + 1);
                    match (key.as_str(), plain(&key)) {
                        (Some(text), _) => self.string(text),
                        (None, Some(text)) => self.string(&text),
                        (None, None) => {
                            let detail = format!("keys of JSON cannot be {}", key.kind());
                            return Err(failed(detail));
                        }
                    }
                    self.text += &self.after_key;
                    self.value(&value.get_item(&key)?, depth + 1)?;
                }
                self.close('}', first, depth);
            }
            other => return Err(failed(format!("{other} cannot be written as JSON"))),
        }
        Ok(())
    }

    /// Writes what stands before an item.
    fn separate(&mut self, first: &mut bool, depth: usize) {
        if !std::mem::replace(first, false) {
            self.text += &self.between;
        }
        self.line_break(depth);
    }

    fn close(&mut self, bracket: char, empty: bool, depth: usize) {
        if !empty {
            self.line_break(depth);
        }
        self.text.push(bracket);
    }

    fn line_break(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.text.push('\n');
            self.text
                .extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    }

    fn string(&mut self, text: &str) {
        for c in serde_json::Value::from(text).to_string().chars() {
            if !self.ascii || matches!(c, ' '..='~') {
                self.text.push(c);
                continue;
            }
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(self.text, "\\u{unit:04x}").expect("writing to a String cannot fail");
            }
        }
    }
}

/// A value that JSON has no quotes for.
fn plain(value: &Value) -> Option<String> {
    Some(match value.kind() {
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => value.is_true().to_string(),
        ValueKind::Number => match Number::of(value) {
            Number::Whole(text) => text,
            Number::Float(float) if float.is_nan() => "NaN".to_owned(),
            Number::Float(float) if float.is_infinite() && float > 0.0 => "Infinity".to_owned(),
            Number::Float(float) if float.is_infinite() => "-Infinity".to_owned(),
            Number::Float(float) => python::float(float),
        },
        _ => return None,
    })
}
