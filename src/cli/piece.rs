//! The text of a token, or its bytes where these are only a part of a character.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::tokenizer::Tokenizer;

/// The bytes that a token stands for. In JSON they are a text, or a list of bytes where they are no UTF-8, as llama-server's /tokenize has it.
pub(super) struct Piece(Vec<u8>);

impl Piece {
    pub(super) fn of(tokenizer: &Tokenizer, token: u32) -> Self {
        Self(tokenizer.token_bytes(token))
    }
}

impl Serialize for Piece {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => text.serialize(serializer),
            Err(_) => self.0.serialize(serializer),
        }
    }
}

/// In quotes, so that blanks and line breaks are seen. Bytes that are no UTF-8 are written as `\xf0`.
impl fmt::Display for Piece {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("\"")?;
        for chunk in self.0.utf8_chunks() {
            let quoted = format!("{:?}", chunk.valid());
            out.write_str(&quoted[1..quoted.len() - 1])?;
            write!(out, "{}", chunk.invalid().escape_ascii())?;
        }
        out.write_str("\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_characters_are_bytes() {
        let shown = |bytes: &[u8]| {
            let piece = Piece(bytes.to_vec());
            let json = serde_json::to_string(&piece).expect("it is a text or a list");
            (piece.to_string(), json)
        };
        let both = |one: &str, other: &str| (one.to_owned(), other.to_owned());
        assert_eq!(shown(b" fox\n"), both(r#"" fox\n""#, r#"" fox\n""#));
        assert_eq!(shown("é\"".as_bytes()), both(r#""é\"""#, r#""é\"""#));
        assert_eq!(shown(&[0xf0, 0x9f]), both(r#""\xf0\x9f""#, "[240,159]"));
        assert_eq!(shown(&[b'a', 0xa6]), both(r#""a\xa6""#, "[97,166]"));
        assert_eq!(shown(&[]), both(r#""""#, r#""""#));
    }
}
