//! JSON of users as values in memory, of bounded size.
//!
//! A value takes much more memory than its text: `[0,0]` takes 72 bytes for each number. So what values take is counted while they are
//! made, and a text that takes too much is refused before it does. Of a body, only the fields are made that something here may read.

use std::cell::Cell;
use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::names::is_known;
use crate::effort;
use crate::tokenizer::exact;

/// The most bytes that the values of any text may take.
const MOST: usize = 24 << 20;
/// The most bytes that the values of a text may take for each of its bytes beyond that: texts take one.
const MOST_FOR_BYTE: usize = 4;
/// Bytes of a field's name in an object, beside its text and its value.
const NAME: usize = 64;
/// The most fields of a body that nothing reads, of which it is kept that they are there, and bytes of their names.
const MOST_UNKNOWN: usize = 100;
const LONGEST_UNKNOWN: usize = 128;
/// Fields of a body that have earlier calls and their results, which a template reads.
const CONVERSATIONS: [&str; 2] = ["messages", "input"];
/// Values after which it is looked whether somebody waits for them.
const CHECKED: usize = 1 << 12;

/// Why a text is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(super) enum TreeError {
    /// The text is no JSON.
    #[error("{0}")]
    Syntax(String),
    /// The values take too much memory.
    #[error(
        "it has too many values: they would take more than {} MB of memory; send fewer",
        .most >> 20
    )]
    Large {
        /// Bytes that they may take.
        most: usize,
    },
    /// The reading was stopped.
    #[error(transparent)]
    Stopped(#[from] effort::Stopped),
    /// A field that decides something for each name has a name twice.
    #[error("must name each token once, but names {name:?} twice")]
    Twice {
        /// The field.
        field: &'static str,
        /// The name.
        name: String,
    },
}

/// The field of a body, or of its options, in which no name may stand twice. Elsewhere the last of several values counts.
const ONCE: &str = "logit_bias";

/// The value of a body. Fields that nothing reads are null if they are, and else true.
///
/// # Errors
/// [`TreeError`].
pub(super) fn body(text: &[u8]) -> Result<Value, TreeError> {
    match std::str::from_utf8(text) {
        Ok(text) => made(exact::with_texts(text).as_bytes(), true),
        Err(_) => made(text, true),
    }
}

/// The value of a text within a body.
///
/// # Errors
/// [`TreeError`].
pub(super) fn value(text: &str) -> Result<Value, TreeError> {
    made(text.as_bytes(), false)
}

/// Bytes that a value takes, about.
pub(super) fn bytes(value: &Value) -> usize {
    let inner: usize = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(bytes).sum(),
        Value::Object(map) => {
            let fields = map.iter();
            fields
                .map(|(name, value)| NAME + name.len() + bytes(value))
                .sum()
        }
        _ => 0,
    };
    size_of::<Value>() + inner
}

fn made(text: &[u8], is_body: bool) -> Result<Value, TreeError> {
    let most = MOST.saturating_add(text.len().saturating_mul(MOST_FOR_BYTE));
    let count = Count {
        most,
        left: Cell::new(most),
        values: Cell::new(0),
        stopped: Cell::new(None),
    };
    let seed = Seed {
        count: &count,
        place: match is_body {
            true => Place::Body,
            false => Place::Within,
        },
        is_exact: !is_body,
    };
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let value = seed.deserialize(&mut deserializer);
    let value = value.and_then(|value| deserializer.end().map(|()| value));
    value.map_err(|error| {
        let syntax = || TreeError::Syntax(error.to_string());
        count.stopped.take().unwrap_or_else(syntax)
    })
}

/// Counts what values take.
struct Count {
    most: usize,
    left: Cell<usize>,
    values: Cell<usize>,
    /// Why it ends, unless that is the text itself.
    stopped: Cell<Option<TreeError>>,
}

impl Count {
    /// Ends it.
    fn stop<E: Error>(&self, why: TreeError) -> E {
        let error = E::custom(&why);
        self.stopped.set(Some(why));
        error
    }

    /// Notes that a value takes `bytes` bytes beside its own place.
    fn take<E: Error>(&self, bytes: usize) -> Result<(), E> {
        let values = self.values.get();
        self.values.set(values + 1);
        if values.is_multiple_of(CHECKED)
            && let Err(stopped) = effort::check()
        {
            return Err(self.stop(stopped.into()));
        }
        match self.left.get().checked_sub(bytes + size_of::<Value>()) {
            Some(left) => self.left.set(left),
            None => return Err(self.stop(TreeError::Large { most: self.most })),
        }
        Ok(())
    }
}

/// The place of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The value is a whole body.
    Body,
    /// The value is that of a field of a body.
    Field,
    /// No name may stand in it twice.
    Once,
    /// The value is anywhere else.
    Within,
}

/// Makes a value.
#[derive(Clone, Copy)]
struct Seed<'a> {
    count: &'a Count,
    place: Place,
    /// Whether numbers that no value holds stay texts that stand for them. Elsewhere they become floats.
    is_exact: bool,
}

