//! Arrays under other names.
//!
//! naga 30 takes an array with a name for another type than the same array without, and writes a function of the same name for each in HLSL
//! where both are composed. No compiler takes that, so the names go before naga sees them.

/// The name and the array of a line that gives an array a name.
fn named(line: &str) -> Option<(&str, &str)> {
    let (name, rest) = line.trim().strip_prefix("alias ")?.split_once('=')?;
    let array = rest.split_once(';')?.0.trim();
    array.starts_with("array<").then_some((name.trim(), array))
}

/// `text` with every word that is `name` replaced, but for members of that name.
fn replaced(text: &str, name: &str, by: &str) -> String {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut out = String::with_capacity(text.len());
    let mut done = 0;
    for (at, _) in text.match_indices(name) {
        let (before, behind) = (&text[..at], &text[at + name.len()..]);
        let within = |c: char| part_of_word(c) || c == '.';
        if before.ends_with(within) || behind.starts_with(part_of_word) {
            continue;
        }
        out.push_str(&text[done..at]);
        out.push_str(by);
        done = at + name.len();
    }
    out.push_str(&text[done..]);
    out
}

/// The shader with every array under its own type: names of arrays are replaced by what they stand for.
pub(super) fn without_names_of_arrays(text: &str) -> String {
    let mut text = text.to_owned();
    while let Some((name, array)) = text.lines().find_map(named) {
        let (name, array) = (name.to_owned(), array.to_owned());
        let mut dropped = false;
        let lines = text.lines().map(|line| {
            let own = !dropped && named(line).is_some_and(|(n, _)| n == name);
            dropped |= own;
            // The number of lines stays, for messages.
            if own { "" } else { line }
        });
        let lines: String = lines.flat_map(|line| [line, "\n"]).collect();
        text = replaced(&lines, &name, &array);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::without_names_of_arrays;

    #[test]
    fn names_of_arrays_go_and_others_stay() {
        let text = "alias Unit = Record;\nalias Sums = array<f32, N>; // of a row\nalias All = array<Sums, 2>;\n\
                    fn f(a: Sums, b: Unit) -> All { return All(Sums(), a.Sums, MySums, Sums2); }\n";
        let expected = "alias Unit = Record;\n\n\n\
                        fn f(a: array<f32, N>, b: Unit) -> array<array<f32, N>, 2> { return array<array<f32, N>, 2>(array<f32, N>(), \
                        a.Sums, MySums, Sums2); }\n";
        assert_eq!(without_names_of_arrays(text), expected);
    }
}
