//! The fields of a request: each is read with its type and range, and what is wrong is told with its name.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::rc::Rc;

use serde_json::{Map, Value};

use super::error::ApiError;

/// An object of a request.
pub(super) struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// The prefix of the names of the fields in messages, such as `messages[0].`.
    before: String,
    /// The full names of what was looked at so far, in the whole body.
    read: Rc<RefCell<BTreeSet<String>>>,
}

/// Adds the fields of an object that are not in `read`, and those of objects in it whose fields were read one by one. Objects of lists are
/// looked into where `read` says so, or all around them are.
fn unread(
    map: &Map<String, Value>,
    before: &str,
    read: &BTreeSet<String>,
    found: &mut Vec<String>,
) {
    for (name, value) in map.iter().filter(|(_, value)| !value.is_null()) {
        let name = format!("{before}{name}");
        let inner = format!("{name}.");
        match value {
            Value::Object(map) if read.contains(&inner) => unread(map, &inner, read, found),
            Value::Array(items) if before.contains('[') || read.contains(&format!("{name}[]")) => {
                if !read.contains(&name) {
                    found.push(name);
                    continue;
                }
                for (i, item) in items.iter().enumerate() {
                    let inner = format!("{name}[{i}].");
                    if let Some(map) = item.as_object().filter(|_| read.contains(&inner)) {
                        unread(map, &inner, read, found);
                    }
                }
            }
            _ if read.contains(&name) => {}
            _ => found.push(name),
        }
    }
}

/// A name without the places in lists, so that it is the same for all objects of a list.
fn without_places(name: &str) -> String {
    let mut parts = name.split('[');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |name, part| {
        let rest = part.find(']').map_or("", |at| &part[at..]);
        name + "[" + rest
    })
}

/// A value in a message, shortened.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

impl<'a> Fields<'a> {
    /// The fields of a body.
    ///
    /// # Errors
    /// If it is no object.
    pub(super) fn of_body(body: &'a Value) -> Result<Self, ApiError> {
        let Value::Object(map) = body else {
            let message = format!("the body must be an object, but is {}", shown(body));
            return Err(ApiError::bad(message));
        };
        let (before, read) = (String::new(), Rc::default());
        Ok(Self { map, before, read })
    }

    /// Marks fields as read that say nothing here.
    pub(super) fn skip(&self, names: &[&str]) {
        let names = names.iter().map(|name| self.name(name));
        self.read.borrow_mut().extend(names);
    }

    /// Has [`unread`](Self::unread) look into the objects of a list.
    pub(super) fn look_into(&self, name: &str) {
        self.skip(&[&format!("{name}[]")]);
    }

    /// The full names of fields that nobody has looked at. Objects in lists are left out, unless [`look_into`](Self::look_into) was called.
    pub(super) fn unread(&self) -> Vec<String> {
        let mut found = vec![];
        unread(self.map, "", &self.read.borrow(), &mut found);
        let mut names: Vec<String> = vec![];
        for name in found.iter().map(|name| without_places(name)) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// The full name of a field, for messages.
    fn name(&self, name: &str) -> String {
        format!("{}{name}", self.before)
    }

    /// The value of a field; one that is null is not there.
    pub(super) fn get(&self, name: &str) -> Option<&'a Value> {
        self.skip(&[name]);
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// An error about a field.
    pub(super) fn wrong(&self, name: &str, message: &str) -> ApiError {
        let name = self.name(name);
        let message = format!("'{name}' {message}");
        ApiError::field(name, message)
    }

    fn must_be(&self, name: &str, expected: &str, found: &Value) -> ApiError {
        let message = format!("must be {expected}, but is {}", shown(found));
        self.wrong(name, &message)
    }

    fn read<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let must_be = || self.must_be(name, expected, value);
        read(value).ok_or_else(must_be).map(Some)
    }

    /// A text.
    pub(super) fn text(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        self.read(name, "a text", Value::as_str)
    }

