//! Protects the order of rooms: reads the tokens of Rust code that is no test, and tests that it does.

/// The tokens of a file: names, `::`, and other characters one by one; without comments, the contents of literals, and items
/// that only tests have.
pub fn tokens(text: &str) -> Vec<String> {
    without_tests(&split(&without_comments_and_literals(text)))
}

/// Comments and the contents of strings and characters become spaces; line breaks stay.
pub fn without_comments_and_literals(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let mut kept = String::with_capacity(text.len());
    let mut i = 0;
    while i < chars.len() {
        let end = match (at(i), at(i + 1)) {
            ('/', '/') => (i..).find(|i| ['\n', '\0'].contains(&at(*i))),
            ('/', '*') => (i + 2..chars.len()).find(|i| at(*i - 2) == '*' && at(*i - 1) == '/'),
            ('"', _) => Some(end_of_string(&chars, i)),
            ('\'', '\\') => (i + 3..)
                .find(|i| ['\'', '\0'].contains(&at(*i)))
                .map(|i| i + 1),
            ('\'', _) if at(i + 2) == '\'' => Some(i + 3),
            (c, _) => {
                kept.push(c);
                i += 1;
                continue;
            }
        };
        let end = end.unwrap_or(chars.len()).min(chars.len());
        kept.push(' ');
        kept.extend(chars[i..end].iter().filter(|c| **c == '\n'));
        i = end;
    }
    kept
}

/// Where a string ends that begins at `begin`; it is a raw one if an `r` and perhaps `#` stand before it.
fn end_of_string(chars: &[char], begin: usize) -> usize {
    let hashes = chars[..begin]
        .iter()
        .rev()
        .take_while(|c| **c == '#')
        .count();
    let raw = begin > hashes && chars[begin - hashes - 1] == 'r';
    let mut i = begin + 1;
    while i < chars.len() {
        match chars[i] {
            '\\' if !raw => i += 1,
            '"' if !raw => return i + 1,
            '"' if chars[i + 1..]
                .iter()
                .take(hashes)
                .filter(|c| **c == '#')
                .count()
                == hashes =>
            {
                return i + 1 + hashes;
            }
            _ => {}
        }
        i += 1;
    }
    i
}

fn split(code: &str) -> Vec<String> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut tokens: Vec<String> = vec![];
    let mut before = ' ';
    for c in code.chars() {
        match tokens.last_mut() {
            Some(name) if is_name(before) && is_name(c) => name.push(c),
            Some(colon) if before == ':' && c == ':' && colon == ":" => colon.push(c),
            _ if c.is_whitespace() => {}
            _ => tokens.push(c.to_string()),
        }
        before = c;
    }
    tokens
}

/// Leaves out what stands behind `#[cfg(test)]`, or behind `#[cfg(any(test, feature = "testing"))]`.
fn without_tests(tokens: &[String]) -> Vec<String> {
    const TEST: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    const TESTING: [&str; 13] = [
        "#", "[", "cfg", "(", "any", "(", "test", ",", "feature", "=", ")", ")", "]",
    ];
    let mut kept = vec![];
    let mut i = 0;
    while i < tokens.len() {
        let begins = |with: &&[&str]| tokens[i..].iter().take(with.len()).eq(with.iter());
        if let Some(attribute) = [&TEST[..], &TESTING].into_iter().find(begins) {
            i += attribute.len() + item(&tokens[i + attribute.len()..]);
        } else {
            kept.push(tokens[i].clone());
            i += 1;
        }
    }
    kept
}

/// The length of the item, field or statement that `tokens` begin with.
fn item(tokens: &[String]) -> usize {
    let mut depth = 0usize;
    let is_use = tokens.iter().take(6).any(|token| token == "use");
    let mut attribute = false;
    for (i, token) in tokens.iter().enumerate() {
        match token.as_str() {
            "#" if depth == 0 => attribute = true,
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" if depth == 0 => return i,
            ")" | "]" | "}" => {
                depth -= 1;
                if depth == 0 && token == "}" && !is_use {
                    return i + 1;
                }
                attribute &= depth > 0;
            }
            ";" | "," if depth == 0 && !attribute => return i + 1,
            _ => {}
        }
    }
    tokens.len()
}

#[test]
fn tests_comments_and_literals_are_left_out() {
    let text = r##"
        use a::b; // use c::d;
        /* e::f */ const TEXT: &str = "g::h\"i::j"; const C: char = '"'; const D: &'static [u8] = br#"k"::l"#;
        struct S { x: u32, #[cfg(test)] y: m::N, z: o::P }
        #[cfg(test)]
        use q::{r, s};
        #[cfg(test)]
        #[path = "t.rs"]
        mod t;
        fn u() { v::w(); }
        #[cfg(any(test, feature = "testing"))]
        pub mod testing { fn x() { y::z(); } }
    "##;
    let found = tokens(text);
    let paths = found.windows(3).filter(|three| three[1] == "::");
    let paths: Vec<_> = paths.map(|three| three.concat()).collect();
    assert_eq!(paths, ["a::b", "o::P", "v::w"]);
    assert!(!found.contains(&"r".to_owned()) && !found.contains(&"t".to_owned()));
}
