//! The costs of filters and methods beyond reading their arguments once and writing a result of about their size.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, Value};

use super::budget::{SIZE, flat, iterated, made, read, too_large, work};

/// Filters that look at no more than the items of a value, and whose result is not deeper than it.
const SHALLOW: [&str; 14] = [
    "list",
    "first",
    "last",
    "length",
    "count",
    "default",
    "d",
    "map",
    "select",
    "reject",
    "selectattr",
    "rejectattr",
    "reverse",
    "attr",
];
/// Filters that compare items while they sort or group them.
const SORTING: [&str; 7] = ["sort", "dictsort", "unique", "groupby", "min", "max", "sum"];
/// The most comparisons for each item of a sorted list: lists have at most 2^20 items.
const COMPARISONS: u64 = 20;

/// Takes the work of a filter.
///
/// # Errors
/// If the budget does not allow it.
pub(super) fn of_filter(name: &str, args: &[Value]) -> Result<(), Error> {
    let Some((of, rest)) = args.split_first() else {
        return Ok(());
    };
    let shallow = SHALLOW.contains(&name);
    let size = match shallow {
        true => {
            iterated(of)?;
            of.len().unwrap_or(1) as u64
        }
        false => read(of)?,
    };
    for arg in rest {
        read(arg)?;
    }
    // The path of an attribute is cut and followed for each item.
    let named = |name| Some(text_argument(args, name)?.len() as u64 / 8);
    if let Some(path) = named("attribute") {
        work(of.len().unwrap_or(1) as u64 * path)?;
    }
    match name {
        "selectattr" | "rejectattr" => {
            let path = rest.first().and_then(|path| path.as_str());
            work(size.saturating_mul(path.map_or(0, str::len) as u64 / 8))
        }
        name if SORTING.contains(&name) => {
            let items = of.len().unwrap_or(1) as u64;
            let paths = rest.iter().filter_map(|arg| arg.as_str());
            work(paths.map(|path| path.len() as u64 / 8 * items).sum())?;
            let adds_texts = name == "sum" && !adds_numbers(of, rest)?;
            let times = if adds_texts { items } else { COMPARISONS };
            work(times.saturating_mul(size / 16))
        }
        "join" => {
            let by = rest.first().map_or(Ok(0), read)?;
            let named = text_argument(args, "d").map_or(0, |by| by.len() as u64);
            let items = of.len().unwrap_or(0) as u64;
            fits(size.saturating_add(items.saturating_mul(by.max(named))))
        }
        "batch" | "slice" => {
            let count = rest.iter().find_map(|count| count.as_usize());
            let named = kwargs(args).and_then(|given| {
                let names = ["linecount", "slices", "count"];
                names.iter().find_map(|name| given.get::<usize>(name).ok())
            });
            let count = count.into_iter().chain(named).max().unwrap_or(0) as u64;
            fits(count.saturating_mul(32))?;
            work(count)
        }
        _ => of_text(name, of, rest),
    }
}

/// Takes the work of a method of a text, a list or a mapping, whose arguments were read.
///
/// # Errors
/// If the budget does not allow it.
pub(super) fn of_method(name: &str, of: &Value, args: &[Value]) -> Result<(), Error> {
    match name {
        "join" => {
            let items = args.first().and_then(Value::len).unwrap_or(0) as u64;
            let size = args.first().map_or(Ok(0), read)?;
            fits(size.saturating_add(items.saturating_mul(len(of))))
        }
        "expandtabs" => {
            let tabs = of.as_str().map_or(0, |text| text.matches('\t').count()) as u64;
            let size = args.first().and_then(Value::as_usize).unwrap_or(8) as u64;
            fits(tabs.saturating_mul(size))
        }
        _ => of_text(name, of, args),
    }
}

/// Takes the work of what a filter and a method do alike.
fn of_text(name: &str, of: &Value, args: &[Value]) -> Result<(), Error> {
    match name {
        "strip" | "lstrip" | "rstrip" | "trim" => {
            // Each character is looked for among those that go.
            let goes = args.first().map_or(0, len);
            work(len(of).saturating_mul(goes / 8))
        }
        "replace" => {
            let old = args.first().and_then(|old| old.as_str());
            let new = args.get(1).map_or(0, len);
            let text = of.as_str();
            let count = text
                .zip(old)
                .map_or(len(of), |(text, old)| text.matches(old).count() as u64);
            fits(len(of).saturating_add(count.saturating_mul(new)))
        }
        "indent" => {
            let by = args.iter().filter_map(|by| by.as_str()).map(str::len).max();
            let lines = of.as_str().map_or(0, |text| text.lines().count()) as u64;
            fits(lines.saturating_mul(by.unwrap_or(0).max(64) as u64 + 1))
        }
        "wordwrap" => {
            let by = args.iter().filter_map(|by| by.as_str()).map(str::len).max();
            fits(len(of).saturating_mul(by.unwrap_or(0) as u64 + 1))
        }
        _ => Ok(()),
    }
}

/// Takes what a filter made.
///
/// # Errors
/// If the budget does not allow it.
pub(super) fn result(name: &str, result: Value) -> Result<Value, Error> {
    if name == "chain" && result.kind() == ValueKind::Map {
        // It would search one mapping after the other whenever it is asked.
        let keys = result.try_iter()?.checked();
        let pairs = keys.map(|key| {
            let key = key?;
            work(1)?;
            let value = result.get_item(&key)?;
            Ok((key, value))
        });
        let pairs: Vec<(Value, Value)> = pairs.collect::<Result<_, Error>>()?;
        return made(Value::from_pairs(pairs));
    }
    match SHALLOW.contains(&name) {
        // An item was made before.
        true if matches!(name, "first" | "last" | "default" | "d" | "attr") => Ok(result),
        true => flat(result),
        false => made(result),
    }
}

/// Checks that a text or a list of `bytes` may be made.
fn fits(bytes: u64) -> Result<(), Error> {
    match bytes > SIZE {
        true => Err(too_large()),
        false => work(bytes / 16),
    }
}

/// Bytes of a text, or about as many as another value takes when it is written.
fn len(value: &Value) -> u64 {
    let other = || value.len().map_or(32, |items| 32 * items as u64);
    value.as_str().map_or_else(other, |text| text.len() as u64)
}

fn kwargs(args: &[Value]) -> Option<Kwargs> {
    let last = args.last().filter(|last| last.is_kwargs())?;
    Kwargs::try_from(last.clone()).ok()
}

/// The text that is given by this name.
fn text_argument(args: &[Value], name: &str) -> Option<String> {
    kwargs(args)?.get::<String>(name).ok()
}

/// Whether all that is summed is numbers.
fn adds_numbers(of: &Value, rest: &[Value]) -> Result<bool, Error> {
    if !rest.is_empty() {
        return Ok(false);
    }
    let mut items = of.try_iter()?.checked();
    Ok(items.all(|item| item.is_ok_and(|item| item.is_number())))
}
