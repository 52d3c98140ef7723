//! Filters, tests and functions of Jinja that `minijinja` lacks, or that it has with fewer arguments or other results.

use minijinja::value::{ArgType, Kwargs, Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value, filters, functions};
use minijinja_contrib::{filters as more, globals};

use super::python::{self, by_name, failed};
use super::spec::{float_of, whole_of};
use super::wrap::{Breaks, wordwrap};
use super::{groups, json, methods, printf};

/// Adds all filters, tests and functions of this module.
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
    environment.add_filter("filesizeformat", |value: &Value, binary: Option<bool>| {
        let size = match value.as_str() {
            Some(text) => text.trim().parse().ok(),
            None => float_of(value),
        };
        let size = size.ok_or_else(|| failed(format!("{value} is no size in bytes")))?;
        Ok::<_, Error>(more::filesizeformat(size, binary))
    });
    environment.add_filter("wordwrap", wrapped);
    environment.add_filter("xmlattr", xmlattr);
    environment.add_filter("groupby", groups::groupby);
    add_values(environment);
    add_orders(environment);
    add_tests(environment);
}

/// Adds the filters that look at values of any kind.
fn add_values(environment: &mut Environment<'_>) {
    environment.add_filter(
        "format",
        |text: &Value, args: Rest<Value>, kwargs: Kwargs| {
            let named: Vec<_> = kwargs
                .args()
                .map(|name| Ok((Value::from(name), kwargs.get::<Value>(name)?)))
                .collect::<Result<_, Error>>()?;
            let values = match (args.is_empty(), named.is_empty()) {
                (_, true) => Value::from(Tuple::from(args.0)),
                (true, false) => Value::from_pairs(named),
                (false, false) => return Err(failed("format takes values by order or by name")),
            };
            printf::format(&python::text(text)?, &values)
        },
    );
    environment.add_filter("last", |value: Value| match value.kind() {
        ValueKind::Map => Ok(value.try_iter()?.last().unwrap_or_default()),
        _ => filters::last(value),
    });
    environment.add_filter("items", |value: &Value| match value.is_undefined() {
        true => Ok(Value::from(Vec::<Value>::new())),
        false => filters::items(value),
    });
    for name in ["default", "d"] {
        environment.add_filter(name, |value: Value, given: Rest<Value>, kwargs: Kwargs| {
            let kwargs = by_name("default", &["default_value", "boolean"], &given, &kwargs)?;
            let other: Option<Value> = kwargs.get("default_value")?;
            let boolean = kwargs.get::<Option<Value>>("boolean")?;
            kwargs.assert_all_used()?;
            let empty = boolean.is_some_and(|boolean| boolean.is_true()) && !value.is_true();
            Ok::<_, Error>(match value.is_undefined() || empty {
                true => other.unwrap_or_else(|| Value::from("")),
                false => value,
            })
        });
    }
    environment.add_filter(
        "unique",
        |state: &mut State<'_, '_>, value, given: Rest<Value>, kwargs: Kwargs| {
            let names = ["case_sensitive", "attribute"];
            let kwargs = by_name("unique", &names, &given, &kwargs)?;
            filters::unique(state, value, kwargs)
        },
    );
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
}

/// Adds the filters that sort values and add them up.
fn add_orders(environment: &mut Environment<'_>) {
    environment.add_filter(
        "sort",
        |state: &State<'_, '_>, value, given: Rest<Value>, kwargs| {
            let names = ["reverse", "case_sensitive", "attribute"];
            filters::sort(state, value, by_name("sort", &names, &given, &kwargs)?)
        },
    );
    environment.add_filter("dictsort", |value: &Value, given: Rest<Value>, kwargs| {
        let names = ["case_sensitive", "by", "reverse"];
        filters::dictsort(value, by_name("dictsort", &names, &given, &kwargs)?)
    });
    environment.add_filter(
        "min",
        |state: &State<'_, '_>, value, given: Rest<Value>, kwargs| {
            let names = ["case_sensitive", "attribute"];
            filters::min(state, value, by_name("min", &names, &given, &kwargs)?)
        },
    );
    environment.add_filter(
        "max",
        |state: &State<'_, '_>, value, given: Rest<Value>, kwargs| {
            let names = ["case_sensitive", "attribute"];
            filters::max(state, value, by_name("max", &names, &given, &kwargs)?)
        },
    );
    environment.add_filter(
        "sum",
        |state: &State<'_, '_>, value, given: Rest<Value>, kwargs| {
            let kwargs = by_name("sum", &["attribute", "start"], &given, &kwargs)?;
            filters::sum(state, value, None, None, kwargs)
        },
    );
}

/// Adds tests and functions.
fn add_tests(environment: &mut Environment<'_>) {
    // A text and a mapping have a length and items, too.
    environment.add_test("sequence", |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::Seq | ValueKind::Map | ValueKind::String
        )
    });
    environment.add_test("mapping", |value: &Value| {
        value.kind() == ValueKind::Map && !is_namespace(value)
    });
    environment.add_test("iterable", |value: &Value| {
        !value.is_none() && (value.is_undefined() || value.try_iter().is_ok())
    });
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
    environment.add_function("namespace", |given: Rest<Value>, kwargs: Kwargs| {
        let all = dict(given, kwargs)?;
        functions::namespace(Some(ValueOrKwargs::from_value(Some(&all))?))
    });
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
    let kwargs = by_name("truncate", &names, &given, &kwargs)?;
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

