//! Counts of things in words.

use std::fmt::{self, Display};

/// A number and what there are so many of.
pub(crate) struct Count<N>(N, &'static str);

/// `number` of what `noun` is one of: `1 token`, `2 tokens`.
pub(crate) fn count<N>(number: N, noun: &'static str) -> Count<N> {
    Count(number, noun)
}

impl<N: Display + PartialEq + From<u8>> Display for Count<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(number, noun) = self;
        if *number == N::from(1) {
            return write!(f, "{number} {noun}");
        }
        match noun.strip_suffix('y') {
            Some(stem) => write!(f, "{number} {stem}ies"),
            None if noun.ends_with("ch") => write!(f, "{number} {noun}es"),
            None => write!(f, "{number} {noun}s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn one_thing_is_not_several() {
        for (number, noun, expected) in [
            (0, "token", "0 tokens"),
            (1, "token", "1 token"),
            (2, "token", "2 tokens"),
            (1, "dispatch", "1 dispatch"),
            (3, "dispatch", "3 dispatches"),
            (2, "entry", "2 entries"),
        ] {
            assert_eq!(count(number, noun).to_string(), expected);
        }
    }
}
