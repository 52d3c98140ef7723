//! Drafts from the text itself: what followed the last tokens where they stand before.

use std::collections::HashMap;

/// The tokens that have to match at least, by which places are found.
const LEAST: usize = 3;
/// The tokens of a match that are compared at most.
const LONGEST: usize = 64;
/// The places that are compared for a draft at most, the latest first.
const COMPARED: usize = 16;

/// Tokens that followed a match.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The tokens that match, up to the longest that is compared.
    pub(super) matched: usize,
    /// The tokens behind them: up to twice as many, less one.
    pub(super) ids: Vec<u32>,
    /// Their place in the text.
    pub(super) place: usize,
}

/// An index of a text that grows. A token costs it one entry.
#[derive(Debug, Default)]
pub(super) struct Ngrams {
    /// The last place behind each sequence of [`LEAST`] tokens.
    last: HashMap<[u32; LEAST], u32>,
    /// The place before each place that has the same tokens before it, 0 where there is none.
    before: Vec<u32>,
    /// The tokens before the last place that has an entry, by which another text is told from this one.
    tail: [u32; LEAST],
}

impl Ngrams {
    /// The tokens that followed the longest match of the end of `text`, at most `most`.
    pub(super) fn find(&mut self, text: &[u32], most: usize) -> Option<Found> {
        self.index(text);
        let mut place = *self.last.get(&gram(text, text.len())?)? as usize;
        let mut best = (0, 0);
        for _ in 0..COMPARED {
            let matched = matched(text, place);
            if matched > best.0 {
                best = (matched, place);
            }
            place = self.before[place] as usize;
            if place == 0 || matched == LONGEST {
                break;
            }
        }
        let (matched, place) = best;
        if matched < LEAST {
            // The place is one of another text, which ended like this one.
            return None;
        }
        let number = most.min(2 * matched - 1);
        // A text that repeats its end goes on repeating it.
        let period = text.len() - place;
        let ids = (0..number).map(|i| text[place + i % period]);
        Some(Found {
            matched,
            ids: ids.collect(),
            place,
        })
    }

    /// Enters all places of `text` but its end. An index of another text is begun anew.
    fn index(&mut self, text: &[u32]) {
        let known = self.before.len();
        if text.len() < known || known > LEAST && gram(text, known - 1) != Some(self.tail) {
            *self = Self::default();
        }
        for place in self.before.len()..text.len() {
            let before = match gram(text, place) {
                Some(gram) => {
                    self.tail = gram;
                    self.last.insert(gram, place as u32)
                }
                None => None,
            };
            self.before.push(before.unwrap_or(0));
        }
    }
}

/// The tokens before a place, where there are enough.
fn gram(text: &[u32], place: usize) -> Option<[u32; LEAST]> {
    text.get(place.checked_sub(LEAST)?..place)?.try_into().ok()
}

/// The tokens before `place` that are those at the end of the text.
fn matched(text: &[u32], place: usize) -> usize {
    let ends = text[..place].iter().rev().zip(text.iter().rev());
    let equal = ends.take(LONGEST).take_while(|(a, b)| a == b);
    equal.count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::Rng;

    fn found(text: &[u32], most: usize) -> Option<(usize, Vec<u32>)> {
        let found = Ngrams::default().find(text, most)?;
        Some((found.matched, found.ids))
    }

    #[test]
    fn the_longest_match_proposes_what_followed_it() {
        let text = [9, 1, 2, 3, 4, 5, 6, 7, 2, 3, 4, 8, 8, 1, 2, 3, 4];
        // Four tokens match at the beginning, three at the later place.
        assert_eq!(found(&text, 64), Some((4, vec![5, 6, 7, 2, 3, 4, 8])));
        assert_eq!(found(&text, 2), Some((4, vec![5, 6])));
        assert_eq!(found(&text[..16], 64), Some((3, vec![4, 5, 6, 7, 2])));
        assert_eq!(found(&text[..15], 64), None, "two tokens are too few");
        assert_eq!(found(&[1, 1], 64), None);
        assert_eq!(found(&[], 64), None);
    }

    #[test]
    fn of_equal_matches_the_latest_counts() {
        let text = [1, 2, 3, 7, 0, 1, 2, 3, 8, 4, 1, 2, 3];
        assert_eq!(found(&text, 1), Some((3, vec![8])));
    }

    #[test]
    fn a_text_that_repeats_its_end_goes_on_so() {
        let text = [5, 6, 5, 6, 5, 6, 5];
        assert_eq!(found(&text, 5), Some((5, vec![6, 5, 6, 5, 6])));
        let long: Vec<u32> = (0..40).cycle().take(120).collect();
        let (matched, ids) = found(&long, 64).expect("it repeats itself");
        assert_eq!((matched, ids.len()), (LONGEST, 64));
        let expected: Vec<u32> = (0..40).cycle().take(64).collect();
        assert_eq!(ids, expected);
    }

    #[test]
    fn an_index_that_grows_finds_what_a_new_one_finds() {
        let mut rng = Rng::fresh();
        let (mut grown, mut text) = (Ngrams::default(), vec![]);
        for _ in 0..200 {
            text.extend((0..1 + rng.below(3)).map(|_| rng.below(3) as u32));
            assert_eq!(
                grown.find(&text, 16),
                Ngrams::default().find(&text, 16),
                "{text:?}"
            );
        }
    }

    #[test]
    fn an_index_of_another_text_proposes_what_followed_a_match() {
        let mut rng = Rng::fresh();
        let (mut index, mut text) = (Ngrams::default(), vec![]);
        for _ in 0..200 {
            // Answers are taken back, and others follow.
            text.truncate(text.len() - rng.below(text.len() + 1) / 4);
            text.extend((0..1 + rng.below(9)).map(|_| rng.below(3) as u32));
            let Some(found) = index.find(&text, 16) else {
                continue;
            };
            let end = &text[text.len() - found.matched..];
            let first = &found.ids[..1];
            let wanted = [end, first].concat();
            assert!(found.matched >= LEAST);
            assert!(
                text.windows(wanted.len()).any(|window| window == wanted),
                "{wanted:?} of {text:?}"
            );
        }
    }
}
