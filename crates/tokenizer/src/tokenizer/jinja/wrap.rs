//! The filter `wordwrap`: lines that are as long as Python's `textwrap` makes them.

use super::methods::{is_blank, lines};

/// How long words are treated.
#[derive(Clone, Copy)]
pub(super) struct Breaks {
    /// Words that are longer than a line are cut.
    pub(super) long_words: bool,
    /// A line may end behind a hyphen.
    pub(super) hyphens: bool,
}

/// `text` with `by` wherever a line becomes longer than `width`, and between its own lines.
pub(super) fn wordwrap(text: &str, width: usize, breaks: Breaks, by: &str) -> String {
    let wrapped = lines(text, false).into_iter().map(|line| {
        let line: Vec<char> = line.chars().collect();
        wrap(&line, width, breaks).join(by)
    });
    wrapped.collect::<Vec<_>>().join(by)
}

/// Blanks at which a line may end. A blank that does not break, such as U+00A0, is none.
fn is_space(c: char) -> bool {
    matches!(c, '\t'..='\r' | ' ')
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

fn is_letter(c: char) -> bool {
    is_word(c) && !c.is_numeric()
}

/// A letter or digit, or a mark that stands at the end of a word.
fn ends_word(c: char) -> bool {
    is_word(c) || matches!(c, '!' | '"' | '\'' | '&' | '.' | ',' | '?')
}

fn wrap(line: &[char], width: usize, breaks: Breaks) -> Vec<String> {
    let mut chunks = chunks(line, breaks.hyphens).into_iter().peekable();
    let blank = |chunk: &[char]| chunk.iter().all(|c| is_blank(*c));
    let mut found: Vec<String> = Vec::new();
    // The rest of a word that was cut.
    let mut rest: Option<&[char]> = None;
    while let Some(first) = rest.take().or_else(|| chunks.next()) {
        let mut next = Some(first);
        if blank(first) && !found.is_empty() {
            next = chunks.next();
        }
        let mut current: Vec<&[char]> = Vec::new();
        let mut length = 0;
        while let Some(chunk) = next {
            if length + chunk.len() > width {
                break;
            }
            length += chunk.len();
            current.push(chunk);
            next = chunks.next();
        }
        if let Some(chunk) = next {
            if chunk.len() <= width {
                rest = Some(chunk);
            } else if breaks.long_words {
                let (head, tail) = chunk.split_at(cut(chunk, width - length, breaks.hyphens));
                current.push(head);
                rest = Some(tail);
            } else if current.is_empty() {
                current.push(chunk);
            } else {
                rest = Some(chunk);
            }
        }
        if current.last().is_some_and(|chunk| blank(chunk)) {
            current.pop();
        }
        if !current.is_empty() {
            found.push(current.concat().into_iter().collect());
        }
    }
    found
}

/// The index at which a word is cut that is longer than a line.
fn cut(chunk: &[char], left: usize, hyphens: bool) -> usize {
    let hyphen = chunk[..left].iter().rposition(|c| *c == '-');
    match hyphen {
        Some(at) if hyphens && chunk[..at].iter().any(|c| *c != '-') => at + 1,
        _ => left,
    }
}

/// The words and blanks of a line. Words are divided at hyphens if `hyphens` says so.
fn chunks(line: &[char], hyphens: bool) -> Vec<&[char]> {
    let mut all = Vec::new();
    let mut start = 0;
    while start < line.len() {
        let space = is_space(line[start]);
        let same = line[start..].iter().take_while(|c| is_space(**c) == space);
        let end = start + same.count();
        if space || !hyphens {
            all.push(&line[start..end]);
            start = end;
            continue;
        }
        while start < end {
            let part = part_end(line, start, end);
            all.push(&line[start..part]);
            start = part;
        }
    }
    all
}

/// The end of the part of a word that begins at `start`.
fn part_end(line: &[char], start: usize, end: usize) -> usize {
    // Two hyphens or more between words are a part of their own.
    let dashes = |at: usize| {
        let count = line[at..end].iter().take_while(|c| **c == '-').count();
        let before = at > 0 && ends_word(line[at - 1]);
        let after = line[at + count..end].first().is_some_and(|c| is_word(*c));
        (before && after && count > 1).then_some(at + count)
    };
    if let Some(end) = dashes(start) {
        return end;
    }
    (start + 1..end)
        .find(|&at| dashes(at).is_some() || at > start + 1 && hyphenates(line, at, end))
        .unwrap_or(end)
}

/// Whether the hyphen before `at` divides a word: letters stand before it and behind it.
fn hyphenates(line: &[char], at: usize, end: usize) -> bool {
    let before = |back: usize| (at > back).then(|| line[at - 1 - back]);
    let letter = |c: Option<char>| c.is_some_and(is_letter);
    let after = |on: usize| line[..end].get(at + on).copied();
    let behind = letter(before(1)) && letter(before(2))
        || before(1).is_some_and(ends_word) && before(2) == Some('-') && letter(before(3));
    let ahead = letter(after(0)) && (letter(after(1)) || after(1) == Some('-') && letter(after(2)));
    before(0) == Some('-') && behind && ahead
}
