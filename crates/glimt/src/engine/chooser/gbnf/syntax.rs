//! Reads GBNF: rules, and in them literals, character classes, groups, alternatives and repetitions.

use std::collections::HashMap;

use crate::effort::Stopped;

/// The most groups within groups: more is no grammar that anyone wrote.
const DEEPEST: usize = 64;
/// The most rules: those that use each other are read one within the other.
const MOST_RULES: usize = 2000;
/// The largest number of a repetition.
const MOST_REPEATS: u32 = 10_000;

/// Why a text is no GBNF.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GbnfError {
    /// Something else stands where the notation expects something.
    #[error("line {line}: found {found}, expected {expected}")]
    Syntax {
        /// The line, from 1 on.
        line: usize,
        /// A description of the text that stands there.
        found: String,
        /// A description of the text that may stand there.
        expected: String,
    },
    /// A rule is used that is nowhere defined.
    #[error(
        "line {line}: there is no rule {name}; write one ({name} ::= ...), or correct the name"
    )]
    NoSuchRule {
        /// The line, from 1 on.
        line: usize,
        /// The name.
        name: String,
    },
    /// A rule is defined twice.
    #[error("line {line}: the rule {name} is already defined in line {first}; join the two by |")]
    DefinedTwice {
        /// The line of the second definition.
        line: usize,
        /// The name.
        name: String,
        /// The line of the first definition.
        first: usize,
    },
    /// The reading of the grammar was stopped.
    #[error("it was not read to its end: {0}")]
    Stopped(#[from] Stopped),
    /// Nothing says where an answer begins.
    #[error("there is no rule root, with which an answer begins; write one (root ::= ...)")]
    NoRoot,
}

/// A part of a rule.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Part {
    /// Any one of the parts.
    Either(Vec<Part>),
    /// All parts, one after another.
    Sequence(Vec<Part>),
    /// One character of the ranges, which are in order and apart from each other.
    Character(Vec<(char, char)>),
    /// The rule of this number.
    Rule(usize),
    /// A part with the fewest and the most times that it is repeated.
    Repeat(Box<Part>, u32, Option<u32>),
}

/// A grammar: its rules by number.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) parts: Vec<Part>,
    pub(super) root: usize,
}

impl Rules {
    /// Reads a text.
    pub(super) fn read(text: &str) -> Result<Self, GbnfError> {
        let mut reader = Reader {
            rest: text.strip_prefix('\u{feff}').unwrap_or(text),
            line: 1,
            depth: 0,
            names: HashMap::new(),
            rules: vec![],
        };
        reader.space(true);
        while !reader.rest.is_empty() {
            reader.rule()?;
            reader.space(true);
        }
        let mut parts = vec![];
        let names = reader.names;
        for (number, rule) in reader.rules.into_iter().enumerate() {
            let name = || {
                let found = names.iter().find(|(_, known)| **known == number);
                found.map_or_else(String::new, |(name, _)| name.clone())
            };
            let (line, used) = (rule.line, rule.part);
            parts.push(used.ok_or_else(|| GbnfError::NoSuchRule { line, name: name() })?);
        }
        let root = *names.get("root").ok_or(GbnfError::NoRoot)?;
        Ok(Self { parts, root })
    }
}

/// A rule while the text is read.
struct Rule {
    /// The line where the rule is defined, or else first used.
    line: usize,
    part: Option<Part>,
}

struct Reader<'a> {
    rest: &'a str,
    line: usize,
    depth: usize,
    names: HashMap<String, usize>,
    rules: Vec<Rule>,
}

