//! The values of arguments that are written as plain text: what the schema of a tool says they are.

use serde_json::Value;

use super::literal;
use super::schema::parts;

/// The most schemas that are followed one within the other.
const DEEPEST: usize = 24;

/// The most patterns of names that are looked at.
const MOST_PATTERNS: usize = 64;

/// The types that a value may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kinds(u8);

impl Kinds {
    const NONE: Self = Self(0);
    const TEXT: Self = Self(1);
    const NULL: Self = Self(2);
    const FLAG: Self = Self(4);
    const INTEGER: Self = Self(8);
    const FRACTION: Self = Self(16);
    const LIST: Self = Self(32);
    const OBJECT: Self = Self(64);
    const ANY: Self = Self(127);

    fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn has(self, other: Self) -> bool {
        self.and(other) != Self::NONE
    }

    /// Whether a value is a text as it is written.
    pub(super) fn is_text(self) -> bool {
        self == Self::TEXT
    }

    /// Whether a value may be a text.
    pub(super) fn has_text(self) -> bool {
        self.has(Self::TEXT)
    }

    /// Whether a value is a text as it is written, or null.
    pub(super) fn is_text_or_null(self) -> bool {
        self.is_text() || self == Self::TEXT.or(Self::NULL)
    }

    fn named(name: &str) -> Self {
        // Some clients write names of their languages, or capitals.
        match name.to_ascii_lowercase().as_str() {
            "string" | "str" | "text" => Self::TEXT,
            "null" => Self::NULL,
            "boolean" | "bool" => Self::FLAG,
            "integer" | "int" => Self::INTEGER,
            "number" | "float" => Self::INTEGER.or(Self::FRACTION),
            "array" => Self::LIST,
            "object" => Self::OBJECT,
            _ => Self::ANY,
        }
    }

    /// The type of a value that is written in JSON.
    fn of_json(json: &str) -> Self {
        match json.as_bytes().first() {
            Some(b'"') => Self::TEXT,
            Some(b'n') => Self::NULL,
            Some(b't' | b'f') => Self::FLAG,
            Some(b'[') => Self::LIST,
            Some(b'{') => Self::OBJECT,
            _ if json.contains(['.', 'e', 'E']) => Self::FRACTION,
            _ => Self::INTEGER,
        }
    }

    fn of_value(value: &Value) -> Self {
        Self::of_json(&value.to_string())
    }
}

/// The types that the schema of a tool's arguments lets one of them have.
pub(super) fn kinds(parameters: &Value, name: &str) -> Kinds {
    let found = of_property(parameters, parameters, name, 0);
    found.unwrap_or(Kinds::ANY)
}

/// The types that a schema of objects allows a property; `None` if it says nothing.
fn of_property(root: &Value, schema: &Value, name: &str, depth: usize) -> Option<Kinds> {
    if depth > DEEPEST {
        return None;
    }
    let parts = parts(root, schema);
    let own = schema["properties"].get(name);
    let own = own.map(|schema| of_schema_at(root, schema, depth + 1));
    let inner = |schema| of_property(root, schema, name, depth + 1);
    let all = parts.all.into_iter().filter_map(inner);
    let one_of = parts.one_of.into_iter();
    let one_of = one_of.filter_map(|some| some.iter().filter_map(inner).reduce(Kinds::or));
    let patterns = matching(schema, name).map(|schema| of_schema_at(root, schema, depth + 1));
    let said = own.into_iter().chain(patterns).chain(all).chain(one_of);
    let others = || {
        let others = schema.get("additionalProperties").filter(|s| s.is_object());
        others.map(|schema| of_schema_at(root, schema, depth + 1))
    };
    said.reduce(Kinds::and).or_else(others)
}

