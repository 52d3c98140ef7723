//! Objects: their properties, names and counts.

use std::cell::Cell;
use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::SchemaError;
use super::patterns;
use super::probe::takes;
use super::references::Target;
use super::walk::Walker;

/// The most properties of which at least one may be demanded. Each is an alternative.
const MOST_ALTERNATIVES: usize = 32;
/// The most schemas that are searched for the properties that a composed one names.
const MOST_DESCRIBED: usize = 1000;
/// The most references that are followed to what describes names.
const DEEPEST: usize = 16;

impl<'a> Walker<'a> {
    /// Writes what `map` says of objects to `out`, where the properties are already. `alone` is whether the value can be nothing else.
    pub(super) fn objects(
        &mut self,
        map: &'a Map<String, Value>,
        alone: bool,
        out: &mut Map<String, Value>,
    ) -> Result<(), SchemaError> {
        let given = |keyword: &str| map.get(keyword).filter(|value| !value.is_null());
        match given("required") {
            None => {}
            Some(Value::Array(names)) if names.iter().all(Value::is_string) => {
                out.insert("required".to_owned(), names.clone().into());
            }
            // Draft 3 has it so in the property itself.
            Some(Value::Bool(_)) => self.lose("required"),
            Some(other) => return Err(self.wrong("required", other, "a list of names")),
        }
        if let Some(others) = given("additionalProperties") {
            let others = self.inner(&["additionalProperties"], others)?;
            out.insert("additionalProperties".to_owned(), others);
        }
        if let Some(patterns) = given("patternProperties") {
            self.pattern_properties(patterns, out)?;
        }
        if let Some(others) = given("unevaluatedProperties") {
            self.unevaluated(map, others, out)?;
        }
        if let Some(names) = given("propertyNames") {
            self.names(names, out);
        }
        self.counts(map, alone, out)
    }

    fn pattern_properties(
        &mut self,
        given: &'a Value,
        out: &mut Map<String, Value>,
    ) -> Result<(), SchemaError> {
        let Value::Object(given) = given else {
            return Err(self.wrong("patternProperties", given, "an object of schemas"));
        };
        let mut all: Vec<(String, Value)> = vec![];
        for (name, schema) in given {
            let schema = self.inner(&["patternProperties", name], schema)?;
            let mut pattern = patterns::read(name);
            for lost in pattern.lost {
                self.lose(lost);
            }
            let first = pattern.all.swap_remove(0);
            if !pattern.all.is_empty() {
                self.lose(patterns::LOOK_AROUND);
            }
            match all.iter_mut().find(|(_, known)| *known == schema) {
                Some((known, _)) => *known = format!("(?:{known})|(?:{first})"),
                None => all.push((first, schema)),
            }
        }
        let mut taken = Map::new();
        for (pattern, schema) in all {
            taken.insert(pattern.clone(), Value::Bool(true));
            match takes(json!({"type": "object", "patternProperties": taken})) {
                true => drop(taken.insert(pattern, schema)),
                false => {
                    // A name may be of two patterns, or one of them is not understood.
                    taken.shift_remove(&pattern);
                    self.lose(format!("patternProperties {pattern}"));
                    // Properties of such names stay possible.
                    out.shift_remove("additionalProperties");
                }
            }
        }
        if !taken.is_empty() {
            out.insert("patternProperties".to_owned(), taken.into());
        }
        Ok(())
    }

    /// Properties that no other keyword describes.
    fn unevaluated(
        &mut self,
        map: &'a Map<String, Value>,
        others: &'a Value,
        out: &mut Map<String, Value>,
    ) -> Result<(), SchemaError> {
        if out.contains_key("additionalProperties") {
            return Ok(());
        }
        let mut names = vec![];
        let resource = self.resource;
        if !self.described(map, resource, &mut names, &Cell::new(MOST_DESCRIBED)) {
            self.lose("unevaluatedProperties");
            return Ok(());
        }
        let others = self.inner(&["unevaluatedProperties"], others)?;
        let properties = out.entry("properties").or_insert_with(|| json!({}));
        if let Some(properties) = properties.as_object_mut() {
            for name in names {
                properties.entry(name).or_insert(Value::Bool(true));
            }
        }
        out.insert("additionalProperties".to_owned(), others);
        Ok(())
    }

