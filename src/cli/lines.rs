//! Lines of text in a terminal that are broken between words, while the text comes in pieces.

use std::io::IsTerminal;

use unicode_linebreak::{BreakOpportunity, linebreaks};
use unicode_width::UnicodeWidthStr;

use crate::pictures::terminal;

/// The marks that begin and end lines of code, which stay as they are.
const FENCES: [&str; 2] = ["```", "~~~"];

/// Breaks lines. The word that has not ended is held back, and so is the beginning of a line that may be a fence.
pub(super) struct Lines {
    /// Columns of a line; `None` where lines stay as they are.
    columns: fn() -> Option<usize>,
    /// The text that is held back.
    held: String,
    /// Blanks behind the last word, which are shown if another one follows in the line.
    blanks: String,
    /// Columns of the line that are filled.
    filled: usize,
    /// Whether the line has only blanks so far.
    at_start: bool,
    /// Whether the lines are code.
    code: bool,
}

impl Lines {
    /// Lines of the terminal that `to` is, by its width at each word. Elsewhere, and on a terminal that knows plain lines alone, lines
    /// stay as they are.
    pub(super) fn of(to: &impl IsTerminal) -> Self {
        match to.is_terminal() && !terminal::is_dumb() {
            true => Self::new(terminal::columns),
            false => Self::whole(),
        }
    }

    /// Lines that stay as they are.
    pub(super) fn whole() -> Self {
        Self::new(|| None)
    }

    fn new(columns: fn() -> Option<usize>) -> Self {
        Self {
            columns,
            held: String::new(),
            blanks: String::new(),
            filled: 0,
            at_start: true,
            code: false,
        }
    }

    /// Takes the next piece of the text. Returned is what can be shown now.
    pub(super) fn broken(&mut self, piece: &str) -> String {
        let Some(columns) = (self.columns)() else {
            return std::mem::take(&mut self.held) + piece;
        };
        self.held.push_str(piece);
        let text = std::mem::take(&mut self.held);
        let mut shown = String::new();
        let mut begin = 0;
        for (end, opportunity) in linebreaks(&text) {
            // At the end of the text the word may go on.
            if end == text.len()
                && opportunity == BreakOpportunity::Mandatory
                && !text.ends_with('\n')
            {
                break;
            }
            self.word(&text[begin..end], columns, &mut shown);
            begin = end;
        }
        let rest = &text[begin..];
        // A word longer than a line is broken anyway, and code is not broken at all.
        match self.code && !self.at_start || rest.width() >= columns {
            true => self.word(rest, columns, &mut shown),
            false => self.held = rest.to_owned(),
        }
        shown
    }

    /// Ends the text. Returned is what was held back.
    pub(super) fn end(&mut self) -> String {
        let rest = std::mem::take(&mut self.held);
        let mut shown = String::new();
        self.word(&rest, (self.columns)().unwrap_or(usize::MAX), &mut shown);
        let columns = self.columns;
        *self = Self::new(columns);
        shown
    }

    /// Adds a word with the blanks behind it to `shown`.
    fn word(&mut self, word: &str, columns: usize, shown: &mut String) {
        let seen = word.trim_end();
        if self.at_start && FENCES.iter().any(|fence| seen.starts_with(fence)) {
            self.code = !self.code;
        }
        self.at_start &= seen.is_empty();
        let before = std::mem::take(&mut self.blanks);
        if self.code {
            *shown += &before;
            *shown += word;
        } else if !seen.is_empty() {
            let needed = self.filled + before.width() + seen.width();
            if self.filled > 0 && needed > columns {
                shown.push('\n');
                self.filled = seen.width();
            } else {
                *shown += &before;
                self.filled = needed;
            }
            *shown += seen;
            if self.filled > columns {
                // The terminal itself has begun other lines.
                self.filled = (self.filled - 1) % columns + 1;
            }
        }
        let ends_line = word.ends_with('\n');
        if ends_line {
            (self.filled, self.at_start) = (0, true);
        }
        match (self.code, ends_line) {
            (true, _) => {}
            (false, true) => shown.push('\n'),
            // Blanks before a word that is only blanks are an indentation.
            (false, false) if seen.is_empty() => self.blanks = before + word,
            (false, false) => self.blanks = word[seen.len()..].to_owned(),
        }
    }
}

/// `text` in lines of at most `columns` columns, broken at blanks alone: a path or a flag that is longer stays whole. Escape sequences that
/// style text fill no columns.
pub(super) fn wrapped(text: &str, columns: usize) -> String {
    wrapped_behind(text, columns, |_| 0)
}