/// The schemas of `patternProperties` whose patterns match a name.
fn matching<'a>(schema: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    let patterns = schema["patternProperties"]
        .as_object()
        .into_iter()
        .flatten();
    let matches = move |pattern: &str| {
        let regex = fancy_regex::Regex::new(pattern);
        regex.is_ok_and(|regex| regex.is_match(name).unwrap_or(false))
    };
    let found = patterns
        .take(MOST_PATTERNS)
        .filter(move |(pattern, _)| matches(pattern));
    found.map(|(_, schema)| schema)
}

/// Whether the schema of a tool's arguments lets one of them be a value, as far as types and listed values tell.
fn admits(root: &Value, schema: &Value, name: &str, value: &Value, depth: usize) -> bool {
    if depth > DEEPEST {
        return true;
    }
    let inner = |schema| admits(root, schema, name, value, depth + 1);
    let is = |schema| is_of(root, schema, value, depth + 1);
    let parts = parts(root, schema);
    schema["properties"].get(name).is_none_or(is)
        && matching(schema, name).all(is)
        && parts.all.into_iter().all(inner)
        && parts.one_of.into_iter().all(|some| some.iter().any(inner))
}

/// Whether a schema lets a value be, as far as types and listed values tell.
fn is_of(root: &Value, schema: &Value, value: &Value, depth: usize) -> bool {
    let listed = |values: &Vec<Value>| values.contains(value);
    let inner = |schema| is_of(root, schema, value, depth + 1);
    let parts = parts(root, schema);
    depth > DEEPEST
        || of_schema_at(root, schema, depth).has(Kinds::of_value(value))
            && schema["enum"].as_array().is_none_or(listed)
            && schema.get("const").is_none_or(|only| only == value)
            && parts.all.into_iter().all(inner)
            && parts.one_of.into_iter().all(|some| some.iter().any(inner))
}

/// The JSON of an argument that was written as text: of a text and another value the one that the schema lists.
pub(super) fn argument(parameters: &Value, name: &str, text: &str, cut: bool) -> String {
    let kinds = kinds(parameters, name);
    let json = json(text, kinds, cut);
    if kinds.has_text() && !kinds.is_text() && !json.starts_with('"') {
        let value = serde_json::from_str(&json).unwrap_or(Value::Null);
        let admits = |value| admits(parameters, parameters, name, value, 0);
        let as_text = Value::from(text);
        if !admits(&value) && admits(&as_text) {
            return as_text.to_string();
        }
    }
    json
}

/// The types that a schema allows.
pub(super) fn of_schema(root: &Value, schema: &Value) -> Kinds {
    of_schema_at(root, schema, 0)
}

/// The types that a schema allows. One that allows none is taken for one that says nothing.
fn of_schema_at(root: &Value, schema: &Value, depth: usize) -> Kinds {
    if depth > DEEPEST {
        return Kinds::ANY;
    }
    let mut kinds = match &schema["type"] {
        Value::String(name) => Kinds::named(name),
        Value::Array(names) => {
            let names = names.iter().filter_map(Value::as_str).map(Kinds::named);
            names.reduce(Kinds::or).unwrap_or(Kinds::ANY)
        }
        _ => Kinds::ANY,
    };
    if let Some(values) = schema["enum"].as_array() {
        let listed = values.iter().map(Kinds::of_value).reduce(Kinds::or);
        kinds = kinds.and(listed.unwrap_or(Kinds::ANY));
    }
    if let Some(value) = schema.get("const") {
        kinds = kinds.and(Kinds::of_value(value));
    }
    let parts = parts(root, schema);
    let inner = |schema| of_schema_at(root, schema, depth + 1);
    for part in parts.all {
        kinds = kinds.and(inner(part));
    }
    for some in parts.one_of {
        let either = some.iter().map(inner).reduce(Kinds::or);
        kinds = kinds.and(either.unwrap_or(Kinds::ANY));
    }
    // As OpenAPI has it.
    if schema["nullable"] == true {
        kinds = kinds.or(Kinds::NULL);
    }
    match kinds {
        Kinds::NONE => Kinds::ANY,
        kinds => kinds,
    }
}

