//! Goes through a schema and writes it anew.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::disjoint::disjoint;
use super::references::{NotFound, References, Target, resource_of};
use super::{Lost, SchemaError, Taken, shown, size};
use crate::effort;

/// The most definitions that are read one within the other.
const MOST_DEEP: usize = 500;

/// The most pairs of schemas that are compared to find that no value is of both.
const MOST_COMPARED: usize = 20_000;

/// Keywords that no grammar follows.
const UNFOLLOWED: [&str; 4] = [
    "if",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
];
/// Keywords that apply other schemas to the same value.
const APPLICATORS: [&str; 8] = [
    "$ref",
    "$dynamicRef",
    "$recursiveRef",
    "allOf",
    "anyOf",
    "oneOf",
    "if",
    "dependentSchemas",
];
/// Keywords that say nothing beside a reference.
const TEXTS: [&str; 12] = [
    "title",
    "description",
    "default",
    "examples",
    "example",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$comment",
    "$schema",
    "$defs",
    "definitions",
];
const OBJECTS: [&str; 7] = [
    "properties",
    "required",
    "additionalProperties",
    "patternProperties",
    "propertyNames",
    "minProperties",
    "maxProperties",
];
const ARRAYS: [&str; 5] = [
    "items",
    "prefixItems",
    "minItems",
    "maxItems",
    "uniqueItems",
];

/// Rewrites a schema.
pub(in crate::engine::chooser) fn taken(schema: &Value) -> Result<Taken, SchemaError> {
    size::check(schema)?;
    let mut walker = Walker {
        references: References::new(schema),
        lost: vec![],
        place: "#".to_owned(),
        resource: schema,
        definitions: Map::new(),
        names: HashMap::new(),
        taken: HashSet::new(),
        open: vec![],
        depth: 0,
        typed: false,
    };
    let mut schema = walker.schema(schema)?;
    if let Some(map) = schema.as_object_mut()
        && !walker.definitions.is_empty()
    {
        map.insert("$defs".to_owned(), walker.definitions.into());
    }
    let lost = walker.lost;
    effort::check()?;
    Ok(Taken { schema, lost })
}

/// The state of a walk through a schema.
pub(super) struct Walker<'a> {
    pub(super) references: References<'a>,
    lost: Vec<Lost>,
    /// The place of the walk in the schema.
    place: String,
    /// The schema that references without a document's name start from.
    pub(super) resource: &'a Value,
    /// The definitions that were referred to, rewritten.
    definitions: Map<String, Value>,
    /// The names of definitions, also of those that are being written.
    names: HashMap<*const Value, String>,
    /// The names that are taken by definitions.
    taken: HashSet<String>,
    /// Definitions that are being written, and the depth at which each began.
    open: Vec<(*const Value, usize)>,
    /// The number of properties and items that the place is within.
    depth: usize,
    /// Whether a schema around, for the same value, names the type.
    typed: bool,
}

impl<'a> Walker<'a> {
    /// Notes that a keyword is not enforced here.
    pub(super) fn lose(&mut self, keyword: impl Into<String>) {
        let lost = Lost {
            keyword: keyword.into(),
            place: self.place.clone(),
        };
        // A loss that was noted lately at one place is not noted again.
        if !self.lost.iter().rev().take(8).any(|known| *known == lost) {
            self.lost.push(lost);
        }
    }

    /// An error about the value of a keyword.
    pub(super) fn wrong(
        &self,
        keyword: &str,
        found: &Value,
        expected: &'static str,
    ) -> SchemaError {
        SchemaError::Keyword {
            keyword: keyword.to_owned(),
            place: self.place.clone(),
            found: shown(found),
            expected,
        }
    }

    /// The count that a keyword gives, if it is there.
    pub(super) fn count(
        &self,
        map: &Map<String, Value>,
        keyword: &str,
    ) -> Result<Option<u64>, SchemaError> {
        let Some(value) = map.get(keyword).filter(|value| !value.is_null()) else {
            return Ok(None);
        };
        let whole = |n: &f64| n.fract() == 0.0 && (0.0..9e15).contains(n);
        let count = value.as_u64();
        let count = count.or_else(|| value.as_f64().filter(whole).map(|count| count as u64));
        let wrong = || self.wrong(keyword, value, "a whole number from 0 on");
        count.ok_or_else(wrong).map(Some)
    }

