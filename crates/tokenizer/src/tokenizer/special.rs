//! Finds special tokens written out in a text.

use std::collections::{BTreeMap, HashMap};

use crate::effort::{self, Stopped};

/// A part of a text: either a special token or text without any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fragment<'t> {
    /// Text to be split and merged.
    Text(&'t str),
    /// A special token.
    Token(u32),
}

/// Bytes after which it is looked whether the work may go on.
const CHECKED: usize = 1 << 16;

/// The special tokens of a vocabulary, ordered for search.
#[derive(Debug, Default)]
pub(super) struct SpecialTokens {
    /// Longest first: tokens of one length in bytes, by their text.
    by_length: Vec<(usize, HashMap<String, u32>)>,
    /// Whether a special token can start with a byte, by byte. Most positions of a text are dismissed by this.
    first_bytes: Vec<bool>,
}

impl SpecialTokens {
    /// The given tokens; empty texts are ignored.
    pub(super) fn new(tokens: impl Iterator<Item = (String, u32)>) -> Self {
        let mut by_length: BTreeMap<usize, HashMap<String, u32>> = BTreeMap::new();
        let mut first_bytes = vec![false; 256];
        for (text, id) in tokens {
            let Some(&first) = text.as_bytes().first() else {
                continue;
            };
            first_bytes[usize::from(first)] = true;
            by_length.entry(text.len()).or_default().insert(text, id);
        }
        SpecialTokens {
            by_length: by_length.into_iter().rev().collect(),
            first_bytes,
        }
    }

    /// The beginnings and lengths of special tokens in `text`: all of them, also within others.
    pub(super) fn all_in(&self, text: &str) -> impl Iterator<Item = (usize, usize)> {
        let starts = text.char_indices().filter(|(at, _)| {
            let first = text.as_bytes()[*at];
            self.first_bytes.get(usize::from(first)) == Some(&true)
        });
        starts.flat_map(move |(at, _)| {
            let found = move |(length, tokens): &(usize, HashMap<String, u32>)| {
                let found = text.get(at..at + length)?;
                tokens.contains_key(found).then_some((at, *length))
            };
            self.by_length.iter().rev().filter_map(found)
        })
    }

    /// Cuts `text` at special tokens as llama.cpp does (`tokenizer_st_partition`): all occurrences of longer tokens
    /// are found, left to right, before any shorter one. Tokens of equal length are searched together. No token is read over a byte of
    /// `breaks`, which ascend.
    ///
    /// # Errors
    /// If nobody waits for it any more.
    pub(super) fn partition<'t>(
        &self,
        text: &'t str,
        breaks: &[usize],
    ) -> Result<Vec<Fragment<'t>>, Stopped> {
        let whole = text.as_ptr() as usize;
        let mut fragments = vec![Fragment::Text(text)];
        for (length, tokens) in &self.by_length {
            let mut next = Vec::with_capacity(fragments.len());
            for fragment in fragments {
                match fragment {
                    Fragment::Token(_) => next.push(fragment),
                    Fragment::Text(text) => {
                        let begin = text.as_ptr() as usize - whole;
                        let is_text = |at: usize| {
                            let next = breaks.partition_point(|&place| place < begin + at);
                            breaks
                                .get(next)
                                .is_some_and(|&place| place < begin + at + length)
                        };
                        self.partition_length((*length, tokens), text, is_text, &mut next)?;
                    }
                }
            }
            fragments = next;
        }
        fragments.retain(|fragment| *fragment != Fragment::Text(""));
        Ok(fragments)
    }

    fn partition_length<'t>(
        &self,
        (length, tokens): (usize, &HashMap<String, u32>),
        text: &'t str,
        is_text: impl Fn(usize) -> bool,
        out: &mut Vec<Fragment<'t>>,
    ) -> Result<(), Stopped> {
        let (mut start, mut at) = (0, 0);
        while at + length <= text.len() {
            if at.is_multiple_of(CHECKED) {
                effort::check()?;
            }
            let candidate = self.first_bytes[usize::from(text.as_bytes()[at])];
            // `get` is `None` inside a character, where no token can start or end.
            match candidate
                .then(|| tokens.get(text.get(at..at + length)?))
                .flatten()
                .filter(|_| !is_text(at))
            {
                Some(&id) => {
                    out.extend([Fragment::Text(&text[start..at]), Fragment::Token(id)]);
                    at += length;
                    start = at;
                }
                None => at += 1,
            }
        }
        out.push(Fragment::Text(&text[start..]));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Fragment::{Text, Token};
    use super::*;

    fn partition<'t>(special: &SpecialTokens, text: &'t str) -> Vec<Fragment<'t>> {
        special.partition(text, &[]).expect("nothing stops it")
    }

    fn tokens(texts: &[&str]) -> SpecialTokens {
        SpecialTokens::new(
            texts
                .iter()
                .enumerate()
                .map(|(id, &text)| (text.to_owned(), id as u32)),
        )
    }

    #[test]
    fn longer_tokens_come_first_wherever_they_are() {
        let special = tokens(&["<a>", "<a><b>", "><"]);
        assert_eq!(
            partition(&special, "<a><a><b>x"),
            [Token(0), Token(1), Text("x")]
        );
        assert_eq!(
            partition(&special, "<b><a"),
            [Text("<b"), Token(2), Text("a")]
        );
    }

    #[test]
    fn occurrences_do_not_overlap_and_the_leftmost_wins() {
        let special = tokens(&["aa"]);
        assert_eq!(
            partition(&special, "aaaaa"),
            [Token(0), Token(0), Text("a")]
        );
        assert_eq!(partition(&special, "baa"), [Text("b"), Token(0)]);
        assert_eq!(partition(&special, ""), []);
    }

    #[test]
    fn no_token_is_read_over_a_break() {
        let special = tokens(&["<a>", "a", "<a><b>"]);
        let around = |text, breaks: &[usize]| special.partition(text, breaks).expect("in time");
        assert_eq!(around("<a>x<a>", &[1]), [Text("<a>x"), Token(0)]);
        assert_eq!(around("<a><b>", &[4]), [Token(0), Text("<b>")]);
        assert_eq!(around("<a>", &[0]), [Text("<"), Token(1), Text(">")]);
        assert_eq!(
            special.all_in("x<a><b>").collect::<Vec<_>>(),
            [(1, 3), (1, 6), (2, 1)]
        );
    }

    #[test]
    fn characters_are_never_cut() {
        let special = tokens(&["｜", "é"]);
        assert_eq!(
            partition(&special, "日｜éa"),
            [Text("日"), Token(0), Token(1), Text("a")]
        );
    }
}
