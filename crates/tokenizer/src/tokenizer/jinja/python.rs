//! Values as Python writes them.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Output, Value};

/// An error in these words.
pub(super) fn failed(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail.into())
}

/// A number, of which Python and Rust write only floats differently.
pub(super) enum Number {
    /// A whole number, written out.
    Whole(String),
    /// A float.
    Float(f64),
}

impl Number {
    /// The number that `value` is.
    pub(super) fn of(value: &Value) -> Number {
        match f64::try_from(value.clone()) {
            Ok(float) if !value.is_integer() => Number::Float(float),
            _ => Number::Whole(value.to_string()),
        }
    }
}

/// Writes the value of an expression in braces, as Python's `str` does.
pub(super) fn write(out: &mut Output<'_>, value: &Value) -> Result<(), Error> {
    Ok(out.write_str(&text(value)?)?)
}

/// Python's `str`.
pub(super) fn text(value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => {
            let mut out = String::new();
            append(&mut out, value, false)?;
            Ok(out)
        }
    }
}

/// Python's `repr`.
pub(super) fn repr(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    append(&mut out, value, true)?;
    Ok(out)
}

/// Python's `ascii`: a `repr` with everything beyond ASCII escaped.
pub(super) fn ascii(repr: &str) -> String {
    let mut out = String::with_capacity(repr.len());
    for c in repr.chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            escape(&mut out, c);
        }
    }
    out
}

/// Appends a character by its number.
fn escape(out: &mut String, c: char) {
    let code = u32::from(c);
    let written = match code {
        ..0x100 => write!(out, "\\x{code:02x}"),
        0x100..0x10000 => write!(out, "\\u{code:04x}"),
        _ => write!(out, "\\U{code:08x}"),
    };
    written.expect("writing to a String cannot fail");
}

/// Whether Python shows a character as it is: it is no blank but the space, no control or format character, and for private use by nobody.
pub(super) fn is_printable(c: char) -> bool {
    let hidden = matches!(c,
        '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}' | '\u{891}' | '\u{8e2}' | '\u{180e}'
        | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{e000}'..='\u{f8ff}' | '\u{feff}'
        | '\u{fff0}'..='\u{fffb}' | '\u{fffe}' | '\u{ffff}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1345f}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e00ff}' | '\u{e01f0}'..);
    c == ' ' || !hidden && !c.is_control() && !c.is_whitespace()
}

/// Python's `repr` of a float: as few digits as tell it, with an exponent outside of 1e-4 to 1e16.
pub(super) fn float(value: f64) -> String {
    if !value.is_finite() {
        return value.to_string().to_lowercase();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        exponent @ ..-4 => format!("{digits}e-{:02}", -exponent),
        exponent @ 16.. => format!("{digits}e+{exponent:02}"),
        _ => {
            let mut text = value.to_string();
            if !text.contains('.') {
                text += ".0";
            }
            text
        }
    }
}

/// Appends Python's `repr` of `value`. Of an undefined value there is nothing unless it is within another.
fn append(out: &mut String, value: &Value, within: bool) -> Result<(), Error> {
    let brackets = |open, close| {
        if value.is_tuple() {
            ('(', ')')
        } else {
            (open, close)
        }
    };
    match value.kind() {
        ValueKind::Undefined if within => *out += "Undefined",
        ValueKind::Number => match Number::of(value) {
            Number::Whole(text) => *out += &text,
            Number::Float(number) => *out += &float(number),
        },
        ValueKind::String => quoted(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = brackets('[', ']');
            out.push(open);
            let mut count = 0;
            for item in value.try_iter()?.checked() {
                if count > 0 {
                    *out += ", ";
                }
                append(out, &item?, true)?;
                count += 1;
            }
            if value.is_tuple() && count == 1 {
                out.push(',');
            }
            out.push(close);
        }
        ValueKind::Map => {
            out.push('{');
            let mut first = true;
            for key in value.try_iter()?.checked() {
                let key = key?;
                if !std::mem::replace(&mut first, false) {
                    *out += ", ";
                }
                append(out, &key, true)?;
                *out += ": ";
                append(out, &value.get_item(&key)?, true)?;
            }
            out.push('}');
        }
        _ => write!(out, "{value}").expect("writing to a String cannot fail"),
    }
    Ok(())
}

/// Appends Python's `repr` of a text.
fn quoted(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => *out += "\\n",
            '\r' => *out += "\\r",
            '\t' => *out += "\\t",
            '\\' => *out += "\\\\",
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if !is_printable(c) => escape(out, c),
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// Arguments by name, those among them that were given by their order. An attribute may be a number.
pub(super) fn by_name(
    filter: &str,
    names: &[&str],
    given: &[Value],
    kwargs: &Kwargs,
) -> Result<Kwargs, Error> {
    if given.len() > names.len() {
        let detail = format!("{filter} takes at most {} arguments", names.len());
        return Err(failed(detail));
    }
    let by_order = names.iter().copied().zip(given.iter().cloned());
    let by_name = kwargs
        .args()
        .map(|name| Ok((name, kwargs.get::<Value>(name)?)));
    let by_name: Vec<_> = by_name.collect::<Result<_, Error>>()?;
    let all = by_order.chain(by_name).map(|(name, value)| match name {
        "attribute" if value.is_integer() => (name.to_owned(), Value::from(value.to_string())),
        _ => (name.to_owned(), value),
    });
    Ok(all.collect())
}
