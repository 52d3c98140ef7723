//! Whether two schemas have no value in common. Then `oneOf` of them is `anyOf`, which a grammar can follow.

use std::cell::Cell;

use serde_json::{Map, Value};

use super::references::{References, Target};

/// The most references that are followed, one to the next.
const DEEPEST: usize = 8;
/// Values that are compared for one unit of the budget.
const COMPARED: usize = 100;

/// Whether no value can be of both schemas, as far as their types, constants and required properties tell, and as `budget` allows
/// comparisons.
pub(super) fn disjoint<'a>(
    references: &References<'a>,
    one: Target<'a>,
    other: Target<'a>,
    budget: &Cell<usize>,
) -> bool {
    let Some(left) = budget.get().checked_sub(1) else {
        return false;
    };
    budget.set(left);
    let (one, other) = (plain(references, one), plain(references, other));
    let (Value::Object(a), Value::Object(b)) = (one.value, other.value) else {
        return one.value == &Value::Bool(false) || other.value == &Value::Bool(false);
    };
    let again = |a, b| disjoint(references, a, b, budget);
    // A choice is apart from what all that it chooses from are apart from.
    for (choice, of, rest) in [(a, one, other), (b, other, one)] {
        for keyword in ["anyOf", "oneOf"] {
            if let Some(Value::Array(options)) = choice.get(keyword)
                && !options.is_empty()
                && options.iter().all(|option| again(within(of, option), rest))
            {
                return true;
            }
        }
    }
    if let (Some(a), Some(b)) = (constants(a), constants(b)) {
        let Some(left) = left.checked_sub(a.len() * b.len() / COMPARED) else {
            return false;
        };
        budget.set(left);
        return !a.iter().any(|value| b.contains(value));
    }
    if let (Some(a), Some(b)) = (types(a), types(b))
        && !a.iter().any(|kind| b.contains(kind))
    {
        return true;
    }
    let are_objects = [a, b]
        .iter()
        .all(|map| types(map).is_some_and(|kinds| kinds == ["object"]));
    let property = |map: &'a Map<String, Value>, name: &str| map.get("properties")?.get(name);
    are_objects
        && required(a).chain(required(b)).any(|name| {
            let closed = |map: &Map<String, Value>| {
                map.get("additionalProperties") == Some(&Value::Bool(false))
            };
            match (property(a, name), property(b, name)) {
                (Some(x), Some(y)) => again(within(one, x), within(other, y)),
                // Who demands it is apart from who excludes it.
                (Some(_), None) => closed(b) && !b.contains_key("patternProperties"),
                (None, Some(_)) => closed(a) && !a.contains_key("patternProperties"),
                (None, None) => false,
            }
        })
}

fn within<'a>(target: Target<'a>, value: &'a Value) -> Target<'a> {
    Target { value, ..target }
}

/// The schema that a reference leads to in the end, as far as it can be followed. Another schema is returned as it is.
fn plain<'a>(references: &References<'a>, mut target: Target<'a>) -> Target<'a> {
    for _ in 0..DEEPEST {
        let Some(Value::String(reference)) = target.value.get("$ref") else {
            break;
        };
        match references.find(reference, target.resource) {
            Ok(found) => target = found,
            Err(_) => break,
        }
    }
    target
}

fn required(map: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let names = map.get("required").and_then(Value::as_array);
    names.into_iter().flatten().filter_map(Value::as_str)
}

/// The values that a schema lists.
fn constants(map: &Map<String, Value>) -> Option<&[Value]> {
    match (map.get("const"), map.get("enum")) {
        (Some(value), _) => Some(std::slice::from_ref(value)),
        (None, Some(Value::Array(values))) => Some(values),
        _ => None,
    }
}

/// The types of a schema's values. An integer is a number.
fn types(map: &Map<String, Value>) -> Option<Vec<&str>> {
    let kind = |value: &'_ Value| match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    if let Some(values) = constants(map) {
        return Some(values.iter().map(kind).collect());
    }
    let plain = |name: &'_ str| match name {
        "null" => "null",
        "boolean" => "boolean",
        "integer" | "number" => "number",
        "string" => "string",
        "array" => "array",
        _ => "object",
    };
    match map.get("type")? {
        Value::String(name) => Some(vec![plain(name)]),
        Value::Array(names) => names.iter().map(|name| name.as_str().map(plain)).collect(),
        _ => None,
    }
}
