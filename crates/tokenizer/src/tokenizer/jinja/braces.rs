//! Python's `str.format`: values in the places that stand in braces.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, Value};

use super::budget;
use super::python::{self, failed};
use super::spec::{Spec, bounded, float_of, whole_of};

/// The values that fill a text with braces, and the number of places without a name so far.
struct Values<'a> {
    given: &'a [Value],
    named: &'a dyn Fn(&str) -> Option<Value>,
    used: usize,
}

/// `text` with the values that are given by their order and by name.
///
/// # Errors
/// If a place and its value do not fit, or a value is missing.
pub(super) fn format(text: &str, given: &[Value], kwargs: &Kwargs) -> Result<String, Error> {
    let named = |name: &str| kwargs.get::<Value>(name).ok();
    let mut values = Values {
        given,
        named: &named,
        used: 0,
    };
    filled(text, &mut values, 0)
}

/// Formats like [`format()`], with values by name alone.
///
/// # Errors
/// As for [`format()`].
pub(super) fn format_map(text: &str, map: &Value) -> Result<String, Error> {
    let named = |name: &str| {
        let value = map.get_item(&Value::from(name)).ok();
        value.filter(|value| !value.is_undefined())
    };
    let mut values = Values {
        given: &[],
        named: &named,
        used: 0,
    };
    filled(text, &mut values, 0)
}

fn filled(text: &str, values: &mut Values<'_>, depth: usize) -> Result<String, Error> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        out += &rest[..at];
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if depth == 0 && rest.starts_with(brace) {
            out += brace;
            rest = &rest[1..];
            continue;
        }
        if brace == "}" {
            return Err(failed("a text with braces has one that closes nothing"));
        }
        let end = end_of(rest)?;
        out += &place(&rest[..end], values, depth)?;
        budget::fits(out.len())?;
        rest = &rest[end + 1..];
    }
    out += rest;
    Ok(out)
}

/// The index of the brace that closes a place.
fn end_of(rest: &str) -> Result<usize, Error> {
    let mut open = 1;
    for (at, c) in rest.char_indices() {
        open += match c {
            '{' => 1,
            '}' => -1,
            _ => 0,
        };
        if open == 0 {
            return Ok(at);
        }
    }
    Err(failed("a text with braces has one that is not closed"))
}

/// The text for `field!conversion:specification`.
fn place(inner: &str, values: &mut Values<'_>, depth: usize) -> Result<String, Error> {
    if depth > 1 {
        return Err(failed("a text has braces within braces within braces"));
    }
    // A colon in brackets belongs to a key.
    let mut within = false;
    let end = inner.find(|c: char| {
        within = (within || c == '[') && c != ']';
        !within && matches!(c, '!' | ':')
    });
    let (field, rest) = inner.split_at(end.unwrap_or(inner.len()));
    let value = value_of(field, values)?;
    let (conversion, rest) = match rest.strip_prefix('!') {
        Some(rest) => rest.split_at(rest.find(':').unwrap_or(rest.len())),
        None => ("", rest),
    };
    let spec = filled(rest.strip_prefix(':').unwrap_or(rest), values, depth + 1)?;
    let value = match conversion {
        "" => value,
        "s" => Value::from(python::text(&value)?),
        "r" => Value::from(python::repr(&value)?),
        "a" => Value::from(python::ascii(&python::repr(&value)?)),
        other => {
            return Err(failed(format!(
                "!{other} is none of Python's conversions: !s !r !a"
            )));
        }
    };
    written(&value, &spec)
}

fn value_of(field: &str, values: &mut Values<'_>) -> Result<Value, Error> {
    let end = field.find(['.', '[']).unwrap_or(field.len());
    let (name, mut path) = field.split_at(end);
    let place = match name {
        "" => {
            values.used += 1;
            Some(values.used - 1)
        }
        name => name.parse::<usize>().ok(),
    };
    let found = match place {
        Some(place) => values.given.get(place).cloned(),
        None => (values.named)(name),
    };
    let mut value = found.ok_or_else(|| {
        failed(format!(
            "a text with braces has no value for {{{field}}}: it was not given"
        ))
    })?;
    while !path.is_empty() {
        let key = match path.strip_prefix('[') {
            Some(rest) => {
                let end = rest.find(']').ok_or_else(|| {
                    failed(format!("{{{field}}} has a bracket that is not closed"))
                })?;
                path = &rest[end + 1..];
                let key = &rest[..end];
                key.parse::<usize>().map_or(Value::from(key), Value::from)
            }
            None => {
                let rest = path.strip_prefix('.').unwrap_or(path);
                let end = rest.find(['.', '[']).unwrap_or(rest.len());
                path = &rest[end..];
                Value::from(&rest[..end])
            }
        };
        value = value.get_item(&key)?;
    }
    Ok(value)
}

