//! The byte-level alphabet of GPT-2: each of the 256 bytes as one printable character.
//!
//! Source: `bytes_to_unicode` of OpenAI's GPT-2 encoder; llama.cpp `unicode.cpp`.

/// The character that stands for each byte, indexed by the byte.
///
/// Bytes that are printable Latin-1 stand for themselves; the other 68 are numbered from U+0100 on.
const BYTE_TO_CHAR: [char; 256] = {
    let mut table = ['\0'; 256];
    let mut next = 0x100;
    let mut byte = 0;
    while byte < 256 {
        let code = if matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) {
            byte as u32
        } else {
            next += 1;
            next - 1
        };
        table[byte] = match char::from_u32(code) {
            Some(c) => c,
            None => panic!("codes up to 0x143 are characters"),
        };
        byte += 1;
    }
    table
};

/// The byte that each of the characters U+0000 to U+0143 stands for; `NO_BYTE` where it stands for none.
const CHAR_TO_BYTE: [u16; 0x144] = {
    let mut table = [NO_BYTE; 0x144];
    let mut byte = 0;
    while byte < 256 {
        table[BYTE_TO_CHAR[byte] as usize] = byte as u16;
        byte += 1;
    }
    table
};

const NO_BYTE: u16 = 0x100;

/// The characters of the byte-level alphabet in the order of GPT-2's vocabulary: those that stand for themselves,
/// then the others.
pub fn byte_level_alphabet() -> Vec<char> {
    let mut alphabet = BYTE_TO_CHAR.to_vec();
    alphabet.sort_unstable();
    alphabet
}

/// The character that stands for `byte`.
pub(super) fn char_of(byte: u8) -> char {
    BYTE_TO_CHAR[usize::from(byte)]
}

/// The byte that `c` stands for, if it is one of the 256.
pub(super) fn byte_of(c: char) -> Option<u8> {
    let byte = *CHAR_TO_BYTE.get(c as usize)?;
    u8::try_from(byte).ok()
}

/// Appends `text` in the byte-level alphabet to `out`.
pub(super) fn encode_into(text: &str, out: &mut String) {
    out.extend(text.bytes().map(char_of));
}

/// The bytes that `token`, a text in the byte-level alphabet, stands for; `None` if it holds another character.
pub(super) fn decode(token: &str) -> Option<Vec<u8>> {
    token.chars().map(byte_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_characters() {
        assert_eq!(char_of(b' '), 'Ġ');
        assert_eq!(char_of(b'\n'), 'Ċ');
        assert_eq!(char_of(b'A'), 'A');
        assert_eq!(char_of(0xAD), '\u{143}');
        assert_eq!(char_of(0xFF), 'ÿ');
    }

    #[test]
    fn every_byte_round_trips_and_nothing_else_decodes() {
        for byte in 0..=255 {
            assert_eq!(byte_of(char_of(byte)), Some(byte));
        }
        let decodable = ('\0'..=char::MAX).filter(|&c| byte_of(c).is_some()).count();
        assert_eq!(decodable, 256);
    }

    #[test]
    fn text_round_trips() {
        let text = "naïve 🦙\r\n\t日本 \0";
        let mut encoded = String::new();
        encode_into(text, &mut encoded);
        assert_eq!(decode(&encoded).as_deref(), Some(text.as_bytes()));
        assert_eq!(decode("日"), None);
    }
}
