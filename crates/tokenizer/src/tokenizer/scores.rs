//! SentencePiece vocabularies: the pair of neighbours that makes the token with the best score is merged first.
//!
//! Source: llama.cpp `llama-vocab.cpp`, `llm_tokenizer_spm_session`. Lists of ranked pairs, which the `tokenizers` crate merges by, cannot
//! say that two pairs are equally good. Here they often are, since every way to cut a token has the token's score. Of equal pairs the left
//! one is merged first.

use std::borrow::Cow;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::TokenizerError;
use crate::gguf::{Array, Gguf, Value};
use crate::plural::count;

/// The character that stands for a space in tokens: U+2581.
const SPACE: char = '▁';

/// Scores of tokens, and how texts are written in them.
#[derive(Debug)]
pub(super) struct Scores {
    /// By id.
    scores: Vec<f32>,
    /// Whether a space is put before a text that begins, or follows a special token.
    pub(super) space_prefix: bool,
}

impl Scores {
    /// Reads the scores of `n_tokens` tokens.
    pub(super) fn from_gguf(gguf: &Gguf, n_tokens: usize) -> Result<Self, TokenizerError> {
        // llama.cpp takes whole numbers, too.
        let scores = match gguf.get("tokenizer.ggml.scores") {
            Some(Value::Array(Array::I32(whole))) => whole.iter().map(|&n| n as f32).collect(),
            _ => Cow::from(gguf.require_f32_array("tokenizer.ggml.scores")?),
        };
        if scores.len() != n_tokens {
            return Err(TokenizerError::Vocabulary(format!(
                "tokenizer.ggml.scores has {}; tokenizer.ggml.tokens has {n_tokens}: they must be equally many",
                count(scores.len(), "entry")
            )));
        }
        let space_prefix = gguf.get_bool("tokenizer.ggml.add_space_prefix")?;
        Ok(Self {
            // Zero is one number, whatever its sign.
            scores: scores.iter().map(|score| score + 0.0).collect(),
            space_prefix: space_prefix.unwrap_or(true),
        })
    }

    /// Appends the ids of `text`, which has [`SPACE`] for spaces. `id_of` finds the token of a text. A character without a token becomes the
    /// tokens of its bytes.
    pub(super) fn merge(
        &self,
        text: &str,
        id_of: impl Fn(&str) -> Option<u32>,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let mut symbols = symbols(text);
        let mut pairs = BinaryHeap::new();
        let pair = |symbols: &[Symbol], left: usize| {
            let right = symbols[left].next?;
            let end = symbols[right].end;
            let id = id_of(&text[symbols[left].start..end])?;
            let score = *self.scores.get(id as usize)?;
            Some(Pair {
                score,
                left: Reverse(left),
                right,
                end,
            })
        };
        pairs.extend((0..symbols.len()).filter_map(|left| pair(&symbols, left)));
        while let Some(Pair {
            left: Reverse(left),
            right,
            end,
            ..
        }) = pairs.pop()
        {
            // One of the two was merged with another neighbour before.
            if symbols[left].next != Some(right) || symbols[right].end != end {
                continue;
            }
            symbols[left].end = end;
            symbols[left].next = symbols[right].next;
            symbols[right].next = None;
            if let Some(next) = symbols[left].next {
                symbols[next].previous = Some(left);
            }
            let before = symbols[left].previous;
            pairs.extend(before.and_then(|before| pair(&symbols, before)));
            pairs.extend(pair(&symbols, left));
        }
        let mut at = (!symbols.is_empty()).then_some(0);
        while let Some(symbol) = at.map(|at| &symbols[at]) {
            let symbol_text = &text[symbol.start..symbol.end];
            match id_of(symbol_text) {
                Some(id) => ids.push(id),
                None => {
                    for byte in symbol_text.bytes() {
                        let token = byte_token(byte);
                        let id = id_of(&token);
                        ids.push(id.ok_or(TokenizerError::ByteNotInVocabulary { byte, token })?);
                    }
                }
            }
            at = symbol.next;
        }
        Ok(())
    }
}

/// The written form of the token of a byte.
fn byte_token(byte: u8) -> String {
    format!("<0x{byte:02X}>")
}

/// A text as tokens write it.
pub(super) fn escaped(text: &str, with_prefix: bool) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 2);
    out.extend(with_prefix.then_some(SPACE));
    out.extend(text.chars().map(|c| if c == ' ' { SPACE } else { c }));
    out
}

/// The text that a token stands for.
pub(super) fn unescaped(token: &str) -> String {
    token.replace(SPACE, " ")
}