    /// A text that must be there.
    pub(super) fn needed_text(&self, name: &str) -> Result<&'a str, ApiError> {
        self.text(name)?
            .ok_or_else(|| self.wrong(name, "is missing; it must be a text"))
    }

    /// True or false.
    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>, ApiError> {
        self.read(name, "true or false", Value::as_bool)
    }

    /// A number.
    pub(super) fn number(
        &self,
        name: &str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f32>, ApiError> {
        let expected = match *range.start() == f64::from(f32::MIN_POSITIVE) {
            true => format!("a number above 0, up to {}", range.end()),
            false => format!("a number from {} to {}", range.start(), range.end()),
        };
        let within = |value: &Value| value.as_f64().filter(|number| range.contains(number));
        let number = self.read(name, &expected, within)?;
        Ok(number.map(|number| number as f32))
    }

    /// A whole number. One that is written with a fraction of 0 is one, too.
    pub(super) fn count(
        &self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        let expected = match *range.end() {
            i64::MAX => format!("a whole number from {} on", range.start()),
            end => format!("a whole number from {} to {end}", range.start()),
        };
        let whole = |value: &Value| {
            let number = value.as_f64().filter(|n| n.fract() == 0.0);
            let number = number.filter(|n| n.abs() < 9e15).map(|n| n as i64);
            value.as_i64().or(number)
        };
        self.read(name, &expected, |value| {
            whole(value).filter(|number| range.contains(number))
        })
    }

    /// A list.
    pub(super) fn list(&self, name: &str) -> Result<Option<&'a [Value]>, ApiError> {
        self.read(name, "a list", |value| value.as_array().map(Vec::as_slice))
    }

    fn inner(&self, name: &str, map: &'a Map<String, Value>) -> Self {
        let before = format!("{}.", self.name(name));
        let read = Rc::clone(&self.read);
        // The fields of the inner object are looked at one by one.
        read.borrow_mut().insert(before.clone());
        Self { map, before, read }
    }

    /// An object.
    pub(super) fn object(&self, name: &str) -> Result<Option<Fields<'a>>, ApiError> {
        let map = self.read(name, "an object", Value::as_object)?;
        Ok(map.map(|map| self.inner(name, map)))
    }

    /// An object that must be there.
    pub(super) fn needed_object(&self, name: &str) -> Result<Fields<'a>, ApiError> {
        self.object(name)?
            .ok_or_else(|| self.wrong(name, "is missing"))
    }

    /// The objects of a list.
    pub(super) fn objects(&self, name: &str) -> Result<Option<Vec<Fields<'a>>>, ApiError> {
        let Some(items) = self.list(name)? else {
            return Ok(None);
        };
        let object = |(i, item): (usize, &'a Value)| {
            let place = format!("{name}[{i}]");
            match item {
                Value::Object(map) => Ok(self.inner(&place, map)),
                other => Err(self.must_be(&place, "an object", other)),
            }
        };
        let objects: Result<_, _> = items.iter().enumerate().map(object).collect();
        objects.map(Some)
    }

    /// One of a few texts; `None` if it is not there.
    pub(super) fn one_of(&self, name: &str, known: &[&str]) -> Result<Option<&'a str>, ApiError> {
        let expected = format!("one of {}", known.join(", "));
        self.read(name, &expected, |value| {
            value.as_str().filter(|text| known.contains(text))
        })
    }

    /// Whether a field is there, which may be null.
    pub(super) fn is_named(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    /// Whether the object has no fields.
    pub(super) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// The names and values of the object. None of them counts as read by that.
    pub(super) fn unmarked(&self) -> &'a Map<String, Value> {
        self.map
    }

    /// Takes over which fields were read of a request that this one was translated to. They are those that it has as they are here.
    pub(super) fn read_like(&self, translated: &Fields<'_>) {
        let fields = self.map.iter();
        let same = fields.filter(|(name, value)| translated.map.get(*name) == Some(*value));
        let same: BTreeSet<&str> = same.map(|(name, _)| name.as_str()).collect();
        let is_same = |name: &&String| {
            let outer = name.split(['.', '[']).next().unwrap_or_default();
            same.contains(name.as_str()) || same.contains(outer)
        };
        let read = translated.read.borrow();
        let names = read.iter().filter(is_same).map(|name| self.name(name));
        self.read.borrow_mut().extend(names);
    }

    /// The names and values of the object, all of which count as read by that.
    pub(super) fn all(&self) -> &'a Map<String, Value> {
        let names: Vec<&str> = self.map.keys().map(String::as_str).collect();
        self.skip(&names);
        self.map
    }
}

