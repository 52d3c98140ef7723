//! JSON as models write it, read leniently and piece by piece. What is written of it is JSON that can be closed at any point.
//!
//! Beside JSON, the literals of Python are read: `True`, `None`, texts in single quotes, tuples, a comma behind the last item. Numbers
//! are copied digit by digit, so integers of any size stay as they are.

use std::mem::take;

use serde::de::IgnoredAny;

/// How far a value was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// More has to come.
    Open,
    /// The value is whole.
    Done,
    /// The text is no value.
    Wrong,
}

/// The kinds of characters that may come next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A value.
    Value,
    /// An item of a list, or its end.
    Item,
    /// A key of an object, or its end.
    Key,
    /// The colon behind a key.
    Colon,
    /// A comma, or the end of the list or the object.
    Next,
    /// More of a text, up to its quote.
    Text { quote: char, is_key: bool },
    /// More of a word without quotes: a number or a name.
    Word { is_key: bool },
}

/// Reads one value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Literal {
    place: Place,
    reading: Reading,
    /// JSON that is sure and was not taken yet.
    written: String,
    /// A comma and a key, which are written with the value that follows.
    pending: String,
    /// The brackets that are open: how the text closes them, and how JSON does.
    open: Vec<(char, char)>,
    /// A word that may go on.
    word: String,
    /// The characters behind a backslash, if one was read.
    escape: Option<String>,
    /// The first half of a character that is escaped as two.
    high: Option<u16>,
    /// Keys that were read, of all objects.
    keys: usize,
}

impl Literal {
    /// A reader at the beginning of a value.
    pub(super) fn new() -> Self {
        Self {
            place: Place::Value,
            reading: Reading::Open,
            written: String::new(),
            pending: String::new(),
            open: vec![],
            word: String::new(),
            escape: None,
            high: None,
            keys: 0,
        }
    }

    /// Whether a key was read.
    pub(super) fn has_key(&self) -> bool {
        self.keys > 0
    }

    /// Whether the place is inside of quotes.
    pub(super) fn in_text(&self) -> bool {
        matches!(self.place, Place::Text { .. })
    }

    /// Whether the text is no value.
    pub(super) fn is_wrong(&self) -> bool {
        self.reading == Reading::Wrong
    }

    /// The JSON that became sure since the last call.
    pub(super) fn take(&mut self) -> String {
        take(&mut self.written)
    }

    /// Takes the next character.
    pub(super) fn push(&mut self, c: char) -> Reading {
        if self.reading != Reading::Open {
            return self.reading;
        }
        match self.place {
            Place::Text { quote, is_key } => self.in_quotes(c, quote, is_key),
            Place::Word { is_key } => {
                if c.is_whitespace() || ",:]})".contains(c) {
                    self.end_word(is_key);
                    return self.push(c);
                }
                self.word.push(c);
            }
            Place::Value | Place::Item | Place::Key if matches!(c, ' ' | '\n' | '\r' | '\t') => {
                if !self.open.is_empty() {
                    self.pending.push(c);
                }
            }
            _ if c.is_whitespace() => {}
            Place::Key if c == '}' => self.close_bracket(c),
            Place::Key => self.begin_key(c),
            Place::Colon if c == ':' => {
                self.pending.push(':');
                self.keys += 1;
                self.place = Place::Value;
            }
            Place::Next if c == ',' => {
                self.pending.clear();
                self.pending.push(',');
                self.place = match self.open.last() {
                    Some(('}', _)) => Place::Key,
                    _ => Place::Item,
                };
            }
            Place::Item if c == ']' || c == ')' => self.close_bracket(c),
            Place::Next => self.close_bracket(c),
            Place::Value | Place::Item => self.begin_value(c),
            Place::Colon => self.reading = Reading::Wrong,
        }
        self.reading
    }

    fn begin_key(&mut self, c: char) {
        match c {
            '"' | '\'' => {
                self.pending.push('"');
                self.place = Place::Text {
                    quote: c,
                    is_key: true,
                };
            }
            c if is_of_word(c) => {
                self.word.push(c);
                self.place = Place::Word { is_key: true };
            }
            _ => self.reading = Reading::Wrong,
        }
    }