/// The texts that a schema lists and nothing else but null, if it does.
pub(super) fn texts<'a>(root: &'a Value, schema: &'a Value) -> Option<Vec<&'a str>> {
    texts_at(root, schema, 0)
}

fn texts_at<'a>(root: &'a Value, schema: &'a Value, depth: usize) -> Option<Vec<&'a str>> {
    let of_value = |value: &'a Value| match value {
        Value::Null => Some("null"),
        value => value.as_str(),
    };
    if let Some(values) = schema["enum"].as_array() {
        return values.iter().map(of_value).collect();
    }
    if let Some(value) = schema.get("const") {
        return of_value(value).map(|text| vec![text]);
    }
    if schema["type"] == "null" {
        return Some(vec!["null"]);
    }
    if depth > DEEPEST {
        return None;
    }
    let parts = parts(root, schema);
    let inner = |schema| texts_at(root, schema, depth + 1);
    let all = parts.all.into_iter().find_map(inner);
    all.or_else(|| {
        let mut one_of = parts.one_of.into_iter();
        one_of.find_map(|some| {
            let listed: Option<Vec<_>> = some.iter().map(inner).collect();
            Some(listed?.concat())
        })
    })
}

/// Whether a text stands for null where a text or null is meant, or may do so if it goes on.
pub(super) fn may_be_null(text: &str, goes_on: bool) -> bool {
    let text = text.trim();
    ["null", "None"].iter().any(|null| match goes_on {
        true => null.starts_with(text),
        false => *null == text,
    })
}

/// The JSON of a value that was written as text, and was cut if `cut` is true.
fn json(text: &str, kinds: Kinds, cut: bool) -> String {
    let as_text = || Value::from(text).to_string();
    if kinds.is_text() {
        return as_text();
    }
    let meant = || literal::meant(text.trim()).filter(|_| !kinds.has_text());
    let meant = || meant().filter(|json| kinds.has(Kinds::of_json(json)));
    let Some(read) = literal::read(text, cut).or_else(meant) else {
        return as_text();
    };
    let kind = Kinds::of_json(&read);
    if kinds.has(kind) {
        return read;
    }
    if kinds.has_text() {
        return as_text();
    }
    // A value that stands in quotes although it is no text.
    let inner = match kind == Kinds::TEXT {
        true => serde_json::from_str::<String>(&read).ok(),
        false => None,
    };
    let inner = inner.and_then(|text| literal::read(&text, cut));
    let inner = inner.filter(|json| kinds.has(Kinds::of_json(json)));
    inner.unwrap_or(read)
}

#[cfg(test)]
mod tests {
    use serde_json::json as value;

    use super::*;

    const TEXT_OR_NULL: Kinds = Kinds(Kinds::TEXT.0 | Kinds::NULL.0);
    const NUMBER: Kinds = Kinds(Kinds::INTEGER.0 | Kinds::FRACTION.0);

