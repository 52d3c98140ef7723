//! Mutants: kernels with one mistake each, by which `scripts/mutants` finds out what the tests would notice.
//!
//! A mutant is named by the file of a template, the line, the number of the place within the line, and the kind of the mistake, as in
//! `shared/reduce.wgsl:49:0:barrier`. `GLIMT_TEST_MUTANT` has every kernel of a test expanded with it. The mistake is made in the text of
//! the template, before the preprocessor reads it. Loops only end a round later or earlier, so that no device is kept busy for ever.

mod code;
pub mod list;

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// The fault of a mutant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A barrier is missing.
    Barrier,
    /// An index is greater by one.
    Index,
    /// An index is its neighbour: its last bit differs.
    Neighbour,
    /// A count of lanes or threads is doubled, or lanes exchange values with others.
    Lanes,
    /// A minimum, a maximum, a choice or a condition is missing, or a comparison includes or excludes what it should not.
    Clamp,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 5] = [
        Self::Barrier,
        Self::Index,
        Self::Neighbour,
        Self::Lanes,
        Self::Clamp,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Barrier => "barrier",
            Self::Index => "index",
            Self::Neighbour => "neighbour",
            Self::Lanes => "lanes",
            Self::Clamp => "clamp",
        }
    }

    /// A line of a template with this mistake at each place that has room for it.
    pub fn mutations(self, line: &str) -> Vec<String> {
        let code = code(line);
        let mut edits = match self {
            Self::Barrier => barriers(code),
            Self::Index => indices(code, "+"),
            Self::Neighbour => indices(code, "^"),
            Self::Lanes => lanes(code),
            Self::Clamp => clamps(code),
        };
        edits.sort_by_key(|(range, _)| (range.start, range.end));
        let edited = |(range, by): (Range<usize>, String)| {
            [&line[..range.start], &by, &line[range.end..]].concat()
        };
        edits.into_iter().map(edited).collect()
    }
}

/// A mistake in a template.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Mutant {
    /// The file of the template, from `wgsl` on.
    pub file: String,
    /// The line, from 1 on.
    pub line: usize,
    /// The number of the place among those of its kind in the line.
    pub place: usize,
    /// The kind of the mistake.
    pub kind: Kind,
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, kind) = (&self.file, self.kind.name());
        write!(f, "{file}:{}:{}:{kind}", self.line, self.place)
    }
}

impl FromStr for Mutant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let parts: Vec<_> = text.split(':').collect();
            let [file, line, place, kind] = parts.as_slice() else {
                return None;
            };
            Some(Self {
                file: (*file).to_owned(),
                line: line.parse().ok()?,
                place: place.parse().ok()?,
                kind: Kind::ALL.into_iter().find(|known| known.name() == *kind)?,
            })
        };
        parse().ok_or_else(|| format!("the mutant is {text}, not FILE:LINE:PLACE:KIND"))
    }
}

impl Mutant {
    /// All mistakes that the template `text` of `file` has room for, with the line as it is and as it becomes.
    pub fn all(file: &str, text: &str) -> Vec<(Self, String, String)> {
        let mut all = vec![];
        for (number, line) in (1..).zip(text.lines()) {
            for kind in Kind::ALL {
                for (place, mutated) in kind.mutations(line).into_iter().enumerate() {
                    let file = file.to_owned();
                    let mutant = Self {
                        file,
                        line: number,
                        place,
                        kind,
                    };
                    all.push((mutant, line.to_owned(), mutated));
                }
            }
        }
        all
    }

    /// `text` with the mistake.
    pub fn made(&self, text: &str) -> String {
        let mut lines: Vec<_> = text.lines().collect();
        let mutated = lines
            .get(self.line - 1)
            .and_then(|line| self.kind.mutations(line).into_iter().nth(self.place));
        let mutated = mutated.unwrap_or_else(|| panic!("there is no {self}"));
        lines[self.line - 1] = &mutated;
        lines.join("\n") + "\n"
    }
}

/// A place in a line, and what stands there instead.
type Edit = (Range<usize>, String);

/// The part of a line that mistakes are made in: what computes. Directives, comments and declarations of types and memory do not.
fn code(line: &str) -> &str {
    let begins = |word: &str| line.trim_start().starts_with(word);
    let declares = ["#", "alias ", "struct ", "enable ", "var<", "@"];
    if declares.into_iter().any(begins) {
        return "";
    }
    line.split("//").next().unwrap_or("")
}