/// A number as it was written: the nearest in double precision to one in single precision has more digits.
pub(super) fn decimal(number: f32) -> Value {
    number
        .to_string()
        .parse::<f64>()
        .map_or(Value::Null, Value::from)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(error: ApiError) -> (String, String) {
        let error = &error.json()["error"];
        let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
        (text("message"), text("param"))
    }

    #[test]
    fn what_is_wrong_is_told_with_the_name_of_the_field() {
        let body = json!({"t": "hot", "n": 1.5, "whole": 3.0, "none": null, "far": 7, "of": [{"x": 1}, 2], "long": "a".repeat(99)});
        let fields = Fields::of_body(&body).expect("it is an object");
        assert_eq!(fields.number("none", 0.0..=2.0), Ok(None));
        assert_eq!(fields.number("far", 0.0..=9.0), Ok(Some(7.0)));
        assert_eq!(fields.count("whole", 0..=9), Ok(Some(3)));
        let found = fields.number("t", 0.0..=2.0).expect_err("it is a text");
        let expected = r#"'t' must be a number from 0 to 2, but is "hot""#;
        assert_eq!(message(found), (expected.to_owned(), "t".to_owned()));
        let found = fields.number("far", 0.0..=2.0).expect_err("it is too much");
        assert!(message(found).0.ends_with("but is 7"));
        let found = fields
            .count("n", 1..=i64::MAX)
            .expect_err("it is no whole number");
        assert!(message(found).0.contains("a whole number from 1 on"));
        let found = fields.objects("of").err().expect("one is no object");
        assert_eq!(message(found).1, "of[1]");
        let found = fields.flag("long").expect_err("it is a text");
        assert!(message(found).0.len() < 120);
        let found = fields.needed_text("none").expect_err("it is not there");
        assert!(message(found).0.contains("is missing"));
        assert!(Fields::of_body(&json!([1])).is_err());
    }

    #[test]
    fn fields_that_nobody_read_are_known() {
        let body = json!({"a": 1, "b": null, "c": {"d": 1, "e": 2}, "f": {"g": 1}, "h": {"i": 1}, "j": [{"k": 1}], "l": 1});
        let fields = Fields::of_body(&body).expect("it is an object");
        let _ = fields.number("a", 0.0..=9.0);
        let inner = fields.needed_object("c").expect("it is there");
        let _ = inner.number("d", 0.0..=9.0);
        fields.needed_object("h").expect("it is there").all();
        let _ = fields.objects("j");
        fields.skip(&["l"]);
        assert_eq!(fields.unread(), ["c.e", "f"]);
    }

    #[test]
    fn fields_of_objects_in_lists_are_known_once() {
        let body = json!({"of": [{"a": 1, "b": 1}, {"b": 2, "c": [{"d": 1}], "e": [1]}]});
        let fields = Fields::of_body(&body).expect("it is an object");
        let items = fields
            .objects("of")
            .expect("they are")
            .expect("it is there");
        assert!(fields.unread().is_empty());
        fields.look_into("of");
        let _ = (items[0].get("a"), items[1].objects("c"));
        assert_eq!(fields.unread(), ["of[].b", "of[].c[].d", "of[].e"]);
    }

    #[test]
    fn fields_of_objects_are_named_with_their_place() {
        let body = json!({"of": [{"inner": {"x": "no"}}]});
        let fields = Fields::of_body(&body).expect("it is an object");
        let items = fields
            .objects("of")
            .expect("they are")
            .expect("there is one");
        let inner = items[0]
            .object("inner")
            .expect("it is")
            .expect("it is there");
        let found = inner.flag("x").expect_err("it is a text");
        assert_eq!(message(found).1, "of[0].inner.x");
    }
}