    #[test]
    fn schemas_tell_texts_from_other_values() {
        let parameters = value!({
            "$defs": {
                "Word": {"type": "string"},
                "Digit": {"enum": ["1", "2"]},
                "Loop": {"$ref": "#/$defs/Loop"},
            },
            "properties": {
                "text": {"type": "string"},
                "number": {"type": "integer"},
                "maybe": {"type": ["string", "null"]},
                "any": {},
                "color": {"enum": ["red", "blue"]},
                "either": {"anyOf": [{"type": "string"}, {"type": "number"}]},
                "list": {"anyOf": [{"type": "array"}, {"type": "null"}]},
                "optional": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": null},
                "named": {"$ref": "#/$defs/Word"},
                "digit": {"$ref": "#/$defs/Digit"},
                "optional_digit": {"anyOf": [{"$ref": "#/$defs/Digit"}, {"type": "null"}]},
                "described": {"allOf": [{"$ref": "#/$defs/Word"}], "description": "d"},
                "listed": {"enum": ["1", "2", null]},
                "constant": {"const": "7"},
                "short": {"oneOf": [{"type": "string", "maxLength": 3}, {"const": "long"}]},
                "old": {"type": "string", "nullable": true},
                "loop": {"$ref": "#/$defs/Loop"},
                "missing": {"$ref": "#/$defs/none"},
            },
        });
        for (name, expected) in [
            ("text", Kinds::TEXT),
            ("number", Kinds::INTEGER),
            ("maybe", TEXT_OR_NULL),
            ("any", Kinds::ANY),
            ("color", Kinds::TEXT),
            ("either", Kinds::TEXT.or(NUMBER)),
            ("list", Kinds::LIST.or(Kinds::NULL)),
            ("optional", TEXT_OR_NULL),
            ("named", Kinds::TEXT),
            ("digit", Kinds::TEXT),
            ("optional_digit", TEXT_OR_NULL),
            ("described", Kinds::TEXT),
            ("listed", TEXT_OR_NULL),
            ("constant", Kinds::TEXT),
            ("short", Kinds::TEXT),
            ("old", TEXT_OR_NULL),
            ("loop", Kinds::ANY),
            ("missing", Kinds::ANY),
            ("unknown", Kinds::ANY),
        ] {
            assert_eq!(kinds(&parameters, name), expected, "{name}");
        }
        assert_eq!(kinds(&value!(true), "x"), Kinds::ANY);
    }

    #[test]
    fn arguments_are_found_behind_combined_schemas() {
        let word = value!({"properties": {"zip": {"type": "string"}}});
        for parameters in [
            value!({"$ref": "#/definitions/A", "definitions": {"A": word}}),
            value!({"allOf": [{"properties": {"x": {}}}, word]}),
            value!({"anyOf": [word, {"properties": {"x": {}}}]}),
            value!({"type": "object", "additionalProperties": {"type": "string"}}),
        ] {
            assert_eq!(kinds(&parameters, "zip"), Kinds::TEXT, "{parameters}");
        }
        let either = value!({"oneOf": [word, {"properties": {"zip": {"type": "null"}}}]});
        assert_eq!(kinds(&either, "zip"), TEXT_OR_NULL);
    }

