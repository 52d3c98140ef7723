//! Text to token ids and back, from the vocabulary in a GGUF file; chat templates.
//!
//! Byte pairs are merged by the `tokenizers` crate; what comes before (special tokens in the text, splitting into
//! words, the byte-level alphabet) is written here to agree with llama.cpp to the byte, and so are merges by scores.

mod bytes;
mod chat;
mod error;
pub mod exact;
mod jinja;
mod message;
mod pre;
mod scores;
mod shield;
mod special;
mod stream;
mod strftime;
#[cfg(not(target_arch = "wasm32"))]
pub use strftime::strftime_now;
#[cfg(test)]
mod testing;
mod vocab;

pub use bytes::byte_level_alphabet;
pub use chat::{ChatTemplate, Rendering};
pub use error::TokenizerError;
pub use message::{Message, ToolCall};
pub use shield::{ChatText, Shield};
pub use stream::StreamDecoder;

use std::sync::OnceLock;

use tokenizers::Model;

use crate::effort::Effort;
use crate::gguf::Gguf;
use pre::PreTokenizer;
use shield::Marks;
use special::{Fragment, SpecialTokens};
use vocab::{Merging, TokenType, Vocabulary};

/// A vocabulary ready for use. Shared freely between threads.
#[derive(Debug)]
pub struct Tokenizer {
    vocabulary: Vocabulary,
    special: SpecialTokens,
    /// Whether the vocabulary has a token for a byte, by byte.
    known_bytes: [bool; 256],
    /// Bytes of the longest token.
    longest: usize,
    /// Whether a token has two bytes beside each other, by these. It is found when a word is too long.
    pairs: OnceLock<Vec<bool>>,
}

/// The most bytes of a word that is merged as a whole. A longer one is cut, since merging takes much memory for each of its bytes.
const MOST_WORD: usize = 1 << 18;
/// Words after which it is looked whether the work may go on.
const CHECKED: usize = 64;

impl Tokenizer {
    /// Checks that the vocabulary of `gguf` is of a kind that is known, which takes no time.
    ///
    /// # Errors
    /// Another model of vocabulary or pre-tokenizer.
    pub fn check(gguf: &Gguf) -> Result<(), TokenizerError> {
        Vocabulary::pre_tokenizer(gguf).map(drop)
    }