fn replace(value: &Value, old: &Value, new: &Value, count: Option<i64>) -> Result<String, Error> {
    let [text, old, new] = [python::text(value)?, python::text(old)?, python::text(new)?];
    Ok(match count.and_then(|count| usize::try_from(count).ok()) {
        Some(count) => text.replacen(&old, &new, count),
        None => text.replace(&old, &new),
    })
}

/// `text` with every line but the first indented; blank lines only if asked for.
fn indent(text: &str, given: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let kwargs = by_name("indent", &["width", "first", "blank"], &given, &kwargs)?;
    let width = kwargs.get::<Option<Value>>("width")?;
    let first = kwargs.get::<Option<bool>>("first")?.unwrap_or(false);
    let blank = kwargs.get::<Option<bool>>("blank")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    let by = json::indent_of("indent", &width.unwrap_or(Value::from(4)))?;
    // So a line break at the end is one more line.
    let text = format!("{text}\n");
    let mut out = String::new();
    for (at, line) in methods::lines(&text, false).into_iter().enumerate() {
        if at > 0 {
            out.push('\n');
        }
        if if at == 0 {
            first
        } else {
            blank || !line.is_empty()
        } {
            out += &by;
        }
        out += line;
    }
    Ok(out)
}

/// `text` in lines of at most `width` characters.
fn wrapped(value: &Value, given: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let names = [
        "width",
        "break_long_words",
        "wrapstring",
        "break_on_hyphens",
    ];
    let kwargs = by_name("wordwrap", &names, &given, &kwargs)?;
    let width = kwargs.get::<Option<usize>>("width")?.unwrap_or(79);
    let long_words = kwargs
        .get::<Option<bool>>("break_long_words")?
        .unwrap_or(true);
    let by = kwargs.get::<Option<String>>("wrapstring")?;
    let hyphens = kwargs
        .get::<Option<bool>>("break_on_hyphens")?
        .unwrap_or(true);
    kwargs.assert_all_used()?;
    let text = value.as_str().ok_or_else(|| {
        failed(format!(
            "wordwrap was given {}; a text was expected",
            value.kind()
        ))
    })?;
    if width == 0 {
        return Err(failed("wordwrap has the width 0; at least 1 was expected"));
    }
    let breaks = Breaks {
        long_words,
        hyphens,
    };
    Ok(wordwrap(text, width, breaks, by.as_deref().unwrap_or("\n")))
}

/// A mapping as attributes of a tag; what is none or undefined is left out.
fn xmlattr(value: &Value, autospace: Option<bool>, kwargs: Kwargs) -> Result<String, Error> {
    let autospace = autospace.or(kwargs.get("autospace")?).unwrap_or(true);
    kwargs.assert_all_used()?;
    if value.kind() != ValueKind::Map {
        let found = value.kind();
        return Err(failed(format!(
            "xmlattr was given {found}; a mapping was expected"
        )));
    }
    let mut attributes = Vec::new();
    for key in value.try_iter()?.checked() {
        let key = key?;
        let of = value.get_item(&key)?;
        if of.is_none() || of.is_undefined() {
            continue;
        }
        let key = python::text(&key)?;
        if key.contains(|c: char| methods::is_blank(c) || matches!(c, '/' | '>' | '=')) {
            return Err(failed(format!(
                "{key:?} cannot be the name of an attribute"
            )));
        }
        attributes.push(format!(
            "{}=\"{}\"",
            escaped(&key),
            escaped(&python::text(&of)?)
        ));
    }
    let space = if autospace && !attributes.is_empty() {
        " "
    } else {
        ""
    };
    Ok(format!("{space}{}", attributes.join(" ")))
}

/// Whether a template made `value` by `namespace`.
pub(super) fn is_namespace(value: &Value) -> bool {
    value
        .as_object()
        .is_some_and(|object| object.type_name().ends_with("::Namespace"))
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
        None => whole_of(value)
            .map(Ok)
            .or_else(|| float_of(value).and_then(truncated)),
    };
    found.map_or(Ok(default), |found| found.map(integer))
}

/// A whole number as templates have it: one that 64 bits hold equals itself in any form.
fn integer(number: i128) -> Value {
    i64::try_from(number).map_or_else(|_| Value::from(number), Value::from)
}

/// The whole part of a float, if it has one.
fn truncated(float: f64) -> Option<Result<i128, Error>> {
    let fits = float.abs() < 1.7e38;
    let large = || {
        failed(format!(
            "int was given {float:e}; whole numbers have 128 bits"
        ))
    };
    float.is_finite().then(|| {
        if fits {
            Ok(float as i128)
        } else {
            Err(large())
        }
    })
}

/// The whole number that a text is, or the whole part of the float that it is.
fn whole(text: &str, base: u32) -> Option<Result<i128, Error>> {
    if !(2..=36).contains(&base) {
        return None;
    }
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
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
    let whole = i128::from_str_radix(&digits.replace('_', ""), base).ok();
    whole
        .map(|n| Ok(if negative { -n } else { n }))
        .or_else(|| text.parse::<f64>().ok().and_then(truncated))
}

/// A float, or `default` for what is none.
fn float(value: &Value, default: Option<Value>) -> Value {
    let found = match value.as_str() {
        Some(text) => text.trim().replace('_', "").parse().ok(),
        None => float_of(value),
    };
    found.map_or(default.unwrap_or(Value::from(0.0)), Value::from)
}