    #[test]
    fn values_are_written_as_their_schema_wants_them() {
        let text_or_list = Kinds::TEXT.or(Kinds::LIST);
        for (text, kinds, expected) in [
            ("12", Kinds::TEXT, r#""12""#),
            ("12", Kinds::INTEGER, "12"),
            ("12", Kinds::TEXT.or(NUMBER), "12"),
            ("12", text_or_list, r#""12""#),
            ("1.5", Kinds::TEXT.or(Kinds::INTEGER), r#""1.5""#),
            (" [1, 2] ", Kinds::ANY, "[1, 2]"),
            ("['a', None]", text_or_list, r#"["a", null]"#),
            ("True", Kinds::FLAG, "true"),
            ("say \"hi\"\n", Kinds::ANY, r#""say \"hi\"\n""#),
            (
                "12345678901234567890123",
                Kinds::INTEGER,
                "12345678901234567890123",
            ),
            ("-98765432109876543210", Kinds::ANY, "-98765432109876543210"),
            ("\"5\"", Kinds::INTEGER, "5"),
            ("\"x\"", Kinds::ANY, "\"x\""),
            ("five", Kinds::INTEGER, "\"five\""),
            ("null", TEXT_OR_NULL, "null"),
        ] {
            assert_eq!(json(text, kinds, false), expected, "{text} {kinds:?}");
        }
        assert_eq!(json("[1, 2", Kinds::LIST, true), "[1, 2]");
        assert_eq!(json("{\"a\": \"x", Kinds::OBJECT, true), "{\"a\": \"x\"}");
    }

    #[test]
    fn numbers_and_words_of_other_languages_are_read_where_nothing_else_is_meant() {
        let whole_or_null = Kinds::INTEGER.or(Kinds::NULL);
        for (text, kinds, expected) in [
            ("007", Kinds::INTEGER, "7"),
            ("-007", NUMBER, "-7"),
            ("00", Kinds::INTEGER, "0"),
            (".5", NUMBER, "0.5"),
            ("-.5", NUMBER, "-0.5"),
            ("5.", NUMBER, "5.0"),
            ("+5.e3", NUMBER, "5.0e3"),
            ("1e400", NUMBER, "1e400"),
            ("TRUE", Kinds::FLAG, "true"),
            ("NULL", whole_or_null, "null"),
            (
                "[007, .5, TRUE, NaN, -Infinity]",
                Kinds::LIST,
                "[7, 0.5, true, null, null]",
            ),
            // A text, or something else.
            ("007", Kinds::ANY, "\"007\""),
            ("007", Kinds::TEXT, "\"007\""),
            ("TRUE", Kinds::ANY, "\"TRUE\""),
            ("NaN", NUMBER, "\"NaN\""),
            (".", NUMBER, "\".\""),
            ("", NUMBER, "\"\""),
            ("1.2.3", NUMBER, "\"1.2.3\""),
        ] {
            assert_eq!(json(text, kinds, false), expected, "{text} {kinds:?}");
        }
    }

    #[test]
    fn a_value_is_the_one_that_the_schema_lists() {
        for (schema, text, expected) in [
            (value!({"enum": ["1", 2]}), "1", "\"1\""),
            (value!({"enum": ["1", 2]}), "2", "2"),
            (value!({"enum": [true, "false"]}), "false", "\"false\""),
            (value!({"enum": [1, 2]}), "2", "2"),
            (value!({"enum": ["1", 2]}), "3", "3"),
            (value!({"$ref": "#/$defs/E"}), "3", "\"3\""),
            (value!({"$ref": "#two"}), "3", "\"3\""),
            (
                value!({"anyOf": [{"const": "10"}, {"const": 11}]}),
                "10",
                "\"10\"",
            ),
            (
                value!({"anyOf": [{"const": "10"}, {"const": 11}]}),
                "11",
                "11",
            ),
            (value!({"type": ["string", "integer"]}), "5", "5"),
        ] {
            let parameters = value!({
                "properties": {"v": schema},
                "$defs": {"E": {"enum": [1, 2, "3"]}, "T": {"$anchor": "two", "type": "string"}},
            });
            assert_eq!(
                argument(&parameters, "v", text, false),
                expected,
                "{parameters}"
            );
        }
    }

    #[test]
    fn names_may_match_patterns() {
        let parameters = value!({
            "patternProperties": {"^s_": {"type": "string"}, "(?=n)^n_": {"type": "integer"}, "(": {"type": "null"}},
            "additionalProperties": {"type": "boolean"},
        });
        assert_eq!(kinds(&parameters, "s_a"), Kinds::TEXT);
        assert_eq!(kinds(&parameters, "n_a"), Kinds::INTEGER);
        assert_eq!(kinds(&parameters, "a"), Kinds::FLAG);
    }

    #[test]
    fn listed_texts_are_found() {
        let root = value!({"$defs": {"S": {"enum": ["a", "b"]}}});
        for (schema, expected) in [
            (value!({"enum": ["a", null]}), Some(vec!["a", "null"])),
            (value!({"$ref": "#/$defs/S"}), Some(vec!["a", "b"])),
            (
                value!({"anyOf": [{"$ref": "#/$defs/S"}, {"type": "null"}, {"const": "c"}]}),
                Some(vec!["a", "b", "null", "c"]),
            ),
            (
                value!({"anyOf": [{"enum": ["a"]}, {"type": "string"}]}),
                None,
            ),
            (value!({"type": "string"}), None),
            (value!({"enum": ["a", 1]}), None),
        ] {
            assert_eq!(texts(&root, &schema), expected, "{schema}");
        }
    }
}
