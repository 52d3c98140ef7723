//! The JSON schemas of tools' arguments: names that stand for other schemas are followed, and combined schemas are taken apart.

use std::cell::Cell;

use serde_json::{Map, Value};

/// The key under which a schema keeps those that it names.
const DEFINITIONS: &str = "$defs";
/// The most schemas that are followed one within the other.
const DEEPEST: usize = 24;
/// The most schemas that are read for the forms of one. Those behind describe nothing.
const MOST_READ: usize = 2000;
/// The most alternatives of a schema that are kept. Any of them is a right call.
const MOST_FORMS: usize = 24;

/// The schemas that a schema combines.
pub(super) struct Parts<'a> {
    /// Schemas that all hold: behind `$ref` and in `allOf`.
    pub(super) all: Vec<&'a Value>,
    /// Lists of which one each holds: `anyOf` and `oneOf`.
    pub(super) one_of: Vec<&'a [Value]>,
}

/// The schemas that `schema` combines, with names looked up in `root`.
pub(super) fn parts<'a>(root: &'a Value, schema: &'a Value) -> Parts<'a> {
    let named = schema["$ref"].as_str();
    let named = named.and_then(|name| referenced(root, name));
    let all = schema["allOf"].as_array().into_iter().flatten();
    let one_of = ["anyOf", "oneOf"].into_iter();
    Parts {
        all: named.into_iter().chain(all).collect(),
        one_of: one_of
            .filter_map(|key| schema[key].as_array().map(Vec::as_slice))
            .collect(),
    }
}

/// The schema that a `$ref` names.
fn referenced<'a>(root: &'a Value, name: &str) -> Option<&'a Value> {
    let pointer = name.strip_prefix('#')?;
    if !pointer.is_empty() && !pointer.starts_with('/') {
        let definitions = [DEFINITIONS, "definitions"].into_iter();
        let mut all = definitions
            .filter_map(|key| root[key].as_object())
            .flatten();
        return all.find_map(|(_, schema)| (schema["$anchor"] == pointer).then_some(schema));
    }
    root.pointer(pointer)
        .or_else(|| root.pointer(&percent_decoded(pointer)))
}

/// The text of a fragment of an address, in which characters may be written by their numbers.
fn percent_decoded(text: &str) -> String {
    let mut bytes = vec![];
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind
            .get(..2)
            .and_then(|two| std::str::from_utf8(two).ok());
        let byte = digits.and_then(|two| u8::from_str_radix(two, 16).ok());
        match byte.filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// One of the forms that an object may have.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Form {
    pub(super) properties: Map<String, Value>,
    pub(super) required: Vec<Value>,
    /// The schema of properties that are not named.
    pub(super) additional: Option<Value>,
}

impl Form {
    /// The form of an object that is as `self` and `other` say.
    fn and(&self, other: &Self) -> Self {
        let mut both = self.clone();
        for (name, schema) in &other.properties {
            match both.properties.get_mut(name) {
                None => {
                    both.properties.insert(name.clone(), schema.clone());
                }
                Some(own) if own != schema => {
                    *own = serde_json::json!({"allOf": [own.take(), schema]});
                }
                Some(_) => {}
            }
        }
        for name in &other.required {
            if !both.required.contains(name) {
                both.required.push(name.clone());
            }
        }
        both.additional = both.additional.or_else(|| other.additional.clone());
        both
    }
}

/// Whether a schema combines others, so that its own properties are not all.
pub(super) fn is_combined(schema: &Value) -> bool {
    ["$ref", "allOf", "anyOf", "oneOf"]
        .iter()
        .any(|key| schema.get(key).is_some())
}

/// The forms of the objects that `parameters` describes, at least one.
pub(super) fn forms(parameters: &Value) -> Vec<Form> {
    let mut forms = forms_of(parameters, parameters, 0, &Cell::new(MOST_READ));
    if forms.is_empty() {
        forms.push(Form::default());
    }
    forms
}

fn forms_of(root: &Value, schema: &Value, depth: usize, left: &Cell<usize>) -> Vec<Form> {
    let Some(still_left) = left.get().checked_sub(1) else {
        return vec![];
    };
    left.set(still_left);
    let may_be_object = match &schema["type"] {
        Value::String(name) => name == "object",
        Value::Array(names) => names.iter().any(|name| name == "object"),
        _ => !schema.is_boolean(),
    };
    if !may_be_object || depth > DEEPEST {
        return vec![];
    }
    let own = Form {
        properties: schema["properties"]
            .as_object()
            .cloned()
            .unwrap_or_default(),
        required: schema["required"].as_array().cloned().unwrap_or_default(),
        additional: schema.get("additionalProperties").cloned(),
    };
    let parts = parts(root, schema);
    let mut forms = vec![own];
    let all = parts
        .all
        .iter()
        .map(|part| forms_of(root, part, depth + 1, left));
    let one_of = parts.one_of.iter().map(|some| {
        let forms = some
            .iter()
            .map(|part| forms_of(root, part, depth + 1, left));
        forms.flatten().collect()
    });
    for alternatives in all.chain(one_of).collect::<Vec<Vec<Form>>>() {
        let both = forms
            .iter()
            .flat_map(|form| alternatives.iter().map(|other| form.and(other)));
        forms = both.take(MOST_FORMS).collect();
    }
    forms
}

