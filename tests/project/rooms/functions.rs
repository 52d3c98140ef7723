//! Protects who reads the code: no function is longer than what fits on a screen.

use super::files;
use super::source::without_comments_and_literals;
use std::fs;
use std::path::{Path, PathBuf};

/// Lines of a function at most, from its name to its closing brace.
const MOST: usize = 80;

/// The functions of a file with their lines.
fn functions(text: &str) -> Vec<(String, usize)> {
    let code = without_comments_and_literals(text);
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = vec![];
    for (begin, keyword) in code.match_indices("fn ") {
        let function = &code[begin + keyword.len()..];
        let name: String = function.chars().take_while(|c| is_name(*c)).collect();
        if let Some(end) = end(function)
            && !code[..begin].ends_with(is_name)
        {
            found.push((name, function[..end].lines().count()));
        }
    }
    found
}

/// Where the function ends that `code` begins with; nothing where it has no body.
fn end(code: &str) -> Option<usize> {
    let mut depth = 0i32;
    for (i, c) in code.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            ';' if depth == 0 => return None,
            _ => {}
        }
        if depth == 0 && c == '}' {
            return Some(i + 1);
        }
    }
    None
}

#[test]
fn no_function_is_longer_than_a_screen() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found: Vec<PathBuf> = vec![];
    for folder in ["src", "crates", "tests", "benches"] {
        files(&root.join(folder), &mut found);
    }
    let (mut all, mut wrong) = (0, vec![]);
    for path in found {
        let name = path.strip_prefix(root).unwrap_or(&path).display();
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
        for (function, lines) in functions(&text) {
            all += 1;
            if lines > MOST {
                wrong.push(format!("{name}: {function} has {lines}"));
            }
        }
    }
    assert!(
        all > 1000,
        "{all} functions: they are written otherwise now"
    );
    assert!(
        wrong.is_empty(),
        "functions of more than {MOST} lines:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn lines_of_functions_are_counted() {
    let text = r#"
        trait T { fn none(&self) -> [u8; 2]; }
        // fn of_a_comment() {}
        const TEXT: &str = "fn of_a_text() {}";
        fn one(f: fn(u32) -> u32) -> u32 { f(1) }
        pub async fn seven<T>(
            x: T, // of any type {
        ) {
            /* a comment
            of two lines */ let y = "}
            ";
        }
    "#;
    let found = functions(text);
    let expected = [("one", 1), ("seven", 7)].map(|(name, lines)| (name.to_owned(), lines));
    assert_eq!(found, expected);
}