fn written(value: &Value, text: &str) -> Result<String, Error> {
    if text.is_empty() {
        let text = python::text(value)?;
        budget::work(text.len() as u64 / 16)?;
        return Ok(text);
    }
    let (spec, zeros) = spec_of(text)?;
    let unknown = || failed(format!("the format {text:?} is none for {}", value.kind()));
    if let Some(text) = value.as_str() {
        if !matches!(spec.kind, None | Some('s')) || spec.align == Some('=') && !zeros {
            return Err(unknown());
        }
        budget::work(text.len() as u64 / 16)?;
        let align = spec.align.filter(|_| !zeros);
        return Ok(Spec { align, ..spec }.text(text, '<'));
    }
    match (whole_of(value), spec.kind) {
        (Some(whole), Some('c')) => {
            let c = u32::try_from(whole).ok().and_then(char::from_u32);
            Ok(spec.text(&c.ok_or_else(unknown)?.to_string(), '<'))
        }
        (Some(whole), None | Some('d' | 'n' | 'b' | 'o' | 'x' | 'X')) => {
            if spec.precision.is_some() {
                return Err(unknown());
            }
            Ok(spec.whole(whole))
        }
        (_, None | Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | 'n' | '%')) => match float_of(value) {
            Some(float) => Ok(spec.float(float)),
            // A value without a format of its own has the empty one alone.
            None if value.kind() == ValueKind::Undefined => Ok(spec.text("", '<')),
            None => Err(unknown()),
        },
        _ => Err(unknown()),
    }
}

/// The specification behind the colon, and whether a zero stands before its width.
fn spec_of(text: &str) -> Result<(Spec, bool), Error> {
    let mut spec = Spec::default();
    let mut rest = text;
    let mut chars = text.chars();
    let (first, second) = (chars.next(), chars.next());
    let aligns = |c: Option<char>| c.filter(|c| "<>=^".contains(*c));
    if let (Some(fill), Some(align)) = (first, aligns(second)) {
        spec.fill = fill;
        spec.align = Some(align);
        rest = &rest[fill.len_utf8() + 1..];
    } else if let Some(align) = aligns(first) {
        spec.align = Some(align);
        rest = &rest[1..];
    }
    if let Some(sign) = rest.chars().next().filter(|c| "+- ".contains(*c)) {
        spec.sign = Some(sign);
        rest = &rest[1..];
    }
    if let Some(after) = rest.strip_prefix('#') {
        spec.alternate = true;
        rest = after;
    }
    let mut zeros = false;
    if let Some(after) = rest.strip_prefix('0') {
        if spec.align.is_none() {
            zeros = true;
            spec.fill = '0';
            spec.align = Some('=');
        }
        rest = after;
    }
    let number = |rest: &mut &str| -> Result<Option<usize>, Error> {
        let end = rest.find(|c: char| !c.is_ascii_digit());
        let (digits, after) = rest.split_at(end.unwrap_or(rest.len()));
        *rest = after;
        match digits {
            "" => Ok(None),
            digits => bounded(digits.parse().unwrap_or(usize::MAX)).map(Some),
        }
    };
    spec.width = number(&mut rest)?.unwrap_or(0);
    if let Some(by) = rest.chars().next().filter(|c| ",_".contains(*c)) {
        spec.grouping = Some(by);
        rest = &rest[1..];
    }
    if let Some(after) = rest.strip_prefix('.') {
        rest = after;
        spec.precision = number(&mut rest)?;
    }
    let mut kinds = rest.chars();
    spec.kind = kinds.next();
    match (spec.kind, kinds.next()) {
        (Some(kind), None) if !kind.is_ascii_alphabetic() && kind != '%' => {}
        (_, None) => return Ok((spec, zeros)),
        _ => {}
    }
    Err(failed(format!(
        "{text:?} is no format of Python's: [[fill]align][sign][#][0][width][,][.precision][kind]"
    )))
}
