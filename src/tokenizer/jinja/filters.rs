//! Filters, tests and functions of Jinja that `minijinja` lacks, or that it has with fewer arguments or other results.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, State, Value, filters};
use minijinja_contrib::{filters as more, globals};

use super::python::{self, failed};
use super::{json, methods};

/// Adds them all.
pub(super) fn add(environment: &mut Environment<'_>) {
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("string", |value: &Value| python::text(value));
    environment.add_filter("urlencode", urlencode);
    for name in ["e", "escape", "forceescape"] {
        environment.add_filter(name, |value: &Value| {
            Ok::<_, Error>(escaped(&python::text(value)?))
        });
    }
    environment.add_filter("striptags", more::striptags);
    environment.add_filter("filesizeformat", more::filesizeformat);
    environment.add_filter("wordcount", wordcount);
    environment.add_filter("truncate", truncate);
    environment.add_filter("center", |text: String, width: Option<usize>| {
        methods::widened(&text, "center", width.unwrap_or(80), ' ')
    });
    environment.add_filter("replace", replace);
    environment.add_filter("indent", indent);
    environment.add_filter("int", int);
    environment.add_filter("float", float);
    for name in ["length", "count"] {
        environment.add_filter(name, |value: &Value| match value.is_undefined() {
            true => Ok(0),
            false => filters::length(value),
        });
    }
    environment.add_filter(
        "sort",
        |state: &State<'_, '_>, value, given: Rest<Value>, kwargs| {
            let names = ["reverse", "case_sensitive", "attribute"];
            filters::sort(state, value, named("sort", &names, &given, &kwargs)?)
        },
    );
    environment.add_filter("dictsort", |value: &Value, given: Rest<Value>, kwargs| {
        let names = ["case_sensitive", "by", "reverse"];
        filters::dictsort(value, named("dictsort", &names, &given, &kwargs)?)
    });
    environment.add_filter(
        "min",
        |state: &State<'_, '_>, value, given: Rest<Value>, kwargs| {
            let names = ["case_sensitive", "attribute"];
            filters::min(state, value, named("min", &names, &given, &kwargs)?)
        },
    );
    environment.add_filter(
        "max",
        |state: &State<'_, '_>, value, given: Rest<Value>, kwargs| {
            let names = ["case_sensitive", "attribute"];
            filters::max(state, value, named("max", &names, &given, &kwargs)?)
        },
    );
    environment.add_filter(
        "sum",
        |state: &State<'_, '_>, value, given: Rest<Value>, kwargs| {
            let kwargs = named("sum", &["attribute", "start"], &given, &kwargs)?;
            filters::sum(state, value, None, None, kwargs)
        },
    );
    // A text and a mapping have a length and items, too.
    environment.add_test("sequence", |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::Seq | ValueKind::Map | ValueKind::String
        )
    });
    environment.add_test("iterable", |value: &Value| {
        !value.is_none() && (value.is_undefined() || value.try_iter().is_ok())
    });
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
    environment.add_function("cycler", |items: Rest<Value>| globals::cycler(items.0));
    environment.add_function("joiner", globals::joiner);
    environment.add_function("dict", dict);
}

/// A mapping of another one or of pairs, and of what is given by name.
fn dict(given: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let mut items: Vec<(Value, Value)> = vec![];
    match given.as_slice() {
        [] => {}
        [from] => {
            for item in from.try_iter()?.checked() {
                let item = item?;
                items.push(match from.kind() {
                    ValueKind::Map => (item.clone(), from.get_item(&item)?),
                    _ => (item.get_item_by_index(0)?, item.get_item_by_index(1)?),
                });
            }
        }
        _ => return Err(failed("dict takes at most one argument without a name")),
    }
    for name in kwargs.args() {
        items.push((Value::from(name), kwargs.get::<Value>(name)?));
    }
    Ok(Value::from_pairs(items))
}

/// Arguments by name, those among them that were given by their order. An attribute may be a number.
fn named(filter: &str, names: &[&str], given: &[Value], kwargs: &Kwargs) -> Result<Kwargs, Error> {
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

/// A text as a part of an address, or pairs as its query.
fn urlencode(value: &Value) -> Result<String, Error> {
    let pair = |key: &Value, value: &Value| -> Result<String, Error> {
        let [key, value] = [python::text(key)?, python::text(value)?];
        Ok(format!("{}={}", quoted(&key, true), quoted(&value, true)))
    };
    let pairs: Vec<String> = match value.kind() {
        ValueKind::Map => {
            let keys = value.try_iter()?.checked();
            let pairs = keys.map(|key| key.and_then(|key| pair(&key, &value.get_item(&key)?)));
            pairs.collect::<Result<_, _>>()?
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?.checked();
            let pairs = items.map(|item| {
                let item = item?;
                pair(&item.get_item_by_index(0)?, &item.get_item_by_index(1)?)
            });
            pairs.collect::<Result<_, _>>()?
        }
        _ => return Ok(quoted(&python::text(value)?, false)),
    };
    Ok(pairs.join("&"))
}

/// `text` as a part of an address. In a query a blank is a plus, and a slash is escaped.
fn quoted(text: &str, query: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => {
                out.push(byte.into())
            }
            b'/' if !query => out.push('/'),
            b' ' if query => out.push('+'),
            _ => out += &format!("%{byte:02X}"),
        }
    }
    out
}

