//! Bars in a terminal, or in plain text.

use std::fmt::Write;
use std::io::IsTerminal;

/// Columns of what is no terminal, and the fewest that bars are drawn for.
const COLUMNS: usize = 80;
const LEAST: usize = 40;
/// The most columns that bars fill.
const MOST: usize = 120;
/// The colours of bars, as terminals number them.
const COLOURS: [u8; 6] = [34, 31, 32, 33, 36, 35];
/// A bar's last column, by eighths.
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

/// Whether text may have escape codes for its looks, on what is a terminal or not. The variables that clap's help follows decide:
/// `NO_COLOR` forbids them, `CLICOLOR_FORCE` asks for them, and `CLICOLOR=0` or a terminal that knows none forbids them.
pub fn is_styled(terminal: bool) -> bool {
    is_styled_by(variable, terminal)
}

/// The rule of [`is_styled`]; `set` gives the variables that are not empty.
fn is_styled_by(set: impl Fn(&str) -> Option<String>, terminal: bool) -> bool {
    if set("NO_COLOR").is_some() {
        return false;
    }
    let is = |name: &str, value: &str| set(name).is_some_and(|set| set == value);
    let forced = set("CLICOLOR_FORCE").is_some() && !is("CLICOLOR_FORCE", "0");
    forced || terminal && !is("TERM", "dumb") && !is("CLICOLOR", "0")
}

/// Whether the terminal knows plain lines alone: it gets no escape codes, unless colours are forced.
pub fn is_dumb() -> bool {
    variable("TERM").is_some_and(|term| term == "dumb")
}

/// Columns of the terminal that standard output or standard error is, at least some.
pub fn columns() -> Option<usize> {
    let (terminal_size::Width(columns), _) = terminal_size::terminal_size()?;
    Some(usize::from(columns)).filter(|columns| *columns >= LEAST / 2)
}

/// Columns that help fills: those of the terminal, else what `COLUMNS` says, as the parser of flags has it.
pub fn columns_of_help() -> Option<usize> {
    columns().or_else(|| variable("COLUMNS")?.parse().ok())
}

/// A variable of the environment that is not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The abilities of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terminal {
    /// Columns of a line.
    pub columns: usize,
    /// Whether there is more than ASCII.
    pub unicode: bool,
    /// Whether there are colours.
    pub colour: bool,
}

/// A bar with what stands before and behind it.
pub struct Bar {
    /// The text before it.
    pub name: String,
    /// The length of the bar: of the longest one, from 0 to 1.
    pub part: f64,
    /// The text behind it.
    pub value: String,
}

impl Terminal {
    /// The abilities of standard output.
    pub fn of_stdout() -> Self {
        let is_terminal = std::io::stdout().is_terminal();
        let columns = terminal_size::terminal_size_of(std::io::stdout());
        let columns = columns.map(|(terminal_size::Width(columns), _)| usize::from(columns));
        let told = || variable("COLUMNS").and_then(|columns| columns.parse().ok());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
            .into_iter()
            .find_map(variable);
        let named = locale.is_some_and(|locale| {
            let locale = locale.to_lowercase();
            locale.contains("utf-8") || locale.contains("utf8")
        });
        Self {
            columns: columns.or_else(told).unwrap_or(COLUMNS).clamp(LEAST, MOST),
            // Windows writes text to its terminals in UTF-16.
            unicode: named || cfg!(windows),
            colour: is_styled(is_terminal),
        }
    }

    /// Lines with `bars` below each other, each with a colour of its own.
    pub fn bars(&self, bars: &[Bar]) -> String {
        let names = bars.iter().map(|bar| bar.name.chars().count());
        let names = names.max().unwrap_or(0).min(self.columns / 3);
        let values = bars.iter().map(|bar| bar.value.chars().count());
        let values = values.max().unwrap_or(0);
        let room = self.columns.saturating_sub(names + values + 2).max(1);
        let mut text = String::new();
        for (i, bar) in bars.iter().enumerate() {
            let name = self.fitted(&bar.name, names);
            let blocks = self.blocks(bar.part, room);
            let space = " ".repeat(room - blocks.chars().count());
            let blocks = match self.colour {
                true => format!("\x1b[{}m{blocks}\x1b[0m", COLOURS[i % COLOURS.len()]),
                false => blocks,
            };
            // Writing into a `String` cannot fail.
            let _ = writeln!(
                text,
                "{name:<names$} {blocks}{space} {:>values$}",
                bar.value
            );
        }
        text
    }

