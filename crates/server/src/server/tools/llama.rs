//! Llama 3's calls: an object of JSON at the beginning of a line, or behind `<|python_tag|>` such an object or `NAME.call(KEY="VALUE")`.

use serde_json::Value;

use super::heads::{ARGUMENTS, Head, Heads, NAMES, behind, behind_sign, in_quotes};
use super::literal::{self, Literal, Reading};
use super::marks::PYTHON_TAG;
use crate::tokenizer::exact;

/// The text between a name and its arguments behind the mark.
const CALL: &str = ".call(";

impl Heads<'_> {
    /// Reads a call behind the mark, or one that begins a line.
    pub(super) fn of_llama(&self, text: &str) -> Head {
        let start = behind(text, 0, &[PYTHON_TAG]);
        let body = &text[start..];
        match body.starts_with('{') {
            true if self.may_describe(body) => self.objects(text, start),
            true => Head::Text,
            false => self.called(body, start),
        }
    }

    /// Whether an object may describe a call, by its first key. Other answers that are objects are told at once.
    fn may_describe(&self, object: &str) -> bool {
        let Some(at) = behind_sign(object, '{') else {
            return true;
        };
        let rest = object[at..].trim_start();
        match in_quotes(rest) {
            Some((begin, end)) => {
                let key = &rest[begin..end];
                let kinds = [&NAMES[..], &ARGUMENTS, &["type", "id"]].concat();
                kinds.contains(&key) || self.known.named(key).is_some()
            }
            None => rest.is_empty() || rest.starts_with(['"', '\'']),
        }
    }

    /// A call in the notation of Python, whose values are JSON.
    fn called(&self, body: &str, start: usize) -> Head {
        let Some((name, mut rest)) = body.split_once(CALL) else {
            let name = body.split('.').next().unwrap_or_default();
            return match self.known.may_be_name(name) && CALL.starts_with(&body[name.len()..]) {
                true => Head::More,
                false => Head::Text,
            };
        };
        let Some(tool) = self.known.named(name) else {
            return Head::Text;
        };
        let mut arguments = serde_json::Map::new();
        loop {
            rest = rest.trim_start().trim_start_matches(',').trim_start();
            if let Some(behind) = rest.strip_prefix(')') {
                return Head::Calls {
                    calls: vec![(tool, exact::json(&Value::Object(arguments)))],
                    used: start + body.len() - behind.len(),
                    whole: true,
                };
            }
            let is_key = |text: &str| text.chars().all(|c| c.is_alphanumeric() || c == '_');
            let Some((key, value)) = rest.split_once('=') else {
                return match is_key(rest.trim()) {
                    true => Head::More,
                    false => Head::Text,
                };
            };
            let Some((value, behind)) = value_before(value) else {
                return Head::More;
            };
            match (is_key(key.trim()), value) {
                (true, Some(value)) => arguments.insert(key.trim().to_owned(), value),
                _ => return Head::Text,
            };
            rest = behind;
        }
    }
}

/// The value that a text begins with, and what follows it; no value where it is none, and nothing where it is not whole.
fn value_before(text: &str) -> Option<(Option<Value>, &str)> {
    let mut literal = Literal::new();
    for (at, c) in text.char_indices() {
        // A number or a word ends before the sign behind it.
        let is_bare = !text.trim_start().starts_with(['"', '\'', '{', '[']);
        if is_bare && [',', ')'].contains(&c) {
            let json = literal::read(&text[..at], false);
            return Some((
                json.and_then(|json| serde_json::from_str(&json).ok()),
                &text[at..],
            ));
        }
        match literal.push(c) {
            Reading::Open => {}
            Reading::Wrong => return Some((None, text)),
            Reading::Done => {
                let value = serde_json::from_str(&exact::with_texts(&literal.take()));
                return Some((value.ok(), &text[at + c.len_utf8()..]));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Format;
    use super::super::testing::{found, is, now, searched};

    #[test]
    fn calls_are_objects_of_json() {
        let x = || searched(json!({"query": "a \"b\" {c}", "limit": 3}));
        let call = "{\"name\": \"search\", \"parameters\": {\"query\": \"a \\\"b\\\" {c}\", \"limit\": 3}}";
        for (answer, text, calls) in [
            (call.to_owned(), "", vec![x()]),
            (format!("<|python_tag|>{call}"), "", vec![x()]),
            (format!("\n\n{call}\n"), "", vec![x()]),
            (format!("{call}; {call}"), "", vec![x(), x()]),
            (format!("I look.\n{call}"), "I look.", vec![x()]),
            (format!("```json\n{call}\n```"), "```json", vec![x()]),
            (
                format!("{{\"type\": \"function\", {}", &call[1..]),
                "",
                vec![x()],
            ),
            (
                "{\"name\": \"now\", \"parameters\": {}}".to_owned(),
                "",
                vec![now()],
            ),
            (
                "{\"name\": \"now\", \"parameters\": null}".to_owned(),
                "",
                vec![now()],
            ),
            (
                "{\"type\": \"function\", \"function\": {\"name\": \"now\", \"arguments\": {}}}"
                    .to_owned(),
                "",
                vec![now()],
            ),
        ] {
            is(Format::Llama, &answer, text, &calls);
        }
    }

    #[test]
    fn other_objects_and_texts_stay_what_they_are() {
        for text in [
            "{\"city\": \"Paris\", \"name\": \"search\"}",
            "{\"name\": \"fly\", \"parameters\": {}}",
            "An object: {\"name\": \"search\", \"parameters\": {\"query\": \"x\"}}",
            "Here is one:\n```json\n{\"name\": \"search\", \"parameters\": {\"query\": \"x\"}}\n```\nIt is a call.",
            "{",
            "{}",
            "{\"name\"",
            "{x}",
            "<|python_tag|>print(1)",
            "<|python_tag|>fly.call(x=1)",
        ] {
            is(Format::Llama, text, text, &[]);
        }
        // What is no call is told while it comes.
        let first = found(Format::Llama, &[], &["{\"city\": \"Par"], false);
        assert_eq!(first.text, "{\"city\": \"Par");
    }

    #[test]
    fn calls_in_the_notation_of_python_are_read() {
        for (arguments, expected) in [
            ("query=\"a, b) \\\"c\\\"\"", json!({"query": "a, b) \"c\""})),
            ("query=\"x\", limit=3", json!({"query": "x", "limit": 3})),
            (
                "query='x',tags=[\"a\", \"b\"]",
                json!({"query": "x", "tags": ["a", "b"]}),
            ),
            (
                "query=\"x\", note=None",
                json!({"query": "x", "note": null}),
            ),
        ] {
            let answer = format!("<|python_tag|>search.call({arguments})");
            is(Format::Llama, &answer, "", &[searched(expected)]);
        }
        is(Format::Llama, "<|python_tag|>now.call()", "", &[now()]);
    }

    #[test]
    fn a_call_that_is_cut_is_closed() {
        let cut = "{\"name\": \"search\", \"parameters\": {\"query\": \"ab";
        let found = found(Format::Llama, &[], &[cut], false);
        assert_eq!(found.calls(), [searched(json!({"query": "ab"}))]);
        assert!(!found.whole && found.text.is_empty(), "{found:?}");
    }
}
