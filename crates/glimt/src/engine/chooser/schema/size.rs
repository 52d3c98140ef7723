//! Limits of what a JSON schema may be: llguidance reads some lists in a time that grows as the square of their length.

use serde_json::Value;

use super::SchemaError;

/// The most values of a schema, of any kind.
const MOST_VALUES: usize = 60_000;
/// The most properties of an object, schemas of a list, and names that must be there.
const MOST_LISTED: usize = 4000;
/// The most patterns of the names of an object's properties.
const MOST_PATTERNS: usize = 500;
/// The most bytes of all patterns of a schema.
const MOST_PATTERN: usize = 64 << 10;
/// Look-aheads in all patterns of a schema, each of which is a pattern of its own.
const MOST_AHEAD: usize = 500;
/// The most lists and objects among the values of an `enum`.
const MOST_COMPOSED: usize = 2000;

/// Refuses a schema that is too large.
pub(super) fn check(schema: &Value) -> Result<(), SchemaError> {
    let (mut values, mut bytes, mut ahead) = (0, 0, 0);
    let mut left = vec![schema];
    while let Some(value) = left.pop() {
        values += 1;
        match value {
            Value::Object(map) => {
                for (keyword, inner) in map {
                    listed(keyword, inner)?;
                    for pattern in patterns(keyword, inner) {
                        bytes += pattern.len();
                        ahead += pattern.matches("(?=").count() + pattern.matches("(?!").count();
                    }
                    left.push(inner);
                }
            }
            Value::Array(items) => left.extend(items),
            _ => {}
        }
        if values + left.len() > MOST_VALUES {
            return Err(large("values", MOST_VALUES));
        }
        if bytes > MOST_PATTERN {
            return Err(large("bytes of patterns", MOST_PATTERN));
        }
        if ahead > MOST_AHEAD {
            return Err(large("look-aheads in patterns", MOST_AHEAD));
        }
    }
    Ok(())
}

/// The patterns of a keyword.
fn patterns<'a>(keyword: &str, value: &'a Value) -> Vec<&'a str> {
    match (keyword, value) {
        ("pattern", Value::String(pattern)) => vec![pattern],
        ("patternProperties", Value::Object(map)) => map.keys().map(String::as_str).collect(),
        _ => vec![],
    }
}

fn listed(keyword: &str, value: &Value) -> Result<(), SchemaError> {
    let (count, most) = match (keyword, value) {
        ("enum", Value::Array(values)) => {
            let composed = values.iter().filter(|v| v.is_array() || v.is_object());
            (composed.count(), MOST_COMPOSED)
        }
        ("patternProperties", Value::Object(map)) => (map.len(), MOST_PATTERNS),
        ("properties", Value::Object(map)) => (map.len(), MOST_LISTED),
        ("allOf" | "anyOf" | "oneOf" | "prefixItems" | "items" | "required", Value::Array(all)) => {
            (all.len(), MOST_LISTED)
        }
        _ => return Ok(()),
    };
    match count > most {
        true => Err(large(&format!("entries in one '{keyword}'"), most)),
        false => Ok(()),
    }
}

fn large(what: &str, most: usize) -> SchemaError {
    SchemaError::Large {
        what: what.to_owned(),
        most,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn large_schemas_are_refused_by_what_is_large() {
        let names = |n: usize| (0..n).map(|i| format!("n{i}"));
        let map = |n| Value::Object(names(n).map(|name| (name, json!({}))).collect());
        let refused = |schema: Value| check(&schema).map_err(|error| error.to_string());
        for (schema, expected) in [
            (
                json!({"enum": names(70_000).collect::<Vec<_>>()}),
                "60000 values",
            ),
            (
                json!({"a": {"properties": map(5000)}}),
                "4000 entries in one 'properties'",
            ),
            (
                json!({"patternProperties": map(600)}),
                "500 entries in one 'patternProperties'",
            ),
            (
                json!([{"oneOf": vec![json!({}); 5000]}]),
                "4000 entries in one 'oneOf'",
            ),
            (
                json!({"enum": vec![json!([1]); 2001]}),
                "2000 entries in one 'enum'",
            ),
            (
                json!({"items": {"pattern": "a".repeat(70_000)}}),
                "65536 bytes of patterns",
            ),
            (
                json!({"patternProperties": {"^(?=a)b": {"pattern": format!("^{}x", "(?!a)".repeat(500))}}}),
                "500 look-aheads in patterns",
            ),
        ] {
            let found = refused(schema).expect_err(expected);
            assert!(found.contains(expected), "{found}");
        }
        let enumeration =
            json!({"enum": names(50_000).collect::<Vec<_>>(), "properties": map(2000)});
        assert_eq!(refused(enumeration), Ok(()));
    }
}