    /// A bar over this part of `room` columns.
    fn blocks(&self, part: f64, room: usize) -> String {
        let part = if part.is_nan() {
            0.0
        } else {
            part.clamp(0.0, 1.0)
        };
        let eighths = (part * room as f64 * 8.0).round() as usize;
        // A value above 0 is seen, however small.
        let eighths = eighths.max(usize::from(part > 0.0));
        match self.unicode {
            true => "█".repeat(eighths / 8) + EIGHTHS[eighths % 8],
            false => "#".repeat(((eighths + 4) / 8).max(usize::from(part > 0.0))),
        }
    }

    /// `name`, cut to `most` characters. What would steer the terminal is replaced.
    fn fitted(&self, name: &str, most: usize) -> String {
        let shown = |c: char| match c {
            // Marks that change the direction of writing show a text as another one.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '?',
            c if c.is_control() => '?',
            c if !self.unicode && !c.is_ascii() => '?',
            c => c,
        };
        let name: String = name.chars().map(shown).collect();
        if name.chars().count() <= most {
            return name;
        }
        let end = if self.unicode { "…" } else { "~" };
        name.chars()
            .take(most.saturating_sub(1))
            .collect::<String>()
            + end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars() -> [Bar; 3] {
        [
            ("experts", 1.0),
            ("a name that is too long \x1b[31m", 0.5),
            ("cache", 0.001),
        ]
        .map(|(name, part)| Bar {
            name: name.to_owned(),
            part,
            value: format!("{:.1}%", 100.0 * part),
        })
    }

    #[test]
    fn variables_decide_about_escape_codes() {
        let styled = |set: &[(&str, &str)], terminal| {
            let value = |name: &str| set.iter().find(|(one, _)| *one == name);
            is_styled_by(|name| Some(value(name)?.1.to_owned()), terminal)
        };
        assert!(styled(&[], true) && !styled(&[], false));
        assert!(!styled(&[("NO_COLOR", "1")], true));
        assert!(!styled(&[("NO_COLOR", "1"), ("CLICOLOR_FORCE", "1")], true));
        assert!(!styled(&[("CLICOLOR", "0")], true));
        assert!(styled(&[("CLICOLOR", "1")], true) && !styled(&[("CLICOLOR", "1")], false));
        assert!(styled(&[("CLICOLOR_FORCE", "1")], false));
        assert!(!styled(&[("CLICOLOR_FORCE", "0")], false));
        assert!(!styled(&[("TERM", "dumb")], true) && styled(&[("TERM", "xterm")], true));
        assert!(styled(&[("TERM", "dumb"), ("CLICOLOR_FORCE", "1")], true));
    }

    #[test]
    fn bars_fill_the_width_and_no_more() {
        for columns in [LEAST, 80, MOST] {
            for unicode in [true, false] {
                let terminal = Terminal {
                    columns,
                    unicode,
                    colour: false,
                };
                let text = terminal.bars(&bars());
                assert!(
                    text.lines().all(|line| line.chars().count() == columns),
                    "{text}"
                );
                assert_eq!(text.is_ascii(), !unicode, "{text}");
                assert!(!text.contains('\x1b'), "{text}");
            }
        }
    }

    #[test]
    fn lengths_are_told_to_an_eighth() {
        let mut terminal = Terminal {
            columns: 80,
            unicode: true,
            colour: true,
        };
        assert_eq!(terminal.blocks(1.0, 3), "███");
        assert_eq!(terminal.blocks(0.5, 3), "█▌");
        assert_eq!(terminal.blocks(1e-9, 3), "▏");
        assert_eq!(
            [0.0, -1.0, f64::NAN].map(|part| terminal.blocks(part, 3)),
            ["", "", ""]
        );
        assert_eq!(terminal.blocks(f64::INFINITY, 3), "███");
        assert!(terminal.bars(&bars()).contains("\x1b[34m█"));
        terminal.unicode = false;
        assert_eq!(terminal.blocks(1.0, 3), "###");
        assert_eq!(terminal.blocks(0.5, 4), "##");
        assert_eq!(terminal.blocks(1e-9, 3), "#");
    }
}
