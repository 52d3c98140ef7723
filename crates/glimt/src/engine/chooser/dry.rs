//! DRY, "don't repeat yourself": a token that would continue a repetition is penalised, the more the longer that is.

use std::collections::HashMap;

use crate::effort;
use crate::tokenizer::{Tokenizer, TokenizerError};

/// The settings of DRY: which repetitions are penalised, and how much.
#[derive(Debug, Clone)]
pub struct Dry {
    /// The penalty of a repetition of the allowed length; 0 is off.
    pub multiplier: f32,
    /// The factor by which each further token multiplies the penalty.
    pub base: f32,
    /// The shortest repetition that is penalised when it is continued.
    pub allowed_length: usize,
    /// The number of last tokens that are searched for repetitions.
    pub last_n: u32,
    /// The texts that end a repetition in any case.
    pub breakers: Breakers,
}

impl Dry {
    /// The factor of each further token, if nobody says it.
    pub const BASE: f32 = 1.75;
    /// The shortest repetition that is penalised, if nobody says it.
    pub const ALLOWED_LENGTH: u32 = 2;
    /// The number of last tokens that are searched, if nobody says it.
    pub const LAST_N: u32 = 64;
    /// The texts that end a repetition, if nobody says it.
    pub const BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];
}

/// The most bytes of a sequence breaker that are looked at.
const BREAKER_BYTES: usize = 40;
/// The most tokens behind the first one that a sequence breaker is looked for in.
const BREAKER_TOKENS: usize = 20;

/// Texts that end a repetition, by the tokens they may begin in: each with the tokens that must follow.
#[derive(Debug, Clone, Default)]
pub struct Breakers(HashMap<u32, Vec<Vec<u32>>>);

impl Breakers {
    /// The ways in which the tokens of `tokenizer` make up `texts`. A token that holds a whole text is one; so is a token that ends in
    /// the beginning of a text, with the tokens of the rest behind it.
    ///
    /// # Errors
    /// [`TokenizerError::ByteNotInVocabulary`].
    pub fn new(tokenizer: &Tokenizer, texts: &[String]) -> Result<Self, TokenizerError> {
        let mut found: HashMap<u32, Vec<Vec<u32>>> = HashMap::new();
        let texts: Vec<&str> = texts.iter().map(|text| beginning(text)).collect();
        for id in 0..tokenizer.vocab_size() as u32 {
            effort::check()?;
            let token = tokenizer.token_bytes(id);
            for text in texts.iter().filter(|text| !text.is_empty()) {
                for tail in tails(&token, text) {
                    let mut tail = tokenizer.encode_inside(tail)?;
                    tail.truncate(BREAKER_TOKENS);
                    let tails = found.entry(id).or_default();
                    if !tails.contains(&tail) {
                        tails.push(tail);
                    }
                }
            }
        }
        Ok(Self(found))
    }

    /// Whether a token is one by itself.
    fn alone(&self, token: u32) -> bool {
        self.0
            .get(&token)
            .is_some_and(|tails| tails.iter().any(Vec::is_empty))
    }

    /// The number of tokens of `reversed`, the context from its end, that come behind the last breaker.
    fn behind_last(&self, reversed: &[u32]) -> usize {
        let ends = |head: usize, tail: &Vec<u32>| {
            tail.len() <= head
                && tail
                    .iter()
                    .eq(reversed[head - tail.len()..head].iter().rev())
        };
        let found = reversed.iter().enumerate().find_map(|(head, token)| {
            let tails = self.0.get(token)?;
            let longest = tails.iter().filter(|tail| ends(head, tail)).map(Vec::len);
            longest.max().map(|length| head - length)
        });
        found.unwrap_or(reversed.len())
    }
}