impl Reader<'_> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.rest = &self.rest[next.len_utf8()..];
        self.line += usize::from(next == '\n');
        Some(next)
    }

    fn take(&mut self, expected: char) -> bool {
        self.peek() == Some(expected) && self.next().is_some()
    }

    fn expected(&self, expected: &str) -> GbnfError {
        let found = match self.peek() {
            None => "the end of the grammar".to_owned(),
            Some('\n' | '\r') => "the end of the line".to_owned(),
            Some(other) => format!("{other:?}"),
        };
        self.instead(found, expected)
    }

    fn instead(&self, found: String, expected: &str) -> GbnfError {
        GbnfError::Syntax {
            line: self.line,
            found,
            expected: expected.to_owned(),
        }
    }

    /// Skips blanks and comments, and the ends of lines where these mean nothing.
    fn space(&mut self, lines: bool) {
        while let Some(next) = self.peek() {
            match next {
                '#' => {
                    let end = self.rest.find(['\n', '\r']).unwrap_or(self.rest.len());
                    self.rest = &self.rest[end..];
                }
                ' ' | '\t' => {
                    self.next();
                }
                '\n' | '\r' if lines => {
                    self.next();
                }
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Option<String> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!name.is_empty()).then(|| name.to_owned())
    }

    /// The number of a rule, which is given where the name is new.
    fn number(&mut self, name: String) -> usize {
        let (line, next) = (self.line, self.rules.len());
        *self.names.entry(name).or_insert_with(|| {
            self.rules.push(Rule { line, part: None });
            next
        })
    }

    fn rule(&mut self) -> Result<(), GbnfError> {
        let line = self.line;
        let name = self
            .name()
            .ok_or_else(|| self.expected("the name of a rule"))?;
        let number = self.number(name.clone());
        if number >= MOST_RULES {
            return Err(self.expected(&format!("at most {MOST_RULES} rules")));
        }
        if self.rules[number].part.is_some() {
            let first = self.rules[number].line;
            return Err(GbnfError::DefinedTwice { line, name, first });
        }
        self.space(false);
        match self.rest.strip_prefix("::=") {
            Some(rest) => self.rest = rest,
            None => return Err(self.expected(&format!("::= behind the rule's name {name}"))),
        }
        self.space(true);
        let part = self.either(false)?;
        if !matches!(self.peek(), None | Some('\n' | '\r')) {
            return Err(
                self.expected("a literal, a class, a rule, a group, or the end of the line")
            );
        }
        self.rules[number] = Rule {
            line,
            part: Some(part),
        };
        Ok(())
    }

    /// Alternatives, within a group or as a whole rule.
    fn either(&mut self, grouped: bool) -> Result<Part, GbnfError> {
        let mut all = vec![self.sequence(grouped)?];
        loop {
            let (rest, line) = (self.rest, self.line);
            // A line that begins with | goes on with the rule before it.
            self.space(true);
            if !self.take('|') {
                (self.rest, self.line) = (rest, line);
                break;
            }
            self.space(true);
            all.push(self.sequence(grouped)?);
        }
        Ok(match all.len() {
            1 => all.remove(0),
            _ => Part::Either(all),
        })
    }

    fn sequence(&mut self, grouped: bool) -> Result<Part, GbnfError> {
        let mut all = vec![];
        loop {
            self.space(grouped);
            let part = match self.peek() {
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('(') => self.group()?,
                Some('.') => {
                    self.next();
                    Part::Character(vec![('\0', char::MAX)])
                }
                Some('<' | '!') => {
                    return Err(self.expected(
                        "text: tokens in angle brackets are not supported; the special tokens of a model are no part of an answer",
                    ));
                }
                Some('*' | '+' | '?' | '{') => {
                    return Err(self.expected("something to repeat before it"));
                }
                _ => match self.name() {
                    Some(name) => {
                        self.space(false);
                        if self.rest.starts_with("::=") {
                            return Err(self.instead(
                                format!("a new rule {name}"),
                                "each rule to begin in a line of its own",
                            ));
                        }
                        Part::Rule(self.number(name))
                    }
                    None => break,
                },
            };
            all.push(self.repeated(part, grouped)?);
        }
        Ok(in_sequence(all))
    }

    fn group(&mut self) -> Result<Part, GbnfError> {
        if self.depth == DEEPEST {
            return Err(self.expected(&format!("groups of at most {DEEPEST} levels")));
        }
        let line = self.line;
        self.next();
        self.depth += 1;
        self.space(true);
        let part = self.either(true)?;
        self.depth -= 1;
        self.space(true);
        match self.take(')') {
            true => Ok(part),
            false => Err(self.expected(&format!(") for the ( of line {line}"))),
        }
    }

    /// A part with what is said behind it of how often it comes.
    fn repeated(&mut self, part: Part, grouped: bool) -> Result<Part, GbnfError> {
        self.space(grouped);
        let (least, most) = match self.peek() {
            Some('{') => self.range()?,
            Some(sign @ ('*' | '+' | '?')) => {
                self.next();
                (u32::from(sign == '+'), (sign == '?').then_some(1))
            }
            _ => return Ok(part),
        };
        self.space(grouped);
        match self.peek() {
            Some('*' | '+' | '?' | '{') => Err(self.expected(
                "something else behind a repetition; put the part before it into parentheses",
            )),
            _ => Ok(Part::Repeat(Box::new(part), least, most)),
        }
    }

    /// `{m}`, `{m,}` or `{m,n}`.
    fn range(&mut self) -> Result<(u32, Option<u32>), GbnfError> {
        self.next();
        let least = self.count()?;
        self.space(false);
        let most = match self.take(',') {
            false => Some(least),
            true => {
                self.space(false);
                match self.peek() {
                    Some('}') => None,
                    _ => Some(self.count()?),
                }
            }
        };
        self.space(false);
        if let Some(most) = most.filter(|most| *most < least) {
            let found = format!("{{{least},{most}}}");
            return Err(self.instead(found, "the smaller number first"));
        }
        match self.take('}') {
            true => Ok((least, most)),
            false => Err(self.expected("}, or a comma and a second number")),
        }
    }

    fn count(&mut self) -> Result<u32, GbnfError> {
        self.space(false);
        let digits = self.rest.find(|c: char| !c.is_ascii_digit());
        let (digits, rest) = self.rest.split_at(digits.unwrap_or(self.rest.len()));
        let count = digits.parse().ok().filter(|count| *count <= MOST_REPEATS);
        let count = count.ok_or_else(|| match digits {
            "" => self.expected("how often, as a number"),
            _ => self.instead(digits.to_owned(), &format!("at most {MOST_REPEATS} times")),
        })?;
        self.rest = rest;
        Ok(count)
    }

    fn literal(&mut self) -> Result<Part, GbnfError> {
        self.next();
        let mut all = vec![];
        while !self.take('"') {
            let c = self.character("\" at the end of the literal")?;
            all.push(Part::Character(vec![(c, c)]));
        }
        Ok(in_sequence(all))
    }

    fn class(&mut self) -> Result<Part, GbnfError> {
        const END: &str = "] at the end of the class";
        self.next();
        let negated = self.take('^');
        let mut ranges = vec![];
        while !self.take(']') {
            let first = self.character(END)?;
            let is_range = self.rest.starts_with('-') && !self.rest.starts_with("-]");
            let last = match is_range && self.take('-') {
                true => self.character(END)?,
                false => first,
            };
            if last < first {
                let found = format!("the range {first:?} to {last:?}");
                return Err(self.instead(found, "the smaller character first"));
            }
            ranges.push((first, last));
        }
        let ranges = match negated {
            true => outside(joined(ranges)),
            false => joined(ranges),
        };
        if ranges.is_empty() {
            return Err(self.instead("a class of no character".to_owned(), "at least one"));
        }
        Ok(Part::Character(ranges))
    }

    /// A character of a literal or a class, which may be escaped.
    fn character(&mut self, end: &str) -> Result<char, GbnfError> {
        match self.peek() {
            // A line may not end within a literal or a class.
            None | Some('\n' | '\r') => return Err(self.expected(end)),
            Some('\\') => {}
            Some(other) => {
                self.next();
                return Ok(other);
            }
        }
        self.next();
        let digits = match self.peek() {
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some(escaped) => {
                let meant = match escaped {
                    'n' => '\n',
                    'r' => '\r',
                    't' => '\t',
                    '\\' | '"' | '[' | ']' | '-' | '^' => escaped,
                    _ => {
                        return Err(self.expected(
                            r#"one of n r t \ " [ ] - ^ x u U behind the backslash (\\ is a backslash)"#,
                        ));
                    }
                };
                self.next();
                return Ok(meant);
            }
            None => return Err(self.expected(end)),
        };
        self.next();
        let code = self.rest.get(..digits);
        let code = code.filter(|code| code.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let meant = code.and_then(|code| char::from_u32(u32::from_str_radix(code, 16).ok()?));
        let meant = meant.ok_or_else(|| {
            self.expected(&format!("{digits} hexadecimal digits that are a character"))
        })?;
        self.rest = &self.rest[digits..];
        Ok(meant)
    }
}

fn in_sequence(mut parts: Vec<Part>) -> Part {
    match parts.len() {
        1 => parts.remove(0),
        _ => Part::Sequence(parts),
    }
}

/// The ranges for the same characters, in order and so joined that they do not touch.
fn joined(mut ranges: Vec<(char, char)>) -> Vec<(char, char)> {
    ranges.sort_unstable();
    let mut all: Vec<(char, char)> = vec![];
    for (first, last) in ranges {
        match all.last_mut() {
            Some(before) if first <= before.1 || after(before.1) == Some(first) => {
                before.1 = before.1.max(last);
            }
            _ => all.push((first, last)),
        }
    }
    all
}

/// All characters but those of ranges that are [`joined`].
fn outside(ranges: Vec<(char, char)>) -> Vec<(char, char)> {
    let mut all = vec![];
    let mut next = Some('\0');
    for (first, last) in ranges {
        if let Some(begin) = next.filter(|begin| *begin < first)
            && let Some(end) = ('\0'..first).next_back()
        {
            all.push((begin, end));
        }
        next = after(last);
    }
    all.extend(next.map(|begin| (begin, char::MAX)));
    all
}

/// The character behind another one.
fn after(c: char) -> Option<char> {
    (c..=char::MAX).nth(1)
}