/// A page in lines of at most `columns` columns. The rest of a line stands below its text: behind its blanks, or behind the name that
/// several blanks end. Rows of Markdown's tables stay whole.
pub(super) fn wrapped_page(text: &str, columns: usize) -> String {
    wrapped_behind(text, columns, |line| {
        let text = line.trim_start();
        if text.starts_with('|') {
            return usize::MAX;
        }
        let indent = line.len() - text.len();
        let named = text.split_once("  ").filter(|_| indent == 0);
        let begin = named.map(|(_, value)| text.len() - value.trim_start().len());
        begin.unwrap_or(indent).min(columns / 2)
    })
}

/// `text` in lines of at most `columns` columns. `indent` tells how far what follows in a line is indented; [`usize::MAX`] leaves it whole.
fn wrapped_behind(text: &str, columns: usize, indent: impl Fn(&str) -> usize) -> String {
    let mut lines = String::with_capacity(text.len());
    for (at, line) in text.split('\n').enumerate() {
        if at > 0 {
            lines.push('\n');
        }
        let indent = indent(line);
        if indent == usize::MAX {
            lines += line;
            continue;
        }
        let mut filled = 0;
        for (at, word) in line.split(' ').enumerate() {
            let width = seen_width(word);
            if at == 0 {
                filled = width;
            } else if filled > indent && filled + 1 + width > columns {
                lines.push('\n');
                lines.extend(std::iter::repeat_n(' ', indent));
                filled = indent + width;
            } else {
                lines.push(' ');
                filled += 1 + width;
            }
            lines += word;
        }
    }
    lines
}

/// Columns of a word without its escape sequences.
fn seen_width(word: &str) -> usize {
    let mut parts = word.split('\x1b');
    let plain = parts.next().map_or(0, UnicodeWidthStr::width);
    let styled = parts.map(|part| {
        let text = part.split_once(|c: char| c.is_ascii_alphabetic());
        text.map_or(0, |(_, text)| text.width())
    });
    plain + styled.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of a text that comes in pieces of `size` characters, in 20 columns.
    fn lines(text: &str, size: usize) -> Vec<String> {
        let mut lines = Lines::new(|| Some(20));
        let characters: Vec<char> = text.chars().collect();
        let mut shown = String::new();
        for piece in characters.chunks(size) {
            shown += &lines.broken(&piece.iter().collect::<String>());
        }
        shown += &lines.end();
        shown.lines().map(str::to_owned).collect()
    }

    #[test]
    fn lines_end_between_words_however_a_text_comes() {
        for size in 1..9 {
            let told = lines("The fox and the crow went into the wood.\n\nThere", size);
            assert_eq!(
                told,
                ["The fox and the crow", "went into the wood.", "", "There"]
            );
            // Twenty columns are ten of these characters, and no line begins with a full stop.
            let told = lines("狐と烏が森に行きました。そして木の実を見つけた。", size);
            assert!(
                told.iter()
                    .all(|line| line.width() <= 20 && !line.starts_with('。')),
                "{told:?}"
            );
            assert_eq!(
                told.concat(),
                "狐と烏が森に行きました。そして木の実を見つけた。"
            );
            let told = lines("see https://example.org/a/very/long/way/to/the/wood", size);
            assert!(told.iter().all(|line| line.width() <= 20), "{told:?}");
            let told = lines(
                "x\n```\nlet fox = crow.into_the_wood(); // now\n```\nThe fox and the crow went",
                size,
            );
            assert_eq!(told[2], "let fox = crow.into_the_wood(); // now");
            assert_eq!(told[4..], ["The fox and the crow", "went"]);
        }
    }

    #[test]
    fn lines_of_notes_break_at_blanks_alone() {
        let text = "go on with --device cpu; see /a/long/way/to/the/wood.gguf\n  two  blanks";
        assert_eq!(
            wrapped(text, 20),
            "go on with --device\ncpu; see\n/a/long/way/to/the/wood.gguf\n  two  blanks"
        );
        assert_eq!(wrapped("狐と烏が 森に行き", 10), "狐と烏が\n森に行き");
        assert_eq!(wrapped("", 10), "");
        assert_eq!(
            wrapped("\x1b[1m\x1b[31merror:\x1b[0m a fox", 12),
            "\x1b[1m\x1b[31merror:\x1b[0m a fox"
        );
    }

    #[test]
    fn lines_of_pages_go_on_below_their_text() {
        let text = "experts   8, 2 used, 1 shared\n    features: f16, subgroup\nIt is a page of text.\n| a table | stays as it is |";
        assert_eq!(
            wrapped_page(text, 20),
            "experts   8, 2 used,\n          1 shared\n    features: f16,\n    subgroup\nIt is a page of\ntext.\n| a table | stays as it is |"
        );
    }

    #[test]
    fn what_is_no_terminal_gets_the_text_as_it_is() {
        let mut whole = Lines::whole();
        let text = "The fox and the crow went into the wood";
        assert_eq!(whole.broken(text) + &whole.end(), text);
    }
}