/// The index of the bracket that closes the one at `open`.
fn closing(code: &str, open: usize) -> Option<usize> {
    let mut depth = 0;
    for (i, c) in code.char_indices().skip_while(|(i, _)| *i < open) {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(i);
        }
    }
    None
}

/// The arguments between two brackets.
fn arguments(code: &str, between: Range<usize>) -> Vec<Range<usize>> {
    let mut found = vec![];
    let (mut depth, mut begin) = (0, between.start);
    for (i, c) in code[between.clone()].char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                found.push(begin..between.start + i);
                begin = between.start + i + 1;
            }
            _ => {}
        }
    }
    found.push(begin..between.end);
    let trimmed = |range: Range<usize>| {
        let text = &code[range.clone()];
        let start = range.start + (text.len() - text.trim_start().len());
        start..start + text.trim().len()
    };
    found.into_iter().map(trimmed).collect()
}

/// A call: its name, all of it, and its arguments.
struct Called<'a> {
    name: &'a str,
    whole: Range<usize>,
    arguments: Vec<Range<usize>>,
}

/// The calls that begin and end in a line, and the words before them.
fn calls(code: &str) -> Vec<Called<'_>> {
    let mut found = vec![];
    for (open, _) in code.match_indices('(') {
        let name = code[..open]
            .rsplit(|c: char| !in_word(c))
            .next()
            .unwrap_or("");
        let Some(close) = closing(code, open).filter(|_| !name.is_empty()) else {
            continue;
        };
        found.push(Called {
            name,
            whole: open - name.len()..close + 1,
            arguments: arguments(code, open + 1..close),
        });
    }
    found
}

fn in_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '$'
}

/// Barriers that are missing; a load behind barriers becomes a plain one.
fn barriers(code: &str) -> Vec<Edit> {
    let mut edits = vec![];
    for called in calls(code) {
        if called.name.ends_with("Barrier") && code[called.whole.end..].starts_with(';') {
            edits.push((called.whole.start..called.whole.end + 1, String::new()));
        }
        if called.name == "workgroupUniformLoad" {
            let loaded = &code[called.arguments[0].clone()];
            edits.push((called.whole, loaded.trim_start_matches('&').to_owned()));
        }
    }
    edits
}

/// Indices `operator` one.
fn indices(code: &str, operator: &str) -> Vec<Edit> {
    let mut edits = vec![];
    for (open, _) in code.match_indices('[') {
        let indexed = code[..open].ends_with(|c: char| in_word(c) || [']', ')'].contains(&c));
        if let Some(close) = closing(code, open).filter(|_| indexed) {
            let index = &code[open + 1..close];
            edits.push((open + 1..close, format!("({index}) {operator} 1")));
        }
    }
    edits
}

/// Names of constants and variables that count lanes or threads.
const COUNTS: [&str; 7] = [
    "LANES",
    "K_LANES",
    "WG",
    "WIDTH",
    "SOFTENERS",
    "subgroup_size",
    "subgroups",
];

/// Counts of lanes that are doubled, and exchanges with other lanes.
fn lanes(code: &str) -> Vec<Edit> {
    let mut edits = vec![];
    let mut at = 0;
    for word in code.split(|c: char| !in_word(c)) {
        let range = at..at + word.len();
        at = range.end + 1;
        let declared = code[range.end..].trim_start().starts_with(':')
            || ["let ", "var ", "const "]
                .into_iter()
                .any(|before| code[..range.start].ends_with(before));
        if COUNTS.contains(&word) && !declared {
            edits.push((range, format!("({word} * 2)")));
        }
    }
    for called in calls(code) {
        let exchanges = ["subgroupShuffleXor", "subgroupShuffle", "subgroupBroadcast"];
        if exchanges.contains(&called.name)
            && let Some(lane) = called.arguments.last()
        {
            let other = match &code[lane.clone()] {
                mask if mask.ends_with('u') && mask != "0u" => format!("{mask} * 2"),
                lane => format!("({lane}) + 1"),
            };
            edits.push((lane.clone(), other));
        }
    }
    edits
}

/// Clamps that are missing or off by one.
fn clamps(code: &str) -> Vec<Edit> {
    let mut edits = vec![];
    for Called {
        name,
        whole,
        arguments,
    } in calls(code)
    {
        let kept = match name {
            "min" | "max" | "clamp" => 0,
            "select" => 1,
            _ => continue,
        };
        if let Some(kept) = arguments.get(kept) {
            edits.push((whole, format!("({})", &code[kept.clone()])));
        }
    }
    for (operator, other) in [
        (" < ", " <= "),
        (" <= ", " < "),
        (" > ", " >= "),
        (" >= ", " > "),
    ] {
        let found = code.match_indices(operator);
        edits.extend(found.map(|(at, _)| (at..at + operator.len(), other.to_owned())));
    }
    edits.extend(condition(code));
    edits
}