    /// Demands something more of what `out` describes.
    pub(super) fn also(out: &mut Map<String, Value>, more: Value) {
        let all = out.entry("allOf").or_insert_with(|| json!([]));
        if let Some(all) = all.as_array_mut() {
            all.push(more);
        }
    }

    /// Whether other schemas are applied to the value that `map` describes.
    pub(super) fn has_applicators(map: &Map<String, Value>) -> bool {
        APPLICATORS.iter().any(|keyword| map.contains_key(*keyword))
    }

    /// The schema of a property or an item.
    pub(super) fn inner(&mut self, path: &[&str], value: &'a Value) -> Result<Value, SchemaError> {
        let typed = std::mem::replace(&mut self.typed, false);
        self.depth += 1;
        let found = self.at(path, value);
        self.depth -= 1;
        self.typed = typed;
        found
    }

    /// A schema that stands at a path from here.
    fn at(&mut self, path: &[&str], value: &'a Value) -> Result<Value, SchemaError> {
        let length = self.place.len();
        for part in path {
            self.place.push('/');
            self.place += &part.replace('~', "~0").replace('/', "~1");
        }
        let found = self.schema(value);
        self.place.truncate(length);
        found
    }

    fn schema(&mut self, value: &'a Value) -> Result<Value, SchemaError> {
        effort::check()?;
        match value {
            Value::Bool(_) => Ok(value.clone()),
            Value::Object(map) => {
                let own = resource_of(value).unwrap_or(self.resource);
                let around = std::mem::replace(&mut self.resource, own);
                let found = self.node(map);
                self.resource = around;
                found
            }
            other => Err(SchemaError::NoSchema {
                place: self.place.clone(),
                found: shown(other),
            }),
        }
    }

    fn node(&mut self, map: &'a Map<String, Value>) -> Result<Value, SchemaError> {
        let mut out = Map::new();
        let types = self.types(map, &mut out)?;
        let around = self.typed;
        self.typed |= types.is_some();
        for (keyword, value) in map {
            match keyword.as_str() {
                "const" => self.constant(value, &mut out),
                _ if value.is_null() => {}
                "$ref" | "$dynamicRef" | "$recursiveRef" => {
                    let reference = self.reference(keyword, value)?;
                    if self.is_circular(&reference) && self.is_more_than(map, keyword) {
                        // llguidance cannot merge with a schema that is not complete.
                        self.lose("keywords beside a reference to a schema around");
                        self.typed = around;
                        return Ok(json!({"$ref": reference}));
                    }
                    out.insert("$ref".to_owned(), reference.into());
                }
                "allOf" | "anyOf" | "oneOf" => self.composed(keyword, value, &mut out)?,
                "enum" => self.listed(map, value, &mut out)?,
                "properties" => {
                    let properties = self.properties(value)?;
                    out.insert("properties".to_owned(), properties);
                }
                "not" if is_anything(value) => {
                    self.typed = around;
                    return Ok(Value::Bool(false));
                }
                "not" if value != &Value::Bool(false) => self.lose("not"),
                keyword if UNFOLLOWED.contains(&keyword) => self.lose(keyword),
                _ => {}
            }
        }
        self.typed = around;
        let of = |kind: &str| {
            types
                .as_ref()
                .is_none_or(|types| types.iter().any(|t| t == kind))
        };
        if of("string") {
            self.strings(map, &mut out)?;
        }
        if of("number") || of("integer") {
            self.numbers(map, types.is_some() && !of("number"), &mut out)?;
        }
        if of("array") {
            self.arrays(map, &mut out)?;
        }
        if of("object") {
            let alone = types.as_ref().is_some_and(|types| types.len() == 1);
            self.objects(map, alone, &mut out)?;
        } else {
            out.shift_remove("properties");
        }
        Ok(out.into())
    }