    fn begin_value(&mut self, c: char) {
        match c {
            '"' | '\'' => {
                self.write('"');
                self.place = Place::Text {
                    quote: c,
                    is_key: false,
                };
            }
            '{' => {
                self.write('{');
                self.open.push(('}', '}'));
                self.place = Place::Key;
            }
            '[' | '(' => {
                self.write('[');
                self.open.push((if c == '[' { ']' } else { ')' }, ']'));
                self.place = Place::Item;
            }
            c if is_of_word(c) => {
                self.word.push(c);
                self.place = Place::Word { is_key: false };
            }
            _ => self.reading = Reading::Wrong,
        }
    }

    /// Writes the beginning of a value, and the key before it.
    fn write(&mut self, c: char) {
        self.written += &take(&mut self.pending);
        self.written.push(c);
    }

    fn close_bracket(&mut self, c: char) {
        match self.open.last().copied() {
            Some((found, json)) if found == c => {
                self.open.pop();
                self.pending.clear();
                self.written.push(json);
                self.end_value();
            }
            _ => self.reading = Reading::Wrong,
        }
    }

    fn end_value(&mut self) {
        match self.open.is_empty() {
            true => self.reading = Reading::Done,
            false => self.place = Place::Next,
        }
    }

    fn end_word(&mut self, is_key: bool) {
        let word = take(&mut self.word);
        if is_key {
            quote_into(&mut self.pending, &word);
            self.place = Place::Colon;
            return;
        }
        match self.word_in_json(&word) {
            Some(json) => {
                self.written += &take(&mut self.pending);
                self.written += &json;
                self.end_value();
            }
            None => self.reading = Reading::Wrong,
        }
    }

    /// A word as JSON writes it. One that stands alone may be a text.
    fn word_in_json(&self, word: &str) -> Option<String> {
        let json = in_json(word).map(str::to_owned);
        json.or_else(|| (!self.open.is_empty()).then(|| meant(word))?)
    }

    /// The text that is being written.
    fn text(&mut self) -> &mut String {
        match self.place {
            Place::Text { is_key: true, .. } => &mut self.pending,
            _ => &mut self.written,
        }
    }

    fn in_quotes(&mut self, c: char, quote: char, is_key: bool) {
        if let Some(mut escape) = self.escape.take() {
            escape.push(c);
            self.escaped(escape);
        } else if c == quote {
            self.end_pair();
            self.text().push('"');
            match is_key {
                true => self.place = Place::Colon,
                false => self.end_value(),
            }
        } else if c == '\\' {
            self.escape = Some(String::new());
        } else {
            self.character(c);
        }
    }

    /// A character of a text.
    fn character(&mut self, c: char) {
        self.end_pair();
        write_escaped(self.text(), c);
    }

    /// Replaces the first half of a character whose second half did not come.
    fn end_pair(&mut self) {
        if self.high.take().is_some() {
            self.text().push(char::REPLACEMENT_CHARACTER);
        }
    }

    /// Takes the characters behind a backslash, of which there may be more.
    fn escaped(&mut self, escape: String) {
        let mut chars = escape.chars();
        let (kind, digits) = (chars.next().unwrap_or_default(), chars.as_str());
        let most = match kind {
            'u' => 4,
            'x' => 2,
            _ => 0,
        };
        if most == 0 {
            match kind {
                'n' => self.character('\n'),
                'r' => self.character('\r'),
                't' => self.character('\t'),
                'b' => self.character('\u{8}'),
                'f' => self.character('\u{c}'),
                '"' | '\'' | '\\' | '/' => self.character(kind),
                '\n' => {}
                _ => {
                    self.character('\\');
                    self.character(kind);
                }
            }
        } else if let Some(wrong) = digits.chars().find(|c| !c.is_ascii_hexdigit()) {
            self.character('\\');
            self.character(kind);
            let digits = digits.strip_suffix(wrong).unwrap_or_default().to_owned();
            digits.chars().for_each(|c| self.character(c));
            self.push(wrong);
        } else if digits.len() < most {
            self.escape = Some(escape);
        } else {
            self.unit(u16::from_str_radix(digits, 16).unwrap_or_default());
        }
    }