/// A schema that stands for itself: what it names of `root` is among its own definitions.
pub(super) fn standalone(root: &Value, schema: &Value) -> Value {
    let mut names = vec![];
    let mut schema = renamed(root, schema, &mut names);
    let mut definitions = Map::new();
    while let Some(found) = names.get(definitions.len()) {
        let found = referenced(root, found).cloned().unwrap_or_default();
        let key = definition(definitions.len());
        let found = renamed(root, &found, &mut names);
        definitions.insert(key, found);
    }
    if let Some(map) = schema.as_object_mut() {
        map.shift_remove("definitions");
        map.shift_remove(DEFINITIONS);
        if !definitions.is_empty() {
            map.insert(DEFINITIONS.to_owned(), definitions.into());
        }
    }
    schema
}

fn definition(index: usize) -> String {
    format!("d{index}")
}

/// A schema in which every `$ref` names a definition by its number in `names`. One that names nothing stays.
fn renamed(root: &Value, schema: &Value, names: &mut Vec<String>) -> Value {
    let inner = |(key, value): (&String, &Value)| {
        let named = value.as_str().filter(|_| key == "$ref");
        let named = named.filter(|name| referenced(root, name).is_some());
        let value = match named {
            None => renamed(root, value, names),
            Some(name) => {
                let known = names.iter().position(|known| known == name);
                let index = known.unwrap_or_else(|| {
                    names.push(name.to_owned());
                    names.len() - 1
                });
                Value::from(format!("#/{DEFINITIONS}/{}", definition(index)))
            }
        };
        (key.clone(), value)
    };
    match schema {
        Value::Object(map) => Value::Object(map.iter().map(inner).collect()),
        Value::Array(items) => items
            .iter()
            .map(|item| renamed(root, item, names))
            .collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names(parameters: &Value) -> Vec<Vec<String>> {
        let forms = forms(parameters).into_iter();
        let names = forms.map(|form| form.properties.keys().cloned().collect());
        names.collect()
    }

    #[test]
    fn combined_objects_are_taken_apart() {
        let object = |name: &str| json!({"type": "object", "properties": {name: {"type": "string"}}, "required": [name]});
        let definitions = json!({"A": object("a"), "B/x y": object("b")});
        for (parameters, expected) in [
            (json!({"$ref": "#/$defs/A"}), vec![vec!["a"]]),
            (json!({"$ref": "#/$defs/B~1x%20y"}), vec![vec!["b"]]),
            (
                json!({"properties": {"c": {}}, "allOf": [{"$ref": "#/$defs/A"}, object("d")]}),
                vec![vec!["c", "a", "d"]],
            ),
            (
                json!({"type": "object", "anyOf": [object("a"), {"type": "null"}, object("b")]}),
                vec![vec!["a"], vec!["b"]],
            ),
            (json!({"$ref": "#/$defs/none"}), vec![vec![]]),
            (json!({"$ref": "#"}), vec![vec![]]),
            (json!(true), vec![vec![]]),
        ] {
            let mut parameters = parameters;
            if let Some(map) = parameters.as_object_mut() {
                map.insert("$defs".to_owned(), definitions.clone());
            }
            assert_eq!(names(&parameters), expected, "{parameters}");
        }
        let both = json!({"properties": {"a": {"type": "string"}}, "allOf": [{"properties": {"a": {"minLength": 2}}, "required": ["a"]}]});
        let form = &forms(&both)[0];
        assert_eq!(
            form.properties["a"],
            json!({"allOf": [{"type": "string"}, {"minLength": 2}]})
        );
        assert_eq!(form.required, [json!("a")]);
    }

    #[test]
    fn a_schema_takes_along_what_it_names() {
        let root = json!({
            "$defs": {"A/B": {"items": {"$ref": "#/$defs/A~1B"}}, "C": {"type": "null"}},
            "properties": {"a": {"anyOf": [{"$ref": "#/$defs/A~1B"}, {"$ref": "#/properties/b"}]}, "b": {"const": 1}},
        });
        let expected = json!({
            "anyOf": [{"$ref": "#/$defs/d0"}, {"$ref": "#/$defs/d1"}],
            "$defs": {"d0": {"items": {"$ref": "#/$defs/d0"}}, "d1": {"const": 1}},
        });
        assert_eq!(standalone(&root, &root["properties"]["a"]), expected);
        let missing = json!({"$ref": "#/none"});
        assert_eq!(standalone(&root, &missing), missing);
    }

    #[test]
    fn schemas_that_name_themselves_again_and_again_are_read_to_a_limit() {
        let named = json!({"$ref": "#"});
        let parameters = json!({"anyOf": vec![named; 20], "properties": {"a": {}}});
        assert!(!forms(&parameters).is_empty());
    }

    #[test]
    fn many_alternatives_of_alternatives_are_cut() {
        let two = json!({"anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]});
        let parameters = json!({"allOf": vec![two; 30]});
        assert_eq!(forms(&parameters).len(), MOST_FORMS);
    }
}