/// The beginning of a text that is looked at.
fn beginning(text: &str) -> &str {
    let mut end = text.len().min(BREAKER_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The ends of `text` that complete it behind `token`, one for each beginning of `text` that ends `token`; `""` where `token` holds `text`.
fn tails<'t>(token: &[u8], text: &'t str) -> Vec<&'t str> {
    let bytes = text.as_bytes();
    if token.windows(bytes.len()).any(|window| window == bytes) {
        return vec![""];
    }
    let overlaps = (1..bytes.len().min(token.len() + 1)).filter(|&n| {
        // A token that ends within a character cannot be followed by text.
        text.is_char_boundary(n) && token.ends_with(&bytes[..n])
    });
    overlaps.map(|n| &text[n..]).collect()
}

impl Dry {
    /// Lowers the logits of the tokens that would continue a repetition at the end of `context`.
    pub(super) fn penalise(&self, logits: &mut [f32], context: &[u32]) {
        let begin = context.len().saturating_sub(self.last_n as usize);
        let reversed: Vec<u32> = context[begin..].iter().rev().copied().collect();
        let limit = self.breakers.behind_last(&reversed);
        let mut longest: HashMap<u32, usize> = HashMap::new();
        for (at, length) in repeats(&reversed).into_iter().enumerate().skip(1) {
            let length = length.min(limit);
            if length >= self.allowed_length {
                let known = longest.entry(reversed[at - 1]).or_default();
                *known = length.max(*known);
            }
        }
        for (token, length) in longest {
            if let Some(logit) = logits.get_mut(token as usize)
                && !self.breakers.alone(token)
            {
                let beyond = (length - self.allowed_length).min(i32::MAX as usize);
                let penalty = self.multiplier * self.base.powi(beyond as i32);
                *logit -= penalty.min(f32::MAX / 4.0);
            }
        }
    }
}