/// A condition that compares, taken out, unless it is one that leaves a loop or a function.
fn condition(code: &str) -> Option<Edit> {
    let open = code.find("if (")? + 3;
    let close = closing(code, open)?;
    let condition = &code[open + 1..close];
    let compares = [" < ", " <= ", " > ", " >= "]
        .into_iter()
        .any(|operator| condition.contains(operator));
    let leaves = ["break;", "return", "continue;"]
        .into_iter()
        .any(|word| code.contains(word));
    let alone = !condition.contains("&&") && !condition.contains("||");
    (compares && alone && !leaves).then(|| (open + 1..close, "true".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use glimt::gpu::testing::mutants::{mutated, with};

    #[test]
    fn every_kind_of_mistake_is_made_at_every_place() {
        let of = |kind: Kind, line: &str| kind.mutations(line);
        assert_eq!(
            of(
                Kind::Barrier,
                "  if (x_SHARED) { workgroupBarrier(); }  // all"
            ),
            ["  if (x_SHARED) {  }  // all"]
        );
        assert_eq!(
            of(Kind::Barrier, "  return workgroupUniformLoad(&told);"),
            ["  return told;"]
        );
        assert_eq!(
            of(Kind::Index, "  y[i] = x[at[2] + 1u];"),
            [
                "  y[(i) + 1] = x[at[2] + 1u];",
                "  y[i] = x[(at[2] + 1u) + 1];",
                "  y[i] = x[at[(2) + 1] + 1u];"
            ]
        );
        assert_eq!(of(Kind::Neighbour, "  sums[$r],"), ["  sums[($r) ^ 1],"]);
        assert_eq!(
            of(
                Kind::Lanes,
                "  if (LANES > 4u) { s += subgroupShuffleXor(s, 4u); }"
            ),
            [
                "  if ((LANES * 2) > 4u) { s += subgroupShuffleXor(s, 4u); }",
                "  if (LANES > 4u) { s += subgroupShuffleXor(s, 4u * 2); }"
            ]
        );
        assert_eq!(
            of(
                Kind::Clamp,
                "  if (t < min(a, b)) { y = select(0.0, x, i >= n); }"
            ),
            [
                "  if (true) { y = select(0.0, x, i >= n); }",
                "  if (t <= min(a, b)) { y = select(0.0, x, i >= n); }",
                "  if (t < (a)) { y = select(0.0, x, i >= n); }",
                "  if (t < min(a, b)) { y = (x); }",
                "  if (t < min(a, b)) { y = select(0.0, x, i > n); }"
            ]
        );
        assert_eq!(
            of(Kind::Clamp, "    if (i >= n) { break; }"),
            ["    if (i > n) { break; }"]
        );
    }

    #[test]
    fn nothing_is_wrong_where_nothing_is_computed() {
        for line in [
            "#read w_q: array<vec4<u32>> @codes(WEIGHT, p.rows * UNITS)",
            "// min(a, b) of x[i] over LANES lanes",
            "var<workgroup> sums: array<f32, WG>;",
            "alias Rows = array<u32, LANES>;",
            "fn f(subgroups: u32) -> f32 {",
        ] {
            for kind in Kind::ALL {
                assert!(kind.mutations(line).is_empty(), "{line}");
            }
        }
    }

    #[test]
    fn a_mutant_is_made_in_its_own_file() {
        let name = "shared/some.wgsl:2:0:index";
        let mutant: Mutant = name.parse().expect("a name");
        assert_eq!(mutant.to_string(), name);
        let text = "a\nx[i]\n";
        let made = mutant.made(text);
        assert_eq!(made, "a\nx[(i) + 1]\n");
        let in_file = |file| {
            with("shared/some.wgsl", made.clone(), || {
                mutated(file, text).into_owned()
            })
        };
        assert_eq!(in_file("shared/some.wgsl"), made);
        assert_eq!(in_file("some.wgsl"), text);
        assert!("some.wgsl:2:0".parse::<Mutant>().is_err());
        let all = Mutant::all("shared/some.wgsl", text);
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].0, mutant);
    }
}