    /// Builds the tokenizer that the `tokenizer.ggml.*` keys of `gguf` describe.
    ///
    /// # Errors
    /// Anything but a byte-level BPE vocabulary (`tokenizer.ggml.model` = `gpt2`) with a known pre-tokenizer
    /// (`tokenizer.ggml.pre`), or a SentencePiece vocabulary with scores (`llama`), is refused, and so are vocabularies that contradict
    /// themselves.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, TokenizerError> {
        let vocabulary = Vocabulary::from_gguf(gguf)?;
        let types = vocabulary.types.iter().zip(0..);
        let written_out = types.filter(|(kind, _)| kind.is_written_out());
        let written_out =
            written_out.filter_map(|(_, id)| Some((vocabulary.bpe.id_to_token(id)?, id)));
        let special = SpecialTokens::new(written_out);
        let known_bytes = std::array::from_fn(|byte| {
            let character = bytes::char_of(byte as u8);
            let token = vocabulary.id_of(character.encode_utf8(&mut [0; 4]));
            token.is_some()
        });
        let mut tokenizer = Tokenizer {
            vocabulary,
            special,
            known_bytes,
            longest: 1,
            pairs: OnceLock::new(),
        };
        let ids = 0..tokenizer.vocab_size() as u32;
        let longest = ids.map(|id| tokenizer.token_bytes(id).len()).max();
        tokenizer.longest = longest.unwrap_or_default().max(1);
        Ok(tokenizer)
    }

    /// The ids of `text`. Special tokens written out in it are taken as such.
    ///
    /// With `add_special`, BOS and EOS are added where the file asks for it (`tokenizer.ggml.add_bos_token`,
    /// `tokenizer.ggml.add_eos_token`).
    ///
    /// # Errors
    /// [`TokenizerError::ByteNotInVocabulary`] if the vocabulary cannot express the text. [`TokenizerError::TooMany`] and
    /// [`TokenizerError::Stopped`] where a server limits the work.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        let vocabulary = &self.vocabulary;
        self.check_length(text)?;
        let mut ids = Vec::new();
        ids.extend(vocabulary.bos.filter(|_| add_special && vocabulary.add_bos));
        self.encode_around(text, &[], true, &mut ids)?;
        ids.extend(vocabulary.eos.filter(|_| add_special && vocabulary.add_eos));
        Ok(ids)
    }

    /// The ids of a text that continues another, so that no space is put before it. Special tokens written out in it are taken as such.
    ///
    /// # Errors
    /// The errors of [`encode`](Self::encode).
    pub fn encode_inside(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.check_length(text)?;
        let mut ids = Vec::new();
        self.encode_around(text, &[], false, &mut ids)?;
        Ok(ids)
    }

    /// The ids of a part of a rendered chat template that stands behind the token `before`, or at the beginning. Marks that users and tools
    /// wrote are text.
    ///
    /// # Errors
    /// The errors of [`encode`](Self::encode).
    pub fn encode_part(
        &self,
        before: Option<u32>,
        part: &ChatText,
    ) -> Result<Vec<u32>, TokenizerError> {
        self.check_length(part.as_str())?;
        let mut ids = Vec::new();
        let is_begin = before.is_none_or(|id| self.is_written_out(id));
        self.encode_around(part.as_str(), part.breaks(), is_begin, &mut ids)?;
        Ok(ids)
    }

    /// Appends the ids of `text`, which stands at a beginning or behind a special token if `is_begin`. No special token is read over a byte
    /// of `breaks`.
    fn encode_around(
        &self,
        text: &str,
        breaks: &[usize],
        mut is_begin: bool,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        for fragment in self.special.partition(text, breaks)? {
            match fragment {
                Fragment::Token(id) => ids.push(id),
                Fragment::Text(text) => self.encode_text(text, is_begin, ids)?,
            }
            is_begin = matches!(fragment, Fragment::Token(_));
        }
        Ok(())
    }

    /// Whether a token is looked for in texts as it is written.
    fn is_written_out(&self, id: u32) -> bool {
        let kind = self.vocabulary.types.get(id as usize);
        kind.is_some_and(|kind| kind.is_written_out())
    }

    /// The ids of a rendered chat template, in which all marks are read. BOS is added where the file asks for it, unless the template
    /// already wrote it; EOS never, because an answer is to follow.
    ///
    /// # Errors
    /// The errors of [`encode`](Self::encode).
    pub fn encode_chat(&self, rendered: &str) -> Result<Vec<u32>, TokenizerError> {
        let ids = self.encode(rendered, false)?;
        Ok(self.with_bos(ids))
    }

    /// Encodes like [`encode_chat`](Self::encode_chat), but marks that users and tools wrote are text.
    ///
    /// # Errors
    /// The errors of [`encode`](Self::encode).
    pub fn encode_said(&self, rendered: &ChatText) -> Result<Vec<u32>, TokenizerError> {
        let ids = self.encode_part(None, rendered)?;
        Ok(self.with_bos(ids))
    }

    fn with_bos(&self, mut ids: Vec<u32>) -> Vec<u32> {
        let vocabulary = &self.vocabulary;
        let bos = vocabulary.bos.filter(|_| vocabulary.add_bos);
        if let Some(bos) = bos.filter(|bos| ids.first() != Some(bos)) {
            ids.insert(0, bos);
        }
        ids
    }

    /// The marks of this vocabulary for a template with the text `source`.
    fn marks(&self, source: &str) -> Marks {
        let texts = |wanted: fn(TokenType) -> bool| {
            let kinds = self.vocabulary.types.iter().zip(0..);
            let kinds = kinds.filter(move |(kind, _)| wanted(**kind));
            kinds.filter_map(|(_, id)| self.vocabulary.bpe.id_to_token(id))
        };
        let control = texts(|kind| matches!(kind, TokenType::Control | TokenType::Unknown));
        let defined = texts(|kind| kind == TokenType::UserDefined);
        Marks::new(control, defined, source)
    }

    /// Refuses a text that has more tokens than are wanted, whatever they are, since it is that long.
    fn check_length(&self, text: &str) -> Result<(), TokenizerError> {
        let most = Effort::current().tokens();
        match text.len().div_ceil(self.longest) > most {
            true => Err(TokenizerError::TooMany { most }),
            false => Ok(()),
        }
    }

    /// The pieces of a word of which more than `most` bytes are not merged as a whole. They have the ids that the word has: it is cut between
    /// bytes that no token has beside each other. Where all are in some token, it is cut anyway, which is told.
    fn cut<'w>(&self, mut word: &'w str, most: usize) -> impl Iterator<Item = &'w str> {
        std::iter::from_fn(move || {
            let mut end = word.len();
            if end > most {
                let bytes = word.as_bytes();
                let apart = |&at: &usize| {
                    word.is_char_boundary(at) && !self.in_a_token(bytes[at - 1], bytes[at])
                };
                let boundary = |&at: &usize| word.is_char_boundary(at);
                end = (1..=most).rev().find(apart).unwrap_or_else(|| {
                    log::warn!(
                        "a word of {} bytes was cut to be tokenized; its tokens may differ a little at the cut",
                        word.len()
                    );
                    (1..=most).rev().find(boundary).unwrap_or(word.len())
                });
            }
            let (piece, rest) = word.split_at(end);
            word = rest;
            (!piece.is_empty()).then_some(piece)
        })
    }

    /// Whether a token has these two bytes beside each other.
    fn in_a_token(&self, first: u8, second: u8) -> bool {
        let place = |first: u8, second: u8| usize::from(first) << 8 | usize::from(second);
        let pairs = self.pairs.get_or_init(|| {
            let mut pairs = vec![false; 1 << 16];
            // Also the tokens that only merges name.
            for token in self.vocabulary.bpe.get_vocab().into_keys() {
                let bytes = match self.vocabulary.is_byte_level() {
                    true => bytes::decode(&token).unwrap_or(token.into_bytes()),
                    false => token.into_bytes(),
                };
                for pair in bytes.windows(2) {
                    pairs[place(pair[0], pair[1])] = true;
                }
            }
            pairs
        });
        pairs[place(first, second)]
    }

    /// Appends the ids of text without special tokens, which may be at a beginning.
    fn encode_text(
        &self,
        text: &str,
        is_begin: bool,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        match &self.vocabulary.merging {
            Merging::Ranked(pre) => self.encode_ranked(pre, text, ids),
            Merging::Scored(scores) => {
                let text = scores::escaped(text, is_begin && scores.space_prefix);
                for part in self.cut(&text, MOST_WORD) {
                    check_work(ids)?;
                    scores.merge(part, |text| self.vocabulary.id_of(text), ids)?;
                }
                Ok(())
            }
        }
    }

    /// Appends the ids of text in whose words pairs are merged by rank.
    fn encode_ranked(
        &self,
        pre: &PreTokenizer,
        text: &str,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        if let Some(byte) = text
            .bytes()
            .find(|&byte| !self.known_bytes[usize::from(byte)])
        {
            return Err(TokenizerError::ByteNotInVocabulary {
                byte,
                token: bytes::char_of(byte).into(),
            });
        }
        let words = pre.split(text);
        let words = words.flat_map(|word| self.cut(word, MOST_WORD));
        let mut encoded = String::new();
        for (i, word) in words.enumerate() {
            if i.is_multiple_of(CHECKED) {
                check_work(ids)?;
            }
            encoded.clear();
            bytes::encode_into(word, &mut encoded);
            let tokens = self.vocabulary.bpe.tokenize(&encoded);
            let tokens =
                tokens.expect("merging fails only on an unknown-token fallback, and none is set");
            for token in tokens {
                if (token.id as usize) < self.vocab_size() {
                    ids.push(token.id);
                    continue;
                }
                let bytes = token.value.chars();
                ids.extend(
                    bytes.filter_map(|byte| self.vocabulary.id_of(byte.encode_utf8(&mut [0; 4]))),
                );
            }
        }
        Ok(())
    }

    /// The text of `ids`, special tokens written out; bytes that are no UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.token_bytes(id)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The bytes that `id` stands for; a special token's are its written form. Empty for unused places and ids
    /// outside the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        let (Some(kind), Some(text)) = (
            self.vocabulary.types.get(id as usize),
            self.vocabulary.bpe.id_to_token(id),
        ) else {
            return Vec::new();
        };
        match kind {
            TokenType::Normal if !self.vocabulary.is_byte_level() => {
                scores::unescaped(&text).into_bytes()
            }
            TokenType::Normal => bytes::decode(&text).unwrap_or(text.into_bytes()),
            TokenType::Byte => match text
                .strip_prefix("<0x")
                .and_then(|hex| hex.strip_suffix('>'))
            {
                Some(hex) => {
                    u8::from_str_radix(hex, 16).map_or(text.into_bytes(), |byte| vec![byte])
                }
                None => text.into_bytes(),
            },
            TokenType::Control | TokenType::UserDefined | TokenType::Unknown => text.into_bytes(),
            TokenType::Unused | TokenType::Undefined => Vec::new(),
        }
    }

    /// The text that [`encode`](Self::encode) makes `ids` of: without the BOS and the space that it put before the text.
    pub fn text_of(&self, ids: &[u32]) -> String {
        let added = usize::from(!ids.is_empty() && ids.first().copied() == self.bos());
        let text = self.decode(&ids[added..]);
        match &self.vocabulary.merging {
            Merging::Scored(scores) if scores.space_prefix => {
                text.strip_prefix(' ').map_or(text.clone(), str::to_owned)
            }
            _ => text,
        }
    }

    /// The text of one token; part of a character becomes U+FFFD.
    pub fn piece(&self, id: u32) -> String {
        String::from_utf8_lossy(&self.token_bytes(id)).into_owned()
    }

    /// Whether `id` ends an answer.
    pub fn is_stop(&self, id: u32) -> bool {
        self.vocabulary.stop_tokens.binary_search(&id).is_ok()
    }

    /// The tokens that end an answer, ascending.
    pub fn stop_tokens(&self) -> &[u32] {
        &self.vocabulary.stop_tokens
    }

    /// Number of tokens.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.n_tokens()
    }

    /// The token that begins a text, if the vocabulary has one.
    pub fn bos(&self) -> Option<u32> {
        self.vocabulary.bos
    }

    /// Whether `id` is a mark and no text: not to be shown in an answer.
    pub fn is_special(&self, id: u32) -> bool {
        matches!(
            self.vocabulary.types.get(id as usize),
            Some(TokenType::Control | TokenType::Unknown)
        )
    }
}