    /// A character, or half of one, by its number in UTF-16.
    fn unit(&mut self, unit: u16) {
        if (0xd800..0xdc00).contains(&unit) {
            self.end_pair();
            self.high = Some(unit);
            return;
        }
        let units = self.high.into_iter().chain([unit]);
        let decoded: Vec<char> = char::decode_utf16(units)
            .map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER))
            .collect();
        self.high = None;
        decoded.into_iter().for_each(|c| self.character(c));
    }

    /// Ends a value that is not whole: closes what is open, and leaves out a key without a value.
    pub(super) fn close(&mut self) {
        match self.place {
            Place::Text { is_key: false, .. } if self.reading == Reading::Open => {
                self.end_pair();
                self.written.push('"');
            }
            Place::Word { is_key: false } if self.reading == Reading::Open => {
                if let Some(json) = self.word_in_json(&self.word) {
                    self.written += &take(&mut self.pending);
                    self.written += &json;
                }
            }
            _ => {}
        }
        while let Some((_, json)) = self.open.pop() {
            self.written.push(json);
        }
        self.reading = Reading::Done;
    }
}

/// The JSON of the object or the list that a text begins with, and what follows it.
pub(super) fn first(text: &str) -> Option<(String, &str)> {
    let mut literal = Literal::new();
    let mut chars = text.chars();
    while literal.push(chars.next()?) == Reading::Open {}
    (literal.reading == Reading::Done).then(|| (literal.take(), chars.as_str()))
}

/// The JSON of a text that is one value; of a value that was cut, if `cut` is true.
pub(super) fn read(text: &str, cut: bool) -> Option<String> {
    let mut literal = Literal::new();
    let mut chars = text.trim().chars();
    for c in chars.by_ref() {
        match literal.push(c) {
            Reading::Open => {}
            Reading::Done => break,
            Reading::Wrong => return None,
        }
    }
    if literal.reading == Reading::Open {
        match literal.place {
            _ if cut => literal.close(),
            Place::Word { is_key } => literal.end_word(is_key),
            _ => {}
        }
    }
    let whole = literal.reading == Reading::Done && chars.as_str().is_empty();
    (whole && !literal.written.is_empty()).then_some(literal.written)
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || "_-+.$".contains(c)
}

/// A word as JSON writes it; `None` if it is no value.
fn in_json(word: &str) -> Option<&str> {
    match word {
        "true" | "True" => Some("true"),
        "false" | "False" => Some("false"),
        "null" | "None" => Some("null"),
        _ => {
            let word = word.strip_prefix('+').unwrap_or(word);
            let is_number = word.starts_with(|c: char| c == '-' || c.is_ascii_digit());
            let whole = serde_json::from_str::<IgnoredAny>(word).is_ok();
            (is_number && whole).then_some(word)
        }
    }
}

/// A word as JSON writes it where only a number, a truth value or null can be meant.
pub(super) fn meant(word: &str) -> Option<String> {
    match word.to_ascii_lowercase().as_str() {
        "true" => return Some("true".to_owned()),
        "false" => return Some("false".to_owned()),
        // As JavaScript writes numbers that JSON has not.
        "null" | "none" | "nan" | "infinity" | "-infinity" => return Some("null".to_owned()),
        _ => {}
    }
    let word = word.strip_prefix('+').unwrap_or(word);
    let (sign, number) = match word.strip_prefix('-') {
        Some(number) => ("-", number),
        None => ("", word),
    };
    let digits = number.find(|c: char| !c.is_ascii_digit());
    let (whole, rest) = number.split_at(digits.unwrap_or(number.len()));
    let digits = whole.len() + rest.chars().filter(char::is_ascii_digit).count();
    let whole = match whole.trim_start_matches('0') {
        "" => "0",
        whole => whole,
    };
    let point = rest
        .strip_prefix('.')
        .filter(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()));
    let json = match point {
        Some(rest) => format!("{sign}{whole}.0{rest}"),
        None => format!("{sign}{whole}{rest}"),
    };
    (digits > 0).then(|| in_json(&json).map(str::to_owned))?
}

