//! The values of arguments that are written as plain text: what the schema of a tool says they are.

use serde_json::Value;

/// What a schema lets a value be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A text, written as it is.
    Text,
    /// A value of JSON that is no text.
    Json,
    /// Either: JSON if it can be read so.
    Either,
}

/// What the schema of a tool's arguments says of one of them.
pub(super) fn kind(parameters: &Value, name: &str) -> Kind {
    parameters["properties"]
        .get(name)
        .map_or(Kind::Either, of_schema)
}

fn of_schema(schema: &Value) -> Kind {
    let of_name = |name: &Value| match name.as_str() {
        Some("string") => Kind::Text,
        Some(_) => Kind::Json,
        None => Kind::Either,
    };
    match &schema["type"] {
        Value::Null => {}
        Value::Array(names) => return joined(names.iter().map(of_name)),
        name => return of_name(name),
    }
    for several in ["anyOf", "oneOf"] {
        if let Some(schemas) = schema[several].as_array() {
            return joined(schemas.iter().map(of_schema));
        }
    }
    match (schema["enum"].as_array(), schema.get("const")) {
        (Some(values), _) => joined(values.iter().map(of_value)),
        (None, Some(value)) => of_value(value),
        (None, None) => Kind::Either,
    }
}

fn of_value(value: &Value) -> Kind {
    match value {
        Value::String(_) => Kind::Text,
        _ => Kind::Json,
    }
}

fn joined(mut kinds: impl Iterator<Item = Kind>) -> Kind {
    let first = kinds.next().unwrap_or(Kind::Either);
    kinds.fold(first, |all, kind| match all == kind {
        true => all,
        false => Kind::Either,
    })
}

/// The JSON of a value that was written as text.
pub(super) fn json(text: &str, kind: Kind) -> String {
    let as_text = || Value::from(text).to_string();
    if kind == Kind::Text {
        return as_text();
    }
    match (serde_json::from_str::<Value>(text), text.trim()) {
        (Ok(value), _) => value.to_string(),
        // As Python writes them.
        (_, "True") => "true".to_owned(),
        (_, "False") => "false".to_owned(),
        (_, "None") => "null".to_owned(),
        _ => as_text(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json as value;

    use super::*;

    #[test]
    fn schemas_tell_texts_from_other_values() {
        let parameters = value!({"properties": {
            "text": {"type": "string"},
            "number": {"type": "integer"},
            "maybe": {"type": ["string", "null"]},
            "any": {},
            "color": {"enum": ["red", "blue"]},
            "either": {"anyOf": [{"type": "string"}, {"type": "number"}]},
            "list": {"anyOf": [{"type": "array"}, {"type": "null"}]},
        }});
        for (name, expected) in [
            ("text", Kind::Text),
            ("number", Kind::Json),
            ("maybe", Kind::Either),
            ("any", Kind::Either),
            ("color", Kind::Text),
            ("either", Kind::Either),
            ("list", Kind::Json),
            ("unknown", Kind::Either),
        ] {
            assert_eq!(kind(&parameters, name), expected, "{name}");
        }
        assert_eq!(kind(&value!(true), "x"), Kind::Either);
    }

    #[test]
    fn values_are_written_as_their_schema_wants_them() {
        assert_eq!(json("12", Kind::Text), r#""12""#);
        assert_eq!(json("12", Kind::Json), "12");
        assert_eq!(json(" [1, 2] ", Kind::Either), "[1,2]");
        assert_eq!(json("True", Kind::Json), "true");
        assert_eq!(json("say \"hi\"\n", Kind::Either), r#""say \"hi\"\n""#);
    }
}
