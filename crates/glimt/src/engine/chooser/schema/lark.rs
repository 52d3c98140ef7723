//! Schemas within a grammar in Lark, behind `%json`.

use serde_json::Value;

use super::walk::taken;
use super::{Lost, SchemaError};

/// The options of llguidance, which stand beside a schema.
const OPTIONS: &str = "x-guidance";

/// A grammar whose schemas are rewritten, and what of them is not enforced.
pub(in crate::engine::chooser) fn rewritten(
    grammar: &str,
) -> Result<(String, Vec<Lost>), SchemaError> {
    let (mut out, mut lost) = (String::new(), vec![]);
    let mut rest = grammar;
    while let Some(at) = next_schema(rest) {
        let (before, text) = rest.split_at(at);
        let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        let Some(Ok(schema)) = values.next() else {
            // The reader of the grammar tells of it.
            break;
        };
        let mut found = taken(&schema)?;
        if let (Some(options), Some(map)) = (schema.get(OPTIONS), found.schema.as_object_mut()) {
            map.insert(OPTIONS.to_owned(), options.clone());
        }
        out += before;
        out += &found.schema.to_string();
        lost.extend(found.lost);
        rest = &text[values.byte_offset()..];
    }
    out += rest;
    Ok((out, lost))
}

/// The index at which the next schema begins: behind a `%json` that stands in no text, regular expression or comment.
fn next_schema(grammar: &str) -> Option<usize> {
    const KEYWORD: &str = "%json";
    let bytes = grammar.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        at = match byte {
            b'"' => end(bytes, at + 1, b'"'),
            b'/' if bytes.get(at + 1) == Some(&b'/') => end_of_line(bytes, at),
            b'/' => end(bytes, at + 1, b'/'),
            b'#' => end_of_line(bytes, at),
            b'%' if bytes[at..].starts_with(KEYWORD.as_bytes()) => return Some(at + KEYWORD.len()),
            _ => at + 1,
        };
    }
    None
}

/// The end of a text in a Lark grammar that goes on to `mark`.
pub(in crate::engine::chooser) fn end(bytes: &[u8], mut at: usize, mark: u8) -> usize {
    while let Some(byte) = bytes.get(at) {
        at += match byte {
            b'\\' => 2,
            b'\n' => return at,
            byte if *byte == mark => return at + 1,
            _ => 1,
        };
    }
    at
}

/// The end of a line of a grammar.
pub(in crate::engine::chooser) fn end_of_line(bytes: &[u8], at: usize) -> usize {
    let length = bytes[at..].iter().position(|byte| *byte == b'\n');
    length.map_or(bytes.len(), |length| at + length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_of_a_grammar_are_rewritten_and_nothing_else_is() {
        let grammar = "start: a \"%json {1}\" /%json[\\/]/ // %json {2}\n# %json {3}\na: %json {\"type\": \"string\", \"format\": \"path\"} \"x\"";
        let (found, lost) = rewritten(grammar).expect("it has a schema");
        let expected = grammar.replace(
            "{\"type\": \"string\", \"format\": \"path\"}",
            " {\"type\":\"string\"}",
        );
        assert_eq!(found, expected.replace("%json  {", "%json{"));
        assert_eq!(lost.len(), 1);
        assert_eq!(lost[0].to_string(), "format path at #");
        let broken = "start: %json {\"type\"";
        assert_eq!(
            rewritten(broken).map(|found| found.0),
            Ok(broken.to_owned())
        );
    }
}
