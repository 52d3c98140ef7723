//! Patterns of Python and JavaScript in the notation of the regex crate, which llguidance reads. It has no look-around and no
//! back-references. Look-ahead at the beginning becomes a pattern of its own, which the text has to match as well. Without any other one, a
//! pattern matches all that it did and more.

/// A pattern as it was read.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Pattern {
    /// Patterns that the text has to match, all of them.
    pub(super) all: Vec<String>,
    /// The names of constructs that are left out.
    pub(super) lost: Vec<&'static str>,
}

/// The names of constructs that a pattern may lose.
pub(super) const LOOK_AROUND: &str = "look-around in pattern";
const BOUNDARY: &str = "word boundary in pattern";
const BACK: &str = "back-reference in pattern";
/// Matches whatever an earlier group may have matched.
const ANYTHING: &str = "(?s:.*)";

/// Reads a pattern.
pub(super) fn read(pattern: &str) -> Pattern {
    let mut found = Pattern::default();
    let mut rest = pattern;
    let anchor = ["^", "\\A"].into_iter();
    if let Some(behind) = anchor.filter_map(|a| pattern.strip_prefix(a)).next() {
        let mut behind = behind;
        let mut ahead = vec![];
        while let Some((look, after)) = look_ahead(behind) {
            ahead.push(look);
            behind = after;
        }
        if !ahead.is_empty() && !has_alternatives(behind) {
            for look in ahead {
                found.add_look_ahead(look);
            }
            rest = behind;
            let plain = Writer::plain(rest, &mut found.lost);
            found.all.insert(0, format!("^(?:{plain})"));
            found.lost.dedup();
            // The end of the pattern is one of the text only where nothing is around it.
            if let Some(open) = rest.strip_suffix('$').filter(|open| !open.ends_with('\\')) {
                let plain = Writer::plain(open, &mut vec![]);
                found.all[0] = format!("^(?:{plain})$");
            }
            return found;
        }
    }
    let plain = Writer::plain(rest, &mut found.lost);
    found.lost.dedup();
    found.all.push(plain);
    found
}

impl Pattern {
    /// Adds what a look-ahead at the beginning of a text demands.
    fn add_look_ahead(&mut self, look: LookAhead<'_>) {
        let body = look.body.strip_prefix('^').unwrap_or(look.body);
        if look.negative {
            match complement(body) {
                Some(pattern) => self.all.push(pattern),
                None => self.lost.push(LOOK_AROUND),
            }
            return;
        }
        let ended = body.strip_suffix('$').filter(|open| !open.ends_with('\\'));
        let plain = Writer::plain(ended.unwrap_or(body), &mut self.lost);
        let end = if ended.is_some() { "$" } else { "" };
        self.all.push(format!("^(?:{plain}){end}"));
    }
}

/// A look-ahead.
struct LookAhead<'a> {
    body: &'a str,
    negative: bool,
}

/// The look-ahead that a text begins with, and what is behind it.
fn look_ahead(text: &str) -> Option<(LookAhead<'_>, &str)> {
    let negative = match text.as_bytes() {
        [b'(', b'?', b'=', ..] => false,
        [b'(', b'?', b'!', ..] => true,
        _ => return None,
    };
    let end = end_of_group(text)?;
    let body = &text[3..end];
    Some((LookAhead { body, negative }, &text[end + 1..]))
}

/// The places of a pattern's characters outside of classes and escapes.
fn places(pattern: &str) -> impl Iterator<Item = (usize, char)> + '_ {
    let mut in_class = false;
    let mut escaped = false;
    pattern.char_indices().filter(move |(_, c)| {
        if std::mem::take(&mut escaped) {
            return false;
        }
        match c {
            '\\' => escaped = true,
            '[' if !in_class => in_class = true,
            ']' if in_class => in_class = false,
            _ => return !in_class,
        }
        false
    })
}

/// The end of the group that a text begins with.
fn end_of_group(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (i, c) in places(text) {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => continue,
        }
        if depth == 0 {
            return Some(i);
        }
    }
    None
}

/// Whether a pattern has alternatives outside of groups.
fn has_alternatives(pattern: &str) -> bool {
    let mut depth = 0;
    places(pattern).any(|(_, c)| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        c == '|' && depth == 0
    })
}

/// A pattern of the texts that do not begin with what `body` matches, where it is simple enough.
fn complement(body: &str) -> Option<String> {
    if let Some(behind) = body.strip_prefix(".*") {
        let (atom, rest) = atom(behind)?;
        let other = negated(atom)?;
        return match rest {
            "" => Some(format!("^(?:{other})*$")),
            "$" => Some(format!("^$|{other}$")),
            again if again == atom => Some(format!("^(?:{other}|{atom}{other})*(?:{atom})?$")),
            _ => None,
        };
    }
    let (atom, rest) = atom(body)?;
    let other = negated(atom)?;
    match rest {
        "" => Some(format!("^{other}|^$")),
        "*$" => Some(other),
        "+$" => Some(format!("^$|{other}")),
        _ => None,
    }
}