impl Seed<'_> {
    fn at(self, place: Place) -> Self {
        Self { place, ..self }
    }

    /// The seed for the value of a field.
    fn of(self, name: &str) -> Self {
        self.at(match self.place {
            Place::Body | Place::Field if name == ONCE => Place::Once,
            Place::Body => Place::Field,
            Place::Field | Place::Once | Place::Within => Place::Within,
        })
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        self.count.take(0).map(|()| Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        self.count.take(0).map(|()| value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        self.count.take(0).map(|()| value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        self.count.take(0).map(|()| value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        self.count.take(0).map(|()| value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        if let Some(digits) = exact::digits(value).filter(|_| !self.is_exact) {
            let number = digits
                .parse()
                .ok()
                .filter(|number: &f64| number.is_finite());
            let number = number.ok_or_else(|| E::custom("number out of range"))?;
            return self.visit_f64(number);
        }
        self.count.take(value.len()).map(|()| value.into())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        if exact::digits(&value).is_some() {
            return self.visit_str(&value);
        }
        self.count.take(value.len()).map(|()| value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        self.count.take(0)?;
        let mut all = vec![];
        while let Some(item) = items.next_element_seed(self.at(Place::Within))? {
            all.push(item);
        }
        Ok(all.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        self.count.take(0)?;
        let (mut all, mut unknown) = (Map::new(), 0);
        while let Some(name) = entries.next_key::<String>()? {
            self.count.take(NAME + name.len())?;
            if self.place == Place::Once && all.contains_key(&name) {
                return Err(self.count.stop(TreeError::Twice { field: ONCE, name }));
            }
            let is_body = self.place == Place::Body;
            if !is_body || is_known(&name) {
                let mut inner = self.of(&name);
                inner.is_exact |= is_body && CONVERSATIONS.contains(&name.as_str());
                let value = entries.next_value_seed(inner)?;
                all.insert(name, value);
                continue;
            }
            let value = entries.next_value_seed(Presence)?;
            unknown += 1;
            // Some are told as ignored.
            if unknown <= MOST_UNKNOWN && name.len() <= LONGEST_UNKNOWN {
                all.insert(name, value);
            }
        }
        Ok(all.into())
    }
}

/// Reads a value that is not kept: null stays null, and all else becomes true.
struct Presence;

impl<'de> DeserializeSeed<'de> for Presence {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for Presence {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_none<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_ignored_any(IgnoredAny)?;
        Ok(Value::Bool(true))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_those_of_the_text() {
        let text = r#"{"messages": [{"role": "user", "n": [1, -2, 0.1, 1e300, true, null, "\u00e9\n"]}], "n": 1, "n": 2, "messages2": {"a": [1]}, "none": null}"#;
        let mut expected: Value = serde_json::from_str(text).expect("it is JSON");
        assert_eq!(value(text), Ok(expected.clone()));
        // Nothing reads a field of this name.
        expected["messages2"] = true.into();
        assert_eq!(body(text.as_bytes()), Ok(expected));
        for text in [
            "{\"n\": 1} x",
            "{\"n\": 1",
            "{\"zzz\": [1}",
            "",
            "\u{feff}{}",
            "{\"n\": \"\\ud800\"}",
        ] {
            let found = body(text.as_bytes());
            assert!(matches!(found, Err(TreeError::Syntax(_))), "{found:?}");
        }
    }

    #[test]
    fn values_that_take_too_much_memory_are_refused_and_unknown_fields_take_none() {
        let many = format!("[{}0]", "{\"\":0},".repeat(400_000));
        let refused = |text: &str| matches!(body(text.as_bytes()), Err(TreeError::Large { .. }));
        assert!(refused(&format!("{{\"messages\": {many}}}")));
        assert_eq!(
            body(format!("{{\"zzz\": {many}}}").as_bytes()),
            Ok(json!({"zzz": true}))
        );
        let names: Vec<_> = (0..400_000).map(|i| format!("\"{i}\":1")).collect();
        assert!(refused(&format!("{{{}}}", names.join(","))));
        // A long text takes no more than itself, and many tokens of a prompt are numbers.
        let long = json!({"prompt": "a".repeat(15 << 20)}).to_string();
        assert!(body(long.as_bytes()).is_ok());
        let tokens = json!({"prompt": vec![123_456; 300_000]}).to_string();
        assert!(body(tokens.as_bytes()).is_ok());
    }

    #[test]
    fn a_token_that_has_two_biases_is_refused_and_elsewhere_the_last_value_counts() {
        for text in [
            r#"{"logit_bias": {"7": 1, "8": 2, "7": -100}}"#,
            r#"{"options": {"logit_bias": {"7": 1, "7": 1}}}"#,
            r#"{"logit_bias": {"\u0037": 1, "7": 1}}"#,
        ] {
            let error = body(text.as_bytes()).expect_err("7 has two");
            let expected = TreeError::Twice {
                field: "logit_bias",
                name: "7".to_owned(),
            };
            assert_eq!(error, expected, "{text}");
        }
        let text = r#"{"logit_bias": {"7": 1}, "logit_bias": {"7": 2}, "tools": [{"logit_bias": {"a": 1, "a": 2}}]}"#;
        let expected = json!({"logit_bias": {"7": 2}, "tools": [{"logit_bias": {"a": 2}}]});
        assert_eq!(body(text.as_bytes()), Ok(expected));
    }

    #[test]
    fn conversations_keep_numbers_that_no_value_holds() {
        let big = "12345678901234567890123";
        let text = format!(
            "{{\"messages\": [{{\"n\": {big}, \"m\": 1e400}}], \"tools\": [{big}], \"zzz\": 1e400}}"
        );
        let found = body(text.as_bytes()).expect("it is JSON");
        assert_eq!(
            exact::json(&found["messages"]),
            format!("[{{\"n\":{big},\"m\":1e400}}]")
        );
        assert_eq!(found["tools"], json!([1.2345678901234568e22]));
        let found = body(b"{\"tools\": [1e400]}");
        assert!(matches!(found, Err(TreeError::Syntax(_))), "{found:?}");
    }

    #[test]
    fn deep_values_are_refused() {
        for name in ["messages", "zzz"] {
            let deep = format!("{{\"{name}\": {}}}", "[".repeat(100_000));
            assert!(matches!(body(deep.as_bytes()), Err(TreeError::Syntax(_))));
        }
    }
}
