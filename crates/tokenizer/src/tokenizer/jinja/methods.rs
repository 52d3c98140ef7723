//! Methods of Python's texts, mappings and lists. What `minijinja_contrib` has as Python has it is taken from there.

use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, from_args};
use minijinja::{Error, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::braces;
use super::python::{self, failed};
use super::spec::MAX_WIDTH;

/// The answer of a method that `minijinja` has not.
pub(super) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let own = match (value.as_str(), value.kind()) {
        (Some(text), _) => of_text(text, method, args),
        (None, ValueKind::Map) if method == "copy" => {
            let () = from_args(args)?;
            Ok(Some(value.clone()))
        }
        (None, ValueKind::Seq) => of_list(value, method, args),
        _ => Ok(None),
    };
    match own? {
        Some(answer) => Ok(answer),
        None => unknown_method_callback(state, value, method, args),
    }
}

fn of_list(list: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "copy" => {
            let () = from_args(args)?;
            list.clone()
        }
        "index" => {
            let (wanted,): (&Value,) = from_args(args)?;
            let at = list.try_iter()?.position(|item| item == *wanted);
            Value::from(at.ok_or_else(|| failed(format!("{wanted} is not in the list")))?)
        }
        _ => return Ok(None),
    }))
}

fn of_text(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "strip" | "lstrip" | "rstrip" => {
            let (of,): (Option<&str>,) = from_args(args)?;
            let goes = |c: char| of.map_or_else(|| is_blank(c), |of| of.contains(c));
            let left = if method == "rstrip" {
                text
            } else {
                text.trim_start_matches(goes)
            };
            Value::from(if method == "lstrip" {
                left
            } else {
                left.trim_end_matches(goes)
            })
        }
        "split" | "rsplit" => {
            let (separator, most) = split_args(args)?;
            let parts = match separator.as_deref() {
                Some("") => return Err(failed(format!("{method} has an empty separator"))),
                separator => parts(text, separator, most, method == "rsplit"),
            };
            parts.into_iter().map(Value::from).collect()
        }
        "splitlines" => {
            let (keepends, kwargs): (Option<bool>, Kwargs) = from_args(args)?;
            let keepends = keepends.or(kwargs.get("keepends")?).unwrap_or(false);
            kwargs.assert_all_used()?;
            lines(text, keepends).into_iter().map(Value::from).collect()
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            partition(text, separator, method == "rpartition")
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "find" | "rfind" | "index" | "rindex" | "count" => {
            let (wanted, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
            search(method, wanted, cut(text, start, end))?
        }
        "startswith" | "endswith" => {
            let (wanted, start, end): (&Value, Option<i64>, Option<i64>) = from_args(args)?;
            bounded(method, wanted, cut(text, start, end))?
        }
        "center" | "ljust" | "rjust" | "zfill" => {
            let (width, fill): (usize, Option<char>) = from_args(args)?;
            Value::from(widened(text, method, width, fill.unwrap_or(' '))?)
        }
        "expandtabs" => {
            let (size,): (Option<usize>,) = from_args(args)?;
            Value::from(without_tabs(text, size.unwrap_or(8))?)
        }
        "title" => {
            let () = from_args(args)?;
            Value::from(title(text))
        }
        "format_map" => {
            let (values,): (&Value,) = from_args(args)?;
            Value::from(braces::format_map(text, values)?)
        }
        "format" => {
            let (given, kwargs): (Rest<Value>, Kwargs) = from_args(args)?;
            Value::from(braces::format(text, &given, &kwargs)?)
        }
        _ => {
            let Some(answer) = without_arguments(text, method) else {
                return Ok(None);
            };
            let () = from_args(args)?;
            answer
        }
    }))
}

/// The parts before and behind the first separator, or the last one from the `right`.
fn partition(text: &str, separator: &str, right: bool) -> Value {
    let found = match right {
        true => text.rsplit_once(separator),
        false => text.split_once(separator),
    };
    let parts = match found {
        Some((before, after)) => [before, separator, after],
        None if right => ["", "", text],
        None => [text, "", ""],
    };
    Value::from(Tuple::from(parts.map(Value::from)))
}