    /// Collects the properties that a schema and those it is composed of name. Returns whether these are all that it describes.
    fn described(
        &self,
        map: &'a Map<String, Value>,
        resource: &'a Value,
        names: &mut Vec<String>,
        budget: &Cell<usize>,
    ) -> bool {
        const OTHERS: [&str; 7] = [
            "patternProperties",
            "anyOf",
            "oneOf",
            "if",
            "dependentSchemas",
            "$dynamicRef",
            "$recursiveRef",
        ];
        let Some(left) = budget.get().checked_sub(1) else {
            return false;
        };
        budget.set(left);
        if OTHERS.iter().any(|keyword| map.contains_key(*keyword)) {
            return false;
        }
        if let Some(Value::Object(properties)) = map.get("properties") {
            names.extend(properties.keys().cloned());
        }
        let of = |target: Target<'a>, names: &mut Vec<String>| match target.value {
            Value::Object(map) => {
                !map.contains_key("additionalProperties")
                    && self.described(map, target.resource, names, budget)
            }
            _ => true,
        };
        let all = map.get("allOf").and_then(Value::as_array);
        let composed = all
            .into_iter()
            .flatten()
            .all(|value| of(Target { value, resource }, names));
        let referred = match map.get("$ref") {
            Some(Value::String(reference)) => match self.references.find(reference, resource) {
                Ok(target) => of(target, names),
                Err(_) => false,
            },
            _ => true,
        };
        composed && referred
    }

    /// Enforces the demands of `propertyNames`, as far as the properties can say them.
    fn names(&mut self, names: &'a Value, out: &mut Map<String, Value>) {
        let Some(names) = self.plain(names) else {
            return;
        };
        let others = out.get("additionalProperties");
        if others == Some(&Value::Bool(false)) && !out.contains_key("patternProperties") {
            return;
        }
        let others = others.cloned().unwrap_or(Value::Bool(true));
        let listed = match (names.get("const"), names.get("enum")) {
            (Some(name), _) => Some(vec![name]),
            (None, Some(Value::Array(names))) => Some(names.iter().collect()),
            _ => None,
        };
        let says = |keyword: &str| names.contains_key(keyword);
        let is_length = says("minLength") || says("maxLength");
        let has_patterns = out.contains_key("patternProperties");
        if let Some(listed) = listed.filter(|_| !has_patterns) {
            let listed: Vec<&str> = listed.into_iter().filter_map(Value::as_str).collect();
            let known: HashSet<&str> = listed.iter().copied().collect();
            let properties = out.entry("properties").or_insert_with(|| json!({}));
            if let Some(properties) = properties.as_object_mut() {
                for (name, schema) in properties.iter_mut() {
                    if !known.contains(name.as_str()) {
                        *schema = Value::Bool(false);
                    }
                }
                for name in listed {
                    properties.entry(name).or_insert_with(|| others.clone());
                }
            }
            out.insert("additionalProperties".to_owned(), Value::Bool(false));
            return;
        }
        let pattern = match names.get("pattern").and_then(Value::as_str) {
            Some(pattern) => {
                let read = patterns::read(pattern);
                let is_whole = read.lost.is_empty() && read.all.len() == 1 && !is_length;
                is_whole.then(|| read.all.concat())
            }
            None if is_length => {
                let bound = |keyword| match self.count(names, keyword) {
                    Ok(Some(count)) => count.to_string(),
                    _ => String::new(),
                };
                let least = bound("minLength");
                let least = if least.is_empty() { "0" } else { &least };
                Some(format!("(?s)^.{{{least},{}}}$", bound("maxLength")))
            }
            None => None,
        };
        let is_known = |keyword: &String| {
            let known = [
                "type",
                "pattern",
                "minLength",
                "maxLength",
                "title",
                "description",
            ];
            known.contains(&keyword.as_str())
        };
        let is_free =
            !has_patterns && !out.contains_key("properties") && names.keys().all(is_known);
        let is_taken = |pattern: &String| {
            let mut patterns = Map::new();
            patterns.insert(pattern.clone(), Value::Bool(true));
            takes(json!({"type": "object", "patternProperties": patterns}))
        };
        match pattern.filter(|_| is_free).filter(is_taken) {
            Some(pattern) => {
                let mut patterns = Map::new();
                patterns.insert(pattern, others);
                out.insert("patternProperties".to_owned(), patterns.into());
                out.insert("additionalProperties".to_owned(), Value::Bool(false));
            }
            None => self.lose("propertyNames"),
        }
    }

    /// The schema of property names, behind references; `None` if it says nothing but that they are texts.
    fn plain(&self, mut names: &'a Value) -> Option<&'a Map<String, Value>> {
        for _ in 0..DEEPEST {
            let Some(Value::String(reference)) = names.get("$ref") else {
                break;
            };
            names = self.find(reference).ok()?.value;
        }
        let map = names.as_object()?;
        const SILENT: [&str; 4] = ["type", "title", "description", "$schema"];
        let says = |keyword: &String| !SILENT.contains(&keyword.as_str());
        map.keys().any(says).then_some(map)
    }

    /// How many properties there may be.
    fn counts(
        &mut self,
        map: &Map<String, Value>,
        alone: bool,
        out: &mut Map<String, Value>,
    ) -> Result<(), SchemaError> {
        let least = self.count(map, "minProperties")?.filter(|least| *least > 0);
        let most = self.count(map, "maxProperties")?;
        if least.is_none() && most.is_none() {
            return Ok(());
        }
        let required: HashSet<String> = match out.get("required") {
            Some(Value::Array(names)) => names
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
            _ => HashSet::new(),
        };
        let properties = out.get("properties").and_then(Value::as_object);
        let optional: Vec<String> = match properties {
            Some(properties) => {
                let optional = |(name, schema): &(&String, &Value)| {
                    !required.contains(*name) && *schema != &Value::Bool(false)
                };
                properties
                    .iter()
                    .filter(optional)
                    .map(|(name, _)| name.clone())
                    .collect()
            }
            None => vec![],
        };
        let put = |out: &mut Map<String, Value>, keyword: &str, count: Option<u64>| {
            if let Some(count) = count {
                out.insert(keyword.to_owned(), count.into());
            }
        };
        if optional.is_empty() && !Self::has_applicators(map) {
            put(out, "minProperties", least);
            put(out, "maxProperties", most);
            return Ok(());
        }
        let is_closed = out.get("additionalProperties") == Some(&Value::Bool(false))
            && !out.contains_key("patternProperties");
        if most == Some(1) && least.unwrap_or(0) <= 1 && is_closed && required.is_empty() && alone {
            put(out, "minProperties", least);
            put(out, "maxProperties", most);
            return Ok(());
        }
        if most.is_some() {
            self.lose("maxProperties beside optional properties");
        }
        match least {
            None => {}
            Some(least) if required.len() as u64 >= least => {}
            Some(1) if alone && optional.len() <= MOST_ALTERNATIVES => {
                let demand = |name: &String| json!({"type": "object", "required": [name]});
                let mut either: Vec<Value> = optional.iter().map(demand).collect();
                if !is_closed {
                    let none: Map<_, _> = optional
                        .iter()
                        .map(|name| (name.clone(), Value::Bool(false)))
                        .collect();
                    either.push(json!({"type": "object", "properties": none, "minProperties": 1}));
                }
                Self::also(out, json!({"anyOf": either}));
            }
            Some(_) => self.lose("minProperties beside optional properties"),
        }
        Ok(())
    }
}
