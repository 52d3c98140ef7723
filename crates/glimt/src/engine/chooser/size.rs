//! Limits of what a grammar's text may be: reading it takes a time that grows faster than the text, and nothing can stop that.

use super::ChooserError;
use super::schema::{end, end_of_line};

/// The most bytes of a grammar in Lark.
const MOST_LARK: usize = 2 << 20;
/// The most bytes of a grammar in GBNF, of which each character of a literal may become a part.
const MOST_GBNF: usize = 128 << 10;
/// The most bytes of all regular expressions of a grammar.
const MOST_REGEX: usize = 128 << 10;
/// The most literals, names, expressions, groups and alternatives of a grammar.
const MOST_PARTS: usize = 30_000;

fn refused(what: &str, most: usize) -> ChooserError {
    let reason = format!("it has more than {most} {what}; write a smaller one");
    ChooserError::Grammar { reason }
}

fn check(what: &str, found: usize, most: usize) -> Result<(), ChooserError> {
    match found > most {
        true => Err(refused(what, most)),
        false => Ok(()),
    }
}

/// Refuses a grammar in Lark that is too large.
pub(super) fn of_lark(text: &str) -> Result<(), ChooserError> {
    check("bytes", text.len(), MOST_LARK)?;
    let bytes = text.as_bytes();
    let (mut at, mut parts, mut regexes, mut in_name) = (0, 0, 0, false);
    while let Some(byte) = bytes.get(at) {
        let begun = at;
        let is_name = byte.is_ascii_alphanumeric() || *byte == b'_';
        parts += usize::from(match byte {
            b'|' | b'(' | b'[' | b'{' | b'"' | b'/' | b'<' | b'%' => true,
            _ => is_name && !in_name,
        });
        in_name = is_name;
        at = match byte {
            b'"' => end(bytes, at + 1, b'"'),
            b'/' if bytes.get(at + 1) == Some(&b'/') => end_of_line(bytes, at),
            b'/' => {
                at = end(bytes, at + 1, b'/');
                regexes += at - begun;
                at
            }
            b'#' => end_of_line(bytes, at),
            _ => at + 1,
        };
        check("parts", parts, MOST_PARTS)?;
        check("bytes of regular expressions", regexes, MOST_REGEX)?;
    }
    Ok(())
}

/// Refuses a grammar in GBNF that is too large.
pub(super) fn of_gbnf(text: &str) -> Result<(), ChooserError> {
    check("bytes", text.len(), MOST_GBNF)
}

/// Refuses a regular expression that is too large.
pub(super) fn of_regex(text: &str) -> Result<(), ChooserError> {
    check("bytes", text.len(), MOST_REGEX)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn large_grammars_are_refused_at_once() {
        let began = Instant::now();
        let many = |part: &str| format!("start: {}\"x\"", part.repeat(1_000_000));
        for text in [
            many("\"x\" | "),
            many("a "),
            many("("),
            many("/a/"),
            many("a\n"),
        ] {
            assert!(of_lark(&text).is_err(), "{}", &text[..20]);
        }
        assert!(of_lark(&format!("start: /{}/", "a|".repeat(100_000))).is_err());
        assert!(of_gbnf(&format!("root ::= {}", "\"a\" | ".repeat(1_000_000))).is_err());
        assert!(began.elapsed().as_secs() < 2);
        let choices: Vec<_> = (0..10_000)
            .map(|i| format!("\"a | (choice) {i}\""))
            .collect();
        assert!(of_lark(&format!("start: {}", choices.join(" | "))).is_ok());
        assert!(
            of_lark(&format!(
                "start: \"{}\" // {}",
                "a b ".repeat(99_999),
                "a ".repeat(99_999)
            ))
            .is_ok()
        );
    }
}
