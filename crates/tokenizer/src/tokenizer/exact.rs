//! Numbers of JSON that no value in memory holds: integers beyond 64 bits, and numbers beyond double precision.
//!
//! A text stands in their place, which is a mark and their digits. So they come from a request to a template digit by digit.

use std::borrow::Cow;
use std::fmt;

use minijinja::value::{Object, ObjectRepr};
use serde_json::Value;

/// A character that stands for nothing.
const MARK: char = '\u{10ffff}';
/// No number of fewer bytes is too large: `1e309`.
const SHORTEST: usize = 5;

/// A text of JSON with such numbers as texts. A text that is no JSON stays none.
pub fn with_texts(json: &str) -> Cow<'_, str> {
    let (mut out, mut done, mut at) = (String::new(), 0, 0);
    let bytes = json.as_bytes();
    let is_of_number = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => {
                at += 1;
                while let Some(byte) = bytes.get(at).filter(|byte| **byte != b'"') {
                    at += if *byte == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            b'-' | b'0'..=b'9' => {
                let length = bytes[at..].iter().take_while(|b| is_of_number(b)).count();
                let number = &json[at..at + length];
                if length >= SHORTEST && is_too_large(number) {
                    out.extend([&json[done..at], "\""]);
                    out.push(MARK);
                    out.extend([number, "\""]);
                    done = at + length;
                }
                at += length;
            }
            _ => at += 1,
        }
    }
    match done {
        0 => json.into(),
        _ => (out + &json[done..]).into(),
    }
}

/// Whether a number of JSON is larger than a value in memory may be.
fn is_too_large(number: &str) -> bool {
    let is_number = || serde_json::from_str::<serde::de::IgnoredAny>(number).is_ok();
    let is_large = match number.contains(['.', 'e', 'E']) {
        true => number.parse().is_ok_and(f64::is_infinite),
        false => number.parse::<i64>().is_err() && number.parse::<u64>().is_err(),
    };
    is_large && is_number()
}

/// The digits of such a number, if a text stands for one.
pub fn digits(text: &str) -> Option<&str> {
    text.strip_prefix(MARK)
        .filter(|digits| is_too_large(digits))
}

/// A value as JSON, with such numbers as they were.
pub fn json(value: &Value) -> String {
    let written = value.to_string();
    let mark = format!("\"{MARK}");
    let mut parts = written.split(&mark);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part
            .split_once('"')
            .filter(|(digits, _)| is_too_large(digits))
        {
            Some((digits, rest)) => out.extend([digits, rest]),
            None => out.extend(["\"", &MARK.to_string(), part]),
        }
    }
    out
}

/// An exact number in a template.
#[derive(Debug)]
pub(super) struct Exact(String);

impl Exact {
    /// The template's value for digits. Few templates see more than 128 bits.
    pub(super) fn value(digits: &str) -> minijinja::Value {
        match digits.parse::<i128>() {
            Ok(whole) => whole.into(),
            Err(_) => minijinja::Value::from_object(Self(digits.to_owned())),
        }
    }
}

impl Object for Exact {
    fn repr(self: &std::sync::Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &std::sync::Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_as_they_are() {
        for text in [
            "{\"a\":12345678901234567890123}",
            "[18446744073709551616,-9223372036854775809,18446744073709551615,1,-2.5]",
            "{\"a\":\"12345678901234567890123\",\"b \\\\\\\" 1e400\":[1e400,-1E+999]}",
            "12345678901234567890123456789012345678901234567890",
            "\"\u{10ffff}\"",
            "\"\u{10ffff}x\"",
        ] {
            let value: Value = serde_json::from_str(&with_texts(text)).expect("it is JSON");
            assert_eq!(json(&value), text);
        }
        for text in [
            "[1, 2.0]",
            "{\"a\": \"\\\"1e400\"}",
            "\"",
            "[1e400.",
            "-",
            "1e4000e",
        ] {
            assert!(matches!(with_texts(text), Cow::Borrowed(_)), "{text}");
        }
        assert_eq!(digits("\u{10ffff}1e400"), Some("1e400"));
        assert_eq!(digits("\u{10ffff}1"), None);
        assert_eq!(digits("12345678901234567890123"), None);
    }
}