    /// The types that a schema names. One that only says something of objects or lists means these.
    fn types(
        &self,
        map: &Map<String, Value>,
        out: &mut Map<String, Value>,
    ) -> Result<Option<Vec<String>>, SchemaError> {
        const KNOWN: [&str; 7] = [
            "string", "number", "integer", "boolean", "array", "object", "null",
        ];
        const EXPECTED: &str =
            "one of string, number, integer, boolean, array, object and null, or a list of these";
        let names: Vec<&Value> = match map.get("type") {
            None | Some(Value::Null) => {
                let says = |keywords: &[&str]| keywords.iter().any(|k| map.contains_key(*k));
                let meant = match () {
                    () if self.typed => return Ok(None),
                    () if says(&OBJECTS) => "object",
                    () if says(&ARRAYS) => "array",
                    () => return Ok(None),
                };
                out.insert("type".to_owned(), meant.into());
                return Ok(Some(vec![meant.to_owned()]));
            }
            Some(Value::Array(names)) => names.iter().collect(),
            Some(name) => vec![name],
        };
        let mut types: Vec<String> = vec![];
        for name in names {
            match name.as_str().filter(|name| KNOWN.contains(name)) {
                Some(name) => types.push(name.to_owned()),
                None => return Err(self.wrong("type", name, EXPECTED)),
            }
        }
        if map.get("nullable") == Some(&Value::Bool(true)) && !types.iter().any(|t| t == "null") {
            types.push("null".to_owned());
        }
        let told = match types.as_slice() {
            [one] => one.as_str().into(),
            several => several.to_vec().into(),
        };
        out.insert("type".to_owned(), told);
        Ok(Some(types))
    }

    fn properties(&mut self, value: &'a Value) -> Result<Value, SchemaError> {
        let Value::Object(properties) = value else {
            return Err(self.wrong("properties", value, "an object of schemas"));
        };
        let mut all = Map::new();
        for (name, schema) in properties {
            all.insert(name.clone(), self.inner(&["properties", name], schema)?);
        }
        Ok(all.into())
    }

    /// Several schemas for the same value.
    fn composed(
        &mut self,
        keyword: &str,
        value: &'a Value,
        out: &mut Map<String, Value>,
    ) -> Result<(), SchemaError> {
        let options = value.as_array().filter(|options| !options.is_empty());
        let Some(options) = options else {
            return Err(self.wrong(keyword, value, "a list of schemas, at least one"));
        };
        let mut all = vec![];
        for (i, option) in options.iter().enumerate() {
            all.push(self.at(&[keyword, &i.to_string()], option)?);
        }
        if keyword == "allOf" {
            for one in all {
                Self::also(out, one);
            }
            return Ok(());
        }
        if keyword == "oneOf" {
            let resource = self.resource;
            let target = |value| Target { value, resource };
            let budget = Cell::new(MOST_COMPARED);
            let apart = |(i, one): (usize, &'a Value)| {
                let mut others = options[i + 1..].iter();
                others.all(|other| disjoint(&self.references, target(one), target(other), &budget))
            };
            if !options.iter().enumerate().all(apart) {
                self.lose("oneOf, which is followed as anyOf");
            }
        }
        match out.contains_key("anyOf") {
            true => Self::also(out, json!({"anyOf": all})),
            false => drop(out.insert("anyOf".to_owned(), all.into())),
        }
        Ok(())
    }

    fn constant(&mut self, value: &Value, out: &mut Map<String, Value>) {
        match is_exact(value) {
            true => drop(out.insert("const".to_owned(), value.clone())),
            false => self.lose(format!("const {}", shown(value))),
        }
    }

    fn listed(
        &mut self,
        map: &Map<String, Value>,
        value: &Value,
        out: &mut Map<String, Value>,
    ) -> Result<(), SchemaError> {
        let Value::Array(values) = value else {
            return Err(self.wrong("enum", value, "a list of values"));
        };
        if !values.iter().all(is_exact) {
            self.lose("enum with integers of more than 53 bits");
            return Ok(());
        }
        let mut values = values.clone();
        if map.get("nullable") == Some(&Value::Bool(true)) && !values.contains(&Value::Null) {
            values.push(Value::Null);
        }
        out.insert("enum".to_owned(), values.into());
        Ok(())
    }