/// Appends a text in quotes.
fn quote_into(json: &mut String, text: &str) {
    json.push('"');
    text.chars().for_each(|c| write_escaped(json, c));
    json.push('"');
}

/// Appends a character as it stands between the quotes of JSON.
pub(super) fn write_escaped(json: &mut String, c: char) {
    match c {
        '"' => json.push_str("\\\""),
        '\\' => json.push_str("\\\\"),
        '\n' => json.push_str("\\n"),
        '\r' => json.push_str("\\r"),
        '\t' => json.push_str("\\t"),
        c if c < ' ' => json.push_str(&format!("\\u{:04x}", u32::from(c))),
        c => json.push(c),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn value(text: &str) -> Option<Value> {
        let json = read(text, false)?;
        let parsed = serde_json::from_str(&json);
        Some(parsed.unwrap_or_else(|error| panic!("{error}: {json:?} of {text:?}")))
    }

    #[test]
    fn json_stays_as_it_is() {
        for text in [
            "{\"a\": [1, 2.50, -3e7], \"b\": {\"c\": null}, \"d\": \"\\\"\\\\x\"}",
            "12345678901234567890123",
            "[]",
            "{}",
            "\"text\"",
        ] {
            assert_eq!(read(text, false).as_deref(), Some(text));
        }
    }

    #[test]
    fn literals_of_python_are_read() {
        for (text, expected) in [
            ("['a', 'b']", json!(["a", "b"])),
            (
                "{'a': 1, 'b': None, 'c': (True, False,)}",
                json!({"a": 1, "b": null, "c": [true, false]}),
            ),
            ("'it\\'s \"x\"'", json!("it's \"x\"")),
            ("{1: 'one', key: 2,}", json!({"1": "one", "key": 2})),
            ("\"\\x41\\ud83d\\ude00\\u00e4 \\q\"", json!("A😀ä \\q")),
            ("\"\\ud83d x \\uZ\"", json!("\u{fffd} x \\uZ")),
            ("\"two\nlines\"", json!("two\nlines")),
            (" [1, 2] ", json!([1, 2])),
            ("+5", json!(5)),
        ] {
            assert_eq!(value(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn other_texts_are_no_values() {
        for text in [
            "",
            "word",
            "007",
            "1.",
            "[1 2]",
            "{\"a\" 1}",
            "[1}",
            "{]",
            "1, 2",
            "\"a\" b",
            "[",
            "{\"a\":",
        ] {
            assert_eq!(read(text, false), None, "{text}");
        }
    }

    #[test]
    fn a_value_is_closed_wherever_it_is_cut() {
        let text =
            "{\"a\": [1, true, {'b': \"x\\u00e4\\ud83d\\ude00\"}], 'c': None, \"d\": \"\\n\"}";
        let mut last = 0;
        for (at, _) in text.char_indices().skip(1) {
            let closed = read(&text[..at], true).unwrap_or_else(|| panic!("{}", &text[..at]));
            serde_json::from_str::<Value>(&closed)
                .unwrap_or_else(|error| panic!("{error}: {closed:?} of {:?}", &text[..at]));
            assert!(closed.len() + 6 > last, "{closed}");
            last = closed.len();
        }
        assert_eq!(
            read("{\"a\": 1, \"b\": \"x", true).as_deref(),
            Some("{\"a\": 1, \"b\": \"x\"}")
        );
        assert_eq!(
            read("{\"a\": 1, \"b\": ", true).as_deref(),
            Some("{\"a\": 1}")
        );
        assert_eq!(read("{\"a\": 1, \"b", true).as_deref(), Some("{\"a\": 1}"));
    }
}
