//! Counts of things in words, and lists of names that stay short.

use std::fmt::{self, Display};

/// A number with the noun that it counts.
pub struct Count<N>(N, &'static str);

/// `number` of what `noun` is one of: `1 token`, `2 tokens`.
pub fn count<N>(number: N, noun: &'static str) -> Count<N> {
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

/// The most things that are named where there are very many.
const NAMED: usize = 100;

/// The names of `all` things. Of very many the first are named, and no name of another is made.
pub fn named<N: Display>(names: impl IntoIterator<Item = N>, all: usize) -> String {
    let first = names.into_iter().take(NAMED);
    let first: Vec<String> = first.map(|name| name.to_string()).collect();
    let list = first.join(", ");
    match all.saturating_sub(first.len()) {
        0 => list,
        more => format!("{list} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::{count, named};

    #[test]
    fn of_very_many_things_some_are_named() {
        assert_eq!(named(["a", "b"], 2), "a, b");
        let hundred: Vec<u32> = (1..=100).collect();
        let list = named(&hundred, 100);
        assert!(list.ends_with("98, 99, 100"), "{list}");
        let list = named(1..=u64::MAX, 1234);
        assert!(list.ends_with("99, 100 and 1134 more"), "{list}");
    }

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