    /// The pointer of what a reference names, which becomes a definition.
    fn reference(&mut self, keyword: &str, value: &Value) -> Result<String, SchemaError> {
        let Value::String(text) = value else {
            return Err(self.wrong(keyword, value, "a text, as \"#/$defs/NAME\""));
        };
        let (reference, place) = (text.clone(), self.place.clone());
        let target = match self.find(text) {
            Ok(target) => target,
            Err(NotFound::Elsewhere) => return Err(SchemaError::Elsewhere { reference, place }),
            Err(NotFound::Missing) => return Err(SchemaError::Missing { reference, place }),
        };
        let address = std::ptr::from_ref(target.value);
        let is_it = |(known, _): &&(*const Value, usize)| *known == address;
        if self
            .open
            .iter()
            .find(is_it)
            .is_some_and(|open| open.1 == self.depth)
        {
            return Err(SchemaError::Endless { reference, place });
        }
        if let Some(name) = self.names.get(&address) {
            return Ok(format!("#/$defs/{name}"));
        }
        if self.open.len() >= MOST_DEEP {
            return Err(SchemaError::Deep {
                most: MOST_DEEP,
                place,
            });
        }
        let name = self.new_name(text);
        self.names.insert(address, name.clone());
        self.open.push((address, self.depth));
        let resource = std::mem::replace(&mut self.resource, target.resource);
        let place = std::mem::replace(&mut self.place, text.clone());
        let typed = std::mem::replace(&mut self.typed, false);
        let definition = self.schema(target.value)?;
        self.typed = typed;
        self.place = place;
        self.resource = resource;
        self.open.pop();
        self.definitions.insert(name.clone(), definition);
        Ok(format!("#/$defs/{name}"))
    }

    /// The target of a reference that stands here.
    pub(super) fn find(&self, reference: &str) -> Result<Target<'a>, NotFound> {
        self.references.find(reference, self.resource)
    }

    /// A name for a definition: the end of the reference to it, and a number if that is taken.
    fn new_name(&mut self, reference: &str) -> String {
        let last = reference.rsplit(['/', '#']).next().unwrap_or_default();
        let name: String = last.chars().filter(char::is_ascii_alphanumeric).collect();
        let name = match name.is_empty() || self.taken.contains(&name) {
            true => format!("{name}-{}", self.taken.len()),
            false => name,
        };
        self.taken.insert(name.clone());
        name
    }

    /// Whether the definition that a pointer names is being written.
    fn is_circular(&self, pointer: &str) -> bool {
        let is_named = |address: &*const Value| {
            let name = self.names.get(address);
            name.is_some_and(|name| pointer.strip_prefix("#/$defs/") == Some(name))
        };
        self.open.iter().any(|(address, _)| is_named(address))
    }

    /// Whether `map` demands more than the reference in it.
    fn is_more_than(&self, map: &Map<String, Value>, reference: &str) -> bool {
        let says = |keyword: &String| keyword != reference && !TEXTS.contains(&keyword.as_str());
        map.keys().any(says)
    }
}

/// Whether a schema accepts everything.
fn is_anything(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.keys().all(|keyword| TEXTS.contains(&keyword.as_str())),
        value => value == &Value::Bool(true),
    }
}

/// Whether all integers in a value have their value in double precision.
fn is_exact(value: &Value) -> bool {
    match value {
        Value::Number(number) => {
            let exact = number.as_i64().map(i128::from);
            let exact = exact.or_else(|| number.as_u64().map(i128::from));
            exact.is_none_or(|exact| number.as_f64().is_some_and(|near| near as i128 == exact))
        }
        Value::Array(items) => items.iter().all(is_exact),
        Value::Object(map) => map.values().all(is_exact),
        _ => true,
    }
}
