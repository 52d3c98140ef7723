//! Python's operator `%` of a text: values in the places that begin with a percent sign.

use std::iter::Peekable;
use std::str::Chars;

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::budget;
use super::python::{self, failed};
use super::spec::{Spec, bounded, float_of, whole_of};

/// `text` with `values`: a tuple of them, a mapping, or the only one.
///
/// # Errors
/// If a place and its value do not fit, or too few or too many values are given.
pub(super) fn format(text: &str, values: &Value) -> Result<String, Error> {
    let given: Vec<Value> = match values.is_tuple() {
        true => values.try_iter()?.collect(),
        false => vec![values.clone()],
    };
    let mut given = given.into_iter();
    let mut out = String::new();
    let mut rest = text.chars().peekable();
    let mut named = false;
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        if rest.next_if_eq(&'%').is_some() {
            out.push('%');
            continue;
        }
        let mut next = || {
            given
                .next()
                .ok_or_else(|| failed("a text with % has more places than values"))
        };
        let key = key_of(&mut rest)?;
        let spec = spec_of(&mut rest, &mut next)?;
        let value = match key {
            Some(_) if values.kind() != ValueKind::Map => {
                return Err(failed("a text with %(name) needs a mapping"));
            }
            Some(key) => {
                named = true;
                let value = values.get_item(&Value::from(key.as_str()))?;
                if value.is_undefined() {
                    return Err(failed(format!(
                        "a text with %({key}) found no such key in the mapping"
                    )));
                }
                value
            }
            None => next()?,
        };
        out += &converted(&spec, &value)?;
        budget::fits(out.len())?;
    }
    // One list or mapping may be left over, as in Python.
    let other = values.is_tuple() || matches!(values.kind(), ValueKind::Seq | ValueKind::Map);
    match given.next() {
        Some(_) if !named && (values.is_tuple() || !other) => Err(failed(
            "not all values were used by a text with %: it has fewer places",
        )),
        _ => Ok(out),
    }
}

/// The name in parentheses.
fn key_of(rest: &mut Peekable<Chars<'_>>) -> Result<Option<String>, Error> {
    if rest.next_if_eq(&'(').is_none() {
        return Ok(None);
    }
    let mut depth = 1;
    let mut key = String::new();
    for c in rest.by_ref() {
        depth += match c {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        if depth == 0 {
            return Ok(Some(key));
        }
        key.push(c);
    }
    Err(failed("a text with %( has no closing parenthesis"))
}

/// Flags, width, precision and kind.
fn spec_of(
    rest: &mut Peekable<Chars<'_>>,
    next: &mut impl FnMut() -> Result<Value, Error>,
) -> Result<Spec, Error> {
    let mut spec = Spec::default();
    let mut zeros = false;
    while let Some(flag) = rest.next_if(|c| "-+ #0".contains(*c)) {
        match flag {
            '-' => spec.align = Some('<'),
            '#' => spec.alternate = true,
            '0' => zeros = true,
            ' ' if spec.sign == Some('+') => {}
            sign => spec.sign = Some(sign),
        }
    }
    if let Some(width) = size_of(rest, next)? {
        if width < 0 {
            spec.align = Some('<');
        }
        spec.width = bounded(width.unsigned_abs())?;
    }
    if rest.next_if_eq(&'.').is_some() {
        let precision = size_of(rest, next)?.unwrap_or(0).max(0);
        spec.precision = Some(bounded(precision.unsigned_abs())?);
    }
    rest.next_if(|c| "hlL".contains(*c));
    spec.kind = rest.next();
    if zeros && spec.align.is_none() && spec.kind.is_some_and(|kind| !"sra".contains(kind)) {
        spec.fill = '0';
        spec.align = Some('=');
    }
    Ok(spec)
}

/// A number, or the next value in place of `*`.
fn size_of(
    rest: &mut Peekable<Chars<'_>>,
    next: &mut impl FnMut() -> Result<Value, Error>,
) -> Result<Option<isize>, Error> {
    if rest.next_if_eq(&'*').is_some() {
        let value = next()?;
        let size = value.as_i64().and_then(|size| isize::try_from(size).ok());
        return size
            .map(Some)
            .ok_or_else(|| failed("a text with %* needs a whole number"));
    }
    let mut size = None;
    while let Some(digit) = rest.peek().and_then(|c| c.to_digit(10)) {
        rest.next();
        size = Some(
            size.unwrap_or(0_isize)
                .saturating_mul(10)
                .saturating_add(digit as isize),
        );
    }
    Ok(size)
}

fn converted(spec: &Spec, value: &Value) -> Result<String, Error> {
    let wrong = |expected: &str| {
        failed(format!(
            "%{} was given {}; {expected} was expected",
            spec.kind.unwrap_or(' '),
            value.kind()
        ))
    };
    let of_text = |text: String| {
        budget::work(text.len() as u64 / 16)?;
        Ok(spec.text(&text, '>'))
    };
    match spec.kind {
        Some('s') => of_text(python::text(value)?),
        Some('r') => of_text(python::repr(value)?),
        Some('a') => of_text(python::ascii(&python::repr(value)?)),
        Some('c') => {
            let code = whole_of(value).and_then(|code| u32::try_from(code).ok());
            let c = match value.as_str() {
                Some(text) => Some(text.to_owned()).filter(|text| text.chars().count() == 1),
                None => code.and_then(char::from_u32).map(String::from),
            };
            let c = c.ok_or_else(|| wrong("one character"))?;
            Ok(Spec {
                precision: None,
                ..spec.clone()
            }
            .text(&c, '>'))
        }
        Some('d' | 'i' | 'u') => {
            let float = || float_of(value).filter(|float| float.abs() < 1e38);
            let whole = whole_of(value).or_else(|| float().map(|float| float as i128));
            Ok(digits(spec, whole.ok_or_else(|| wrong("a number"))?))
        }
        Some('x' | 'X' | 'o') => Ok(digits(
            spec,
            whole_of(value).ok_or_else(|| wrong("a whole number"))?,
        )),
        Some('e' | 'E' | 'f' | 'F' | 'g' | 'G') => {
            Ok(spec.float(float_of(value).ok_or_else(|| wrong("a number"))?))
        }
        Some(kind) => Err(failed(format!(
            "%{kind} is none of Python's conversions: d i u o x X e E f F g G c r s a %"
        ))),
        None => Err(failed("a text with % ends in the middle of a place")),
    }
}

/// A whole number with at least as many digits as the precision says.
fn digits(spec: &Spec, number: i128) -> String {
    let Some(precision) = spec.precision else {
        return spec.whole(number);
    };
    let prefix = match (spec.alternate, spec.kind) {
        (true, Some('x' | 'X' | 'o')) => 2,
        _ => 0,
    };
    let sign = usize::from(number < 0 || spec.sign.is_some());
    let bare = Spec {
        fill: '0',
        align: Some('='),
        width: precision + prefix + sign,
        ..spec.clone()
    };
    let digits = bare.whole(number);
    Spec {
        precision: None,
        ..spec.clone()
    }
    .text(&digits, '>')
}