/// The first character, class or escape of a pattern, and what is behind it.
fn atom(pattern: &str) -> Option<(&str, &str)> {
    let mut chars = pattern.char_indices();
    let end = match chars.next()?.1 {
        '\\' => {
            let (at, c) = chars.next()?;
            at + c.len_utf8()
        }
        '[' => {
            let mut escaped = false;
            let is_end = |(_, c): &(usize, char)| {
                let is_end = *c == ']' && !escaped;
                escaped = *c == '\\' && !escaped;
                is_end
            };
            chars.find(is_end)?.0 + 1
        }
        c if "^$.|?*+(){}".contains(c) => return None,
        c => c.len_utf8(),
    };
    Some(pattern.split_at(end))
}

/// All characters but those of an atom.
fn negated(atom: &str) -> Option<String> {
    let plain = Writer::plain(atom, &mut vec![]);
    if let Some(class) = plain.strip_prefix("[^") {
        return Some(format!("[{class}"));
    }
    if let Some(class) = plain.strip_prefix('[') {
        return Some(format!("[^{class}"));
    }
    match plain.strip_prefix('\\') {
        Some("b" | "B" | "p" | "P" | "x") => None,
        _ => Some(format!("[^{plain}]")),
    }
}

/// Writes a pattern anew.
struct Writer<'a, 'l> {
    rest: &'a str,
    out: String,
    lost: &'l mut Vec<&'static str>,
    in_class: bool,
}

impl<'a, 'l> Writer<'a, 'l> {
    fn plain(pattern: &'a str, lost: &'l mut Vec<&'static str>) -> String {
        let mut writer = Writer {
            rest: pattern,
            out: String::new(),
            lost,
            in_class: false,
        };
        while let Some(c) = writer.rest.chars().next() {
            writer.rest = &writer.rest[c.len_utf8()..];
            writer.one(c);
        }
        writer.out
    }

    fn one(&mut self, c: char) {
        match c {
            '\\' => self.escape(),
            ']' => {
                self.in_class = false;
                self.out.push(c);
            }
            // Operations of sets and classes in classes are the regex crate's own.
            '[' if self.in_class => self.out += "\\[",
            '&' | '~' if self.in_class => self.out.extend(['\\', c]),
            '-' if self.in_class && self.rest.starts_with('-') => self.out += "\\-",
            '[' => {
                self.in_class = true;
                self.out.push(c);
                if let Some(rest) = self.rest.strip_prefix('^') {
                    self.out.push('^');
                    self.rest = rest;
                }
                if let Some(rest) = self.rest.strip_prefix(']') {
                    self.out += "\\]";
                    self.rest = rest;
                }
            }
            '(' if !self.in_class => self.group(),
            '{' if !self.in_class => self.brace(),
            c => self.out.push(c),
        }
    }

    /// A brace that counts nothing is a character.
    fn brace(&mut self) {
        let counts = |inner: &str| {
            let (least, most) = inner.split_once(',').unwrap_or((inner, ""));
            let is_count = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
            is_count(least) && is_count(most) && inner.len() > inner.matches(',').count()
        };
        let inner = self.rest.split_once('}').map(|(inner, _)| inner);
        match inner.filter(|inner| counts(inner)) {
            Some(inner) if inner.starts_with(',') => self.out += "{0",
            Some(_) => self.out.push('{'),
            None => self.out += "\\{",
        }
    }

    /// A group, behind its parenthesis.
    fn group(&mut self) {
        let rest = self.rest;
        let around = ["?=", "?!", "?<=", "?<!"];
        if around.iter().any(|mark| rest.starts_with(mark)) || rest.starts_with("?#") {
            if !rest.starts_with("?#") {
                self.lost.push(LOOK_AROUND);
            }
            let whole = format!("({rest}");
            // The parenthesis was taken already.
            let end = end_of_group(&whole).unwrap_or(rest.len());
            self.rest = rest.get(end..).unwrap_or_default();
            self.out += "(?:)";
            return;
        }
        if let Some(name) = rest.strip_prefix("?P=") {
            self.back(name.find(')').map_or("", |end| &name[end + 1..]));
            return;
        }
        // A name means nothing here, and one of llguidance's would.
        for mark in ["?P<", "?<"] {
            if let Some(named) = rest.strip_prefix(mark)
                && let Some((_, behind)) = named.split_once('>')
            {
                self.rest = behind;
                self.out += "(?:";
                return;
            }
        }
        self.out.push('(');
        if let Some(behind) = rest.strip_prefix("?>") {
            self.rest = behind;
            self.out += "?:";
        }
    }

    fn back(&mut self, rest: &'a str) {
        self.lost.push(BACK);
        self.out += ANYTHING;
        self.rest = rest;
    }

