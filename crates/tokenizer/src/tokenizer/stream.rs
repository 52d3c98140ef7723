//! Token by token decoding that never splits a UTF-8 character.

use std::str::Utf8Error;

use super::Tokenizer;

/// Turns generated token ids into text as they come.
///
/// A character whose bytes are spread over several tokens appears when its last byte has come. Bytes that cannot
/// become a character appear as U+FFFD, one per maximal invalid sequence, so that the pieces joined together are
/// exactly `String::from_utf8_lossy` of all bytes.
#[derive(Debug)]
pub struct StreamDecoder<'a> {
    tokenizer: &'a Tokenizer,
    pending: Utf8Stream,
}

impl<'a> StreamDecoder<'a> {
    /// A decoder at the start of a text.
    pub fn new(tokenizer: &'a Tokenizer) -> Self {
        StreamDecoder {
            tokenizer,
            pending: Utf8Stream::default(),
        }
    }

    /// The text that `id` completes: only whole characters, empty for control tokens and while a character is incomplete.
    pub fn push(&mut self, id: u32) -> String {
        if self.tokenizer.is_special(id) {
            return String::new();
        }
        self.pending.push(&self.tokenizer.token_bytes(id))
    }

    /// The text that is left at the end: U+FFFD if the text stops inside a character, else nothing.
    pub fn finish(&mut self) -> String {
        self.pending.finish()
    }
}

/// Cuts a stream of bytes into whole characters.
#[derive(Debug, Default)]
struct Utf8Stream {
    /// The start of a character whose other bytes have not come yet: at most 3 bytes.
    incomplete: Vec<u8>,
}

impl Utf8Stream {
    fn push(&mut self, bytes: &[u8]) -> String {
        self.incomplete.extend_from_slice(bytes);
        let bytes = std::mem::take(&mut self.incomplete);
        let mut text = String::new();
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text += chunk.valid();
            let invalid = chunk.invalid();
            // An error without a length: the last bytes may still become a character.
            let may_go_on = |error: Utf8Error| error.error_len().is_none();
            if chunks.peek().is_none() && std::str::from_utf8(invalid).is_err_and(may_go_on) {
                self.incomplete = invalid.to_vec();
            } else if !invalid.is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        text
    }

    fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.incomplete)).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::testing::Random;

    /// Streams `bytes` in the given pieces.
    fn stream<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> String {
        let mut decoder = Utf8Stream::default();
        let mut text = String::new();
        for piece in pieces {
            text += &decoder.push(piece);
            assert!(decoder.incomplete.len() <= 3);
        }
        text + &decoder.finish()
    }

    #[test]
    fn a_character_appears_with_its_last_byte() {
        let mut decoder = Utf8Stream::default();
        let llama = "🦙".as_bytes();
        assert_eq!(decoder.push(&llama[..1]), "");
        assert_eq!(decoder.push(&llama[1..3]), "");
        assert_eq!(decoder.push(&llama[3..]), "🦙");
        assert_eq!(decoder.push(&llama[..2]), "");
        assert_eq!(decoder.push(b"a"), "\u{FFFD}a");
        assert_eq!(decoder.push(&llama[..3]), "");
        assert_eq!(decoder.finish(), "\u{FFFD}");
        assert_eq!(decoder.finish(), "");
    }

    #[test]
    fn any_split_of_any_bytes_equals_from_utf8_lossy() {
        let mut random = Random::from_clock();
        let characters = ["a", "é", "日", "🦙", "\u{FFFD}", "\0", "\u{301}"];
        for _ in 0..4000 {
            let mut bytes = Vec::new();
            for _ in 0..random.below(12) {
                match random.below(3) {
                    0 => bytes.push(random.below(256) as u8),
                    1 => bytes
                        .extend_from_slice(characters[random.below(characters.len())].as_bytes()),
                    // A character cut short, as a model that stops mid-character gives.
                    _ => {
                        let c = characters[random.below(characters.len())].as_bytes();
                        bytes.extend_from_slice(&c[..random.below(c.len()) + 1]);
                    }
                }
            }
            let expected = String::from_utf8_lossy(&bytes);
            let size = random.below(4) + 1;
            assert_eq!(
                stream(bytes.chunks(size)),
                expected,
                "pieces of {size} of {bytes:?}, seed {}",
                random.seed
            );
            let cut = random.below(bytes.len() + 1);
            let (left, right) = bytes.split_at(cut);
            assert_eq!(
                stream([left, right].into_iter()),
                expected,
                "{bytes:?} cut at {cut}, seed {}",
                random.seed
            );
        }
    }
}