/// `text` with HTML's own characters escaped.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '\'' => out += "&#39;",
            '"' => out += "&#34;",
            c => out.push(c),
        }
    }
    out
}

fn wordcount(text: &str) -> usize {
    let words = text.split(|c: char| c != '_' && !c.is_alphanumeric());
    words.filter(|word| !word.is_empty()).count()
}

/// `text` with an end in place of what is beyond `length`, cut between words unless `killwords` says otherwise.
fn truncate(text: &str, given: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let names = ["length", "killwords", "end", "leeway"];
    let kwargs = named("truncate", &names, &given, &kwargs)?;
    let length = kwargs.get::<Option<usize>>("length")?.unwrap_or(255);
    let killwords = kwargs.get::<Option<bool>>("killwords")?.unwrap_or(false);
    let end = kwargs.get::<Option<String>>("end")?;
    let end = end.unwrap_or_else(|| "...".to_owned());
    let leeway = kwargs.get::<Option<usize>>("leeway")?.unwrap_or(5);
    kwargs.assert_all_used()?;
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text.to_owned());
    }
    let kept = length.saturating_sub(end.chars().count());
    let kept: String = text.chars().take(kept).collect();
    let kept = match kept.rsplit_once(' ') {
        Some((words, _)) if !killwords => words,
        _ => &kept,
    };
    Ok(format!("{kept}{end}"))
}

fn replace(value: &Value, old: &str, new: &str, count: Option<i64>) -> Result<String, Error> {
    let text = python::text(value)?;
    Ok(match count.and_then(|count| usize::try_from(count).ok()) {
        Some(count) => text.replacen(old, new, count),
        None => text.replace(old, new),
    })
}

/// `text` with every line but the first indented; blank lines only if asked for.
fn indent(text: &str, given: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let kwargs = named("indent", &["width", "first", "blank"], &given, &kwargs)?;
    let width = kwargs.get::<Option<Value>>("width")?;
    let first = kwargs.get::<Option<bool>>("first")?.unwrap_or(false);
    let blank = kwargs.get::<Option<bool>>("blank")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    let by = json::indent_of("indent", &width.unwrap_or(Value::from(4)))?;
    let lines = methods::lines(text, false);
    let mut out = String::new();
    for (at, line) in lines.iter().enumerate() {
        if at > 0 {
            out.push('\n');
        }
        let indented = if at == 0 {
            first
        } else {
            blank || !line.is_empty()
        };
        if indented {
            out += &by;
        }
        out += line;
    }
    // A line break at the end is kept.
    if methods::lines(text, true)
        .last()
        .is_some_and(|last| Some(last) != lines.last())
    {
        out.push('\n');
    }
    Ok(out)
}

/// A whole number, or `default` for what is none.
fn int(
    value: &Value,
    default: Option<Value>,
    base: Option<u32>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let default = default.or(kwargs.get("default")?).unwrap_or(Value::from(0));
    let base = base.or(kwargs.get("base")?).unwrap_or(10);
    kwargs.assert_all_used()?;
    let found = match value.as_str() {
        Some(text) => whole(text.trim(), base),
        None if value.kind() == ValueKind::Bool => Some(i64::from(value.is_true())),
        None if value.is_integer() => return Ok(value.clone()),
        None => f64::try_from(value.clone()).ok().map(|float| float as i64),
    };
    Ok(found.map_or(default, Value::from))
}

/// The whole number that a text is, or the whole part of the float that it is.
fn whole(text: &str, base: u32) -> Option<i64> {
    if !(2..=36).contains(&base) {
        return None;
    }
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefix = match base {
        2 => ["0b", "0B"],
        8 => ["0o", "0O"],
        16 => ["0x", "0X"],
        _ => ["", ""],
    };
    let digits = prefix
        .iter()
        .find_map(|p| digits.strip_prefix(p))
        .unwrap_or(digits);
    let whole = i64::from_str_radix(&digits.replace('_', ""), base).ok();
    let float = || text.parse::<f64>().ok().filter(|float| float.is_finite());
    whole
        .map(|n| sign * n)
        .or_else(|| float().map(|float| float as i64))
}

/// A float, or `default` for what is none.
fn float(value: &Value, default: Option<Value>) -> Value {
    let found = match value.as_str() {
        Some(text) => text.trim().parse().ok(),
        None => f64::try_from(value.clone()).ok(),
    };
    found.map_or(default.unwrap_or(Value::from(0.0)), Value::from)
}