/// `find` and its like, in a part of a text with the characters before it.
fn search(method: &str, wanted: &str, within: Option<(usize, &str)>) -> Result<Value, Error> {
    let found = within.and_then(|(before, part)| {
        let at = match method.starts_with('r') {
            true => part.rfind(wanted),
            false => part.find(wanted),
        };
        at.map(|at| before + part[..at].chars().count())
    });
    Ok(match (method, found) {
        ("count", _) => Value::from(within.map_or(0, |(_, part)| part.matches(wanted).count())),
        (_, Some(at)) => Value::from(at),
        ("find" | "rfind", None) => Value::from(-1),
        (_, None) => return Err(failed(format!("{wanted:?} is not in the text"))),
    })
}

/// `startswith` and `endswith`, of one text or any of several.
fn bounded(method: &str, wanted: &Value, within: Option<(usize, &str)>) -> Result<Value, Error> {
    let wanted = match wanted.as_str() {
        Some(_) => vec![wanted.clone()],
        None => wanted.try_iter()?.collect(),
    };
    let mut met = false;
    for wanted in &wanted {
        let wanted = wanted.as_str().ok_or_else(|| {
            failed(format!(
                "{method} was given {}; a text was expected",
                wanted.kind()
            ))
        })?;
        met |= within.is_some_and(|(_, part)| match method {
            "startswith" => part.starts_with(wanted),
            _ => part.ends_with(wanted),
        });
    }
    Ok(Value::from(met))
}

/// Methods that have no arguments.
fn without_arguments(text: &str, method: &str) -> Option<Value> {
    let all = |test: fn(char) -> bool| Value::from(!text.is_empty() && text.chars().all(test));
    Some(match method {
        "casefold" => {
            let upper = text.chars().flat_map(char::to_uppercase);
            Value::from(upper.flat_map(char::to_lowercase).collect::<String>())
        }
        "swapcase" => Value::from(text.chars().flat_map(swapped).collect::<String>()),
        "isspace" => all(is_blank),
        "isdecimal" => all(|c| is_digit(c) && !is_raised(c)),
        "isdigit" => all(is_digit),
        "isidentifier" => Value::from(
            text.starts_with(|c: char| c == '_' || c.is_alphabetic())
                && text.chars().all(|c| c == '_' || c.is_alphanumeric()),
        ),
        "isprintable" => Value::from(text.chars().all(python::is_printable)),
        "istitle" => Value::from(text.chars().any(is_cased) && title(text) == text),
        _ => return None,
    })
}

/// The separator of `split` and its limit. Without a separator a text is split at blanks.
fn split_args(args: &[Value]) -> Result<(Option<String>, Option<usize>), Error> {
    let (separator, most, kwargs): (Option<String>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = separator.or(kwargs.get("sep")?);
    let most = most.or(kwargs.get("maxsplit")?).unwrap_or(-1);
    kwargs.assert_all_used()?;
    Ok((separator, usize::try_from(most).ok()))
}

/// The parts of a text, split at `most` places from one side.
fn parts<'t>(
    text: &'t str,
    separator: Option<&str>,
    most: Option<usize>,
    right: bool,
) -> Vec<&'t str> {
    let most = most.unwrap_or(usize::MAX);
    match separator {
        Some(separator) if right => {
            let mut parts: Vec<_> = text.rsplitn(most.saturating_add(1), separator).collect();
            parts.reverse();
            parts
        }
        Some(separator) => text.splitn(most.saturating_add(1), separator).collect(),
        None => {
            let mut parts = Vec::new();
            let mut rest = text;
            while parts.len() < most {
                rest = if right {
                    rest.trim_end_matches(is_blank)
                } else {
                    rest.trim_start_matches(is_blank)
                };
                let cut = if right {
                    rest.rfind(is_blank)
                } else {
                    rest.find(is_blank)
                };
                let Some(at) = cut else { break };
                let blank = rest[at..].chars().next().map_or(0, char::len_utf8);
                let (before, after) = (&rest[..at], &rest[at + blank..]);
                let (part, left) = if right {
                    (after, before)
                } else {
                    (before, after)
                };
                parts.push(part);
                rest = left;
            }
            rest = if right {
                rest.trim_end_matches(is_blank)
            } else {
                rest.trim_start_matches(is_blank)
            };
            // Blanks on the far side stay only where the limit was met.
            if parts.len() < most {
                rest = rest.trim_matches(is_blank);
            }
            if !rest.is_empty() {
                parts.push(rest);
            }
            if right {
                parts.reverse();
            }
            parts
        }
    }
}