    /// An escape, behind its backslash.
    fn escape(&mut self) {
        let Some(c) = self.rest.chars().next() else {
            self.out += "\\\\";
            return;
        };
        let rest = &self.rest[c.len_utf8()..];
        self.rest = rest;
        match c {
            'u' => self.unicode(),
            'b' if self.in_class => self.out += "\\x08",
            'b' | 'B' => self.lost.push(BOUNDARY),
            'Z' | 'z' if !self.in_class => self.out.push('$'),
            'A' if !self.in_class => self.out.push('^'),
            '0' => self.out += "\\x00",
            '1'..='9' if !self.in_class => {
                self.back(rest.trim_start_matches(|c: char| c.is_ascii_digit()));
            }
            'k' if rest.starts_with('<') => {
                self.back(rest.find('>').map_or("", |end| &rest[end + 1..]));
            }
            'd' | 'D' | 'w' | 'W' | 's' | 'S' | 'n' | 'r' | 't' | 'f' | 'v' => {
                self.out.extend(['\\', c]);
            }
            // A number or a name in braces may follow.
            'x' | 'p' | 'P' => {
                self.out.extend(['\\', c]);
                if rest.starts_with('{') {
                    let end = rest.find('}').map_or(rest.len(), |end| end + 1);
                    self.out += &rest[..end];
                    self.rest = &rest[end..];
                }
            }
            // The regex crate has another meaning for these, or none.
            c if c.is_ascii_alphanumeric() || !c.is_ascii() || "/<>_ ".contains(c) => {
                self.out.push(c);
            }
            c => self.out.extend(['\\', c]),
        }
    }

    /// A character by its number, behind `\u`.
    fn unicode(&mut self) {
        if self.rest.starts_with('{') {
            self.out += "\\x";
            return;
        }
        let unit = |text: &str| u16::from_str_radix(text.get(..4)?, 16).ok();
        let Some(first) = unit(self.rest) else {
            self.out.push('u');
            return;
        };
        self.rest = &self.rest[4..];
        let mut units = vec![first];
        if let Some(second) = self.rest.strip_prefix("\\u").and_then(unit)
            && (0xd800..0xdc00).contains(&first)
        {
            units.push(second);
            self.rest = &self.rest[6..];
        }
        match char::decode_utf16(units).next() {
            Some(Ok(c)) => self.out += &format!("\\x{{{:x}}}", u32::from(c)),
            // Half of a pair is no character of a text.
            _ => self.out += "[^\\x00-\\x{10ffff}]",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pattern: &str) -> Vec<String> {
        let found = read(pattern);
        assert!(found.lost.is_empty(), "{pattern}: {:?}", found.lost);
        found.all
    }

    #[test]
    fn what_means_the_same_is_written_as_the_regex_crate_has_it() {
        for (pattern, expected) in [
            (r"^a/b\/c$", "^a/b/c$"),
            (r"^\uD83D\uDE00\u00e9$", r"^\x{1f600}\x{e9}$"),
            (r"\A(?P<stop>a)(?<x>b)\Z", "^(?:a)(?:b)$"),
            (r"^[[a&&b--]{2}", r"^[\[a\&\&b\--]{2}"),
            (r"^{a}{,3}b{1,2}", r"^\{a}{0,3}b{1,2}"),
            (r"^\p{L}\x{61}$", r"^\p{L}\x{61}$"),
            (r"^[]a]\_\<(?>b)(?#note)", r"^[\]a]_<(?:b)(?:)"),
        ] {
            assert_eq!(all(pattern), [expected], "{pattern}");
        }
    }

    #[test]
    fn look_ahead_at_the_beginning_is_a_pattern_of_its_own() {
        for (pattern, expected) in [
            (
                r"^(?=.*\d)(?=.*[a-z]).{4,}$",
                &[r"^(?:.{4,})$", r"^(?:.*\d)", "^(?:.*[a-z])"][..],
            ),
            (r"^(?!^[-+.]*$)\d*$", &[r"^(?:\d*)$", "[^-+.]"]),
            (r"^(?!\s+$)(?!\.)a", &["^(?:a)", r"^$|[^\s]", r"^[^\.]|^$"]),
            (r"^(?!.*\.\.)a", &["^(?:a)", r"^(?:[^\.]|\.[^\.])*(?:\.)?$"]),
            (r"^(?!.*x$)a", &["^(?:a)", "^$|[^x]$"]),
        ] {
            assert_eq!(all(pattern), expected, "{pattern}");
        }
    }

    #[test]
    fn what_has_no_counterpart_is_left_out_and_told() {
        for (pattern, expected, lost) in [
            (r"^a(?=b)b$", "^a(?:)b$", LOOK_AROUND),
            (r"^(?!abc)a", "^(?:a)", LOOK_AROUND),
            (r"^(?<!x)a|b", "^(?:)a|b", LOOK_AROUND),
            (r"\bfox\b", "fox", BOUNDARY),
            (r"^(a|b)\1$", "^(a|b)(?s:.*)$", BACK),
        ] {
            let found = read(pattern);
            assert_eq!(found.all, [expected], "{pattern}");
            assert_eq!(found.lost, [lost], "{pattern}");
        }
    }
}