/// Refuses to go on where nobody waits any more, or where more tokens were found than are wanted.
fn check_work(found: &[u32]) -> Result<(), TokenizerError> {
    let effort = Effort::current();
    let most = effort.tokens();
    match found.len() > most {
        true => Err(TokenizerError::TooMany { most }),
        false => Ok(effort.check()?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_long_word_is_cut_where_its_tokens_stay() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let gguf = Gguf::open(&root.join("assets/tales-q4_k_m.gguf")).expect("it is whole");
        let tokenizer = Tokenizer::from_gguf(&gguf).expect("it has one");
        let ids = |text: &str| {
            let mut ids = vec![];
            tokenizer.encode_text(text, true, &mut ids).expect("a text");
            ids
        };
        let mut random = 1_u64;
        let word: String = std::iter::repeat_with(|| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            char::from(b'a' + (random >> 33) as u8 % 26)
        })
        .take(2000)
        .collect();
        let whole = ids(&word);
        for most in [40, 64, 500, 1999] {
            let pieces: Vec<_> = tokenizer.cut(&word, most).collect();
            assert!(pieces.iter().all(|piece| piece.len() <= most));
            assert_eq!(pieces.concat(), word);
            let apart: Vec<u32> = pieces.into_iter().flat_map(ids).collect();
            assert_eq!(apart, whole, "pieces of {most} bytes");
        }
        // A word that can be cut nowhere is cut all the same.
        let same = "e".repeat(100);
        assert_eq!(tokenizer.cut(&same, 30).map(str::len).sum::<usize>(), 100);
        assert_eq!(tokenizer.cut("\u{1f98a}", 2).count(), 1);
    }
}