/// For each place of `tokens`, the number of tokens from there on that repeat the beginning (the Z-function).
fn repeats(tokens: &[u32]) -> Vec<usize> {
    let mut repeats = vec![0; tokens.len()];
    // The known match that reaches farthest.
    let (mut begin, mut end) = (0, 0);
    for at in 1..tokens.len() {
        let mut length = match at < end {
            true => repeats[at - begin].min(end - at),
            false => 0,
        };
        while at + length < tokens.len() && tokens[length] == tokens[at + length] {
            length += 1;
        }
        if at + length > end {
            (begin, end) = (at, at + length);
        }
        repeats[at] = length;
    }
    repeats
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::Gguf;
    use crate::kernels::testing::Rng;

    fn dry(last_n: u32, breakers: &[(u32, &[u32])]) -> Dry {
        let mut of = HashMap::<u32, Vec<Vec<u32>>>::new();
        for (head, tail) in breakers {
            of.entry(*head).or_default().push(tail.to_vec());
        }
        Dry {
            multiplier: 0.5,
            base: 2.0,
            allowed_length: 2,
            last_n,
            breakers: Breakers(of),
        }
    }

    /// The penalties of tokens 0 to 9.
    fn penalties(dry: &Dry, context: &[u32]) -> Vec<f32> {
        let mut logits = vec![0.0; 10];
        dry.penalise(&mut logits, context);
        logits.into_iter().map(|logit| 0.0 - logit).collect()
    }

    fn only(token: usize, penalty: f32) -> Vec<f32> {
        let mut all = vec![0.0; 10];
        all[token] = penalty;
        all
    }

    #[test]
    fn what_would_continue_a_repetition_is_penalised() {
        // 1 2 was followed by 3: a repetition of two is allowed to stand, but costs what it costs to continue.
        let all = dry(u32::MAX, &[]);
        assert_eq!(penalties(&all, &[1, 2, 3, 1, 2]), only(3, 0.5));
        assert_eq!(penalties(&all, &[9, 1, 2, 3, 9, 1, 2]), only(3, 1.0));
        assert_eq!(penalties(&all, &[2, 3, 1, 2]), only(0, 0.0), "one is short");
        // The longest repetition before a token counts.
        let context = [1, 2, 3, 0, 4, 1, 2, 3, 0, 1, 2];
        assert_eq!(penalties(&all, &context), only(3, 0.5));
        let context = [4, 1, 2, 3, 0, 1, 2, 3, 4, 1, 2];
        assert_eq!(penalties(&all, &context), only(3, 1.0));
        // A token that repeats itself: the last four are the four before the last.
        assert_eq!(penalties(&all, &[7; 5]), only(7, 0.5 * 4.0));
        // Beyond the last_n nothing is seen.
        assert_eq!(penalties(&dry(4, &[]), &[1, 2, 3, 1, 2]), only(0, 0.0));
        assert_eq!(penalties(&all, &[]), only(0, 0.0));
        assert_eq!(penalties(&dry(0, &[]), &[1, 2, 3, 1, 2]), only(0, 0.0));
    }

    #[test]
    fn breakers_end_repetitions() {
        let context = [8, 9, 1, 2, 3, 8, 9, 1, 2];
        assert_eq!(
            penalties(&dry(99, &[]), &context),
            only(3, 0.5 * 4.0),
            "four tokens without a breaker"
        );
        let broken = dry(99, &[(9, &[])]);
        assert_eq!(
            penalties(&broken, &context),
            only(3, 0.5),
            "two behind the 9"
        );
        // A breaker of two tokens, the second of which comes last.
        let broken = dry(99, &[(9, &[1])]);
        assert_eq!(penalties(&broken, &context), only(0, 0.0));
        let broken = dry(99, &[(9, &[2])]);
        assert_eq!(penalties(&broken, &context), only(3, 0.5 * 4.0));
        // A breaker is not penalised itself, unless others must follow it.
        assert_eq!(penalties(&dry(99, &[(3, &[])]), &context), only(0, 0.0));
        assert_eq!(penalties(&dry(99, &[(3, &[5])]), &context), only(3, 2.0));
    }

    #[test]
    fn penalties_stay_finite() {
        let mut logits = [0.0f32; 8];
        dry(u32::MAX, &[]).penalise(&mut logits, &[7; 4000]);
        assert!(logits[7].is_finite() && logits[7] < -1e37, "{logits:?}");
    }

    #[test]
    fn repeats_are_those_of_the_definition() {
        let mut rng = Rng::fresh();
        for _ in 0..300 {
            let tokens: Vec<u32> = (0..rng.below(30)).map(|_| rng.below(3) as u32).collect();
            for (at, found) in repeats(&tokens).into_iter().enumerate().skip(1) {
                let equal = tokens[at..].iter().zip(&tokens).take_while(|(a, b)| a == b);
                assert_eq!(found, equal.count(), "{tokens:?} at {at}");
            }
        }
    }

    #[test]
    fn breakers_are_found_in_the_tokens_of_a_vocabulary() {
        let gguf = Gguf::from_bytes(
            include_bytes!("../../../../../assets/tales-q4_k_m.gguf"),
            "built-in model",
        );
        let tokenizer = Tokenizer::from_gguf(&gguf.expect("it is whole")).expect("it has one");
        let breakers = Breakers::new(&tokenizer, &["\n".into(), "fox and".into()]);
        let breakers = breakers.expect("all bytes are known");
        let of = |text: &str| tokenizer.encode(text, false).expect("known bytes");
        let line_break = *of("\n").last().expect("a token");
        assert!(breakers.alone(line_break));
        // However a text is written, what follows it is known to be behind it.
        for (text, behind) in [
            ("One.\nTwo", "Two"),
            ("a fox and a crow", " a crow"),
            ("none here", "none here"),
        ] {
            let reversed: Vec<u32> = of(text).into_iter().rev().collect();
            let behind = of(behind).len();
            assert_eq!(breakers.behind_last(&reversed), behind, "{text}");
        }
        assert_eq!(tails(b"ab", "bcd"), ["cd"]);
        assert_eq!(tails(b"abcde", "bcd"), [""]);
        assert_eq!(tails(b"aa", "aaa"), ["aa", "a"]);
        assert!(tails(b"a\xc3", "\u{e9}a").is_empty());
    }
}