/// A part of a text that is not cut any more.
#[derive(Debug, Clone)]
struct Symbol {
    start: usize,
    end: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

/// The characters of a text.
fn symbols(text: &str) -> Vec<Symbol> {
    let characters = text.char_indices().enumerate();
    let symbols = characters.map(|(i, (start, c))| Symbol {
        start,
        end: start + c.len_utf8(),
        previous: i.checked_sub(1),
        next: Some(i + 1),
    });
    let mut symbols: Vec<Symbol> = symbols.collect();
    if let Some(last) = symbols.last_mut() {
        last.next = None;
    }
    symbols
}

/// Two neighbours that make a token together.
#[derive(Debug, Clone, Copy)]
struct Pair {
    score: f32,
    left: Reverse<usize>,
    right: usize,
    /// The end of the right one when the pair was found.
    end: usize,
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_score = self.score.total_cmp(&other.score);
        by_score.then_with(|| self.left.cmp(&other.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Pair {}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::gguf::GgufWriter;
    use crate::tokenizer::testing::Random;

    /// Tokens for tests: the first 256 are those of bytes.
    struct Made {
        texts: HashMap<String, u32>,
        scores: Scores,
    }

    impl Made {
        fn new(tokens: &[(&str, f32)]) -> Self {
            let bytes = (0..=255).map(|byte| (byte_token(byte), 0.0));
            let all = tokens
                .iter()
                .map(|(text, score)| ((*text).to_owned(), *score));
            let (texts, scores): (Vec<_>, Vec<_>) = bytes.chain(all).unzip();
            let space_prefix = true;
            Self {
                texts: texts.into_iter().zip(0..).collect(),
                scores: Scores {
                    scores,
                    space_prefix,
                },
            }
        }

        fn id_of(&self, text: &str) -> Option<u32> {
            self.texts.get(text).copied()
        }

        fn merged(&self, text: &str) -> Vec<u32> {
            let mut ids = vec![];
            let merged = self.scores.merge(text, |text| self.id_of(text), &mut ids);
            merged.map(|()| ids).expect("all bytes are tokens")
        }

        /// Merges the best pair of all, the leftmost of equal ones, until there is none.
        fn merged_plainly(&self, text: &str) -> Vec<u32> {
            let mut parts: Vec<String> = text.chars().map(String::from).collect();
            loop {
                let joined = parts.windows(2).map(|pair| pair.concat()).enumerate();
                let found = joined.filter_map(|(at, text)| Some((at, self.id_of(&text)?)));
                let score = |id: u32| self.scores.scores[id as usize];
                let best = found.min_by(|a, b| score(b.1).total_cmp(&score(a.1)));
                let Some((at, _)) = best else { break };
                let right = parts.remove(at + 1);
                parts[at] += &right;
            }
            let ids = parts.iter().flat_map(|part| match self.id_of(part) {
                Some(id) => vec![id],
                None => part.bytes().map(u32::from).collect(),
            });
            ids.collect()
        }
    }

    #[test]
    fn scores_are_floats_or_whole_numbers() {
        let read = |scores: Value| {
            let mut writer = GgufWriter::new(vec![]);
            writer
                .metadata("tokenizer.ggml.scores", scores)
                .expect("a new key");
            let data = writer.begin_data().expect("memory takes it");
            let bytes = data.finish().expect("memory takes it");
            let gguf = Gguf::from_bytes(bytes, "scores").expect("it was just written");
            Scores::from_gguf(&gguf, 3).map(|found| found.scores)
        };
        let expected = vec![0.0, -1.0, 7.0];
        let whole = Value::Array(Array::I32(vec![0, -1, 7]));
        for scores in [Value::Array(Array::F32(expected.clone())), whole] {
            assert_eq!(read(scores).expect("they are right"), expected);
        }
        let error = read(Value::Array(Array::I32(vec![1, 2]))).expect_err("one is missing");
        assert!(error.to_string().contains("has 2 entries"), "{error}");
        assert!(read(Value::Array(Array::U8(vec![0, 1, 7]))).is_err());
    }

    #[test]
    fn pairs_merge_as_when_the_best_is_looked_for_each_time() {
        let mut random = Random::from_clock();
        for _ in 0..300 {
            let letters = ["a", "b", "▁", "é", "c"];
            let mut text = |most: usize, letters: &[&'static str]| -> String {
                let length = 1 + random.below(most);
                let letter = |_| letters[random.below(letters.len())];
                (0..length).map(letter).collect()
            };
            let tokens: Vec<String> = (0..30).map(|_| text(4, &letters)).collect();
            let said = text(40, &["a", "b", "▁", "é", "c", "日"]);
            // Few scores, so that many pairs are equal.
            let tokens: Vec<(&str, f32)> = tokens
                .iter()
                .map(|text| (text.as_str(), -(random.below(4) as f32)))
                .collect();
            let made = Made::new(&tokens);
            let seed = random.seed;
            assert_eq!(
                made.merged(&said),
                made.merged_plainly(&said),
                "{said:?} by {tokens:?}, seed {seed}"
            );
        }
    }

    #[test]
    fn of_equal_pairs_the_left_one_is_merged() {
        let made = Made::new(&[("x", -9.0), ("xx", -1.0), ("xxx", -2.0), ("ab", -1.0)]);
        // "x" and "xx", and "xx" and "x", are equally good.
        assert_eq!(made.merged("xxxx"), [257, 257]);
        assert_eq!(made.merged("xxxxx"), [257, 258]);
        // Letters that are no tokens make one.
        assert_eq!(made.merged("abb"), [259, u32::from(b'b')]);
        assert!(made.merged("").is_empty());
    }

    #[test]
    fn a_byte_without_a_token_is_named() {
        let scores = Scores {
            scores: vec![0.0],
            space_prefix: false,
        };
        let id_of = |text: &str| (text == "a").then_some(0);
        let error = scores.merge("aé", id_of, &mut vec![]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the text holds byte 0xC3, for which the vocabulary has no token (expected one with the text \"<0xC3>\")"
        );
    }

    #[test]
    fn spaces_are_written_as_tokens_write_them() {
        assert_eq!(escaped("a  b", true), "▁a▁▁b");
        assert_eq!(escaped(" a\n", false), "▁a\n");
        assert_eq!(unescaped("▁a▁b"), " a b");
    }
}
