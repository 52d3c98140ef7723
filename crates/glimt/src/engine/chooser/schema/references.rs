//! The targets of references: pointers, anchors and ids within one document.

use std::collections::HashMap;

use serde_json::Value;

/// Why a reference leads nowhere.
pub(super) enum NotFound {
    /// The reference names another document.
    Elsewhere,
    /// The reference names nothing in this document.
    Missing,
}

/// A schema within the document, with the resource that its own references start from.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) value: &'a Value,
    pub(super) resource: &'a Value,
}

/// The document with its resources and anchors.
pub(super) struct References<'a> {
    resources: Vec<(&'a str, &'a Value)>,
    /// The anchors, by resource and name.
    anchors: HashMap<(*const Value, &'a str), &'a Value>,
}

/// Keywords whose values are data and no schemas.
const DATA: [&str; 5] = ["const", "enum", "default", "examples", "example"];

impl<'a> References<'a> {
    pub(super) fn new(root: &'a Value) -> Self {
        let mut found = Self {
            resources: vec![],
            anchors: HashMap::new(),
        };
        found.search(root, root);
        found
    }

    fn search(&mut self, value: &'a Value, resource: &'a Value) {
        match value {
            Value::Object(map) => {
                let resource = resource_of(value).unwrap_or(resource);
                if let Some(id) = id(value) {
                    self.resources.push((id, value));
                }
                for name in ["$anchor", "$dynamicAnchor"] {
                    if let Some(Value::String(anchor)) = map.get(name) {
                        self.anchors
                            .insert((std::ptr::from_ref(resource), anchor), value);
                    }
                }
                for (key, inner) in map {
                    if !DATA.contains(&key.as_str()) {
                        self.search(inner, resource);
                    }
                }
            }
            Value::Array(items) => {
                for item in items {
                    self.search(item, resource);
                }
            }
            _ => {}
        }
    }

    /// The schema that a reference names which stands in `resource`.
    pub(super) fn find(
        &self,
        reference: &str,
        resource: &'a Value,
    ) -> Result<Target<'a>, NotFound> {
        let (document, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let resource = match document {
            "" => resource,
            document => self.resource(document).ok_or(NotFound::Elsewhere)?,
        };
        let fragment = decoded(fragment);
        let missing = || NotFound::Missing;
        match fragment.strip_prefix('/') {
            // Some write `#/` for the whole document.
            Some("") => Ok(target(resource, resource)),
            Some(pointer) => follow(resource, pointer).ok_or_else(missing),
            None if fragment.is_empty() => Ok(target(resource, resource)),
            None => {
                let named = (std::ptr::from_ref(resource), fragment.as_str());
                let found = self.anchors.get(&named).ok_or_else(missing)?;
                Ok(target(found, resource))
            }
        }
    }

    /// The resource of an id. One that is written relative to another is known by its last part, too.
    fn resource(&self, document: &str) -> Option<&'a Value> {
        let last = |id: &'a str| id.rsplit('/').next().unwrap_or(id);
        let exact = self.resources.iter().find(|(id, _)| *id == document);
        let near = || {
            let is_it = |(id, _): &&(&'a str, &Value)| last(id) == document;
            self.resources.iter().find(is_it)
        };
        exact.or_else(near).map(|(_, value)| *value)
    }
}

fn target<'a>(value: &'a Value, resource: &'a Value) -> Target<'a> {
    Target { value, resource }
}

/// The id of a schema, where it has one that names a document.
fn id(value: &Value) -> Option<&str> {
    let id = value.get("$id").or_else(|| value.get("id"))?.as_str()?;
    let id = id.trim_end_matches('#');
    (!id.is_empty()).then_some(id)
}

/// The schema itself, if it is a resource of its own.
pub(super) fn resource_of(value: &Value) -> Option<&Value> {
    value.get("$id").and_then(Value::as_str)?;
    id(value).map(|_| value)
}

/// Follows a JSON pointer, without its first slash.
fn follow<'a>(resource: &'a Value, pointer: &str) -> Option<Target<'a>> {
    let mut found = target(resource, resource);
    for part in pointer.split('/') {
        let part = part.replace("~1", "/").replace("~0", "~");
        found.value = match found.value {
            Value::Object(map) => map.get(&part)?,
            Value::Array(items) => items.get(part.parse::<usize>().ok()?)?,
            _ => return None,
        };
        found.resource = resource_of(found.value).unwrap_or(found.resource);
    }
    Some(found)
}

/// A text with its percent escapes replaced.
fn decoded(text: &str) -> String {
    if !text.contains('%') {
        return text.to_owned();
    }
    let mut bytes = vec![];
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        let escaped = (*first == b'%').then(|| behind.get(..2)).flatten();
        let escaped = escaped.and_then(|digits| std::str::from_utf8(digits).ok());
        match escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
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