/// The lines of a text, by everything that Python takes for the end of one.
pub(super) fn lines(text: &str, keepends: bool) -> Vec<&str> {
    let ends =
        |c: char| matches!(c, '\n'..='\r' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(ends) {
        let end = match &rest[at..] {
            crlf if crlf.starts_with("\r\n") => 2,
            other => other.chars().next().map_or(0, char::len_utf8),
        };
        lines.push(&rest[..if keepends { at + end } else { at }]);
        rest = &rest[at + end..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

/// The characters from `start` to `end`, which count from the end if they are negative, and how many there are before.
fn cut(text: &str, start: Option<i64>, end: Option<i64>) -> Option<(usize, &str)> {
    let len = text.chars().count() as i64;
    let place = |at: i64| (if at < 0 { at + len } else { at }).max(0);
    let (start, end) = (
        place(start.unwrap_or(0)),
        place(end.unwrap_or(len)).min(len),
    );
    let byte = |at: i64| {
        text.char_indices()
            .nth(at as usize)
            .map_or(text.len(), |(byte, _)| byte)
    };
    (start <= end).then(|| (start as usize, &text[byte(start)..byte(end)]))
}

pub(super) fn widened(text: &str, method: &str, width: usize, fill: char) -> Result<String, Error> {
    if width > MAX_WIDTH {
        return Err(failed(format!(
            "{method} has the width {width}; at most {MAX_WIDTH} was expected"
        )));
    }
    let count = text.chars().count();
    let missing = width.saturating_sub(count);
    let blanks = |n: usize| fill.to_string().repeat(n);
    Ok(match method {
        "ljust" => format!("{text}{}", blanks(missing)),
        "rjust" => format!("{}{text}", blanks(missing)),
        "zfill" => {
            let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
            format!(
                "{}{}{digits}",
                &text[..text.len() - digits.len()],
                "0".repeat(missing)
            )
        }
        _ => {
            // Python's rule for an odd rest.
            let left = missing / 2 + (missing & width & 1);
            format!("{}{text}{}", blanks(left), blanks(missing - left))
        }
    })
}

fn without_tabs(text: &str, size: usize) -> Result<String, Error> {
    let mut out = String::new();
    let mut column = 0;
    for c in text.chars() {
        match c {
            '\t' => {
                let missing = if size == 0 { 0 } else { size - column % size };
                out += &widened("", "ljust", missing, ' ')?;
                column += missing;
            }
            _ => {
                out.push(c);
                column = if matches!(c, '\n' | '\r') {
                    0
                } else {
                    column + 1
                };
            }
        }
    }
    Ok(out)
}

/// Every letter behind none in upper case, all others in lower case.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut within = false;
    for c in text.chars() {
        if within {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        within = is_cased(c);
    }
    out
}

fn swapped(c: char) -> Vec<char> {
    if c.is_lowercase() {
        c.to_uppercase().collect()
    } else {
        c.to_lowercase().collect()
    }
}

fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase()
}

/// Whether Python takes the character for white space.
pub(super) fn is_blank(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\x1c'..='\x1f')
}

/// A digit, also one that is raised, lowered or circled, but no fraction and no letter.
fn is_digit(c: char) -> bool {
    let others = matches!(c, '\u{bc}'..='\u{be}' | '\u{2150}'..='\u{218f}' | '\u{3007}' | '\u{3021}'..='\u{3029}');
    c.is_numeric() && !others
}

/// A digit that is raised, lowered or circled.
fn is_raised(c: char) -> bool {
    matches!(c, '\u{b2}' | '\u{b3}' | '\u{b9}' | '\u{2070}'..='\u{2089}' | '\u{2460}'..='\u{24ff}' | '\u{2776}'..='\u{2793}')
}
