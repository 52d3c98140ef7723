//! GBNF, the notation of llama.cpp's grammars, translated to the one that llguidance reads. Its facts are from llama.cpp's
//! grammars/README.md; only tokens in angle brackets are left out.

mod overlap;
mod syntax;
#[cfg(test)]
mod tests;

use overlap::Overlaps;
pub use syntax::GbnfError;
use syntax::{Part, Rules};

/// Whether a text is GBNF: a line of it begins with a rule's name and `::=`.
pub(super) fn is_gbnf(text: &str) -> bool {
    text.lines().any(|line| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let line = line.trim_start_matches(['\u{feff}', ' ', '\t']);
        let rest = line.trim_start_matches(is_part);
        rest.len() < line.len() && rest.trim_start().starts_with("::=")
    })
}

/// The grammar in llguidance's variant of Lark.
///
/// A terminal of Lark takes as many characters as it can, which GBNF knows nothing of. So a terminal is a single character, unless
/// it is known that a longer one ends in the same places ([`Overlaps`]): a longer one costs less.
pub(super) fn to_lark(text: &str) -> Result<String, GbnfError> {
    let rules = Rules::read(text)?;
    let mut writer = Writer {
        overlaps: Overlaps::new(&rules)?,
        rules: &rules,
        wanted: vec![],
        lines: vec![],
    };
    Ok(writer.text())
}

/// The form that a rule of GBNF takes in the grammar written.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Rule,
    Terminal,
}

/// Rules are r0, r1 and so on, and T0, T1 and so on as terminals: names of GBNF may differ in nothing but their case. L0, L1 and so on
/// are the terminals that parts of rules are.
struct Writer<'a> {
    rules: &'a Rules,
    overlaps: Overlaps,
    /// The rules that were named so far.
    wanted: Vec<(Kind, usize)>,
    lines: Vec<String>,
}

impl Writer<'_> {
    fn text(&mut self) -> String {
        let rules = self.rules;
        let kind = match self.overlaps.is_regular(&Part::Rule(rules.root)) {
            true => Kind::Terminal,
            false => Kind::Rule,
        };
        let mut text = format!("start: {}\n", self.name(kind, rules.root));
        let mut done = 0;
        while let Some(&(kind, number)) = self.wanted.get(done) {
            let part = &rules.parts[number];
            let body = self.part(kind, part);
            let line = format!("{}: {body}", self.name(kind, number));
            self.lines.push(line);
            done += 1;
        }
        text += &self.lines.join("\n");
        text.push('\n');
        text
    }

    /// The name of a rule, which is written if it is not yet.
    fn name(&mut self, kind: Kind, number: usize) -> String {
        if !self.wanted.contains(&(kind, number)) {
            self.wanted.push((kind, number));
        }
        match kind {
            Kind::Rule => format!("r{number}"),
            Kind::Terminal => format!("T{number}"),
        }
    }

    /// A part of a rule or of a terminal.
    fn part(&mut self, kind: Kind, part: &Part) -> String {
        if kind == Kind::Rule
            && let Some(terminal) = self.as_terminal(part)
        {
            return terminal;
        }
        match part {
            Part::Either(parts) => either(parts.iter().map(|part| self.part(kind, part))),
            Part::Sequence(parts) => sequence(parts.iter().map(|part| self.part(kind, part))),
            Part::Character(ranges) => class(ranges),
            Part::Rule(number) => self.name(kind, *number),
            Part::Repeat(part, least, most) => {
                let part = self.part(kind, part);
                repeated(part, *least, *most)
            }
        }
    }

    /// A part of a rule as a terminal, if it is longer than a character and may be one.
    fn as_terminal(&mut self, part: &Part) -> Option<String> {
        let (overlaps, rules) = (&self.overlaps, self.rules);
        let is_filled = |part: &Part| overlaps.is_regular(part) && !overlaps.is_nullable(part);
        match part {
            Part::Character(_) => None,
            _ if !overlaps.is_alone(rules, part) => None,
            Part::Rule(number) if is_filled(part) => Some(self.name(Kind::Terminal, *number)),
            _ if is_filled(part) => {
                let body = self.part(Kind::Terminal, part);
                Some(self.part_terminal(body))
            }
            Part::Repeat(inner, 0, most) if *most != Some(0) && is_filled(inner) => {
                // Terminals are never empty.
                let inner = self.part(Kind::Terminal, inner);
                let line = repeated(inner, 1, *most);
                Some(format!("{}?", self.part_terminal(line)))
            }
            _ => None,
        }
    }

    /// The name of a terminal of a part.
    fn part_terminal(&mut self, body: String) -> String {
        let name = format!("L{}", self.lines.len());
        self.lines.push(format!("{name}: {body}"));
        name
    }
}

fn either(parts: impl Iterator<Item = String>) -> String {
    format!("({})", parts.collect::<Vec<_>>().join(" | "))
}

fn sequence(parts: impl Iterator<Item = String>) -> String {
    let parts: Vec<_> = parts.collect();
    match parts.is_empty() {
        true => "\"\"".to_owned(),
        false => format!("({})", parts.join(" ")),
    }
}

fn repeated(part: String, least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (_, Some(0)) => "\"\"".to_owned(),
        (0, None) => format!("({part})*"),
        (1, None) => format!("({part})+"),
        (0, Some(1)) => format!("({part})?"),
        (least, None) => format!("({part}){{{least},}}"),
        (least, Some(most)) => format!("({part}){{{least},{most}}}"),
    }
}

/// A regular expression of one character.
fn class(ranges: &[(char, char)]) -> String {
    let range = |(first, last): &(char, char)| {
        format!(
            "\\x{{{:X}}}-\\x{{{:X}}}",
            u32::from(*first),
            u32::from(*last)
        )
    };
    format!("/[{}]/", ranges.iter().map(range).collect::<String>())
}
